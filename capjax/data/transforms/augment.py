"""Augmentations of ONE image, to be vmapped inside a jitted step.

Images are [H, W, C]. `shift` and the two placements move whole pixels and keep
the dtype, uint8 included; `random_affine` needs floats in [0, 1].
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num, PRNGKeyArray

from capjax.kernels import geometry, rendering


def _place(image, top_left, canvas, margin) -> Num[Array, "H2 W2 C"]:
  """Puts an image on a black canvas.

  `margin` is, for each axis, the largest distance between an edge of the image
  and the edge of the canvas.
  """
  # A window of the canvas' size slides over the padded image. Under vmap this
  # slice stays one cheap gather.
  (rows, columns), channels = margin, image.shape[2]
  padded = jnp.pad(image, ((rows, rows), (columns, columns), (0, 0)))
  start = (rows - top_left[0], columns - top_left[1], 0)
  return jax.lax.dynamic_slice(padded, start, (*canvas, channels))


def _room(image, canvas) -> tuple[int, int]:
  """Returns by how many rows and columns a canvas exceeds an image."""
  room = canvas[0] - image.shape[0], canvas[1] - image.shape[1]
  if min(room) < 0:
    raise ValueError(
      f"canvas={canvas} is smaller than the image, {image.shape[:2]}; "
      "pass a canvas at least as large."
    )
  return room


def shift(
  key: PRNGKeyArray, image: Num[Array, "H W C"], *, max_shift: int
) -> Num[Array, "H W C"]:
  """Shifts by whole pixels with zero fill (Sabour et al., 2017, Sec. 5).

  Args:
    key: random key.
    image: [H, W, C], any dtype.
    max_shift: pixels; each axis moves by U{-max_shift, ..., max_shift}.

  Returns:
    [H, W, C], the dtype of `image`.

  Raises:
    ValueError: `max_shift` is negative.
  """
  if max_shift < 0:
    raise ValueError(f"max_shift={max_shift}; pass 0 or more pixels.")
  offset = jax.random.randint(key, (2,), -max_shift, max_shift + 1)
  return _place(image, offset, image.shape[:2], (max_shift, max_shift))


def pad_and_place(
  key: PRNGKeyArray,
  image: Num[Array, "H W C"],
  *,
  canvas: tuple[int, int] = (40, 40),
) -> Num[Array, "H2 W2 C"]:
  """Places at random on a black canvas (Sabour et al., 2017, Sec. 5.2).

  Args:
    key: random key.
    image: [H, W, C], any dtype.
    canvas: (rows, columns); every place where the whole frame stays inside is
      equally likely.

  Returns:
    [*canvas, C], the dtype of `image`.

  Raises:
    ValueError: the image does not fit on the canvas.
  """
  room = _room(image, canvas)
  top_left = jax.random.randint(key, (2,), 0, jnp.array(room) + 1)
  return _place(image, top_left, canvas, room)


def centre_pad(
  image: Num[Array, "H W C"], *, canvas: tuple[int, int] = (40, 40)
) -> Num[Array, "H2 W2 C"]:
  """Places in the middle of a black canvas: `pad_and_place` at test time.

  Args:
    image: [H, W, C], any dtype.
    canvas: (rows, columns); of an odd margin the smaller part is above or left.

  Returns:
    [*canvas, C], the dtype of `image`.

  Raises:
    ValueError: the image does not fit on the canvas.
  """
  rows, columns = _room(image, canvas)
  return _place(image, (rows // 2, columns // 2), canvas, (rows, columns))


def random_affine(
  key: PRNGKeyArray,
  image: Float[Array, "H W C"],
  *,
  max_rotation: float = 0.0,
  max_shear: float = 0.0,
  scale_range: tuple[float, float] = (1.0, 1.0),
  max_translation: float = 0.0,
) -> Float[Array, "H W C"]:
  """Rotates, scales, shears and moves an image about its middle.

  The values are independent and uniform; the order is that of
  `geometry.affine_matrix`, in pixels, so that a rotation stays rigid on images
  that are not square. With the defaults the image is not changed.

  Args:
    key: random key.
    image: [H, W, C], in [0, 1].
    max_rotation: degrees, either way.
    max_shear: change of x for each pixel of y, either way.
    scale_range: (smallest, largest) scale, sampled for x and for y.
    max_translation: pixels, either way along each axis, whole or not.

  Returns:
    [H, W, C], in [0, 1], bilinear with zero fill.

  Raises:
    ValueError: a maximum is negative, or `scale_range` is empty or not above 0.
  """
  spans = dict(
    max_rotation=max_rotation,
    max_shear=max_shear,
    max_translation=max_translation,
  )
  for name, span in spans.items():
    if span < 0:
      raise ValueError(f"{name}={span}; pass 0 or more.")
  smallest, largest = scale_range
  if not 0 < smallest <= largest:
    raise ValueError(
      f"scale_range={scale_range}; pass (smallest, largest) above 0."
    )
  turn, move = math.radians(max_rotation), max_translation
  low = jnp.array([smallest, smallest, -turn, -max_shear, -move, -move])
  high = jnp.array([largest, largest, turn, max_shear, move, move])
  pose = geometry.affine_matrix(
    *jax.random.uniform(key, (6,), minval=low, maxval=high)
  )
  return rendering.transform(image, pose)


def edges(image: Float[Array, "H W C"]) -> Float[Array, "H W C"]:
  """The strength of the edges in an image (Kosiorek et al., 2019, App. B).

  For each channel: the sum of both Sobel derivatives, then the absolute
  difference from its median over the image, rescaled to [0, 1].

  Args:
    image: [H, W, C], any range.

  Returns:
    [H, W, C] in [0, 1]; 0 in channels that are the same everywhere.

  Differs from paper: for an even number of pixels the median is the mean of the
  two in the middle. The rest of the recipe is that of its code.
  """
  padded = jnp.pad(image, ((1, 1), (1, 1), (0, 0)), mode="reflect")

  def along(axis, kernel, x):
    size = x.shape[axis] - 2
    slices = [jax.lax.slice_in_dim(x, n, n + size, axis=axis) for n in range(3)]
    return sum(w * part for w, part in zip(kernel, slices, strict=True))

  smooth, differ = (1, 2, 1), (-1, 0, 1)
  both = along(1, smooth, along(0, differ, padded)) + along(
    1, differ, along(0, smooth, padded)
  )
  strength = jnp.abs(both - jnp.median(both, axis=(0, 1)))
  low, high = jnp.min(strength, axis=(0, 1)), jnp.max(strength, axis=(0, 1))
  return (strength - low) / jnp.where(high > low, high - low, 1.0)
