r"""Trains the constellation capsule autoencoder.

  python -m experiments.train_constellation --workdir=runs/constellation \
    --flagfile=experiments/presets/constellation/constellation.cfg
  python -m experiments.evaluate --workdir=runs/constellation \
    --suite=gcm,ransac  # patterns known, on the same images

Kosiorek, Sabour, Teh, Hinton (2019), Stacked capsule autoencoders, section 2.1.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from absl import app, flags

from capjax.data.sources import constellations
from capjax.scae import constellation
from capjax.specs import Spec
from experiments import launch
from experiments.evaluation import constellations as segmentations
from experiments.flags import limits, optimizer, rates, runs
from experiments.training import task, train_step

_WIDTH = flags.DEFINE_integer(
  "width", 128, "Of tokens in the set transformer.", lower_bound=1
)
_BLOCKS = flags.DEFINE_integer(
  "blocks",
  4,
  "Self-attentions of the set transformer.",
  lower_bound=0,
  upper_bound=100,
)
_HEADS = flags.DEFINE_integer("heads", 4, "Of attentions.", lower_bound=1)
_HIDDEN = flags.DEFINE_integer(
  "hidden", 128, "Units of the networks of an object.", lower_bound=1
)
_NOISE = flags.DEFINE_float(
  "noise",
  0.0,
  "Standard deviation of what is added to the corners of patterns, of which "
  "the square has sides of 2.",
  lower_bound=0.0,
)
_WITHIN = flags.DEFINE_float(
  "prior_within",
  1.0,
  "Weight of --sparsity=soft within images.",
  lower_bound=0.0,
)
_BETWEEN = flags.DEFINE_float(
  "prior_between",
  1.0,
  "Weight of --sparsity=soft between images.",
  lower_bound=0.0,
)
_SPARSITY = flags.DEFINE_enum(
  "sparsity",
  "hard",
  ["hard", "soft"],
  "What sparsity is of: whether presences of objects are above the weight of "
  "the dummy, as the authors' code has it, without gradient; or the presences.",
)
_ACTIVITY = flags.DEFINE_float(
  "activity",
  10.0,
  "Weight of objects' presence against what they explain.",
  lower_bound=0.0,
)
_DEFORMATION = flags.DEFINE_float(
  "deformation",
  10.0,
  "Weight of the squares of deformations.",
  lower_bound=0.0,
)
flags.set_default(runs.DATASET, "constellations")
flags.set_default(runs.BATCH_SIZE, 32)
flags.set_default(rates.LEARNING_RATE, 1e-4)
flags.register_validator(
  runs.DATASET,
  lambda name: name == "constellations",
  message="constellations are points; --dataset can be nothing else",
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


def draw(
  key: jax.Array, index: jax.Array, images: jax.Array, labels: jax.Array
) -> tuple[constellations.Constellation, jax.Array]:
  """Draws a new constellation to train on, whatever the index."""
  drawn = constellations.draw(key, noise=_NOISE.value)
  return drawn, labels[index]


def draw_test(
  key: jax.Array, index: jax.Array, images: jax.Array, labels: jax.Array
) -> tuple[constellations.Constellation, jax.Array]:
  """Draws the constellation of a number of the data set."""
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
  """The likelihood, who explains each point, and what is right of that."""
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
  """Names what has collapsed."""
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
  draw=draw,
  draw_test=draw_test,
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
