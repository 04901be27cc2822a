r"""Trains transforming auto-encoders, which render images after known shifts.

  python -m experiments.train_transforming --workdir=runs/transforming \
    --data_dir=DIR \
    --flagfile=experiments/presets/transforming/transforming_mnist.cfg

Hinton, Krizhevsky, Wang (2011), Transforming auto-encoders. The input is an
image moved at random, since coordinates would have no meaning if all images
were centred; the target is that image after a further, known transformation.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from absl import app, flags
from flax import nnx

from capjax import losses, transforming
from capjax.kernels import geometry, rendering
from capjax.specs import Spec

from . import launch
from .evaluation.transforming import Moved, as_transforms
from .flags import limits, optimizer, runs
from .training import train_step
from .training.task import Task

_POSE = flags.DEFINE_enum(
  "pose",
  "shift",
  list(transforming.POSES),
  "Form of a capsule's pose, and of the transformations of images.",
)
_OUTPUT = flags.DEFINE_enum(
  "output",
  "sigmoid",
  list(transforming.OUTPUTS),
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
_AFFINE_FLAGS = ("max_rotation", "max_scaling", "max_shear")


def describe(image_shape: Sequence[int], num_classes: int) -> Spec:
  """The network that the flags describe."""
  del num_classes
  limits.check_shift(
    image_shape,
    _MAX_JITTER.value + _MAX_SHIFT.value,
    ["max_jitter", "max_shift"],
    left=2,  # for shifts that do not occur in training
  )
  arguments = dict(
    image_shape=tuple(image_shape),
    num_capsules=_NUM_CAPSULES.value,
    recognition_units=_RECOGNITION_UNITS.value,
    generation_units=_GENERATION_UNITS.value,
    pose=_POSE.value,
    output=_OUTPUT.value,
  )
  return Spec(transforming.TransformingAutoencoder, arguments)


def sample_movement(key: jax.Array, max_shift: int) -> jax.Array:
  """Samples a movement [3 3], in pixels about the centre of the image."""
  if _POSE.value == "shift":
    x, y = jax.random.randint(key, (2,), -max_shift, max_shift + 1)
    return geometry.affine_matrix(1.0, 1.0, 0.0, 0.0, x, y)
  scaling, shear = _MAX_SCALING.value, _MAX_SHEAR.value
  turn = jnp.deg2rad(_MAX_ROTATION.value)
  reach = jnp.array([scaling, scaling, turn, shear, max_shift, max_shift])
  drawn = reach * jax.random.uniform(key, (6,), minval=-1, maxval=1)
  return geometry.affine_matrix(1 + drawn[0], 1 + drawn[1], *drawn[2:])


def sample(
  key: jax.Array, index: jax.Array, images: jax.Array, labels: jax.Array
) -> tuple[Moved, jax.Array]:
  """Makes a randomly moved image, and its target after a known movement."""
  del labels
  image = train_step.as_intensities(images[index])
  place_key, movement_key = jax.random.split(key)
  place = sample_movement(place_key, _MAX_JITTER.value)
  movement = sample_movement(movement_key, _MAX_SHIFT.value)
  # Rendered from the whole image, so that parts can return into the frame.
  target = rendering.transform(image, geometry.compose(movement, place))
  return Moved(rendering.transform(image, place), movement, place), target


def loss(
  model: transforming.TransformingAutoencoder,
  inputs: Moved,
  targets: jax.Array,
  key: jax.Array,
  step: jax.Array,
) -> tuple[jax.Array, train_step.Metrics]:
  """The loss of a batch and its metrics."""
  del key, step
  transforms = as_transforms(model, inputs.movement)
  return transforming.transforming_loss(
    model, inputs.image, transforms, targets
  )


def measure(
  model: transforming.TransformingAutoencoder,
  inputs: Moved,
  targets: jax.Array,
) -> train_step.Metrics:
  """The reconstruction loss of each image, and its presences."""
  poses, presences = model.recognise(inputs.image)
  moved = model.move(poses, as_transforms(model, inputs.movement))
  drawn = model.generate(moved, presences)
  return {
    "reconstruction_loss": losses.reconstruction_loss(drawn, targets),
    "activations": presences,
  }


def suites_of(model: nnx.Module) -> list[str]:
  """The names of the suites that apply to a model, given the flags."""
  del model
  names = ["errors", "unseen_shifts", "few_labels"]
  return names + (["coordinates"] if _MAX_JITTER.value else [])


TASK = Task(
  describe,
  loss,
  measure,
  sample=sample,
  sample_test=sample,
  make_optimizer=optimizer.make_optimizer,
  suites=suites_of,
  after_training=("errors", "coordinates", "unseen_shifts"),
  chosen_by=None,
)


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {argv[1:]}")
  with runs.clear_errors():
    runs.refuse("train_transforming", ["stop_accuracy"])
    if _POSE.value == "shift":
      runs.refuse("--pose=shift", _AFFINE_FLAGS)
  launch.train(TASK)


if __name__ == "__main__":
  flags.mark_flag_as_required("workdir")
  limits.run(main)
