r"""Trains slot attention, or invariant slot attention, on pairs of digits.

  python -m experiments.train_slots --workdir=runs/slots --data_dir=DIR \
    --flagfile=experiments/presets/slots/slots_affnist_like.cfg

Images hold two objects of different classes, made on the device in each step
from any data set. Locatello et al. (2020), Object-centric learning with slot
attention; Biza et al. (2023), Invariant slot attention.
"""

from absl import flags

from capjax.slot_autoencoder import SlotAutoencoder
from capjax.specs import Spec

from . import launch
from .flags import arithmetic, errors, limits, optimizer, rates, scenes
from .tasks import slots
from .tasks.scenes import Scene
from .training.task import Task

_MAX_SHIFT = flags.DEFINE_integer(
  "max_shift",
  4,
  "Largest shift of an image in pixels, for --scene=multimnist.",
  lower_bound=0,
)
_CANVAS = flags.DEFINE_integer(
  "canvas",
  40,
  "Side in pixels of the canvas, for --scene=affnist_like.",
  lower_bound=1,
  upper_bound=10_000,
)
_NUM_SLOTS = flags.DEFINE_integer(
  "num_slots", 3, "Number of slots.", lower_bound=1
)
_SLOT_SIZE = flags.DEFINE_integer(
  "slot_size", 32, "Length of a slot's vector.", lower_bound=1
)
_NUM_ITERATIONS = flags.DEFINE_integer(
  "num_iterations",
  3,
  "Rounds of slot attention.",
  lower_bound=1,
  upper_bound=100,
)
_FEATURES = flags.DEFINE_integer(
  "features", 32, "Channels of all convolutions.", lower_bound=1
)
_NUM_CONVS = flags.DEFINE_integer(
  "num_convs",
  3,
  "Convolutions of the encoder; the first has stride 2.",
  lower_bound=1,
  upper_bound=100,
)
_NUM_DOUBLINGS = flags.DEFINE_integer(
  "num_doublings",
  2,
  "How often the decoder doubles its grid.",
  lower_bound=1,
  upper_bound=10,
)
_START = flags.DEFINE_enum(
  "start",
  "sampled",
  ["sampled", "learned"],
  "Where slots start: sampled from one learned distribution, or a learned "
  "vector for each slot.",
)
_INVARIANT = flags.DEFINE_bool(
  "invariant",
  False,
  "Give slots frames of reference, as in invariant slot attention.",
)
flags.set_default(rates.LEARNING_RATE, 4e-4)
flags.set_default(scenes.SCENE, "multimnist")


def make_task() -> Task:
  """The task that the flags describe."""
  arguments = dict(
    num_slots=_NUM_SLOTS.value,
    slot_size=_SLOT_SIZE.value,
    num_iterations=_NUM_ITERATIONS.value,
    features=_FEATURES.value,
    num_convs=_NUM_CONVS.value,
    num_doublings=_NUM_DOUBLINGS.value,
    start=_START.value,
    invariant=_INVARIANT.value,
    dtype=arithmetic.dtype(),
  )
  return slots.make_task(
    Spec(SlotAutoencoder, arguments),
    optimizer.make_optimizer(),
    scene=Scene(
      scenes.SCENE.value, scenes.PAD.value, _MAX_SHIFT.value, _CANVAS.value
    ),
  )


def main() -> None:
  with errors.clear_errors():
    optimizer.check_flags()
    limits.refuse("train_slots", ["stop_accuracy"])
    is_overlaid = scenes.SCENE.value == "multimnist"
    unused = ["canvas"] if is_overlaid else ["pad", "max_shift"]
    limits.refuse(f"--scene={scenes.SCENE.value}", unused)
  launch.train(make_task)


if __name__ == "__main__":
  limits.require_folder_of_run()
  limits.run(main)
