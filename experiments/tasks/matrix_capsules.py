"""Matrix capsules with EM routing, and the CNN they are compared with.

Hinton, Sabour, Frosst (2018), Matrix capsules with EM routing. Images are
stereo pairs, as in smallNORB, or those of any other data set.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from capjax import losses, matrix_capsules, predictions
from capjax.baselines import CapsNetBaseline, smallnorb_baseline
from capjax.data.transforms import stereo
from capjax.data.transforms.preprocessing import Preprocessing
from capjax.evaluation import diagnostics
from capjax.kernels import checks
from capjax.specs import Spec

from ..evaluation import suites
from ..training import augmentation, train_step
from ..training import viewpoints as viewpoints_of
from ..training.augmentation import Placement
from ..training.task import Task, described
from . import class_scores

CLASS_LOSSES = ("spread", "margin", "cross_entropy")
# The authors' code has 2,000,000 steps and a time constant of 50,000.
_MARGIN_SHARE = 40
_LATEST = 2**31 - 1  # step, at which the margin is largest
# The crop of a stereo pair is standardised, as in the authors' code. The text
# of the paper, and IBM's code, standardise first and then crop.
_PAIRS = Preprocessing(downsample=48, crop=32, standardise=True)
_PAIRS_BY_PIPELINE = {
  "official": _PAIRS, "ibm": _PAIRS._replace(crop_last=True)
}  # fmt: skip
_STEREO = ("smallnorb", "viewpoint_solids")
_SHIFTED = Placement()
_OF_SINGLE_IMAGES = ["affnist_like", "views", "crowding", "moved"]

# (activations [B J], labels [B], step) -> [B]
ClassLoss = Callable[[jax.Array, jax.Array, int | jax.Array], jax.Array]


@described(matrix_capsules.MatrixCapsules, CapsNetBaseline, smallnorb_baseline)
def make_task(
  model: Spec,
  optimizer: optax.GradientTransformation,
  *,
  num_steps: int | None = None,
  dataset: str = "",
  kind: str = "spread",
  margin_steps: float | None = None,
  weight_decay: float = 2e-7,
  placement: Placement = _SHIFTED,
  pipeline: str = "official",
  viewpoints: str = "all",
) -> Task:
  """Classification of images, by matrix capsules or by a network of logits.

  Args:
    model: the network, without `image_shape` and `num_classes`, which follow
      from the data.
    optimizer: the optimiser of the parameters.
    num_steps: total number of updates; needed for the spread loss without
      `margin_steps`.
    dataset: the name of a known data set; smallnorb and viewpoint_solids are
      stereo pairs, which are reduced, standardised and cropped.
    kind: the loss of class activations, one of `CLASS_LOSSES`.
    margin_steps: time constant of the spread loss's margin in steps; None for a
      fortieth of `num_steps`.
    weight_decay: weight of half the sum of squares of all parameters.
    placement: how training images are shifted and deformed, and the canvas that
      all images are placed on; not used for stereo pairs.
    pipeline: augmentation of stereo pairs, one of `stereo.PIPELINES`; it also
      decides whether pairs are standardised before or after the crop.
    viewpoints: to train on, as for `viewpoints.held_out`.

  Raises:
    ValueError: if the spread loss has neither `num_steps` nor `margin_steps`,
      or the pipeline is unknown.
  """
  of_length = kind == "spread" and margin_steps is None
  if of_length:
    if num_steps is None:
      raise ValueError(
        "num_steps is missing; give the number of updates, or margin_steps."
      )
    margin_steps = num_steps / _MARGIN_SHARE
  pairs = is_stereo(dataset)

  def describe(image_shape, num_classes):
    if pairs:
      shape = steps.output_shape(image_shape)
    else:
      shape = augmentation.canvas_of(image_shape, placement)
    return model.with_arguments(image_shape=shape, num_classes=num_classes)

  unfit = _OF_SINGLE_IMAGES if pairs else []
  if placement.crop or placement.downsample:
    unfit = [*unfit, "affnist_like"]  # places whole images on a canvas

  def suites_of(model):
    names = suites.of_classifier(
      model,
      scored_by=viewpoints_of.scored_by(viewpoints),
      unfit=["multimnist", *unfit],
    )
    return [*names, "multi_crop"] if pairs else names

  if pairs:
    checks.choice(stereo.PIPELINES, pipeline=pipeline)
    steps = _PAIRS_BY_PIPELINE[pipeline]
    make_example = functools.partial(sample_pair, pipeline=pipeline)
    make_test = train_step.sample_labelled(lambda key, image: steps(image))
  else:
    steps = augmentation.steps(placement)
    make_example, make_test = (
      train_step.sample_labelled(functools.partial(x, placement=placement))
      for x in (augmentation.augment_image, augmentation.place_image)
    )
  class_loss = make_class_loss(kind, margin_steps)
  return Task(
    describe,
    functools.partial(loss, class_loss=class_loss, weight_decay=weight_decay),
    functools.partial(measure, class_loss=class_loss),
    sample=make_example,
    sample_test=make_test,
    optimizer=optimizer,
    suites=suites_of,
    after_training=("accuracy", "viewpoints"),
    steps=lambda shape: steps,
    scores=functools.partial(class_scores.scores, steps=steps),
    attack_loss=functools.partial(class_scores.attack_loss, steps=steps),
    num_steps=num_steps if of_length else None,
    **viewpoints_of.held_out(viewpoints),
  )


def is_stereo(dataset: str) -> bool:
  """Whether the images of a data set are stereo pairs."""
  return dataset in _STEREO


def sample_pair(
  key: jax.Array,
  index: jax.Array,
  images: jax.Array,
  labels: jax.Array,
  *,
  pipeline: str,
) -> tuple[jax.Array, jax.Array]:
  """Makes one stereo pair for training, with random augmentation.

  With `pipeline` bound, it is a `train_step.Sample`.
  """
  pair = 255 * stereo.downsample(train_step.as_intensities(images[index]))
  return stereo.augment(key, pair, pipeline=pipeline), labels[index]


def make_class_loss(kind: str, timescale: float) -> ClassLoss:
  """Makes the function for the loss [B] of class activations [B J] at a step.

  Args:
    kind: one of `CLASS_LOSSES`.
    timescale: time constant of the spread loss's margin in steps; the margin is
      halfway after four of them.
  """

  def class_loss(activations, labels, step):
    if kind == "spread":
      margin = losses.spread_margin(step, timescale=timescale)
      return losses.spread_loss(activations, labels, margin=margin)
    if kind == "margin":
      present = jax.nn.one_hot(labels, activations.shape[1])
      return losses.margin_loss(activations, present)
    return losses.share_loss(activations, labels)

  return class_loss


def loss(
  model: nnx.Module,
  images: jax.Array,
  labels: jax.Array,
  key: jax.Array,
  step: jax.Array,
  *,
  class_loss: ClassLoss,
  weight_decay: float,
) -> tuple[jax.Array, train_step.Metrics]:
  """The loss of a batch and its metrics.

  With `class_loss` and `weight_decay` bound, it is a `train_step.Loss`.

  Args:
    model: the network.
    images: [B H W C], as the steps of the task return them.
    labels: [B], the classes.
    key: samples the dropout of a network without capsules.
    step: [], the number of updates so far.
    class_loss: of capsules; a network of logits has the cross-entropy.
    weight_decay: weight of half the sum of squares of all parameters.
  """
  squares = optax.tree.norm(nnx.state(model, nnx.Param), squared=True)
  decay = weight_decay * squares / 2
  if not predictions.has_class_capsules(model):
    value, metrics = losses.classifier_loss(model(images, key), labels)
    return value + decay, metrics
  activations = model(images).activations
  value = jnp.mean(class_loss(activations, labels, step))
  right = jnp.argmax(activations, axis=-1) == labels
  return value + decay, {"loss": value, "accuracy": jnp.mean(right)}


def measure(
  model: nnx.Module,
  images: jax.Array,
  labels: jax.Array,
  *,
  class_loss: ClassLoss,
) -> train_step.Metrics:
  """Measures each image; `loss` has the largest margin, whatever the step.

  Args:
    model: the network.
    images: [B H W C], as the steps of the task return them.
    labels: [B], the classes.
    class_loss: as for `loss`.

  Returns:
    `prediction`, `accuracy` and `loss` [B]; of capsules also `activations`
    [B J] and `routing_entropy` [B].
  """
  output = model(images)
  capsules = predictions.has_class_capsules(model)
  said = output.activations if capsules else output
  classes = jnp.argmax(said, axis=-1)
  measures = {
    "prediction": classes,
    "accuracy": (classes == labels).astype(jnp.float32),
  }
  if not capsules:
    measures["loss"] = optax.softmax_cross_entropy_with_integer_labels(
      said, labels
    )
  else:
    measures["loss"] = class_loss(said, labels, _LATEST)
    measures["activations"] = output.activations
    measures["routing_entropy"] = diagnostics.routing_entropy(
      output.coefficients
    )
  return measures
