"""Windows on a grid of children, and the competition of parents that see them.

Axes: H W grid of children; T places in a window and S positions of windows,
both in rows; J parents at each position.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import checks, numerics


class Windows(NamedTuple):
  """Which children the parents see; made by `over`.

  Attributes:
    kernel: rows and columns of a window.
    stride: between windows.
    around: rows of padding before and after the grid, and the same of columns.
    size: H, W of the grid with its padding.
    grid: rows and columns of windows.
  """

  kernel: tuple[int, int]
  stride: int
  around: tuple[tuple[int, int], tuple[int, int]]
  size: tuple[int, int]
  grid: tuple[int, int]

  @property
  def shape(self) -> tuple[int, int]:
    """T, S: places in a window, positions of windows."""
    return self.kernel[0] * self.kernel[1], self.grid[0] * self.grid[1]

  def surround(self, x: Float[Array, "h w *C"]) -> Float[Array, "H W *C"]:
    """Pads the grid with zeros for absent children.

    Args:
      x: the grid without its padding, with any further axes.

    Returns:
      The grid of `size`, in the dtype of `x`.
    """
    return jnp.pad(x, (*self.around, *[(0, 0)] * (x.ndim - 2)))

  def gather(self, x: Float[Array, "H W *C"]) -> Float[Array, "T S *C"]:
    """Gathers the children in each window.

    Args:
      x: the grid with its padding, with any further axes.

    Returns:
      The children by place in a window and position of the window.
    """
    down, across = (self.stride * (count - 1) + 1 for count in self.grid)
    found = [
      x[v : v + down : self.stride, u : u + across : self.stride]
      for v, u in self._places()
    ]
    return jnp.stack(found).reshape(*self.shape, *x.shape[2:])

  def scatter(
    self,
    x: Float[Array, "T S"],
    combine: Callable[..., Float[Array, "H W"]],
    start: float,
  ) -> Float[Array, "H W"]:
    """Combines, for each child, the values of all windows that see it.

    Args:
      x: a value for each place of each window.
      combine: an associative and commutative function of two grids, such as
        `jnp.add`.
      start: the neutral element of `combine`; unseen children get it.

    Returns:
      The combined values on the grid with its padding.
    """
    outside = jnp.array(start, x.dtype)
    total: Float[Array, "H W"] | None = None
    for place, value in zip(self._places(), x, strict=True):
      gaps = [
        (at, size - at - self.stride * (count - 1) - 1, self.stride - 1)
        for at, size, count in zip(place, self.size, self.grid, strict=True)
      ]
      value = jax.lax.pad(value.reshape(self.grid), outside, gaps)
      total = value if total is None else combine(total, value)
    assert total is not None  # a window has at least one place
    return total

  def num_seeing(self) -> Float[Array, "T S"]:
    """Counts the windows that contain the child at each place of a window."""
    return self.gather(self.scatter(jnp.ones(self.shape), jnp.add, 0.0))

  def _places(self):
    rows, columns = map(range, self.kernel)
    return [(v, u) for v in rows for u in columns]


def over(
  size: Sequence[int], kernel: Sequence[int], *, stride: int, padding: str
) -> Windows:
  """Lays windows over a grid.

  Args:
    size: rows and columns of the grid.
    kernel: rows and columns of a window.
    stride: the same along both axes, at least 1.
    padding: "VALID", or "SAME" with absent children around the grid, an odd one
      at the end (ceil(rows / stride) rows of windows).

  Raises:
    ValueError: if the stride is below 1, the padding is unknown, or no window
      fits.
  """
  checks.counts(stride=stride)
  checks.padding(padding)
  above, beside = (0, 0), (0, 0)
  if padding == "SAME":
    above, beside = same_padding(size, kernel, stride=stride)
  whole = size[0] + sum(above), size[1] + sum(beside)
  rows, columns = kernel
  grid = (whole[0] - rows) // stride + 1, (whole[1] - columns) // stride + 1
  if min(grid) < 1:
    raise ValueError(
      f"a window of {rows}x{columns} needs a grid at least as large, "
      f"not {size[0]}x{size[1]}; give a smaller window."
    )
  return Windows((rows, columns), stride, (above, beside), whole, grid)


def same_padding(
  size: Sequence[int], kernel: Sequence[int], *, stride: int
) -> list[tuple[int, int]]:
  """Computes the padding for one window at every `stride`-th place of a grid.

  Args:
    size: rows and columns of the grid.
    kernel: rows and columns of a window.
    stride: the same along both axes, at least 1.

  Returns:
    The rows of padding (before, after), then the columns (before, after). Of an
    odd number the larger part comes after.
  """
  missing = (
    max((-(-n // stride) - 1) * stride + k - n, 0)
    for n, k in zip(size, kernel, strict=True)
  )
  return [(m // 2, m - m // 2) for m in missing]


def compete(
  logits: Float[Array, "T S J"], windows: Windows
) -> Float[Array, "T S J"]:
  """Softmax over all parents that see a child, at any position.

  Args:
    logits: finite logits of the parents, for each place of each window.
    windows: the windows over the children.

  Returns:
    Shares in [0, 1]; those of a child sum to 1 over all windows that see it and
    all J parents.

  Raises:
    ValueError: if T and S are not those of the windows.
  """
  checks.arrays({"logits": (logits, "T S J")})
  checks.same_shape(windows.shape, logits=logits[..., 0])
  top = windows.scatter(jnp.max(logits, axis=-1), jnp.maximum, -jnp.inf)
  top = jax.lax.stop_gradient(windows.gather(top))
  weights = numerics.exp_below(logits, top[..., None])
  total = windows.scatter(jnp.sum(weights, axis=-1), jnp.add, 0.0)
  return numerics.share(weights, windows.gather(total)[..., None])
