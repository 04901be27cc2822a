"""The constellation capsule autoencoder, which groups points into objects.

Kosiorek, Sabour, Teh, Hinton (2019), Stacked capsule autoencoders, section 2.1.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax

from capjax.data.sources import constellations
from capjax.scae import constellation
from capjax.specs import Spec

from ..evaluation import constellations as suites
from ..training import train_step
from ..training.task import Task, described


@described(constellation.ConstellationAutoencoder)
def make_task(
  model: Spec,
  optimizer: optax.GradientTransformation,
  *,
  noise: float = 0.0,
  **options: Any,
) -> Task:
  """Segmentation of points without labels; each training example is new.

  The data set `constellations` numbers the examples of validation and test.

  Args:
    model: the autoencoder.
    optimizer: the optimiser of the parameters.
    noise: standard deviation of the noise added to the corners of patterns; the
      square has sides of length 2.
    **options: `sparsity_of` and the weights of `constellation_loss`.

  Raises:
    ValueError: if the model's objects are not as many as the patterns, which
      `accuracy` compares them with.
  """
  patterns = len(constellations.PATTERNS)
  if (objects := model.arguments.get("num_objects", patterns)) != patterns:
    raise ValueError(
      f"num_objects is {objects}; give {patterns}, as many as there are "
      "patterns in the data"
    )
  soft = options.get("sparsity_of") == "soft" and options.get("between") != 0
  return Task(
    lambda image_shape, num_classes: model,
    functools.partial(loss, **options),
    measure,
    sample=functools.partial(sample, noise=noise),
    sample_test=functools.partial(sample_test, noise=noise),
    optimizer=optimizer,
    suites=lambda model: [x.name for x in suites.SUITES],
    after_training=("segmentation",),
    chosen_by="log_prob",
    warn=warn,
    of_batch="prior_between" if soft else "",
  )


def sample(
  key: jax.Array,
  index: jax.Array,
  images: jax.Array,
  labels: jax.Array,
  *,
  noise: float,
) -> tuple[constellations.Constellation, jax.Array]:
  """Samples a new constellation to train on; the index is not used."""
  sampled = constellations.sample(key, noise=noise)
  return sampled, labels[index]


def sample_test(
  key: jax.Array,
  index: jax.Array,
  images: jax.Array,
  labels: jax.Array,
  *,
  noise: float,
) -> tuple[constellations.Constellation, jax.Array]:
  """Makes the constellation of an index of the data set."""
  del key, images
  sampled = constellations.numbered(labels[index], noise=noise)
  return sampled, labels[index]


def loss(
  model: constellation.ConstellationAutoencoder,
  sampled: constellations.Constellation,
  labels: jax.Array,
  key: jax.Array,
  step: jax.Array,
  **options: Any,
) -> tuple[jax.Array, train_step.Metrics]:
  """The loss of a batch and its parts.

  Args:
    model: the autoencoder.
    sampled: points [B N 2] and their presence [B N].
    labels: not used.
    key: samples the noise of training.
    step: not used.
    **options: as for `make_task`.
  """
  del labels, step
  output = model(sampled.points, sampled.presence, key=key)
  return constellation.constellation_loss(output, sampled.presence, **options)


def measure(
  model: constellation.ConstellationAutoencoder,
  sampled: constellations.Constellation,
  labels: jax.Array,
) -> train_step.Metrics:
  """The likelihood, the object of each point, and the segmentation accuracy.

  Args:
    model: the autoencoder.
    sampled: points [B N 2], their presence [B N] and true objects [B N].
    labels: not used.

  Returns:
    `log_prob`, `scale` and `accuracy` [B], `activations` [B K], which are the
    shares of points won by each object, and `objects` [B N].
  """
  del labels
  output = model(sampled.points, sampled.presence)
  found = output.winners
  return {
    "log_prob": output.log_prob,
    # An object that never explains a point is dead.
    "activations": output.shares_won(sampled.presence),
    "scale": jnp.mean(output.scales, axis=(1, 2)),
    "objects": found,
    "accuracy": suites.accuracy(found, sampled, len(constellations.PATTERNS)),
  }


def warn(metrics: dict[str, float]) -> list[str]:
  """Warnings about objects that have collapsed."""
  messages = []
  if metrics.get("dead_parents", 0) > 0:
    messages.append(
      f"collapsed objects: {metrics['dead_parents']:.0%} explain no point best "
      "in any image of the validation set"
    )
  return messages
