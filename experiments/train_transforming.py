r"""Trains transforming auto-encoders, which render images after known shifts.

  python -m experiments.train_transforming --workdir=runs/transforming \
    --data_dir=DIR \
    --flagfile=experiments/presets/transforming/transforming_mnist.cfg

Hinton, Krizhevsky, Wang (2011), Transforming auto-encoders. The input is an
image moved at random, since coordinates would have no meaning if all images
were centred; the target is that image after a further, known transformation.
"""

from absl import flags

from capjax.specs import Spec
from capjax.transforming import OUTPUTS, POSES, TransformingAutoencoder

from . import launch
from .flags import arithmetic, errors, limits, optimizer
from .tasks import transforming
from .training.task import Task

_POSE = flags.DEFINE_enum(
  "pose",
  "shift",
  list(POSES),
  "Form of a capsule's pose, and of the transformations of images.",
)
_OUTPUT = flags.DEFINE_enum(
  "output",
  "sigmoid",
  list(OUTPUTS),
  "Nonlinearity applied to the sum of the capsules' outputs; the paper uses"
  " a linear output.",
)
_NUM_CAPSULES = flags.DEFINE_integer(
  "num_capsules", 30, "Number of capsules.", lower_bound=1
)
_RECOGNITION_UNITS = flags.DEFINE_integer(
  "recognition_units", 10, "Recognition units of each capsule.", lower_bound=1
)
_GENERATION_UNITS = flags.DEFINE_integer(
  "generation_units", 20, "Generation units of each capsule.", lower_bound=1
)
_MAX_JITTER = flags.DEFINE_integer(
  "max_jitter",
  5,
  "Largest shift of the input in pixels, by whole pixels for --pose=shift. "
  "With 0 the coordinates have no meaning.",
  lower_bound=0,
)
_MAX_SHIFT = flags.DEFINE_integer(
  "max_shift",
  5,
  "Largest known shift in pixels, by whole pixels for --pose=shift.",
  lower_bound=0,
)
_MAX_ROTATION = flags.DEFINE_float(
  "max_rotation",
  20.0,
  "Largest rotation in degrees, of the input and of the known "
  "transformation; for affine poses.",
  lower_bound=0.0,
  upper_bound=180.0,
)
_MAX_SCALING = flags.DEFINE_float(
  "max_scaling",
  0.2,
  "Largest relative change of width and of height; otherwise as "
  "--max_rotation.",
  lower_bound=0.0,
  upper_bound=0.9,
)
_MAX_SHEAR = flags.DEFINE_float(
  "max_shear",
  0.2,
  "Largest shear, in pixels along x for each pixel along y; otherwise as "
  "--max_rotation.",
  lower_bound=0.0,
  upper_bound=10.0,
)
_CANVAS = flags.DEFINE_integer(
  "canvas",
  0,
  "Side in pixels of a black canvas in whose middle images are placed before "
  "they move; 0 for no canvas.",
  lower_bound=0,
  upper_bound=10_000,
)
_AFFINE_FLAGS = ("max_rotation", "max_scaling", "max_shear")


def make_task() -> Task:
  """The task that the flags describe."""
  arguments = dict(
    num_capsules=_NUM_CAPSULES.value,
    recognition_units=_RECOGNITION_UNITS.value,
    generation_units=_GENERATION_UNITS.value,
    pose=_POSE.value,
    output=_OUTPUT.value,
    dtype=arithmetic.dtype(),
  )
  return transforming.make_task(
    Spec(TransformingAutoencoder, arguments),
    optimizer.make_optimizer(),
    movements=transforming.Movements(
      max_jitter=_MAX_JITTER.value,
      max_shift=_MAX_SHIFT.value,
      max_rotation=_MAX_ROTATION.value,
      max_scaling=_MAX_SCALING.value,
      max_shear=_MAX_SHEAR.value,
    ),
    canvas=_CANVAS.value,
  )


def main() -> None:
  with errors.clear_errors():
    optimizer.check_flags()
    limits.refuse("train_transforming", ["stop_accuracy"])
    if _POSE.value == "shift":
      limits.refuse("--pose=shift", _AFFINE_FLAGS)
  launch.train(make_task)


if __name__ == "__main__":
  limits.require_folder_of_run()
  limits.run(main)
