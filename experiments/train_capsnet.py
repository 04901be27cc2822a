r"""Trains CapsNet, or the paper's convolutional baseline, on images.

  python -m experiments.train_capsnet --workdir=runs/mnist --dataset=mnist \
    --data_dir=DIR --flagfile=experiments/presets/mnist_paper.cfg

Sabour, Frosst, Hinton (2017), Dynamic routing between capsules, section 5.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import optax
from absl import app, flags
from flax import nnx

import capjax
from capjax import baselines, data, losses
from capjax.data import augment
from experiments.common import (
  checkpoints,
  figures,
  loop,
  runs,
  suites,
  training,
)
from kernels import numerics

_MODEL = flags.DEFINE_enum(
  "model", "capsnet", ["capsnet", "baseline"], "Network to train."
)
_LEARNING_RATE = flags.DEFINE_float(
  "learning_rate", 1e-3, "Adam's, at the start.", lower_bound=0.0
)
_DECAY_RATE = flags.DEFINE_float(
  "decay_rate",
  0.96,
  "Factor of the learning rate every --decay_steps.",
  lower_bound=0.0,
)
_DECAY_STEPS = flags.DEFINE_integer(
  "decay_steps", 2000, "See --decay_rate.", lower_bound=1
)
_FINAL_LEARNING_RATE = flags.DEFINE_float(
  "final_learning_rate",
  1e-6,
  "The learning rate falls no lower.",
  lower_bound=0.0,
)
_RECONSTRUCTION = flags.DEFINE_enum(
  "reconstruction",
  "paper",
  list(losses.RECONSTRUCTION_WEIGHTS),
  "Weight of the reconstruction loss: the paper's, that of the authors' code "
  "(20 times larger), or none (no decoder).",
)
_NUM_ITERATIONS = flags.DEFINE_integer(
  "num_iterations", 3, "Of routing.", lower_bound=1
)
_LEAKY = flags.DEFINE_bool("leaky", False, "Route to an orphan class too.")
_CONV_FEATURES = flags.DEFINE_integer(
  "conv_features", 256, "Channels of the first convolution.", lower_bound=1
)
_CONV_KERNEL = flags.DEFINE_integer(
  "conv_kernel", 9, "Its taps along each axis.", lower_bound=1
)
_NUM_TYPES = flags.DEFINE_integer(
  "num_types", 32, "Primary capsules at each position.", lower_bound=1
)
_PART_SIZE = flags.DEFINE_integer(
  "part_size", 8, "Length of a primary capsule.", lower_bound=1
)
_PRIMARY_KERNEL = flags.DEFINE_integer(
  "primary_kernel", 9, "Taps of the primary capsules.", lower_bound=1
)
_PRIMARY_STRIDE = flags.DEFINE_integer(
  "primary_stride", 2, "Stride of the primary capsules.", lower_bound=1
)
_POSE_SIZE = flags.DEFINE_integer(
  "pose_size", 16, "Length of a class capsule.", lower_bound=1
)
_DECODER_FEATURES = flags.DEFINE_list(
  "decoder_features", ["512", "1024"], "Widths of the decoder's hidden layers."
)
flags.register_validator(
  _DECODER_FEATURES,
  lambda widths: all(width.isdigit() and int(width) for width in widths),
  message="give whole numbers above 0, as in 512,1024",
)
_BFLOAT16 = flags.DEFINE_bool(
  "bfloat16", False, "Convolve in bfloat16; for accelerators."
)
_MAX_SHIFT = flags.DEFINE_integer(
  "max_shift", 2, "Pixels that images are shifted by at most.", lower_bound=0
)
_CANVAS = flags.DEFINE_integer(
  "canvas",
  0,
  "Side of a black canvas that images are placed on, at random in training and "
  "in the middle at test; 0 for none.",
  lower_bound=0,
)
_MAX_ROTATION = flags.DEFINE_float(
  "max_rotation",
  0.0,
  "Degrees that images are turned by at most.",
  lower_bound=0.0,
)
_MAX_SHEAR = flags.DEFINE_float(
  "max_shear", 0.0, "Shear of images, at most.", lower_bound=0.0
)
_MAX_SCALE = flags.DEFINE_float(
  "max_scale",
  1.0,
  "Factor that images grow or shrink by, at most.",
  lower_bound=1.0,
)


_CAPSNET_FLAGS = (
  "reconstruction", "num_iterations", "leaky", "conv_features", "conv_kernel",
  "num_types", "part_size", "primary_kernel", "primary_stride", "pose_size",
  "decoder_features", "bfloat16",
)  # fmt: skip


def make_model(dataset: data.Dataset) -> nnx.Module:
  """Draws the network that the flags describe, for images of a data set."""
  image = jax.ShapeDtypeStruct(dataset.images.shape[1:], jnp.float32)
  image_shape = jax.eval_shape(prepare_image, image).shape
  num_classes, rngs = dataset.num_classes, nnx.Rngs(runs.SEED.value)
  if _MODEL.value == "baseline":
    given = [name for name in _CAPSNET_FLAGS if flags.FLAGS[name].present]
    if given:
      raise ValueError(
        f"--model=baseline has no use for --{', --'.join(given)}"
      )
    return baselines.CapsNetBaseline(image_shape, num_classes, rngs=rngs)
  decoder = [int(width) for width in _DECODER_FEATURES.value]
  return capjax.CapsNet(
    image_shape,
    num_classes,
    conv_features=_CONV_FEATURES.value,
    conv_kernel=_CONV_KERNEL.value,
    num_types=_NUM_TYPES.value,
    part_size=_PART_SIZE.value,
    primary_kernel=_PRIMARY_KERNEL.value,
    primary_stride=_PRIMARY_STRIDE.value,
    pose_size=_POSE_SIZE.value,
    num_iterations=_NUM_ITERATIONS.value,
    leaky=_LEAKY.value,
    decoder_features=decoder if _weight() else (),
    dtype=jnp.bfloat16 if _BFLOAT16.value else jnp.float32,
    rngs=rngs,
  )


def make_optimizer() -> optax.GradientTransformation:
  """Adam with the learning rate of the authors' code.

  max(lr * decay_rate^(step / decay_steps), final), continuous in the step.
  """
  final = min(_FINAL_LEARNING_RATE.value, _LEARNING_RATE.value)

  def schedule(step):
    decay = _DECAY_RATE.value ** (step / _DECAY_STEPS.value)
    return jnp.maximum(_LEARNING_RATE.value * decay, final)

  return optax.adam(schedule)


def augment_image(key: jax.Array, image: jax.Array) -> jax.Array:
  """Deforms and places one training image as the flags say."""
  affine_key, place_key = jax.random.split(key)
  deform = _MAX_ROTATION.value or _MAX_SHEAR.value or _MAX_SCALE.value != 1
  if deform:
    image = augment.random_affine(
      affine_key,
      image,
      max_rotation=_MAX_ROTATION.value,
      max_shear=_MAX_SHEAR.value,
      scale_range=(1 / _MAX_SCALE.value, _MAX_SCALE.value),
    )
  if _CANVAS.value:
    canvas = (_CANVAS.value, _CANVAS.value)
    return augment.pad_and_place(place_key, image, canvas=canvas)
  return augment.shift(place_key, image, max_shift=_MAX_SHIFT.value)


def prepare_image(image: jax.Array) -> jax.Array:
  """Places one test image in the middle of the canvas, if there is one."""
  if _CANVAS.value:
    return augment.centre_pad(image, canvas=(_CANVAS.value, _CANVAS.value))
  return image


def loss(
  model: nnx.Module, images: jax.Array, labels: jax.Array, key: jax.Array
) -> tuple[jax.Array, training.Metrics]:
  """The loss of a batch and its metrics."""
  if _MODEL.value == "baseline":
    return losses.classifier_loss(model(images, key), labels)
  return losses.capsnet_loss(
    model, images, labels, reconstruction_weight=_weight()
  )


def predict(
  model: nnx.Module, images: jax.Array
) -> tuple[jax.Array, jax.Array | None]:
  """The class of each image, and the poses of its capsules, if it has any."""
  if _MODEL.value == "baseline":
    return jnp.argmax(model(images), axis=-1), None
  output = model(images)
  return jnp.argmax(output.activations, axis=-1), output.poses


def measure(
  model: nnx.Module, images: jax.Array, labels: jax.Array
) -> training.Metrics:
  """What is said of each image when the label is not used to draw it."""
  predictions, poses = predict(model, images)
  measures = {
    "prediction": predictions,
    "accuracy": (predictions == labels).astype(jnp.float32),
  }
  if poses is not None:
    activations = numerics.safe_norm(poses)
    present = jax.nn.one_hot(labels, poses.shape[1])
    measures["margin_loss"] = losses.margin_loss(activations, present)
    if model.decoder is not None:
      drawn = model.decode(poses, predictions)
      measures["reconstruction_loss"] = losses.reconstruction_loss(
        drawn, images
      )
  return measures


def restore(run: runs.Run) -> suites.Trained:
  """The model of a run's best checkpoint, with its measures of the test set.

  Raises:
    FileNotFoundError: if the test set is not there.
    ValueError: if the run has no checkpoint that can be read.
  """
  test = load_test()
  mesh = training.data_mesh(runs.BATCH_SIZE.value)
  template = make_model(test)
  saved = checkpoints.Checkpoints(run.workdir / "checkpoints")
  restored = saved.restore_best(training.replicate(template, mesh))
  if restored is None:
    raise ValueError(f"{run.workdir} has no checkpoint of a trained model yet")
  step, model, scores = restored
  measures = training.make_evaluate(
    measure,
    prepare=prepare_image,
    batch_size=runs.BATCH_SIZE.value,
    mesh=mesh,
  )(model, test.images, test.labels)
  return suites.Trained(
    model, step, scores, predict, prepare_image, test, measures
  )


def load_test() -> data.Dataset:
  """The test set that the flags name."""
  return data.load(runs.DATASET.value, "test", runs.DATA_DIR.value)


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {argv[1:]}")
  with runs.clear_errors():
    runs.configure()
    train, validation = loop.split_validation(
      data.load(runs.DATASET.value, "train", runs.DATA_DIR.value),
      runs.NUM_VALIDATION.value,
      runs.BATCH_SIZE.value,
    )
    load_test()  # so that what is missing is said now, not after training
    mesh = training.data_mesh(runs.BATCH_SIZE.value)
    optimizer = make_optimizer()
    model = make_model(train)
    state = training.init(model, optimizer, jax.random.key(runs.SEED.value))
    run = runs.Run(runs.WORKDIR.value)
    run.claim()
    options = {"batch_size": runs.BATCH_SIZE.value, "mesh": mesh}
    seconds = loop.fit(
      run,
      checkpoints.Checkpoints(run.workdir / "checkpoints"),
      state,
      update=training.make_update(
        loss, optimizer, augment=augment_image, **options
      ),
      evaluate=training.make_evaluate(
        measure, prepare=prepare_image, **options
      ),
      train=train,
      validation=validation,
      mesh=mesh,
    )
    trained = restore(run)
    figures.learning_curves(run.metrics(), run.figure("learning_curves"))
    metrics = {}
    for name in suites.suites_of(trained.model):
      metrics |= suites.SUITES[name](run, trained)
    run.write_summary(
      {
        "num_parameters": sum(x.size for x in jax.tree.leaves(trained.model)),
        "num_steps": runs.NUM_STEPS.value,
        "metrics": metrics,
        "seconds": seconds,
        "images_per_second": run.images_per_second(),
      }
    )
  print(
    f"test accuracy {metrics['test_accuracy']:.2%} on "
    f"{len(trained.test.labels)} images (checkpoint of step {trained.step}, "
    "chosen on validation)"
  )
  print(f"figures are in {run.workdir / 'figures'}")


def _weight() -> float:
  return losses.RECONSTRUCTION_WEIGHTS[_RECONSTRUCTION.value]


if __name__ == "__main__":
  flags.mark_flag_as_required("workdir")
  app.run(main)
