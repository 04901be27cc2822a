r"""Trains the variational auto-encoder that capsule RBMs are compared with.

  python -m experiments.train_vae --workdir=runs/vae --data_dir=DIR \
    --flagfile=experiments/presets/vae/vae_mnist.cfg

Li and Zhu (2019), Capsule generative models, section 3.1; the loss is that of
Kingma and Welling (2014), Auto-encoding variational Bayes.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from absl import app, flags

from capjax import baselines
from capjax.specs import Spec

from . import launch
from .flags import limits, optimizer, runs
from .training import train_step
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


def describe(image_shape: Sequence[int], num_classes: int) -> Spec:
  """The network that the flags describe."""
  del num_classes
  arguments = dict(
    image_shape=tuple(image_shape),
    num_latents=_NUM_LATENTS.value,
    pixel_scale=_PIXEL_SCALE.value,
  )
  return Spec(baselines.ConvVAE, arguments)


def loss(
  model: baselines.ConvVAE,
  images: jax.Array,
  labels: jax.Array,
  key: jax.Array,
  step: jax.Array,
) -> tuple[jax.Array, train_step.Metrics]:
  """The negative ELBO of a batch."""
  del labels, step
  value = -jnp.mean(model.log_weights(key, images))
  return value, {"loss": value}


def measure(
  model: baselines.ConvVAE, images: jax.Array, labels: jax.Array
) -> train_step.Metrics:
  """Reconstruction errors, and the ELBO with one sample for each image."""
  del labels
  errors = jnp.abs(model.reconstruct(images) - images)
  return {
    "reconstruction_error": jnp.mean(errors, axis=(1, 2, 3)),
    "elbo": model.log_weights(jax.random.key(0), images),
  }


_SAMPLE = train_step.sample_labelled(lambda key, image: image)

TASK = Task(
  describe,
  loss,
  measure,
  sample=_SAMPLE,
  sample_test=_SAMPLE,
  make_optimizer=optimizer.make_optimizer,
  suites=lambda model: ["errors", "spectra", "bound"],
  after_training=("errors", "spectra"),
  chosen_by="elbo",
)


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {argv[1:]}")
  with runs.clear_errors():
    runs.refuse("train_vae", ["stop_accuracy"])
  launch.train(TASK)


if __name__ == "__main__":
  flags.mark_flag_as_required("workdir")
  limits.run(main)
