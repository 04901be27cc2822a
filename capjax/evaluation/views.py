"""ONE image seen under a known transform; traceable, to be `vmap`ped.

Images are [H, W, C] floats. Transforms are about the middle of the image and in
pixels, so that rotations stay rigid on images that are not square.
Interpolation is bilinear, with zeros outside.
"""

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from capjax.kernels import checks, geometry, rendering


def rotate(
  image: Float[Array, "H W C"], degrees: ArrayLike
) -> Float[Array, "H W C"]:
  """Turns an image clockwise, as seen on a screen.

  Args:
    image: [H, W, C], any range.
    degrees: positive turns x towards y, as in `geometry.affine_matrix`; 90 is
      `np.rot90(image, -1)` where the image is square.

  Returns:
    [H, W, C]; pixels that leave the frame are lost.
  """
  theta = jnp.deg2rad(degrees)
  return rendering.transform(
    image, geometry.affine_matrix(1, 1, theta, 0, 0, 0)
  )


def translate(
  image: Float[Array, "H W C"], x: ArrayLike, y: ArrayLike
) -> Float[Array, "H W C"]:
  """Moves an image.

  Args:
    image: [H, W, C], any range.
    x: pixels to the right, whole or not; whole numbers do not blur the image.
    y: pixels down.

  Returns:
    [H, W, C]; pixels that leave the frame are lost.
  """
  return rendering.transform(image, geometry.affine_matrix(1, 1, 0.0, 0, x, y))


def scale(
  image: Float[Array, "H W C"], factor: ArrayLike
) -> Float[Array, "H W C"]:
  """Enlarges or shrinks an image.

  Args:
    image: [H, W, C], any range.
    factor: above 0; 2 doubles lengths. Far below 1 there is aliasing, since
      each pixel averages only four others.

  Returns:
    [H, W, C]; pixels that leave the frame are lost.

  Raises:
    TypeError: if `factor` is no number.
    ValueError: if it is known (not under jit), and not a finite number above 0.
  """
  checks.positive(factor=factor)
  return rendering.transform(
    image, geometry.affine_matrix(factor, factor, 0.0, 0, 0, 0)
  )
