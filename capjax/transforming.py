"""Transforming auto-encoders: capsules that learn coordinates.

Hinton, Krizhevsky, Wang (2011), Transforming auto-encoders. Each capsule infers
the presence and the pose of its visual entity; it is given the transformation
of the image, applies it to the pose, and renders its part of the moved image.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from capjax import layers, losses
from capjax.kernels import checks, geometry, numerics

POSES = {"shift": (2,), "affine": (3, 3)}
OUTPUTS = {"linear": lambda x: x, "sigmoid": jax.nn.sigmoid}


class Recognised(NamedTuple):
  """Poses and presences of the capsules in a batch of images.

  Attributes:
    poses: [B I 2], the coordinates (x, y), or [B I 3 3], the matrix A.
    presences: [B I] in [0, 1], the probability that the entity is present.
  """

  poses: Float[Array, "B I *pose"]
  presences: Float[Array, "B I"]


class TransformingAutoencoder(nnx.Module):
  """Capsules that see and render the whole image; defaults are the paper's.

  A capsule has logistic recognition units h = sigmoid(W x + b). Its pose is
  linear in h and its presence p logistic in h. Logistic generation units read
  only the moved pose, and a rendering g is linear in them. The image is
  sum_c p_c g_c.

  The effect of a transformation on a pose is fixed. For `shift` it is added to
  (x, y): the unit of coordinates is then a pixel, while each capsule has its
  own origin. For `affine` the matrix A becomes T A, as the pose of an object
  that T moves; T is in pixels about the middle of the image. x is to the right,
  y down.

  If an entity is at the same place in all images, (x, y) may be constant and p
  may carry all information: coordinates are meaningful only if the inputs
  themselves are moved at random.

  Differs from the paper: renderings cover the image, not a patch of 22x22; A
  starts near the identity.
  """

  def __init__(
    self,
    image_shape: Sequence[int] = (28, 28, 1),
    *,
    num_capsules: int = 30,
    recognition_units: int = 10,
    generation_units: int = 20,
    pose: str = "shift",
    output: str = "linear",
    dtype: jax.typing.DTypeLike = jnp.float32,
    rngs: nnx.Rngs,
  ):
    """Initialises the parameters: kernels with variance 1 / fan in, biases 0.

    Args:
      image_shape: height, width and channels of the images.
      num_capsules: I.
      recognition_units: recognition units of each capsule.
      generation_units: generation units of each capsule.
      pose: `shift` or `affine`.
      output: `linear`, as in the paper, or the `sigmoid` of the sum, which
        other implementations use and which keeps images in [0, 1].
      dtype: dtype of the products, as for `layers.dense.set_dtype`; moves are
        in float32.
      rngs: its `params` stream initialises the parameters.

    Raises:
      ValueError: if a number is below 1, or a name is not one of these.
    """
    checks.rngs(rngs)
    checks.counts(
      num_capsules=num_capsules,
      recognition_units=recognition_units,
      generation_units=generation_units,
    )
    for name, given, known in (
      ("pose", pose, POSES),
      ("output", output, OUTPUTS),
    ):
      if given not in known:
        raise ValueError(f"{name}={given!r}; give one of {', '.join(known)}.")
    checks.image_shape(image_shape)
    self.image_shape = tuple(image_shape)
    self.pose, self.output = pose, output
    num_pixels, pose_size = math.prod(image_shape), math.prod(POSES[pose])
    self.recognition = layers.Linear(
      num_pixels, num_capsules * recognition_units, rngs=rngs
    )

    def units(inputs, outputs):
      """Dense layers, one for each capsule."""
      return layers.Einsum(
        "bif,ifg->big",
        (num_capsules, inputs, outputs),
        (num_capsules, outputs),
        kernel_init=nnx.initializers.lecun_normal(batch_axis=(0,)),
        rngs=rngs,
      )

    self.code = units(recognition_units, pose_size + 1)
    self.generation = units(pose_size, generation_units)
    self.drawing = layers.Einsum(
      "big,igo->bo", (num_capsules, generation_units, num_pixels), rngs=rngs
    )
    self.drawing_bias = nnx.Param(
      jnp.zeros((num_capsules, num_pixels), jnp.float32)
    )
    layers.dense.set_dtype(self, dtype)

  def recognise(self, images: Float[Array, "B H W C"]) -> Recognised:
    """Infers poses and presences, before any transformation.

    Args:
      images: in [0, 1].

    Raises:
      TypeError: if the images hold integers.
      ValueError: if the images have another shape, or, where values are known
        (not under jit), intensities outside of [0, 1].
    """
    checks.images(images, self.image_shape, intensities=True)
    x = self.recognition(images.reshape(len(images), -1))
    num_capsules = self.drawing_bias.shape[0]
    units = jax.nn.sigmoid(x).reshape(len(images), num_capsules, -1)
    code = self.code(units)
    poses = code[..., :-1].reshape(*code.shape[:2], *POSES[self.pose])
    if self.pose == "affine":
      poses += jnp.eye(3)
    return Recognised(poses, jax.nn.sigmoid(code[..., -1]))

  def move(
    self,
    poses: Float[Array, "B I *pose"],
    transforms: Float[Array, " B *pose"],
  ) -> Float[Array, "B I *pose"]:
    """Moves the poses of the capsules by a transformation of each image.

    Args:
      poses: of the capsules.
      transforms: shifts (x, y), or matrices, by the model's kind of pose.

    Returns:
      Poses with the shift added, or multiplied by the matrix from the left.

    Raises:
      TypeError: if an argument does not hold floating-point numbers.
      ValueError: if one has another shape.
    """
    checks.floats({"transforms": transforms})
    self._check_poses(poses)
    wanted = (len(poses), *POSES[self.pose])
    if transforms.shape != wanted:
      raise ValueError(
        f"transforms are {list(transforms.shape)}; give one for each image, "
        f"{list(wanted)}."
      )
    if self.pose == "shift":
      return poses + transforms[:, None]
    return geometry.compose(transforms[:, None], poses)

  def generate(
    self,
    poses: Float[Array, "B I *pose"],
    presences: Float[Array, "B I"],
  ) -> Float[Array, "B H W C"]:
    """Renders images: sum_c p_c g_c, or its sigmoid.

    Args:
      poses: of the capsules.
      presences: p_c in [0, 1].

    Raises:
      TypeError: if an argument does not hold floating-point numbers.
      ValueError: if one has another shape.
    """
    self._check_poses(poses)
    checks.floats({"presences": presences})
    checks.same_shape(poses.shape[:2], presences=presences)
    units = self.generation(poses.reshape(*presences.shape, -1))
    weighted = presences[..., None] * jax.nn.sigmoid(units)
    bias = numerics.matmul(presences, self.drawing_bias[...])
    total = self.drawing(weighted) + bias
    return OUTPUTS[self.output](total).reshape(-1, *self.image_shape)

  def _check_poses(self, poses):
    checks.floats({"poses": poses})
    wanted = (self.drawing_bias.shape[0], *POSES[self.pose])
    if poses.shape[1:] != wanted:
      raise ValueError(
        f"poses are {list(poses.shape)}; give [B, *pose of each capsule], with "
        f"{list(wanted)} after the batch."
      )

  def __call__(
    self,
    images: Float[Array, "B H W C"],
    transforms: Float[Array, " B *pose"],
  ) -> Float[Array, "B H W C"]:
    """Renders images as they are after a transformation.

    Args:
      images: in [0, 1].
      transforms: [B 2], shifts (x, y), or [B 3 3]; in pixels.

    Returns:
      The moved images, which for `linear` may leave [0, 1].
    """
    poses, presences = self.recognise(images)
    return self.generate(self.move(poses, transforms), presences)


def transforming_loss(
  model: TransformingAutoencoder,
  images: Float[Array, "B H W C"],
  transforms: Float[Array, " B *pose"],
  targets: Float[Array, "B H W C"],
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
  """The squared error of moved images, summed over pixels (section 2).

  Args:
    model: the model that predicts the moved images.
    images: images before the transformation.
    transforms: the transformation of each image, as the model takes it.
    targets: images after the transformation.

  Returns:
    The mean over the batch, and the same by name.
  """
  squares = losses.reconstruction_loss(model(images, transforms), targets)
  loss = jnp.mean(squares)
  return loss, {"loss": loss}
