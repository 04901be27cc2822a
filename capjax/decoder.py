"""Images from class capsules: the decoder of CapsNet (Sabour et al., 2017)."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from capjax import layers, losses
from capjax.kernels import checks

# Initialisers of the decoder's layers, by name; see `Decoder`.
DECODER_INITS: dict[str, dict[str, Any]] = {
  "lecun": {},
  "official": {
    "kernel_init": jax.nn.initializers.truncated_normal(0.1),
    "bias_init": nnx.initializers.constant(0.1),
  },
}


class Decoder(nnx.Module):
  """Dense layers from class capsules to an image (the paper's figure 2).

  Initial parameters are one of `DECODER_INITS`. "lecun" is Flax's default:
  variance 1 / inputs, biases 0. "official" is the authors' code: normal with
  standard deviation 0.1, truncated at two standard deviations, biases 0.1.
  """

  def __init__(
    self,
    num_classes: int,
    pose_size: int,
    hidden_features: Sequence[int],
    image_shape: Sequence[int],
    *,
    init: str = "lecun",
    rngs: nnx.Rngs,
  ):
    """Initialises the parameters.

    Args:
      num_classes: J, class capsules.
      pose_size: D, numbers of the pose of each.
      hidden_features: units of the hidden layers.
      image_shape: height, width and channels of the images.
      init: one of `DECODER_INITS`.
      rngs: its `params` stream initialises the parameters.

    Raises:
      ValueError: if `init` is unknown.
    """
    checks.choice(DECODER_INITS, init=init)
    size = num_classes * pose_size
    sizes = (size, *hidden_features, math.prod(image_shape))
    options = DECODER_INITS[init]
    self.layers = nnx.List(
      layers.Linear(*pair, **options, rngs=rngs)
      for pair in zip(sizes, sizes[1:], strict=False)
    )
    self.capsules_shape = (num_classes, pose_size)
    self.image_shape = tuple(image_shape)

  def __call__(self, poses: Float[Array, "B J D"]) -> Float[Array, "B H W C"]:
    """Decodes class capsules; `decode` masks all but those of the classes.

    Args:
      poses: outputs of the class capsules, in which zeros mask a capsule.

    Returns:
      Intensities in (0, 1).
    """
    x = poses.reshape(len(poses), -1)
    for layer in self.layers[:-1]:
      x = jax.nn.relu(layer(x))
    images = jax.nn.sigmoid(self.layers[-1](x))
    return images.reshape(len(poses), *self.image_shape)


def decode(
  decoder: Decoder | None,
  poses: Float[Array, "B J D"],
  classes: Int[Array, " B"] | Int[Array, "B J"],
) -> Float[Array, "B H W C"]:
  """Reconstructs images from one class capsule each, with the others masked.

  Args:
    decoder: the decoder of a network, None if it has none.
    poses: outputs of the class capsules.
    classes: the capsule to decode; or, as [B J] of 0 and 1, all that are
      decoded together.

  Returns:
    Images with intensities in (0, 1).

  Raises:
    TypeError: as `losses.check_labels`.
    ValueError: if there is no decoder, poses or `classes` have another shape,
      or as `losses.check_labels`.
  """
  if decoder is None:
    raise ValueError("this network has no decoder; give decoder_features.")
  wanted = decoder.capsules_shape
  if poses.ndim != 3 or poses.shape[1:] != wanted:
    raise ValueError(
      f"poses are {list(poses.shape)}; give [B J D], with [J D] = "
      f"{list(wanted)}."
    )
  classes = jnp.asarray(classes)
  if classes.shape not in (poses.shape[:1], poses.shape[:2]):
    raise ValueError(
      f"classes are {list(classes.shape)}; give one class of each image, "
      f"{list(poses.shape[:1])}, or a mask {list(poses.shape[:2])}."
    )
  mask = classes
  if classes.ndim == 1:
    mask = losses.one_hot(classes, poses.shape[1], name="classes")
  mask = mask.astype(poses.dtype)
  return decoder(poses * mask[:, :, None])
