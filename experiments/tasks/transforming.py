"""Transforming auto-encoders, which render images after known movements.

Hinton, Krizhevsky, Wang (2011), Transforming auto-encoders. The input is an
image moved at random, since coordinates would have no meaning if all images
were centred; the target is that image after a further, known transformation.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from capjax import losses, transforming
from capjax.data.transforms.preprocessing import Preprocessing
from capjax.kernels import geometry, rendering
from capjax.specs import Spec

from ..training import augmentation, train_step
from ..training.augmentation import Placement
from ..training.movements import Moved, as_transforms
from ..training.task import Task, described


class Movements(NamedTuple):
  """The largest movements of images.

  Attributes:
    max_jitter: largest shift of the input in pixels.
    max_shift: largest known shift in pixels. Where poses are shifts, both are
      by whole pixels, and the limits below are not used.
    max_rotation: largest rotation in degrees, of the input and of the known
      transformation.
    max_scaling: largest relative change of width and of height, of both.
    max_shear: largest shear of both, in pixels along x for each along y.
  """

  max_jitter: int = 5
  max_shift: int = 5
  max_rotation: float = 20.0
  max_scaling: float = 0.2
  max_shear: float = 0.2


_PAPER = Movements()


@described(transforming.TransformingAutoencoder)
def make_task(
  model: Spec,
  optimizer: optax.GradientTransformation,
  *,
  movements: Movements = _PAPER,
  canvas: int = 0,
) -> Task:
  """Rendering of moved images after known movements.

  Args:
    model: the auto-encoder, without `image_shape`, which follows from the data.
      The form of its poses is also that of the movements.
    optimizer: the optimiser of the parameters.
    movements: the largest movements.
    canvas: side in pixels of a black canvas in whose middle images are placed
      before they move; 0 for no canvas.
  """
  centred = Placement(max_shift=0, canvas=canvas)
  steps = augmentation.steps(centred)

  def describe(image_shape, num_classes):
    del num_classes
    shape = augmentation.canvas_of(image_shape, centred)
    augmentation.check_shift(
      shape,
      movements.max_jitter + movements.max_shift,
      ["max_jitter", "max_shift"],
      left=2,  # for shifts that do not occur in training
    )
    return model.with_arguments(image_shape=shape)

  suites = ["errors", "unseen_shifts", "few_labels", "equivariance"]
  suites.append("out_of_distribution")
  if movements.max_jitter:
    suites.append("coordinates")
  make_example = functools.partial(
    sample, pose=model.argument("pose"), movements=movements, steps=steps
  )
  return Task(
    describe,
    loss,
    measure,
    sample=make_example,
    sample_test=make_example,
    optimizer=optimizer,
    suites=lambda model: suites,
    after_training=("errors", "coordinates", "unseen_shifts"),
    chosen_by=None,
    unlabelled=True,
    steps=lambda shape: steps,
  )


def sample_movement(
  key: jax.Array, max_shift: int, *, pose: str, movements: Movements
) -> jax.Array:
  """Samples a movement [3 3], in pixels about the centre of the image.

  Args:
    key: random key.
    max_shift: largest shift in pixels.
    pose: `shift` or `affine`.
    movements: the limits of affine movements but for their shifts.
  """
  if pose == "shift":
    x, y = jax.random.randint(key, (2,), -max_shift, max_shift + 1)
    return geometry.affine_matrix(1.0, 1.0, 0.0, 0.0, x, y)
  scaling, shear = movements.max_scaling, movements.max_shear
  turn = jnp.deg2rad(movements.max_rotation)
  reach = jnp.array([scaling, scaling, turn, shear, max_shift, max_shift])
  sampled = reach * jax.random.uniform(key, (6,), minval=-1, maxval=1)
  return geometry.affine_matrix(1 + sampled[0], 1 + sampled[1], *sampled[2:])


def sample(
  key: jax.Array,
  index: jax.Array,
  images: jax.Array,
  labels: jax.Array,
  *,
  pose: str,
  movements: Movements,
  steps: Preprocessing,
) -> tuple[Moved, jax.Array]:
  """Makes a randomly moved image, and its target after a known movement.

  With `pose`, `movements` and `steps` bound, it is a `train_step.Sample`.
  """
  del labels
  image = steps(train_step.as_intensities(images[index]))
  place_key, movement_key = jax.random.split(key)
  place, movement = (
    sample_movement(some, largest, pose=pose, movements=movements)
    for some, largest in (
      (place_key, movements.max_jitter),
      (movement_key, movements.max_shift),
    )
  )
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
  """The loss of a batch and its metrics.

  Args:
    model: the auto-encoder.
    inputs: moved images [B H W C], and their known movements [B 3 3].
    targets: [B H W C] in [0, 1], the images after these movements.
    key: not used.
    step: not used.
  """
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
  """The reconstruction loss [B] of each image, and its presences [B I].

  Args:
    model: the auto-encoder.
    inputs: as for `loss`.
    targets: as for `loss`.
  """
  poses, presences = model.recognise(inputs.image)
  moved = model.move(poses, as_transforms(model, inputs.movement))
  rendered = model.generate(moved, presences)
  return {
    "reconstruction_loss": losses.reconstruction_loss(rendered, targets),
    "activations": presences,
  }
