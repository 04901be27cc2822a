r"""Trains matrix capsules with EM routing, or the CNN they are compared with.

  python -m experiments.train_matrix_capsules --workdir=runs/solids \
    --data_dir=DIR \
    --flagfile=experiments/presets/matrix_capsules/solids_paper.cfg

Hinton, Sabour, Frosst (2018), Matrix capsules with EM routing.
"""

from absl import flags

from capjax import baselines
from capjax.data.transforms import stereo
from capjax.matrix_capsules import COORDINATES, FORMS, STARTS, MatrixCapsules
from capjax.specs import Spec

from . import launch
from .flags import (
  arithmetic,
  augmentation,
  datasets,
  errors,
  hosts,
  limits,
  optimizer,
  rates,
  runs,
  viewpoints,
)
from .tasks import matrix_capsules
from .training.task import Task

_MODEL = flags.DEFINE_enum(
  "model", "capsules", ["capsules", "baseline"], "Network to train."
)
_FEATURES = flags.DEFINE_integer(
  "features",
  32,
  "Channels of the first convolution, A in the paper.",
  lower_bound=1,
)
_TYPES = flags.DEFINE_list(
  "types",
  ["32", "32", "32"],
  "Capsule types of the three capsule layers, B, C and D in the paper.",
)
_NUM_ITERATIONS = flags.DEFINE_integer(
  "num_iterations",
  3,
  "Number of iterations of EM routing in each layer.",
  lower_bound=1,
  upper_bound=100,
)
_ROUTING_GRADIENT = flags.DEFINE_enum(
  "routing_gradient",
  "all",
  ["all", "last"],
  "Iterations of EM routing that gradients flow through: all, or the last "
  "alone, whose coefficients then count as constants.",
)
_FORM = flags.DEFINE_enum(
  "form",
  "paper",
  list(FORMS),
  "Constants of EM routing: those of the authors' code or of the paper.",
)
_START = flags.DEFINE_enum(
  "start",
  "identity",
  list(STARTS),
  "Initial scales of the parameters: identity starts transforms near the "
  "identity; official uses the scales of the authors' code.",
)
_FINAL_INVERSE_TEMPERATURE = flags.DEFINE_float(
  "final_inverse_temperature",
  0.01,
  "Limit of the inverse temperature lambda over the iterations of EM "
  "routing; above 0.",
)
_DATA_AMOUNT = flags.DEFINE_float(
  "data_amount",
  100.0,
  "Number of children that each parent's cost is scaled to, in every layer,"
  " as in IBM's code. 0 uses the actual number, as in the paper.",
  lower_bound=0.0,
)
_COORDINATES = flags.DEFINE_enum(
  "coordinates",
  "relative",
  list(COORDINATES),
  "How votes for the classes encode the position of the child.",
)
_POSE = flags.DEFINE_enum(
  "pose", "matrix", ["matrix", "vector"], "Form of a capsule's pose."
)
_PADDING = flags.DEFINE_enum(
  "padding", "VALID", ["VALID", "SAME"], "Padding of windows at the borders."
)
_LOSS = flags.DEFINE_enum(
  "loss",
  "spread",
  matrix_capsules.CLASS_LOSSES,
  "Loss of the class activations.",
)
_MARGIN_STEPS = flags.DEFINE_float(
  "margin_steps",
  None,
  "Time constant of the spread loss's margin, in steps; the margin is "
  "halfway after four of them. By default a fortieth of --num_steps, as "
  "50,000 of the 2,000,000 steps of the authors' code.",
  lower_bound=1.0,
)
_CNN_FEATURES = flags.DEFINE_list(
  "cnn_features", ["32", "64"], "Channels of the baseline's convolutions."
)
_CNN_DENSE = flags.DEFINE_integer(
  "cnn_dense", 1024, "Units of the baseline's dense layer.", lower_bound=1
)
_WEIGHT_DECAY = flags.DEFINE_float(
  "weight_decay",
  2e-7,
  "Weight of half the sum of squares of all parameters in the loss.",
  lower_bound=0.0,
  upper_bound=1.0,
)
_AUGMENTATION = flags.DEFINE_enum(
  "augmentation",
  "official",
  list(stereo.PIPELINES),
  "Brightness, contrast and crops of stereo pairs: order and amounts of the"
  " authors' code or of IBM's code.",
)
flags.set_default(runs.BATCH_SIZE, 64)
flags.set_default(hosts.CPU_DEVICES, 0)
flags.set_default(rates.LEARNING_RATE, 3e-3)
flags.set_default(rates.DECAY_STEPS, None)
limits.require_counts(_TYPES, example="8,16,16", exactly=3)
limits.require_counts(_CNN_FEATURES, example="32,64", exactly=2)

_CAPSULE_FLAGS = (
  "features", "types", "num_iterations", "routing_gradient", "form", "start",
  "final_inverse_temperature", "data_amount", "coordinates", "pose", "padding",
  "loss",
)  # fmt: skip
_BASELINE_FLAGS = ("cnn_features", "cnn_dense")


def make_task() -> Task:
  """The task that the flags describe."""
  return matrix_capsules.make_task(
    _spec(),
    optimizer.make_optimizer(),
    dataset=datasets.DATASET.value,
    num_steps=runs.NUM_STEPS.value,
    kind=_LOSS.value,
    margin_steps=_MARGIN_STEPS.value,
    weight_decay=_WEIGHT_DECAY.value,
    placement=augmentation.placement(),
    pipeline=_AUGMENTATION.value,
    viewpoints=viewpoints.VIEWPOINTS.value,
  )


def _spec() -> Spec:
  """The network, without its image shape and classes."""
  if _MODEL.value == "baseline":
    first, second = map(int, _CNN_FEATURES.value)
    arguments = dict(
      features=(first, second),
      dense_features=_CNN_DENSE.value,
      dtype=arithmetic.dtype(),
    )
    return Spec(baselines.smallnorb_baseline, arguments)
  arguments = dict(
    features=_FEATURES.value,
    types=tuple(int(count) for count in _TYPES.value),
    num_iterations=_NUM_ITERATIONS.value,
    routing_gradient=_ROUTING_GRADIENT.value,
    padding=_PADDING.value,
    coordinates=_COORDINATES.value,
    pose=_POSE.value,
    form=_FORM.value,
    start=_START.value,
    final_inverse_temperature=_FINAL_INVERSE_TEMPERATURE.value,
    data_amount=_DATA_AMOUNT.value or None,
    dtype=arithmetic.dtype(),
  )
  return Spec(MatrixCapsules, arguments)


def main() -> None:
  with errors.clear_errors():
    optimizer.check_flags()
    is_baseline = _MODEL.value == "baseline"
    limits.refuse(
      f"--model={_MODEL.value}",
      _CAPSULE_FLAGS if is_baseline else _BASELINE_FLAGS,
    )
    if is_baseline or _LOSS.value != "spread":
      limits.refuse("without the spread loss, training", ["margin_steps"])
    pairs = matrix_capsules.is_stereo(datasets.DATASET.value)
    of_single_images = ["max_shift", *augmentation.DEFORMATIONS]
    unused = of_single_images if pairs else ["augmentation"]
    limits.refuse(f"--dataset={datasets.DATASET.value}", unused)
    viewpoints.check_flags()
  launch.train(make_task)


if __name__ == "__main__":
  limits.require_folder_of_run()
  limits.run(main)
