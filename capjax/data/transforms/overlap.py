"""Two overlapping objects in one image, as in MultiMNIST (Sabour et al., 2017).

One example at a time, to be vmapped inside a jitted step: no data set of pairs
is ever stored. Images are [H, W, C], uint8 or floats in [0, 1], and keep their
dtype.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Num, PRNGKeyArray

from capjax.data.transforms import augment


class Classes(NamedTuple):
  """A data set sorted by class.

  Attributes:
    order: [N], the indices of the examples, class after class.
    labels: [N], their classes, ascending.
  """

  order: Int[Array, " N"]
  labels: Int[Array, " N"]


class Overlay(NamedTuple):
  """An image of two objects.

  Attributes:
    image: [H2 W2 C], both together, clipped at white.
    parts: [2 H2 W2 C], each object alone, at its place in `image`.
  """

  image: Num[Array, "H2 W2 C"]
  parts: Num[Array, "2 H2 W2 C"]


def require_two_classes(labels: Int[np.ndarray, " N"]) -> None:
  """Checks on the host that `choose_partner` can find partners.

  Args:
    labels: labels of the data set.

  Raises:
    ValueError: there are fewer than two classes.
  """
  classes = np.unique(labels)
  if len(classes) < 2:
    raise ValueError(
      f"the only class is {classes}; pass a data set of two or more, since an "
      "image is laid over one of another class."
    )


def group_by_class(labels: Int[Array | np.ndarray, " N"]) -> Classes:
  """Sorts a data set by class, once, for `choose_partner`.

  Args:
    labels: labels of at least two classes; `require_two_classes` checks it
      beforehand.

  Returns:
    The examples sorted by class, within a class in their original order.
  """
  labels = jnp.asarray(labels)
  order = jnp.argsort(labels, stable=True)
  return Classes(order, labels[order])


def choose_partner(
  key: PRNGKeyArray, label: Int[ArrayLike, ""], classes: Classes
) -> Int[Array, ""]:
  """Samples an example of another class (Sabour et al., 2017, Sec. 6.1).

  Args:
    key: random key.
    label: the class to exclude.
    classes: the data set sorted by class, from `group_by_class`.

  Returns:
    The index of an example; all those of other classes are equally likely.

  Differs from paper: there 1000 partners of each digit are sampled beforehand.
  """
  start, end = (
    jnp.searchsorted(classes.labels, label, side, method="scan_unrolled")
    for side in ("left", "right")
  )
  size = end - start
  place = jax.random.randint(key, (), 0, len(classes.order) - size)
  # Skips the examples of the excluded class.
  return classes.order[jnp.where(place < start, place, place + size)]


def overlay(
  key: PRNGKeyArray,
  first: Num[Array, "H W C"],
  second: Num[Array, "H W C"],
  *,
  pad: int = 4,
  max_shift: int = 4,
) -> Overlay:
  """Lays one image over another (Sabour et al., 2017, Sec. 6.1).

  Both images get a black frame and are shifted independently by whole pixels;
  their sum is clipped at white.

  Args:
    key: random key.
    first: uint8, or floats in [0, 1].
    second: shape and dtype of `first`.
    pad: width of the frame in pixels: 28x28 becomes 36x36 with 4.
    max_shift: pixels; each axis of each image moves by
      U{-max_shift, ..., max_shift}. Nothing is lost while it is at most `pad`.

  Returns:
    The overlay and its parts, with the dtype of the images.

  Raises:
    ValueError: `pad` or `max_shift` is negative, or the images differ in shape
      or dtype or are neither uint8 nor floats.

  Differs from paper: nothing. The paper says that the 20x20 boxes of two digits
  share 80% of their area on average; with these shifts that is true of the
  28x28 frames, while 20x20 boxes share 73%.
  """
  if pad < 0:
    raise ValueError(f"pad={pad}; pass 0 or more pixels.")
  _white(first.dtype)  # raises for other dtypes
  if first.dtype != second.dtype:
    raise ValueError(
      f"the images are {first.dtype} and {second.dtype}; pass two of one dtype."
    )
  canvas = (first.shape[0] + 2 * pad, first.shape[1] + 2 * pad)

  def place(key, image):
    framed = augment.centre_pad(image, canvas=canvas)
    return augment.shift(key, framed, max_shift=max_shift)

  images = jnp.stack([first, second])
  parts = jax.vmap(place)(jax.random.split(key), images)
  return merge(parts)


def merge(parts: Num[Array, "2 H W C"]) -> Overlay:
  """Adds up two objects without moving them; the sum is clipped at white.

  Args:
    parts: each alone; uint8, or floats in [0, 1].

  Raises:
    ValueError: the parts are neither uint8 nor floats.
  """
  below, above = parts
  # Equals min(white, below + above), which would overflow in uint8.
  image = below + jnp.minimum(above, _white(parts.dtype) - below)
  return Overlay(image, parts)


def owners(
  parts: Float[Array, "2 H W C"], *, ink: float = 0.5
) -> Int[Array, "H W"]:
  """Finds the object of each pixel that only one object covers.

  Args:
    parts: each object alone, in [0, 1]; its brightest channel counts.
    ink: the brightness above which an object covers a pixel.

  Returns:
    0 or 1; -1 where no object or both objects cover the pixel.
  """
  brightness = jnp.max(parts, axis=-1)
  is_owned = jnp.sum(brightness > ink, axis=0) == 1
  return jnp.where(is_owned, jnp.argmax(brightness, axis=0), -1)


def _white(dtype: jnp.dtype) -> int:
  """Returns the brightest intensity of a dtype."""
  if dtype == jnp.uint8:
    return 255
  if jnp.issubdtype(dtype, jnp.floating):
    return 1
  raise ValueError(f"images are {dtype}; pass uint8, or floats in [0, 1].")
