"""Stacked capsule autoencoders: parts and objects without labels.

Kosiorek, Sabour, Teh, Hinton (2019), Stacked capsule autoencoders.
"""

import functools

import jax
import jax.numpy as jnp
import optax

from capjax import losses, scae
from capjax.scae import objects as object_capsules
from capjax.specs import Spec

from ..evaluation import linear_probes
from ..evaluation import scae as suites
from ..training import augmentation, train_step
from ..training.augmentation import Placement
from ..training.task import Task, described
from . import multimnist
from .scenes import Scene

_CENTRED = Placement(max_shift=0)


@described(scae.SCAE)
def make_task(
  model: Spec,
  optimizer: optax.GradientTransformation,
  *,
  placement: Placement = _CENTRED,
  scene: Scene | None = None,
  weights: scae.Weights = scae.SCRIPT_WEIGHTS,
  noise: bool = True,
) -> Task:
  """Reconstruction of images by parts, and of parts by objects.

  Args:
    model: the autoencoder, without `image_shape`, which follows from the data.
      If images have labels, `num_classes` follows too. Without labels, give as
      `num_classes` the number of kinds of objects that images are expected to
      show; the sparsity of presences depends on it.
    optimizer: the optimiser of the parameters.
    placement: how images are deformed, and the canvas that they are placed on
      at random; test images too, but they are not shifted.
    scene: how two images are combined into one; None for images of one object.
      With a scene the probes look for two classes, and `placement` is not used.
    weights: of the terms of the loss.
    noise: whether noise is added to the logits of presence in training.
  """

  def describe(image_shape, num_classes):
    own = model.argument("num_classes")
    if "num_classes" in model.arguments and num_classes not in (0, own):
      raise ValueError(
        f"num_classes is {own}, and the labels are of {num_classes} classes; "
        "leave it out (--num_classes), it is for images without labels"
      )
    return model.with_arguments(
      image_shape=scene.shape(image_shape)
      if scene
      else augmentation.canvas_of(image_shape, placement),
      num_classes=num_classes or own,
    )

  num_parts = model.argument("num_parts")
  task = Task(
    describe,
    functools.partial(loss, weights=weights, noise=noise),
    measure,
    **_samples(placement, scene),
    optimizer=optimizer,
    suites=lambda model: [
      "errors",
      "explanations",
      "objects",
      "clusters",
      "label_curve",
      "affnist_like_clusters",
      "object_masks",
      "linear",
      "equivariance",
      "out_of_distribution",
    ],
    after_training=("errors", "explanations", "objects", "clusters"),
    chosen_by=None,
    warn=lambda metrics: suites.warn(metrics, num_parts),
    steps=lambda shape: augmentation.steps(placement),
    features=features,
    explain=scae.object_masks,
    unlabelled=True,
    of_batch="prior_between" if weights.prior_between else "",
  )
  if scene is None:
    return task
  of_scenes = ("errors", "explanations", "object_masks")
  return task._replace(
    suites=lambda model: list(of_scenes),
    after_training=of_scenes,
    begin=multimnist.begin,
    steps=scene.steps,
    num_labels=2,
    unlabelled=False,  # the objects of a scene are of two classes
  )


def _samples(
  placement: Placement, scene: Scene | None
) -> dict[str, train_step.Sample]:
  """The fields `sample` and `sample_test` of a `Task`."""
  if scene:
    make = scene.sampler()

    def sample(*arguments):
      image, objects = make(*arguments)
      return image, objects.labels

    return {"sample": sample, "sample_test": sample}

  def placed(function):
    function = functools.partial(function, placement=placement)
    return train_step.sample_labelled(function)

  return {
    "sample": placed(augmentation.augment_image),
    "sample_test": placed(augmentation.test_image),
  }


def loss(
  model: scae.SCAE,
  images: jax.Array,
  labels: jax.Array,
  key: jax.Array,
  step: jax.Array,
  *,
  weights: scae.Weights,
  noise: bool,
) -> tuple[jax.Array, train_step.Metrics]:
  """The loss of a batch, its terms, and the share of flat templates.

  With `weights` and `noise` bound, it is a `train_step.Loss`.

  Args:
    model: the autoencoder.
    images: [B H W C] in [0, 1].
    labels: [B], or [B N] of N objects, the classes, from which only the probes
      learn; [B 0] without labels.
    key: samples the noise.
    step: not used.
    weights: as for `make_task`.
    noise: as for `make_task`.
  """
  del step
  value, terms = scae.loss(
    model,
    images,
    labels if labels.size else None,
    key if noise else None,
    weights=weights,
  )
  if not labels.size:
    del terms["probe_loss"]
  return value, {**terms, "flat_templates": scae.flat_templates(model)}


def measure(
  model: scae.SCAE, images: jax.Array, labels: jax.Array
) -> train_step.Metrics:
  """Log-likelihoods, accuracies of the probes, and presences of objects.

  Args:
    model: the autoencoder.
    images: [B H W C] in [0, 1].
    labels: [B], or [B N] of N objects, the classes; a probe is right if its N
      highest scores are those of the labels. [B 0] without labels.

  Returns:
    Measures [B]; `activations` [B K] are the shares of the parts that each
    object explains best. Without labels, measures of probes are left out.
  """
  output = model(images)
  targets = model.targets(images)
  explained = model.decoder.explain(targets, output.parts)
  errors = jnp.abs(explained.mean - targets)
  right = {}
  if labels.size:
    labels = labels.reshape(len(labels), -1)
    for name, logits in (
      ("prior", output.prior_logits),
      ("posterior", output.posterior_logits),
    ):
      right[f"{name}_probe_accuracy"] = losses.exact_set(logits, labels)
  return {
    "image_log_prob": explained.log_prob,
    "reconstruction_error": jnp.mean(errors, axis=(1, 2, 3)),
    "part_log_prob": output.objects.log_prob,
    "present_parts": jnp.sum(output.parts.presence, axis=1),
    "activations": scae.shares_won(output.objects),
    **{name: x.astype(jnp.float32) for name, x in right.items()},
  }


def features(model: scae.SCAE, images: jax.Array) -> dict[str, jax.Array]:
  """Posterior presences of objects, and their poses, for linear probes.

  Args:
    model: the autoencoder.
    images: [B H W C] in [0, 1].

  Returns:
    `{name: [B F]}`, as `linear_probes.features` names them.
  """
  objects = model(images).objects
  poses = object_capsules.entries(objects.poses)
  return linear_probes.features(objects.posterior_presence(), poses)
