"""Suites that ask what routing is good for, and what a network costs.

They answer the questions of Paik et al. (2019), Mitterreiter et al. (2023) and
Everett et al. (2023): is there a parse tree, do capsules starve, does more
routing help, and what does a network of the same size do without capsules.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from capjax import losses
from capjax.evaluation import diagnostics, inspection, operations, views
from capjax.evaluation import equivariance as measuring

from ..run import directory
from ..training import task as tasks
from ..training import train_step
from . import equivariance, models
from .models import Options, Scores, Trained
from .suite import suite

_NUM_IMAGES = 1000  # test images, by default
_NUM_FITTED = 2000  # training images
_ITERATIONS = 5  # evaluated at least, if the routing can do so many
_ALIVE = 0.01  # the activation below which a capsule counts as inactive


@suite("images")
def parse_tree(
  run: directory.Run, trained: Trained, options: Options
) -> Scores:
  """Measures whether the parents of parts depend on the image.

  After Mitterreiter et al. (2023), who found no parse tree in CapsNet. Without
  a parse tree, the parents of parts do not depend on the image, change when the
  image moves, or do not lead to its class.

  Returns:
    The entropy of the coefficients (`routing_entropy`, 1 is uniform); how much
    they depend on the image (`image_information`); the share that goes to the
    labelled class (`share_to_class`); for images rotated by 30 degrees and for
    images shifted by a seventh of their side, in both directions, the agreement
    of the parents with those of the unmoved image
    (`diagnostics.parse_agreement`). All are of the last layer.
  """
  del run
  images, labels = models.first(trained, options.images or _NUM_IMAGES)
  model, steps = trained.model, trained.task.steps(images.shape[1:])
  num_types = inspection.positioned_types(model)

  def sample(key, index, images, labels, degrees, pixels):
    del key
    image = steps.prepare(train_step.as_intensities(images[index]))
    pair = image, _moved(image, degrees, pixels)
    return tuple(map(steps.normalise, pair)), labels[index]

  def measure(model, pair, labels):
    upright, moved = map(model, pair)
    parse = diagnostics.parse_agreement(
      upright.coefficients, moved.coefficients, num_types=num_types
    )
    sent = jnp.maximum(upright.coefficients, 0)
    to_class = jnp.take_along_axis(sent, labels[:, None, None], axis=2)
    total = jnp.sum(sent, axis=(1, 2))
    return {
      **parse._asdict(),
      "routing_entropy": diagnostics.routing_entropy(upright.coefficients),
      "share_to_class": jnp.sum(to_class, axis=(1, 2))
      / jnp.where(total > 0, total, 1),
    }

  evaluate = tasks.make_evaluate(measure, sample, trained.config.batch_size)
  scores: Scores = {"num_images": len(images)}
  found = []
  for name, moves in _moves(models.input_shape(trained)).items():
    found = [
      evaluate(model, images, labels, *map(np.float32, move)) for move in moves
    ]
    for kind in diagnostics.ParseAgreement._fields:
      scores[f"{name}_{kind}"] = float(np.mean([x[kind] for x in found]))
  upright = found[0]
  for kind in ("routing_entropy", "share_to_class"):
    scores[kind] = float(np.mean(upright[kind]))
  return {**scores, "image_information": _information(trained, images)}


@suite("images", require=models.enough(_NUM_IMAGES, at_least=2))
def moved(run: directory.Run, trained: Trained, options: Options) -> Scores:
  """Measures what rotations and shifts change: classes, accuracy and poses.

  Images are rotated by 30 degrees, or shifted along x by a seventh of their
  side, in both directions; the numbers are means over both. The poses are those
  of the suite `equivariance`; without capsules, the last hidden layer. Maps of
  poses are fitted on the first 2000 training images, including those for
  validation.

  Returns:
    The accuracy of unmoved images; for each move its size (`_degrees`,
    `_pixels`), the accuracy, the share of images whose predicted class changes
    (`_changed`), and the errors of `measuring.Change`.
  """
  del run
  images, labels = models.first(
    trained, options.images or _NUM_IMAGES, at_least=2
  )
  fitted = trained.load_train().images[:_NUM_FITTED]
  steps = trained.task.steps(images.shape[1:])

  def sample(key, index, images, targets, degrees, pixels):
    del key
    image = steps.prepare(train_step.as_intensities(images[index]))
    image = _moved(image, degrees, pixels)
    return (image, steps.normalise(image)), targets[index]

  def measure(model, pair, targets):
    del targets
    images, normalised = pair
    return {
      "class": jnp.argmax(trained.task.scores(model, images), axis=-1),
      "poses": equivariance.poses(trained.task, model, normalised),
    }

  evaluate = tasks.make_evaluate(measure, sample, trained.config.batch_size)
  both = np.concatenate([fitted, images])

  def seen(move):
    targets = np.zeros(len(both), np.int32)
    found = evaluate(trained.model, both, targets, *map(np.float32, move))
    classes = found["class"][len(fitted) :]
    poses = np.float64(found["poses"].reshape(len(both), -1))
    return classes, poses[: len(fitted)], poses[len(fitted) :]

  classes, *before = seen((0.0, 0.0))
  scores: Scores = {
    "num_images": len(images),
    "num_fitted": len(fitted),
    "accuracy": float(np.mean(classes == labels)),
  }
  for name, moves in _moves(models.input_shape(trained)).items():
    found: dict[str, list[float]] = {}
    for move in moves:
      after, *poses = seen(move)
      errors = measuring.change(before[0], poses[0], before[1], poses[1])
      values = {
        "accuracy": np.mean(after == labels),
        "changed": np.mean(after != classes),
        **errors._asdict(),
      }
      for measure_name, value in values.items():
        found.setdefault(measure_name, []).append(float(value))
    unit = "degrees" if name == "rotation" else "pixels"
    scores[f"{name}_{unit}"] = float(max(map(abs, moves[0])))
    scores |= {f"{name}_{x}": float(np.mean(y)) for x, y in found.items()}
  return scores


@suite("images")
def starvation(
  run: directory.Run, trained: Trained, options: Options
) -> Scores:
  """Measures, layer by layer, how many capsules are never active.

  Everett et al. (2023) and Mitterreiter et al. (2023) found that the capsules
  of deep networks vanish.

  Returns:
    For each layer from the first up: the number of its capsules at all
    positions (`layer_capsules`); the share of them whose activation is below
    0.01 for every test image (`layer_dead`); the mean share that an image
    brings to 0.01 or more (`layer_active`); and the mean activation
    (`layer_mean`). `dead_capsules` is the share of dead capsules in all layers
    together.
  """
  del run
  images, _ = models.first(trained, options.images or _NUM_IMAGES)
  found = models.measure_layers(trained, images, inspection.capsule_activations)
  layers = [jnp.asarray(x) for x in found]
  sizes = [x.shape[1] for x in layers]
  dead = [float(diagnostics.dead_parents(x, threshold=_ALIVE)) for x in layers]
  return {
    "num_images": len(images),
    "layer_capsules": [float(size) for size in sizes],
    "layer_dead": dead,
    "layer_active": [float(np.mean(x >= _ALIVE)) for x in layers],
    "layer_mean": [float(np.mean(x)) for x in layers],
    "dead_capsules": float(np.average(dead, weights=sizes)),
  }


@suite("images")
def more_routing(
  run: directory.Run, trained: Trained, options: Options
) -> Scores:
  """Measures accuracy against the iterations of the last layer's routing.

  The weights are those trained with the network's own number of iterations.

  Returns:
    The numbers of iterations from 1 to at least 5, or to the network's own
    where the routing cannot go further (`iteration`), and for each the accuracy
    and the entropy of the coefficients; `own_iterations`. A routing without
    iterations counts as one iteration.
  """
  del run
  images, labels = models.first(trained, options.images or _NUM_IMAGES)
  steps = trained.task.steps(images.shape[1:])

  def measure(model, images, labels):
    found = inspection.iterations(model, images, at_least=_ITERATIONS)
    if found is None:
      output = model(images)
      activations = output.activations[None]
      coefficients = output.coefficients[None]
    else:
      activations, coefficients = found.class_activations, found.coefficients
    right = jax.vmap(
      lambda x: losses.exact_set(x, labels[:, None]), out_axes=1
    )(activations)
    entropies = diagnostics.routing_entropy(coefficients)
    return {
      "accuracy": right.astype(jnp.float32),
      "routing_entropy": entropies.T,
    }

  evaluate = tasks.make_evaluate(
    measure,
    train_step.sample_labelled(lambda _, image: steps(image)),
    trained.config.batch_size,
  )
  found = evaluate(trained.model, images, labels)
  count = found["accuracy"].shape[1]
  return {
    "num_images": len(images),
    "own_iterations": inspection.own_iterations(trained.model),
    "iteration": [float(n) for n in range(1, count + 1)],
    **{
      f"iteration_{name}": np.mean(x, axis=0).tolist()
      for name, x in found.items()
    },
  }


@suite()
def costs(run: directory.Run, trained: Trained, options: Options) -> Scores:
  """Counts the parameters and the operations of one image.

  Returns:
    `num_parameters`, and `num_operations` of the network that classifies one
    image (`capjax.evaluation.operations`), without decoder.
  """
  del run, options
  shape = (1, *models.canvas(trained))
  image = jax.ShapeDtypeStruct(shape, jnp.float32)
  return {
    "num_images": 0,
    "num_parameters": train_step.num_parameters(trained.model),
    "num_operations": operations.count(
      trained.task.scores, trained.model, image
    ),
  }


SUITES = (parse_tree, moved, starvation, more_routing, costs)


def _information(trained: Trained, images: np.ndarray) -> float:
  """The image information, computed in batches to save memory."""
  steps = trained.task.steps(images.shape[1:])

  @jax.jit
  def sums_of(model, images):
    inputs = jax.vmap(lambda x: steps(train_step.as_intensities(x)))(images)
    return diagnostics.share_sums(model(inputs).coefficients)

  size = trained.config.batch_size
  parts = (
    sums_of(trained.model, images[start : start + size])
    for start in range(0, len(images), size)
  )
  sums = functools.reduce(lambda a, b: jax.tree.map(jnp.add, a, b), parts)
  return float(diagnostics.information_of_sums(sums))


def _moves(canvas: tuple[int, ...]) -> dict[str, list[tuple[float, float]]]:
  """Degrees and pixels of the moves, in both directions."""
  pixels = equivariance.seventh(min(canvas[:2]))
  degrees = equivariance.DEGREES
  return {
    "rotation": [(degrees, 0.0), (-degrees, 0.0)],
    "shift": [(0.0, pixels), (0.0, -pixels)],
  }


def _moved(image: jax.Array, degrees: Any, pixels: Any) -> jax.Array:
  """Rotates and shifts an image; pixels from outside are like its border."""
  return equivariance.on_background(
    lambda x: views.translate(views.rotate(x, degrees), pixels, 0), image
  )
