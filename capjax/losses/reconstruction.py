"""Losses of models that reconstruct images: `CapsNet` with its decoder."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from capjax.kernels import checks, numerics
from capjax.losses.classification import margin_loss
from capjax.losses.labels import exact_set, multi_hot

# Weight of the summed squared error of the reconstruction against the margin
# loss summed over classes. The paper prints 0.0005. The authors' code applies
# that to a margin loss averaged over the ten classes and halved, 1/20 of the
# paper's, so that its weight in these units is 20 times larger.
RECONSTRUCTION_WEIGHTS = {"none": 0.0, "paper": 0.0005, "official": 0.01}


def reconstruction_loss(
  reconstructions: Float[Array, "B H W C"], images: Float[Array, "B H W C"]
) -> Float[Array, " B"]:
  """Sums squared errors over the pixels and channels of each image.

  Args:
    reconstructions: the predicted intensities.
    images: the targets, of the same shape.

  Returns:
    One sum for each image, >= 0, in float32 or wider.

  Raises:
    TypeError: if one of the two does not hold floats.
    ValueError: if the shapes differ.
  """
  checks.floats({"images": images, "reconstructions": reconstructions})
  checks.arrays({"images": (images, "B H W C")})
  checks.same_shape(images.shape, reconstructions=reconstructions)
  dtype = numerics.accumulation_dtype(reconstructions, images)
  errors = reconstructions.astype(dtype) - images.astype(dtype)
  return jnp.sum(jnp.square(errors), axis=(1, 2, 3))


def overlap_reconstruction_loss(
  model: nnx.Module,
  poses: Float[Array, "B J D"],
  labels: Int[Array, "B K"],
  parts: Float[Array, "B K H W C"],
) -> Float[Array, " B"]:
  """Squared errors of objects, each decoded alone (Sabour et al., section 6).

  Args:
    model: a `CapsNet` with decoder.
    poses: poses of its class capsules.
    labels: the capsules to decode, one at a time.
    parts: the object that each capsule should reconstruct, alone.

  Returns:
    Squared errors, summed over the pixels, channels and objects of each image.

  Raises:
    TypeError: if the parts hold no floats, or the labels no whole numbers.
    ValueError: if an argument has another shape, or the model has no decoder.
  """

  def squares(classes, objects):
    return reconstruction_loss(model.decode(poses, classes), objects)

  return jnp.sum(jax.vmap(squares, 1)(labels, parts), axis=0)


def overlap_loss(
  model: nnx.Module,
  images: Float[Array, "B H W C"],
  labels: Int[Array, "B K"],
  parts: Float[Array, "B K H W C"],
  *,
  reconstruction_weight: float,
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
  """Losses of a `CapsNet` on images of K objects (Sabour et al., section 6).

  The margin loss requires all classes of the image. The capsule of each class
  is decoded separately and compared with its own object, not with the image.

  Args:
    model: a `CapsNet`.
    images: in [0, 1].
    labels: the classes in each image, all different.
    parts: each object alone, in the order of `labels`.
    reconstruction_weight: weight of the squared errors summed over pixels and
      objects against the margin loss summed over classes: see
      `RECONSTRUCTION_WEIGHTS`. A number of Python, not a traced one: with 0
      the decoder is not run.

  Returns:
    The mean over the batch of the loss, and of its terms by name; `accuracy` is
    that of `exact_set`.

  Raises:
    TypeError: if the images, or the parts unless the weight is 0, hold no
      floats, or the labels no whole numbers.
    ValueError: as the model for its images; if the labels are not [B K], with K
      different classes in each image where they are known; or, unless the
      weight is 0, if the parts have another shape or the model has no decoder.
  """
  output = model(images)
  checks.same_shape((len(images), *labels.shape[1:]), labels=labels)
  present = multi_hot(labels, output.activations.shape[-1])
  margin = jnp.mean(margin_loss(output.activations, present))
  metrics = {
    "accuracy": jnp.mean(exact_set(output.activations, labels)),
    "margin_loss": margin,
  }
  loss = margin
  if reconstruction_weight:
    squares = overlap_reconstruction_loss(model, output.poses, labels, parts)
    metrics["reconstruction_loss"] = jnp.mean(squares)
    loss += reconstruction_weight * metrics["reconstruction_loss"]
  return loss, {"loss": loss, **metrics}


def capsnet_loss(
  model: nnx.Module,
  images: Float[Array, "B H W C"],
  labels: Int[Array, " B"],
  *,
  reconstruction_weight: float,
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
  """Margin loss and reconstruction loss of a `CapsNet` (section 4.1).

  It equals `overlap_loss` with one object in each image, the image itself.

  Args:
    model: a `CapsNet`.
    images: in [0, 1].
    labels: the class of each image.
    reconstruction_weight: as for `overlap_loss`.

  Returns:
    The mean over the batch of the loss, and of its terms by name.

  Raises:
    TypeError: if the images are no floats, or the labels no whole numbers.
    ValueError: as `overlap_loss`.
  """
  if not hasattr(images, "astype"):  # the model checks arrays
    checks.floats({"images": images})
  labels = jnp.asarray(labels)
  checks.same_shape(images.shape[:1], labels=labels)
  return overlap_loss(
    model,
    images,
    labels[:, None],
    images[:, None],
    reconstruction_weight=reconstruction_weight,
  )
