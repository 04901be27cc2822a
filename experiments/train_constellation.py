r"""Trains the constellation capsule autoencoder.

  python -m experiments.train_constellation --workdir=runs/constellation \
    --flagfile=experiments/presets/constellation/constellation.cfg
  python -m experiments.evaluate --workdir=runs/constellation \
    --suite=gcm,ransac  # known patterns, on the same images

Kosiorek, Sabour, Teh, Hinton (2019), Stacked capsule autoencoders, section 2.1.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from absl import app, flags

from capjax.data.sources import constellations
from capjax.scae import constellation
from capjax.specs import Spec

from . import launch
from .evaluation import constellations as segmentations
from .flags import limits, optimizer, rates, runs
from .training import task, train_step

_WIDTH = flags.DEFINE_integer(
  "width", 128, "Width of the tokens in the set transformer.", lower_bound=1
)
_BLOCKS = flags.DEFINE_integer(
  "blocks",
  4,
  "Number of self-attention layers in the set transformer.",
  lower_bound=0,
  upper_bound=100,
)
_HEADS = flags.DEFINE_integer(
  "heads", 4, "Number of heads of each attention layer.", lower_bound=1
)
_HIDDEN = flags.DEFINE_integer(
  "hidden", 128, "Hidden units of the networks of an object.", lower_bound=1
)
_NOISE = flags.DEFINE_float(
  "noise",
  0.0,
  "Standard deviation of the noise added to the corners of patterns; the "
  "square has sides of length 2.",
  lower_bound=0.0,
)
_WITHIN = flags.DEFINE_float(
  "prior_within",
  1.0,
  "Weight of the loss term within images, for --sparsity=soft.",
  lower_bound=0.0,
)
_BETWEEN = flags.DEFINE_float(
  "prior_between",
  1.0,
  "Weight of the loss term between images, for --sparsity=soft.",
  lower_bound=0.0,
)
_SPARSITY = flags.DEFINE_enum(
  "sparsity",
  "hard",
  ["hard", "soft"],
  "Sparsity of the presences of objects: hard compares them with the weight"
  " of the dummy, without a gradient, as in the authors' code; soft uses "
  "the presences themselves.",
)
_ACTIVITY = flags.DEFINE_float(
  "activity",
  10.0,
  "Weight of the loss term that compares the presence of objects with the "
  "points that they explain.",
  lower_bound=0.0,
)
_DEFORMATION = flags.DEFINE_float(
  "deformation",
  10.0,
  "Weight of the squared deformations in the loss.",
  lower_bound=0.0,
)
flags.set_default(runs.DATASET, "constellations")
flags.set_default(runs.BATCH_SIZE, 32)
flags.set_default(rates.LEARNING_RATE, 1e-4)
flags.register_validator(
  runs.DATASET,
  lambda name: name == "constellations",
  message="this binary trains on constellations only; leave --dataset out",
)


def describe(image_shape: Sequence[int], num_classes: int) -> Spec:
  """The network that the flags describe."""
  del image_shape, num_classes
  arguments = dict(
    num_objects=len(constellations.PATTERNS),
    width=_WIDTH.value,
    num_blocks=_BLOCKS.value,
    num_heads=_HEADS.value,
    hidden=_HIDDEN.value,
  )
  return Spec(constellation.ConstellationAutoencoder, arguments)


def sample(
  key: jax.Array, index: jax.Array, images: jax.Array, labels: jax.Array
) -> tuple[constellations.Constellation, jax.Array]:
  """Samples a new constellation to train on; the index is not used."""
  drawn = constellations.draw(key, noise=_NOISE.value)
  return drawn, labels[index]


def sample_test(
  key: jax.Array, index: jax.Array, images: jax.Array, labels: jax.Array
) -> tuple[constellations.Constellation, jax.Array]:
  """Makes the constellation of an index of the data set."""
  del key, images
  drawn = constellations.numbered(labels[index], noise=_NOISE.value)
  return drawn, labels[index]


def loss(
  model: constellation.ConstellationAutoencoder,
  drawn: constellations.Constellation,
  labels: jax.Array,
  key: jax.Array,
  step: jax.Array,
) -> tuple[jax.Array, train_step.Metrics]:
  """The loss of a batch and its parts."""
  del labels, step
  output = model(drawn.points, drawn.presence, key=key)
  return constellation.constellation_loss(
    output,
    drawn.presence,
    sparsity_of=_SPARSITY.value,
    within=_WITHIN.value,
    between=_BETWEEN.value,
    activity=_ACTIVITY.value,
    deformation=_DEFORMATION.value,
  )


def measure(
  model: constellation.ConstellationAutoencoder,
  drawn: constellations.Constellation,
  labels: jax.Array,
) -> train_step.Metrics:
  """The likelihood, the object of each point, and the segmentation accuracy."""
  del labels
  output = model(drawn.points, drawn.presence)
  found = output.objects()
  return {
    "log_prob": output.log_prob,
    # An object that never explains a point is dead.
    "activations": output.shares_won(drawn.presence),
    "scale": jnp.mean(output.scales, axis=(1, 2)),
    "objects": found,
    "accuracy": segmentations.accuracy(
      found, drawn, len(constellations.PATTERNS)
    ),
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


TASK = task.Task(
  describe,
  loss,
  measure,
  sample=sample,
  sample_test=sample_test,
  make_optimizer=optimizer.make_optimizer,
  suites=lambda model: [x.name for x in segmentations.SUITES],
  after_training=("segmentation",),
  chosen_by="log_prob",
  warn=warn,
)


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {argv[1:]}")
  with runs.clear_errors():
    runs.refuse("train_constellation", ["stop_accuracy"])
    if _SPARSITY.value == "hard":
      weights = ["prior_within", "prior_between"]
      runs.refuse("--sparsity=hard, which has no gradient,", weights)
  launch.train(TASK)


if __name__ == "__main__":
  flags.mark_flag_as_required("workdir")
  limits.run(main)
