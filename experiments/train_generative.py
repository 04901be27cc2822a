r"""Trains generative capsules and the network that recognises them.

  python -m experiments.train_generative --workdir=runs/generative \
    --data_dir=DIR \
    --flagfile=experiments/presets/generative/generative_mnist.cfg

Smith, Schut, Gal and van der Wilk (2020), Capsule networks: a probabilistic
perspective.
"""

import optax
from absl import flags

from capjax.generative import amortised
from capjax.specs import Spec

from . import launch
from .flags import arithmetic, augmentation, errors, limits, optimizer, runs
from .tasks import generative
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
_NUM_IMPORTANCE = flags.DEFINE_integer(
  "num_importance",
  1,
  "Number of samples of the importance-weighted bound in training; more "
  "than one needs --gaussian_poses.",
  lower_bound=1,
)
flags.set_default(augmentation.MAX_SHIFT, 0)
limits.require_counts(_NUM_CAPSULES, _CONV_FEATURES, example="16,16")
flags.register_multi_flags_validator(
  ["num_importance", "gaussian_poses"],
  lambda given: given["gaussian_poses"] or given["num_importance"] == 1,
  message="more than one sample needs --gaussian_poses; point estimates of "
  "poses give no bound on log p(x)",
)


def make_task() -> Task:
  """The task that the flags describe."""
  first, last = _TEMPERATURE.value, _FINAL_TEMPERATURE.value
  arguments = dict(
    num_capsules=[int(count) for count in _NUM_CAPSULES.value],
    template_size=_TEMPLATE_SIZE.value,
    conv_features=[int(count) for count in _CONV_FEATURES.value],
    width=_WIDTH.value,
    temperature=last or first,
    pixel_scale=_PIXEL_SCALE.value,
    scale_floor=_SCALE_FLOOR.value,
    scale_prior=_SCALE_PRIOR.value,
    off_scale=_OFF_SCALE.value,
    gaussian_poses=_GAUSSIAN_POSES.value,
    dtype=arithmetic.dtype(),
  )
  temperature = None
  if last is not None:
    temperature = optax.exponential_decay(
      first, runs.NUM_STEPS.value, last / first, end_value=last
    )
  return generative.make_task(
    Spec(amortised.amortised_capsules, arguments),
    optimizer.make_optimizer(),
    placement=augmentation.placement(),
    temperature=temperature,
    num_importance=_NUM_IMPORTANCE.value,
  )


def main() -> None:
  with errors.clear_errors():
    optimizer.check_flags()
    limits.refuse("train_generative", ["stop_accuracy"])
  launch.train(make_task)


if __name__ == "__main__":
  limits.require_folder_of_run()
  limits.run(main)
