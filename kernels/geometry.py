"""Poses: 3x3 matrices that map one [-1, 1] coordinate frame into another.

Points are (x, y), x to the right and y down. An image of W columns has its
first and last pixel *centres* at x = -1 and x = 1 ("align corners"); the same
holds for rows and y. A single pixel is at 0 and extends to -1 and 1.

In float32 values and gradients are finite for entries of magnitude up to 1e17,
beyond which products overflow.
"""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Float

from . import checks

_MIN_DETERMINANT = 1e-8


def _matrix(a, b, tx, c, d, ty) -> Float[Array, "*batch 3 3"]:
  """Stacks [[a, b, tx], [c, d, ty], [0, 0, 1]] over the leading axes."""
  entries = jnp.broadcast_arrays(a, b, tx, c, d, ty)
  zero, one = jnp.zeros_like(entries[0]), jnp.ones_like(entries[0])
  stacked = jnp.stack([*entries, zero, zero, one], axis=-1)
  return stacked.reshape(*zero.shape, 3, 3)


def affine_matrix(
  scale_x: ArrayLike,
  scale_y: ArrayLike,
  theta: ArrayLike,
  shear: ArrayLike,
  tx: ArrayLike,
  ty: ArrayLike,
) -> Float[Array, "*batch 3 3"]:
  """Builds a pose from scales, a rotation, a shear and a translation.

  A = [1 shear; 0 1] diag(scale_x, scale_y) R(theta), then + (tx, ty): a point
  is rotated, scaled, sheared and moved, in this order. det A = scale_x scale_y.

  Args:
    scale_x: [...], the scale along x; all six arguments broadcast.
    scale_y: [...], the scale along y.
    theta: [...], radians; positive turns x towards y, clockwise on a screen.
    shear: [...], how much x increases for each unit of y.
    tx: [...], the translation along x, in the unit of the frame.
    ty: [...], the translation along y.

  Returns:
    [..., 3, 3], third row (0, 0, 1).
  """
  cos, sin = jnp.cos(theta), jnp.sin(theta)
  return _matrix(
    scale_x * cos + shear * scale_y * sin,
    shear * scale_y * cos - scale_x * sin,
    tx,
    scale_y * sin,
    scale_y * cos,
    ty,
  )


KINDS = "affine", "similarity"  # of `pose_matrix`


def pose_matrix(
  params: Float[Array, "*batch 6"],
  kind: Literal["affine", "similarity"] = "affine",
) -> Float[Array, "*batch 3 3"]:
  """Turns unconstrained numbers into poses (Kosiorek et al., 2019, code).

  s = sigmoid(raw) + 0.01, theta = 2 pi raw, shear and t = tanh(5 raw), then
  `affine_matrix`. No pose is singular: s >= 0.01.

  Args:
    params: [..., 6], raw (scale_x, scale_y, theta, shear, tx, ty), any range.
    kind: "affine" reads all six; "similarity" reads scale_x as the one scale
      and ignores scale_y and shear.

  Returns:
    [..., 3, 3], in the dtype of `params`.

  Raises:
    ValueError: `kind` is neither of the two.

  Differs from paper: nothing; the paper leaves the squashing to its code.
  """
  checks.arrays({"params": (params, "... 6")})
  checks.choice(KINDS, kind=kind)
  raw = params.astype(jnp.promote_types(params.dtype, jnp.float32))
  scale = jax.nn.sigmoid(raw[..., :2]) + 0.01
  theta = 2 * jnp.pi * raw[..., 2]
  shear, tx, ty = jnp.moveaxis(jnp.tanh(5 * raw[..., 3:]), -1, 0)
  if kind == "affine":
    scale_x, scale_y = scale[..., 0], scale[..., 1]
  else:
    scale_x = scale_y = scale[..., 0]
    shear = 0.0
  pose = affine_matrix(scale_x, scale_y, theta, shear, tx, ty)
  return pose.astype(jnp.result_type(params))


def compose(
  a: Float[Array, "*#batch 3 3"], b: Float[Array, "*#batch 3 3"]
) -> Float[Array, "... 3 3"]:
  """Chains two poses, the second first: apply(compose(a, b), p) = a(b(p)).

  Args:
    a: [..., 3, 3], from the middle frame to the last.
    b: [..., 3, 3], from the first frame to the middle; leading axes broadcast.

  Returns:
    [..., 3, 3], the matrix product a b.
  """
  checks.arrays({"a": (a, "... 3 3"), "b": (b, "... 3 3")})
  # Too small for a matrix unit, which would round a pose to 8 or 10 bits.
  return jnp.sum(a[..., :, :, None] * b[..., None, :, :], axis=-2)


def invert(pose: Float[Array, "*batch 3 3"]) -> Float[Array, "*batch 3 3"]:
  """Inverts poses in closed form.

  p = A^-1 (g - t), A^-1 = [d -b; -c a] / (ad - bc). A determinant smaller than
  1e-8 counts as 1e-8 with its sign, so that values and gradients stay finite.
  A row with an entry above 1e4 is divided by that entry, so that products do
  not overflow; the determinant of the divided matrix counts as at least 1e-16.

  Args:
    pose: [..., 3, 3], third row (0, 0, 1), which is not read. Entries may be
      as large as the largest number; beyond 1e15, [a b] and [c d] must not be
      nearly parallel for an inverse that is exact.

  Returns:
    [..., 3, 3], in the dtype of `pose`; infinite where an entry is too large
    for this dtype.
  """
  checks.arrays({"pose": (pose, "... 3 3")})
  dtype = jnp.promote_types(pose.dtype, jnp.float32)
  rows = jnp.moveaxis(pose[..., :2, :].astype(dtype), (-2, -1), (0, 1))
  (a, b, tx), (c, d, ty) = rows
  upper, lower = _excess(a, b, limit=1e4), _excess(c, d, limit=1e4)
  a, b, tx = a / upper, b / upper, tx / upper
  c, d, ty = c / lower, d / lower, ty / lower
  det = a * d - b * c
  least = jnp.maximum(_MIN_DETERMINANT / upper / lower, _MIN_DETERMINANT**2)
  floor = jnp.where(det < 0, -least, least)
  det = jnp.where(jnp.abs(det) < least, floor, det)
  far = _excess(tx, ty, limit=1e30)
  tx, ty = tx / far, ty / far
  inverse = _matrix(
    d / det / upper,
    -b / det / lower,
    (b * ty - d * tx) / det * far,
    -c / det / upper,
    a / det / lower,
    (c * tx - a * ty) / det * far,
  )
  return inverse.astype(jnp.result_type(pose))


def _excess(x, y, *, limit) -> Float[Array, "*batch"]:
  """The larger magnitude of two numbers if above a limit, else 1."""
  largest = jax.lax.stop_gradient(jnp.maximum(jnp.abs(x), jnp.abs(y)))
  return jnp.where(largest > limit, largest, 1.0)


def apply(
  pose: Float[Array, "3 3"], points: Float[Array, "*batch 2"]
) -> Float[Array, "*batch 2"]:
  """Moves points by one pose: (x, y, 1) -> pose (x, y, 1).

  >>> pose = affine_matrix(2.0, 1.0, 0.0, 0.0, 0.5, 0.0)
  >>> print(apply(pose, jnp.array([[1.0, 1.0], [0.0, 0.0]])))
  [[2.5 1. ]
   [0.5 0. ]]

  Args:
    pose: [3, 3], third row (0, 0, 1), which is not read.
    points: [..., 2], each (x, y).

  Returns:
    [..., 2], in the wider dtype of the two.
  """
  # A stack of poses would broadcast against the points; use vmap for a stack.
  checks.arrays({"pose": (pose, "3 3"), "points": (points, "... 2")})
  dtype = jnp.result_type(pose, points)
  exact = jnp.promote_types(dtype, jnp.float32)
  (a, b, tx), (c, d, ty) = pose[:2].astype(exact)
  x, y = points[..., 0].astype(exact), points[..., 1].astype(exact)
  moved = jnp.stack([a * x + b * y + tx, c * x + d * y + ty], axis=-1)
  return moved.astype(dtype)


def pixel_units(height: int, width: int) -> Float[np.ndarray, " 3"]:
  """Counts the pixels in one unit of the [-1, 1] frame.

  A pose between [-1, 1] frames becomes a pose in pixels from the middle of the
  image by pose * units_to[:, None] / units_from[None, :].

  Args:
    height: rows of the image.
    width: columns of the image.

  Returns:
    [3], along x, y and the homogeneous axis: ((W - 1) / 2, (H - 1) / 2, 1),
    with 1 in place of 0.
  """
  return np.array([(width - 1) / 2 or 1.0, (height - 1) / 2 or 1.0, 1.0])


def pixel_offsets(
  height: int, width: int, *, dtype: DTypeLike = jnp.float32
) -> Float[Array, "H W 2"]:
  """Lists the pixel centres as (x, y) in pixels from the image's middle.

  Args:
    height: rows of the image.
    width: columns of the image.
    dtype: dtype of the result; float32 or wider is exact.

  Returns:
    [H, W, 2], whole or half numbers, x in [-(W - 1) / 2, (W - 1) / 2].
  """
  x = jnp.arange(width, dtype=dtype) - (width - 1) / 2
  y = jnp.arange(height, dtype=dtype) - (height - 1) / 2
  return jnp.stack(jnp.meshgrid(x, y), axis=-1)


def grid(
  height: int, width: int, *, dtype: DTypeLike = jnp.float32
) -> Float[Array, "H W 2"]:
  """Lists the pixel centres as (x, y) in the [-1, 1] frame.

  Args:
    height: rows of the image.
    width: columns of the image.
    dtype: dtype of the result.

  Returns:
    [H, W, 2]; corners at -1 and 1, and 0 along an axis of size 1.
  """
  units = jnp.asarray(pixel_units(height, width)[:2], dtype)
  return pixel_offsets(height, width, dtype=dtype) / units
