r"""Trains generative capsules and the network that recognises them.

  python -m experiments.train_generative --workdir=runs/generative \
    --data_dir=DIR \
    --flagfile=experiments/presets/generative/generative_mnist.cfg

Smith, Schut, Gal and van der Wilk (2020), Capsule networks: a probabilistic
perspective.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import optax
from absl import app, flags
from flax import nnx

from capjax import data, losses
from capjax.generative import amortised, guides, inference
from capjax.specs import Spec

from . import launch
from .evaluation import linear_probes
from .flags import augmentation, limits, optimizer, runs
from .run import directory
from .training import task as tasks
from .training import train_step
from .training.task import Task

_NUM_CAPSULES = flags.DEFINE_list(
  "num_capsules",
  ["16", "16"],
  "Number of capsules in each layer, from the parts up.",
)
_TEMPLATE_SIZE = flags.DEFINE_integer(
  "template_size",
  11,
  "Height and width of a template, in pixels.",
  lower_bound=2,
)
_CONV_FEATURES = flags.DEFINE_list(
  "conv_features", ["128"] * 4, "Channels of the guide's convolutions."
)
_WIDTH = flags.DEFINE_integer(
  "width", 128, "Width of the tokens in the set transformer.", lower_bound=1
)
_TEMPERATURE = flags.DEFINE_float(
  "temperature",
  0.5,
  "Temperature of the relaxed presences, at the start.",
  lower_bound=1e-3,
)
_FINAL_TEMPERATURE = flags.DEFINE_float(
  "final_temperature",
  None,
  "Temperature at --num_steps, approached geometrically from --temperature,"
  " and used in validation and evaluation; by default the temperature is "
  "constant.",
  lower_bound=1e-3,
)
_PIXEL_SCALE = flags.DEFINE_float(
  "pixel_scale",
  0.15,
  "Standard deviation of a pixel's intensity.",
  lower_bound=1e-3,
)
_SCALE_FLOOR = flags.DEFINE_float(
  "scale_floor",
  0.1,
  "Lower limit of the standard deviation of a child's pose.",
  lower_bound=1e-3,
)
_OFF_SCALE = flags.DEFINE_float(
  "off_scale",
  2.0,
  "Standard deviation, sigma_off, of the pose of an absent child. Without "
  "--gaussian_poses, a child in the pose that its parent predicts gains 6 "
  "ln(sigma_off / sigma) nats by being present, whatever it renders: 11.6 "
  "at the default with sigma = 0.29. Every value above sigma makes absence "
  "cost something.",
  lower_bound=1e-3,
)
_SCALE_PRIOR = flags.DEFINE_float(
  "scale_prior",
  None,
  "Standard deviation of the logarithm in a log-normal prior of the "
  "standard deviations of poses. --scale_floor is then the median of this "
  "prior, not a limit; with 0.5 they stay above 0.22 times the median.",
  lower_bound=1e-3,
)
_GAUSSIAN_POSES = flags.DEFINE_bool(
  "gaussian_poses",
  False,
  "The guide infers a Gaussian for each pose. Without it poses are point "
  "estimates.",
)
_START_FROM = flags.DEFINE_string(
  "start_from",
  None,
  "Folder of a run without --gaussian_poses, whose best model initialises "
  "this one.",
)
_NUM_IMPORTANCE = flags.DEFINE_integer(
  "num_importance",
  1,
  "Number of samples of the importance-weighted bound in training; more "
  "than one needs --gaussian_poses.",
  lower_bound=1,
)
flags.set_default(augmentation.MAX_SHIFT, 0)
limits.require_counts(_NUM_CAPSULES, _CONV_FEATURES, example="16,16")
flags.register_validator(
  _START_FROM, lambda folder: folder != "", "name the folder of a run"
)
flags.register_multi_flags_validator(
  ["num_importance", "gaussian_poses"],
  lambda given: given["gaussian_poses"] or given["num_importance"] == 1,
  message="more than one sample needs --gaussian_poses; point estimates of "
  "poses give no bound on log p(x)",
)


def describe(image_shape: Sequence[int], num_classes: int) -> Spec:
  """The model and its guide that the flags describe."""
  del num_classes
  arguments = dict(
    image_shape=augmentation.canvas_of(image_shape),
    num_capsules=[int(count) for count in _NUM_CAPSULES.value],
    template_size=_TEMPLATE_SIZE.value,
    conv_features=[int(count) for count in _CONV_FEATURES.value],
    width=_WIDTH.value,
    temperature=_FINAL_TEMPERATURE.value or _TEMPERATURE.value,
    pixel_scale=_PIXEL_SCALE.value,
    scale_floor=_SCALE_FLOOR.value,
    scale_prior=_SCALE_PRIOR.value,
    off_scale=_OFF_SCALE.value,
    gaussian_poses=_GAUSSIAN_POSES.value,
  )
  return Spec(amortised.amortised_capsules, arguments)


def describe_first(image_shape: Sequence[int], num_classes: int) -> Spec:
  """The same model with point estimates of poses."""
  maker, arguments = describe(image_shape, num_classes)
  return Spec(maker, arguments | {"gaussian_poses": False})


def begin(
  model: guides.AmortisedCapsules, train: data.Dataset, validation: data.Dataset
) -> None:
  """Copies the parameters of the run --start_from, without scales of poses.

  A run that resumes from its own state does not read the other run.
  """
  del validation
  if _START_FROM.value and not _resumes():
    run = directory.Run(_START_FROM.value)
    run.read_summary()  # fails if there is no run
    task = TASK._replace(describe=describe_first)
    _, earlier, _ = tasks.restore_model(run, task, train, runs.loop_config())
    nnx.update(model, nnx.state(earlier))


def _resumes() -> bool:
  """Whether the run has a saved state; makes no folder."""
  run = directory.Run(runs.WORKDIR.value)
  there = (run.workdir / "checkpoints").exists()
  return there and tasks.saved_by(run, TASK, runs.loop_config()).has_state()


def loss(
  model: guides.AmortisedCapsules,
  images: jax.Array,
  labels: jax.Array,
  key: jax.Array,
  step: jax.Array,
) -> tuple[jax.Array, train_step.Metrics]:
  """The loss of a batch: the negative objective and log prior of scales."""
  del labels
  temperature = temperature_at(step)
  if _NUM_IMPORTANCE.value == 1:
    bounds = model.elbo(images, key, temperature=temperature)
  else:
    bounds, _ = inference.importance_bound(
      model.capsules,
      model.guide,
      images,
      key,
      num_samples=_NUM_IMPORTANCE.value,
      temperature=temperature,
    )
  value = -jnp.mean(bounds) - model.capsules.log_scale_prior()
  return value, {"loss": value}


def temperature_at(step: jax.Array) -> jax.Array | None:
  """The temperature at a step; None for the temperature of the model."""
  start, end = _TEMPERATURE.value, _FINAL_TEMPERATURE.value
  if end is None:
    return None
  return optax.exponential_decay(
    start, runs.NUM_STEPS.value, end / start, end_value=end
  )(step)


def measure(
  model: guides.AmortisedCapsules, images: jax.Array, labels: jax.Array
) -> train_step.Metrics:
  """The objective, reconstruction errors, and numbers of present capsules.

  With Gaussian poses the objective of one sample is the ELBO, and is recorded
  under that name too. With point estimates it is no bound on log p(x): see
  `guides.elbo`.
  """
  del labels
  objective = model.elbo(images, jax.random.key(0))
  errors = losses.reconstruction_loss(model.reconstruct(images), images)
  present = {
    f"present_{number}": jnp.sum(presences, axis=1)
    for number, presences in enumerate(model.activities(images), start=1)
  }
  return {
    "objective": objective,
    **({"elbo": objective} if model.guide.has_scales else {}),
    "reconstruction_loss": errors,
    **present,
  }


def features(
  model: guides.AmortisedCapsules, images: jax.Array
) -> dict[str, jax.Array]:
  """Log odds of presence, and poses, of the top capsules for linear probes.

  Appendix D of Smith et al. (2020) classifies from the log odds of q(t | x).
  The layers below are computed without noise.
  """
  posteriors, _ = model.guide(images)
  return linear_probes.features(posteriors[-1].log_odds, posteriors[-1].poses)


TASK = Task(
  describe,
  loss,
  measure,
  sample=train_step.sample_labelled(augmentation.augment_image),
  sample_test=train_step.sample_labelled(augmentation.test_image),
  make_optimizer=optimizer.make_optimizer,
  suites=lambda model: [
    "errors",
    "spectra",
    "parts",
    "linear",
    "swaps",
    "duplicates",
    "repair",
    *(["importance", "chains"] if model.guide.has_scales else []),
  ],
  after_training=("errors", "parts", "linear"),
  chosen_by="objective",
  begin=begin,
  prepare=augmentation.prepare_image,
  features=features,
)


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {argv[1:]}")
  with runs.clear_errors():
    runs.refuse("train_generative", ["stop_accuracy"])
  launch.train(TASK)


if __name__ == "__main__":
  flags.mark_flag_as_required("workdir")
  limits.run(main)
