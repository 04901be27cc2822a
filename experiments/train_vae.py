r"""Trains the variational auto-encoder that capsule RBMs are compared with.

  python -m experiments.train_vae --workdir=runs/vae --data_dir=DIR \
    --flagfile=experiments/presets/vae/vae_mnist.cfg

Li and Zhu (2019), Capsule generative models, section 3.1; the loss is that of
Kingma and Welling (2014), Auto-encoding variational Bayes.
"""

from absl import flags

from capjax import baselines
from capjax.specs import Spec

from . import launch
from .flags import arithmetic, errors, limits, optimizer, runs
from .tasks import vae
from .training.task import Task

_NUM_LATENTS = flags.DEFINE_integer(
  "num_latents", 40, "Number of Gaussian latent variables.", lower_bound=1
)
_PIXEL_SCALE = flags.DEFINE_float(
  "pixel_scale",
  None,
  "Standard deviation of Gaussian pixels; by default pixels are Bernoulli "
  "variables.",
  lower_bound=1e-3,
)
flags.set_default(runs.BATCH_SIZE, 100)


def make_task() -> Task:
  """The task that the flags describe."""
  arguments = dict(
    num_latents=_NUM_LATENTS.value,
    pixel_scale=_PIXEL_SCALE.value,
    dtype=arithmetic.dtype(),
  )
  return vae.make_task(
    Spec(baselines.ConvVAE, arguments), optimizer.make_optimizer()
  )


def main() -> None:
  with errors.clear_errors():
    optimizer.check_flags()
    limits.refuse("train_vae", ["stop_accuracy"])
  launch.train(make_task)


if __name__ == "__main__":
  limits.require_folder_of_run()
  limits.run(main)
