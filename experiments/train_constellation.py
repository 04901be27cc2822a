r"""Trains the constellation capsule autoencoder.

  python -m experiments.train_constellation --workdir=runs/constellation \
    --flagfile=experiments/presets/constellation/constellation.cfg
  python -m experiments.evaluate --workdir=runs/constellation \
    --suite=gcm,ransac  # known patterns, on the same images

Kosiorek, Sabour, Teh, Hinton (2019), Stacked capsule autoencoders, section 2.1.
"""

from absl import flags

from capjax.data.sources import constellations
from capjax.scae.constellation import ConstellationAutoencoder
from capjax.specs import Spec

from . import launch
from .flags import arithmetic, datasets, errors, limits, optimizer, rates, runs
from .tasks import constellation
from .training.task import Task

_ENCODER = flags.DEFINE_enum(
  "encoder",
  "set_transformer",
  ["set_transformer", "slots", "invariant_slots"],
  "Network that finds objects among points: the set transformer of the paper; "
  "slot attention, after the same blocks; or invariant slot attention, without "
  "blocks.",
)
_WIDTH = flags.DEFINE_integer(
  "width", 128, "Width of the tokens in the set transformer.", lower_bound=1
)
_BLOCKS = flags.DEFINE_integer(
  "blocks",
  4,
  "Number of self-attention layers, for all but invariant slots.",
  lower_bound=0,
  upper_bound=100,
)
_HEADS = flags.DEFINE_integer(
  "heads",
  4,
  "Number of heads of each attention layer, for all but invariant slots.",
  lower_bound=1,
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
flags.set_default(datasets.DATASET, "constellations")
flags.set_default(runs.BATCH_SIZE, 32)
flags.set_default(rates.LEARNING_RATE, 1e-4)
flags.register_validator(
  datasets.DATASET,
  lambda name: name == "constellations",
  message="this binary trains on constellations only; leave --dataset out",
)


def make_task() -> Task:
  """The task that the flags describe."""
  arguments = dict(
    num_objects=len(constellations.PATTERNS),
    width=_WIDTH.value,
    num_blocks=_BLOCKS.value,
    num_heads=_HEADS.value,
    hidden=_HIDDEN.value,
    encoder=_ENCODER.value,
    dtype=arithmetic.dtype(),
  )
  return constellation.make_task(
    Spec(ConstellationAutoencoder, arguments),
    optimizer.make_optimizer(),
    noise=_NOISE.value,
    sparsity_of=_SPARSITY.value,
    within=_WITHIN.value,
    between=_BETWEEN.value,
    activity=_ACTIVITY.value,
    deformation=_DEFORMATION.value,
  )


def main() -> None:
  with errors.clear_errors():
    optimizer.check_flags()
    limits.refuse("train_constellation", ["stop_accuracy"])
    if _SPARSITY.value == "hard":
      weights = ["prior_within", "prior_between"]
      limits.refuse("--sparsity=hard, which has no gradient,", weights)
  launch.train(make_task)


if __name__ == "__main__":
  limits.require_folder_of_run()
  limits.run(main)
