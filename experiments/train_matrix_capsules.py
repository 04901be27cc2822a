r"""Trains matrix capsules with EM routing, or the CNN they are compared with.

  python -m experiments.train_matrix_capsules --workdir=runs/solids \
    --data_dir=DIR \
    --flagfile=experiments/presets/matrix_capsules/solids_paper.cfg

Hinton, Sabour, Frosst (2018), Matrix capsules with EM routing.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags
from flax import nnx

from capjax import baselines, data, losses, matrix_capsules
from capjax.data.sources import smallnorb
from capjax.data.transforms import augment, stereo
from capjax.evaluation import diagnostics
from capjax.specs import Spec

from . import launch
from .flags import limits, optimizer, rates, runs
from .training import loop, train_step
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
_FORM = flags.DEFINE_enum(
  "form",
  "paper",
  list(matrix_capsules.FORMS),
  "Constants of EM routing: those of the authors' code or of the paper.",
)
_START = flags.DEFINE_enum(
  "start",
  "identity",
  list(matrix_capsules.STARTS),
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
  list(matrix_capsules.COORDINATES),
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
  ["spread", "margin", "cross_entropy"],
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
_MAX_SHIFT = flags.DEFINE_integer(
  "max_shift",
  2,
  "Largest shift of an image, in pixels; not used for stereo pairs.",
  lower_bound=0,
)
_AUGMENTATION = flags.DEFINE_enum(
  "augmentation",
  "official",
  list(stereo.PIPELINES),
  "Brightness, contrast and crops of stereo pairs: order and amounts of the"
  " authors' code or of IBM's code.",
)
_VIEWPOINTS = flags.DEFINE_enum(
  "viewpoints",
  "all",
  ["all", "azimuth", "elevation"],
  "Viewpoints to train on: all, a third of the azimuths, or the three "
  "lowest elevations. For the last two, as in the paper, validation uses "
  "test images from the viewpoints of training, so that --stop_accuracy "
  "gives networks of equal accuracy on them.",
)
flags.set_default(runs.BATCH_SIZE, 64)
flags.set_default(rates.LEARNING_RATE, 3e-3)
flags.set_default(rates.DECAY_STEPS, None)
limits.require_counts(_TYPES, example="8,16,16", exactly=3)
limits.require_counts(_CNN_FEATURES, example="32,64", exactly=2)

_CAPSULE_FLAGS = (
  "features", "types", "num_iterations", "form", "start",
  "final_inverse_temperature", "data_amount", "coordinates", "pose", "padding",
  "loss",
)  # fmt: skip
# The authors' code has 2,000,000 steps and a time constant of 50,000.
_MARGIN_SHARE = 40
_BASELINE_FLAGS = ("cnn_features", "cnn_dense")
_FAMILIAR = {
  "azimuth": smallnorb.familiar_azimuths,
  "elevation": smallnorb.familiar_elevations,
}


def is_stereo() -> bool:
  """Whether images are stereo pairs, which are standardised and cropped."""
  return runs.DATASET.value in ("smallnorb", "viewpoint_solids")


def describe(image_shape: Sequence[int], num_classes: int) -> Spec:
  """The network that the flags describe, for images of a data set."""
  if not is_stereo():
    limits.check_shift(image_shape, _MAX_SHIFT.value, ["max_shift"])
  shape = jax.eval_shape(
    prepare, jax.ShapeDtypeStruct(tuple(image_shape), jnp.float32)
  ).shape
  sizes = {"image_shape": shape, "num_classes": num_classes}
  if _MODEL.value == "baseline":
    first, second = map(int, _CNN_FEATURES.value)
    arguments = sizes | dict(
      features=(first, second),
      dense_features=_CNN_DENSE.value,
    )
    return Spec(baselines.smallnorb_baseline, arguments)
  arguments = sizes | dict(
    features=_FEATURES.value,
    types=tuple(int(count) for count in _TYPES.value),
    num_iterations=_NUM_ITERATIONS.value,
    padding=_PADDING.value,
    coordinates=_COORDINATES.value,
    pose=_POSE.value,
    form=_FORM.value,
    start=_START.value,
    final_inverse_temperature=_FINAL_INVERSE_TEMPERATURE.value,
    data_amount=_DATA_AMOUNT.value or None,
  )
  return Spec(matrix_capsules.MatrixCapsules, arguments)


def prepare(image: jax.Array) -> jax.Array:
  """Downsamples and crops an image in [0, 1], if it is a stereo pair."""
  return stereo.centre_crop(stereo.downsample(image)) if is_stereo() else image


def standardise(image: jax.Array) -> jax.Array:
  """The network's input for an image in [0, 1].

  The crop of a stereo pair is standardised, as in the authors' code. The text
  of the paper standardises first and then crops.
  """
  return stereo.standardise(255 * image) if is_stereo() else image


def sample(
  key: jax.Array, index: jax.Array, images: jax.Array, labels: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Makes one training example, with random augmentation."""
  image = train_step.as_intensities(images[index])
  if not is_stereo():
    shifted = augment.shift(key, image, max_shift=_MAX_SHIFT.value)
    return shifted, labels[index]
  pair = 255 * stereo.downsample(image)
  pair = stereo.augment(key, pair, pipeline=_AUGMENTATION.value)
  return pair, labels[index]


def loss(
  model: nnx.Module,
  images: jax.Array,
  labels: jax.Array,
  key: jax.Array,
  step: jax.Array,
) -> tuple[jax.Array, train_step.Metrics]:
  """The loss of a batch and its metrics."""
  squares = optax.tree.norm(nnx.state(model, nnx.Param), squared=True)
  decay = _WEIGHT_DECAY.value * squares / 2
  if _MODEL.value == "baseline":
    value, metrics = losses.classifier_loss(model(images, key), labels)
    return value + decay, metrics
  activations = model(images).activations
  value = jnp.mean(_loss_of_each(activations, labels, step))
  right = jnp.argmax(activations, axis=-1) == labels
  return value + decay, {"loss": value, "accuracy": jnp.mean(right)}


def _loss_of_each(
  activations: jax.Array, labels: jax.Array, step: int | jax.Array
) -> jax.Array:
  """--loss of each image [B], at a step of training."""
  if _LOSS.value == "spread":
    timescale = _MARGIN_STEPS.value or runs.NUM_STEPS.value / _MARGIN_SHARE
    margin = losses.spread_margin(step, timescale=timescale)
    return losses.spread_loss(activations, labels, margin=margin)
  if _LOSS.value == "margin":
    present = jax.nn.one_hot(labels, activations.shape[1])
    return losses.margin_loss(activations, present)
  return losses.share_loss(activations, labels)


def measure(
  model: nnx.Module, images: jax.Array, labels: jax.Array
) -> train_step.Metrics:
  """Measures each image; `loss` has the margin of the last step."""
  output = model(images)
  said = output if _MODEL.value == "baseline" else output.activations
  predictions = jnp.argmax(said, axis=-1)
  measures = {
    "prediction": predictions,
    "accuracy": (predictions == labels).astype(jnp.float32),
  }
  if _MODEL.value == "baseline":
    measures["loss"] = optax.softmax_cross_entropy_with_integer_labels(
      said, labels
    )
  else:
    measures["loss"] = _loss_of_each(said, labels, runs.NUM_STEPS.value)
    measures["activations"] = output.activations
    measures["routing_entropy"] = diagnostics.routing_entropy(
      output.coefficients
    )
  return measures


def scores(model: nnx.Module, images: jax.Array) -> jax.Array:
  """Scores [B J] of the classes, for images in [0, 1]."""
  output = model(jax.vmap(standardise)(images))
  return output if _MODEL.value == "baseline" else output.activations


def losses_of(
  model: nnx.Module, images: jax.Array, labels: jax.Array
) -> jax.Array:
  """The cross-entropy [B] of the scores, for attacks on any network."""
  return optax.softmax_cross_entropy_with_integer_labels(
    scores(model, images), labels
  )


def familiar(factors: dict[str, np.ndarray]) -> np.ndarray:
  """Which examples [N] are seen from the viewpoints of training."""
  if not factors:
    raise ValueError(
      f"--viewpoints={_VIEWPOINTS.value}: this copy of {runs.DATASET.value} "
      "does not tell viewpoints; use viewpoint_solids, or smallnorb from its "
      "own files or TensorFlow Datasets"
    )
  return _FAMILIAR[_VIEWPOINTS.value](factors)


def split(
  train: data.Dataset, test: data.Dataset
) -> tuple[data.Dataset, data.Dataset]:
  """The training set and the validation set."""
  if _VIEWPOINTS.value == "all":
    return loop.split_validation(
      train, runs.NUM_VALIDATION.value, runs.BATCH_SIZE.value
    )
  runs.refuse("--viewpoints", ["num_validation"])
  kept = tuple(loop.rows(x, familiar(x.factors)) for x in (train, test))
  loop.require_a_batch(len(kept[0].images), runs.BATCH_SIZE.value)
  return kept


def suites_of(model: nnx.Module) -> list[str]:
  """The names of the suites that apply to a model, given the flags."""
  del model
  names = ["attacks", "multi_crop" if is_stereo() else "views"]
  # Where validation uses test images, only novel viewpoints are a test.
  names.append("accuracy" if _VIEWPOINTS.value == "all" else "viewpoints")
  return names


TASK = Task(
  describe,
  loss,
  measure,
  sample=sample,
  sample_test=train_step.sample_labelled(
    lambda key, image: standardise(prepare(image))
  ),
  make_optimizer=optimizer.make_optimizer,
  suites=suites_of,
  after_training=("accuracy", "viewpoints"),
  split=split,
  familiar=familiar,
  prepare=prepare,
  scores=scores,
  losses=losses_of,
)


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {argv[1:]}")
  with runs.clear_errors():
    is_baseline = _MODEL.value == "baseline"
    runs.refuse(
      f"--model={_MODEL.value}",
      _CAPSULE_FLAGS if is_baseline else _BASELINE_FLAGS,
    )
    if is_baseline or _LOSS.value != "spread":
      runs.refuse("without the spread loss, training", ["margin_steps"])
    unused = ["max_shift"] if is_stereo() else ["augmentation"]
    runs.refuse(f"--dataset={runs.DATASET.value}", unused)
  launch.train(TASK)


if __name__ == "__main__":
  flags.mark_flag_as_required("workdir")
  limits.run(main)
