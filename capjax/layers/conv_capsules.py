"""Convolutions of capsules, by any routing.

Axes: B batch, H W grid of capsules, K window, I types below, J types above,
C pose of a part, D pose of an object; P Q pose matrix of a part, P R of an
object.
"""

from collections.abc import Callable

import jax
from flax import nnx
from jaxtyping import Array, Float

from capjax.kernels import checks, routing
from capjax.kernels.routing import windows
from capjax.layers import capsules


class ConvCaps(nnx.Module):
  """A convolution of capsules: any routing from windows to the layer above.

  The parents at a position see the capsules in a window of K x K positions; all
  positions share their transforms, bias and parameters of routing. Each window
  is a `DenseCaps` of K K I parts on its own: a child that several windows see
  is divided among the parents of each of them.

  Differs from papers: in matrix capsules all parents that see a child, at any
  position, compete for it. EM routing with that competition, which stores no
  votes, is `matrix.ConvMatrixCaps`.

  Memory: the parts of all windows, K K / stride^2 times as many as there are
  parts below, are stored, 4 oH oW K K I C bytes for each example in float32;
  and 4 oH oW K K I J D bytes of votes where `DenseCaps` stores them. A grid of
  12 x 12, K = 3, I = J = 32 and poses of 16 numbers have 10 x 10 windows and
  59 MB of votes for each example.
  """

  def __init__(
    self,
    num_below: int,
    part_size: capsules.PoseSize,
    num_types: int,
    pose_size: capsules.PoseSize,
    kernel_size: int,
    *,
    stride: int = 1,
    padding: str = "VALID",
    routing: str | Callable = "dynamic",
    num_iterations: int | None = None,
    leaky: bool = False,
    routing_gradient: str = "all",
    transforms_init: Callable | None = None,
    bias_init: Callable | None = capsules.BIAS_INIT,
    rngs: nnx.Rngs,
  ):
    """Initialises the parameters.

    Args:
      num_below: I, types of capsules at each position below.
      part_size: C, length of their poses; or (P, Q) of matrices.
      num_types: J, types of capsules at each position above.
      pose_size: D, length of their poses; or (P, R) of matrices.
      kernel_size: K, capsules along each axis of a window.
      stride: between windows, at least 1.
      padding: "VALID", or "SAME" with absent capsules around the grid, an odd
        one at the end; their poses and activations are zero.
      routing: as for `DenseCaps`.
      num_iterations: as for `DenseCaps`.
      leaky: as for `DenseCaps`.
      routing_gradient: as for `DenseCaps`.
      transforms_init: initialiser of the matrices [K*K*I J C D]; J is 1
        where all objects share votes. By default as for `DenseCaps`.
      bias_init: as for `DenseCaps`.
      rngs: its `params` stream initialises the parameters.

    Raises:
      TypeError: as `DenseCaps`.
      ValueError: as `DenseCaps`, or if the padding is unknown.
    """
    checks.rngs(rngs)
    checks.counts(num_below=num_below, kernel_size=kernel_size, stride=stride)
    checks.padding(padding)
    self.window = capsules.DenseCaps(
      kernel_size**2 * num_below,
      part_size,
      num_types,
      pose_size,
      routing=routing,
      num_iterations=num_iterations,
      leaky=leaky,
      routing_gradient=routing_gradient,
      transforms_init=transforms_init,
      bias_init=bias_init,
      rngs=rngs,
    )
    self.num_below = num_below
    self.num_types = num_types
    self.kernel = (kernel_size, kernel_size)
    self.stride = stride
    self.padding = padding

  def __call__(
    self,
    poses: Float[Array, "B H W I *pose"],
    activations: Float[Array, "B H W I"] | None = None,
  ) -> routing.RoutingOutput:
    """Routes the capsules in each window.

    Args:
      poses: [B H W I C], or [B H W I P Q] of matrices.
      activations: of the parts, in [0, 1]; the lengths of their poses by
        default, as for `DenseCaps`.

    Returns:
      Poses [B oH oW J D] or [B oH oW J P R], activations [B oH oW J] and
      coefficients [B oH oW K K I J], the shares of the children at each place
      of each window.

    Raises:
      TypeError: as `DenseCaps`.
      ValueError: if the shapes do not fit, the window is larger than the grid,
        or a known activation is outside of [0, 1].
    """
    wanted = ("B", "H", "W", self.num_below, *self.window.part_shape)
    checks.arrays({"poses": (poses, " ".join(map(str, wanted)))})
    if activations is not None:
      checks.arrays({"activations": (activations, "B H W I")})
      checks.same_shape(poses.shape[:4], activations=activations)
    over = windows.over(
      poses.shape[1:3], self.kernel, stride=self.stride, padding=self.padding
    )
    seen = None if activations is None else _in_windows(activations, over)
    output = self.window(_in_windows(poses, over), seen)
    grid = (len(poses), *over.grid)
    places = (*grid, *self.kernel, self.num_below)
    return routing.RoutingOutput(
      output.poses.reshape(*grid, *output.poses.shape[1:]),
      output.activations.reshape(*grid, -1),
      output.coefficients.reshape(*places, -1),
    )


def _in_windows(x, over):
  """The capsules [B H W I ...] of all windows: [B*oH*oW K*K*I ...]."""
  gathered = jax.vmap(lambda x: over.gather(over.surround(x)))(x)
  num_places, num_windows = over.shape
  found = gathered.swapaxes(1, 2)
  return found.reshape(
    len(x) * num_windows, num_places * x.shape[3], *x.shape[4:]
  )
