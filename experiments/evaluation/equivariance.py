"""A suite: how well poses encode movements of the image."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from capjax import baselines, transforming
from capjax.evaluation import equivariance as measuring
from capjax.evaluation import views

from ..run import directory
from ..training import task as tasks
from ..training import train_step
from . import models, pixels
from .models import Options, Scores, Trained
from .suite import Main, suite

_NUM_FITTED = 2000  # training images
_NUM_TESTED = 1000  # test images, by default
DEGREES, _FACTOR = 30.0, 0.25
_MOST_PIXELS = 2**14  # largest size of an image for principal components


class _Move(NamedTuple):
  """A family of transformations with one parameter.

  Attributes:
    name: its name, with the unit of the parameter.
    move: `(image [H W C], parameter) -> image`.
    middle: the value of the parameter without effect.
    reach: the largest distance from this value.
  """

  name: str
  move: Callable
  middle: float
  reach: float


@suite(
  "images",
  require=models.enough(_NUM_TESTED, at_least=2),
  main=Main("rotation_degrees_linear_r2", "R² of rotation from poses"),
)
def equivariance(
  run: directory.Run, trained: Trained, options: Options
) -> Scores:
  """Measures how well poses encode rotation, shift and scale of the image.

  Images are rotated by up to 30 degrees, shifted by up to a seventh of their
  side along x or y, or scaled by factors of 0.75 to 1.25, each sampled
  uniformly. Pixels that come in from outside have the level of the image's
  border. The poses are those of all class capsules; of all parts of a
  transforming auto-encoder, with their presences; or of the top objects of a
  stacked or generative capsule model, with their presences. For a network
  without capsules, they are the units of its last hidden layer.

  Returns:
    For each of `rotation_degrees`, `shift_x_pixels`, `shift_y_pixels` and
    `scale_factor`: the largest distance from no effect (`_reach`); R^2 and the
    root mean square error, in that unit, of predictions from the poses of one
    image, by ridge regression (`_linear`) and by a small network (`_mlp`); and,
    for a move by half of the reach, the errors of `measuring.Change`.
    `num_poses` is the number of values in all poses of an image. With `pixels_`
    before `linear` and `mlp`, a control without a model: predictions from as
    many principal components of the pixels (see `pixels.components`), for
    images of up to 16,384 values.
    All are fitted on the first 2000 training images, including those for
    validation, and tested on test images.
  """
  del run
  tests, _ = models.first(trained, options.images or _NUM_TESTED, at_least=2)
  fitted = trained.load_train().images[:_NUM_FITTED]
  scores: Scores = {"num_images": len(tests), "num_fitted": len(fitted)}
  side = min(models.input_shape(trained)[:2])
  both = fitted, tests
  for number, move in enumerate(_moves(side)):
    features_of = _features_of(trained, move)
    still, moved = (
      [np.float64(features_of(x, np.full(len(x), y))["poses"]) for x in both]
      for y in (move.middle, move.middle + move.reach / 2)
    )
    random = np.random.default_rng(number)
    ends = move.middle - move.reach, move.middle + move.reach
    values = [random.uniform(*ends, len(x)).astype(np.float32) for x in both]
    known, seen = (features_of(*x) for x in zip(both, values, strict=True))
    num_poses = known["poses"].shape[1]
    scores["num_poses"] = num_poses
    scores[f"{move.name}_reach"] = move.reach
    features = {"": (known["poses"], seen["poses"])}
    if "pixels" in known:
      features["pixels_"] = pixels.components(
        known["pixels"], seen["pixels"], num_poses
      )
    for prefix, pair in features.items():
      own, others = map(np.float64, pair)
      found = measuring.readouts(
        own, values[0], others, values[1], standardise=not prefix
      )
      for kind, readout in found.items():
        scores[f"{move.name}_{prefix}{kind}_r2"] = readout.r2
        scores[f"{move.name}_{prefix}{kind}_error"] = readout.error
    change = measuring.change(still[0], moved[0], still[1], moved[1])
    for kind, value in change._asdict().items():
      scores[f"{move.name}_{kind}"] = value
  return scores


SUITES = (equivariance,)


def seventh(side: int) -> float:
  """A seventh of the side of an image, in whole pixels, at least one."""
  return float(max(1, round(side / 7)))


def _moves(side: int) -> tuple[_Move, ...]:
  shift = seventh(side)
  return (
    _Move("rotation_degrees", views.rotate, 0.0, DEGREES),
    _Move("shift_x_pixels", lambda x, n: views.translate(x, n, 0), 0.0, shift),
    _Move("shift_y_pixels", lambda x, n: views.translate(x, 0, n), 0.0, shift),
    _Move("scale_factor", views.scale, 1.0, _FACTOR),
  )


def _features_of(trained: Trained, move: _Move) -> Callable:
  """Makes a function of images [N H W C] and parameters [N] of a move.

  It gives the poses and pixels of the moved images, as {"poses": [N F],
  "pixels": [N H*W*C]}; without pixels for large images.
  """
  steps = trained.task.steps(trained.test.images.shape[1:])

  def sample(key, index, images, values):
    del key
    image = steps.prepare(train_step.as_intensities(images[index]))
    moved = on_background(lambda x: move.move(x, values[index]), image)
    return steps.normalise(moved), 0

  def measure(model, images, targets):
    del targets
    flat = images.reshape(len(images), -1)
    few = {"pixels": flat} if flat.shape[1] <= _MOST_PIXELS else {}
    return {"poses": poses(trained.task, model, images), **few}

  evaluate = tasks.make_evaluate(measure, sample, trained.config.batch_size)
  return lambda images, values: evaluate(
    trained.model, images, np.float32(values)
  )


def on_background(
  move: Callable[[jax.Array], jax.Array], image: jax.Array
) -> jax.Array:
  """Moves an image; pixels from outside have the median of its border.

  With zeros there, an image on grey would show how far it was moved.
  """
  border = jnp.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])
  level = jnp.median(border, axis=0)
  return move(image - level) + level


def poses(task: tasks.Task, model: nnx.Module, images: jax.Array) -> jax.Array:
  """The numbers of all poses of each image, [B F]; see `equivariance`.

  Args:
    task: the task that the model was trained for.
    model: the model.
    images: [B H W C], its input.
  """
  if task.features is not None:
    return task.features(model, images)["presence_and_pose"]
  if isinstance(model, baselines.CapsNetBaseline):
    return model.hidden(images)
  if isinstance(model, transforming.TransformingAutoencoder):
    found = model.recognise(images)
    flat = found.poses.reshape(len(images), -1)
    return jnp.concatenate([flat, found.presences], axis=1)
  return model(images).poses.reshape(len(images), -1)
