"""Layers of matrix capsules, each a kernel of EM routing with its parameters.

Axes: B batch, H W positions, I types below, J types above, P Q pose matrix.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from capjax.kernels import checks, numerics
from capjax.kernels.routing import em, em_convolution, windows
from capjax.layers import em_forms, platforms
from capjax.layers.capsules import Fixed
from capjax.layers.convolution import Conv

# Numbers of the votes of an example that accelerators hold at once: with 2**22
# an array of a batch of 16 has 256 MB, and a backward pass several of them.
_AT_ONCE = 2**22
IMPLEMENTATIONS = ("loops", "at_once")

# In the authors' code: class capsules have more children than the others.
_CLASS_MASS_FLOOR = 1e-5
_INVERSE_TEMPERATURES = em.inverse_temperature_schedule(3)


class Start(NamedTuple):
  """Scales of the initial parameters, except the betas.

  Scales are standard deviations of normal distributions, which are truncated at
  two standard deviations.

  Attributes:
    identity: value on the diagonals of transforms.
    layers: scale of the noise in the transforms of convolutional capsules.
    classes: scale of the noise in the transforms of class capsules.
    convolution: scale of the kernel; None for LeCun's 1 / sqrt(inputs).
    poses: scale of the kernel to the primary poses; None as above.
    activations: scale of the kernel to the primary activations; None as above.
  """

  identity: float
  layers: float
  classes: float
  convolution: float | None = None
  poses: float | None = None
  activations: float | None = None


# Near the identity, or the values of the authors' code (Hinton et al., 2018).
STARTS = {
  "identity": Start(1.0, layers=0.01, classes=0.01),
  "official": Start(
    0.0, layers=0.3, classes=0.01, convolution=0.05, poses=0.5, activations=3.0
  ),
}


class PrimaryMatrixCaps(nnx.Module):
  """Primary capsules: a pose that is linear in the features, and an activation.

  The activation is sigmoid(logit - 1) of a linear logit, as in the authors'
  code, so that capsules start with low activations.

  Differs from paper: there, the activation is sigmoid(logit) (Hinton et al.,
  2018).
  """

  def __init__(
    self,
    in_features: int,
    num_types: int,
    *,
    pose_shape: tuple[int, int] = (4, 4),
    start: Start = STARTS["identity"],
    rngs: nnx.Rngs,
  ):
    """Initialises the parameters.

    Args:
      in_features: channels of the features.
      num_types: I, capsules at each position.
      pose_shape: P, Q.
      start: scales of the kernels.
      rngs: its `params` stream initialises the parameters.

    Raises:
      TypeError: if a size is no whole number, or `start` or `rngs` are of
        another type.
      ValueError: if a size is below 1.
    """
    _require(pose_shape, start, rngs)
    checks.counts(in_features=in_features, num_types=num_types)
    size = pose_shape[0] * pose_shape[1]
    self.poses, self.activations = (
      Conv(in_features, outputs, 1, kernel_init=kernel_init(scale), rngs=rngs)
      for outputs, scale in (
        (num_types * size, start.poses),
        (num_types, start.activations),
      )
    )
    self.pose_shape = pose_shape

  def __call__(
    self, features: Float[Array, "B H W C"]
  ) -> tuple[Float[Array, "B H W I P Q"], Float[Array, "B H W I"]]:
    """Returns poses and activations in [0, 1], both in float32.

    Args:
      features: any floats, with `in_features` channels.
    """
    logits = self.activations(features).astype(jnp.float32)
    activations = jax.nn.sigmoid(logits - 1)
    poses = self.poses(features).astype(jnp.float32)
    shape = (*activations.shape, *self.pose_shape)
    return poses.reshape(shape), activations


class ConvMatrixCaps(nnx.Module):
  """A convolution of capsules: EM routing from windows to the layer above.

  On CPUs one type of children follows another, in loops whose numbers fit into
  their caches. On accelerators many types are routed at once, in few and large
  operations. For each example these hold at most 4M numbers of votes at a time,
  or the votes of one type.
  """

  def __init__(
    self,
    num_below: int,
    num_types: int,
    kernel_size: int,
    *,
    stride: int = 1,
    padding: str = "VALID",
    pose_shape: tuple[int, int] = (4, 4),
    inverse_temperatures: Sequence[float] = _INVERSE_TEMPERATURES,
    form: em.Form | None = None,
    routing_gradient: str = "all",
    betas: tuple[float, float] = em_forms.BETAS,
    start: Start = STARTS["identity"],
    implementation: str | None = None,
    rngs: nnx.Rngs,
  ):
    """Initialises the parameters.

    Args:
      num_below: I, types below.
      num_types: J, types above.
      kernel_size: capsules along each axis of a window.
      stride: between windows.
      padding: "VALID" or "SAME".
      pose_shape: P, Q of the poses below; those above are as large.
      inverse_temperatures: lambda of each iteration; by default as in
        `MatrixCapsules`.
      form: form of EM routing; None for the one of `MatrixCapsules`:
        `em_forms.paper_form`, with costs scaled to 100 children.
      routing_gradient: "all" or "last", as for `em.em_routing`.
      betas: beta_a and beta_u at the start.
      start: scales of the transforms.
      implementation: "loops", "at_once" as above, or None for the one that
        suits the platform that `platforms.known` states, else JAX's default
        devices.
      rngs: its `params` stream initialises the parameters.

    Raises:
      TypeError: if a size is no whole number, or `form`, `start` or `rngs` are
        of another type.
      ValueError: if a size is below 1, or an option is unknown.
    """
    _require(pose_shape, start, rngs)
    checks.counts(
      num_below=num_below,
      num_types=num_types,
      kernel_size=kernel_size,
      stride=stride,
    )
    checks.padding(padding)
    if implementation not in (None, *IMPLEMENTATIONS):
      raise ValueError(
        f"implementation is {implementation!r}; give None, 'loops' or "
        "'at_once'."
      )
    self.implementation = implementation
    shape = (kernel_size, kernel_size, num_below, num_types)
    self.transforms = nnx.Param(
      _transforms(rngs, shape, pose_shape[1], start.identity, start.layers)
    )
    self.beta_a, self.beta_u = (
      nnx.Param(jnp.full(num_types, beta, jnp.float32)) for beta in betas
    )
    self.pose_shape = tuple(pose_shape)
    self.stride = stride
    self.padding = padding
    self.em = em_forms.Options.of(
      kernel_size**2 * num_below,
      num_types,
      inverse_temperatures,
      form,
      routing_gradient,
    )

  def __call__(
    self,
    poses: Float[Array, "B H W I P Q"],
    activations: Float[Array, "B H W I"],
  ) -> em.EMOutput:
    """Returns capsules with leading axes [B oH oW].

    Args:
      poses: P, Q as in `pose_shape`.
      activations: in [0, 1].

    Raises:
      TypeError: if they are no floating-point numbers.
      ValueError: if they have other shapes than the layer was made for, or a
        known activation is outside of [0, 1].
    """
    _check(poses, activations, self.transforms.shape[2], self.pose_shape)
    implementation = self.implementation
    if implementation is None:
      on_cpu = platforms.platform() == "cpu"
      implementation = "loops" if on_cpu else "at_once"
    types_at_once = None
    if implementation == "at_once":
      types_at_once = self._types_at_once(poses)

    def route(poses, activations, transforms, beta_a, beta_u):
      return em_convolution.em_convolution(
        poses,
        activations,
        transforms,
        beta_a,
        beta_u,
        stride=self.stride,
        padding=self.padding,
        types_at_once=types_at_once,
        **self.em._asdict(),
      )

    return jax.vmap(route, (0, 0, None, None, None))(
      poses,
      activations,
      self.transforms[...],
      self.beta_a[...],
      self.beta_u[...],
    )

  def _types_at_once(self, poses):
    *kernel, _, num_types, _, columns = self.transforms.shape
    rows = poses.shape[-2]
    seen = windows.over(
      poses.shape[1:3],
      kernel,
      stride=self.stride,
      padding=self.padding,
    )
    of_type = math.prod(seen.shape) * num_types * rows * columns
    return max(_AT_ONCE // of_type, 1)


class ClassMatrixCaps(nnx.Module):
  """Class capsules: EM routing from all capsules, with coordinate addition.

  Capsules of one type share their transforms at all positions.
  """

  def __init__(
    self,
    num_below: int,
    num_classes: int,
    offsets: Float[Array, "H W D"],
    *,
    pose_shape: tuple[int, int] = (4, 4),
    inverse_temperatures: Sequence[float] = _INVERSE_TEMPERATURES,
    form: em.Form | None = None,
    routing_gradient: str = "all",
    betas: tuple[float, float] = em_forms.BETAS,
    start: Start = STARTS["identity"],
    rngs: nnx.Rngs,
  ):
    """Initialises the parameters.

    Args:
      num_below: I, types below.
      num_classes: J.
      offsets: coordinates, added to the votes from each position.
      pose_shape: P, Q of the poses below; those above are as large.
      inverse_temperatures: as for `ConvMatrixCaps`.
      form: as for `ConvMatrixCaps`, but the floor of the mass is always 1e-5,
        as for class capsules in the authors' code.
      routing_gradient: as for `ConvMatrixCaps`.
      betas: beta_a and beta_u at the start.
      start: scales of the transforms.
      rngs: its `params` stream initialises the parameters.

    Raises:
      TypeError: as for `ConvMatrixCaps`.
      ValueError: as for `ConvMatrixCaps`, or if the offsets are not as long as
        a pose.
    """
    _require(pose_shape, start, rngs)
    checks.counts(num_below=num_below, num_classes=num_classes)
    checks.arrays({"offsets": (offsets, "H W D")}, D=math.prod(pose_shape))
    shape = (num_below, num_classes)
    self.transforms = nnx.Param(
      _transforms(rngs, shape, pose_shape[1], start.identity, start.classes)
    )
    self.beta_a, self.beta_u = (
      nnx.Param(jnp.full(num_classes, beta, jnp.float32)) for beta in betas
    )
    self.offsets = Fixed(jnp.asarray(offsets, jnp.float32))
    self.pose_shape = tuple(pose_shape)
    own = em_forms.Options.of(
      math.prod(offsets.shape[:2]) * num_below,
      num_classes,
      inverse_temperatures,
      form,
      routing_gradient,
    )
    self.em = own._replace(form=own.form._replace(mass_floor=_CLASS_MASS_FLOOR))

  def __call__(
    self,
    poses: Float[Array, "B H W I P Q"],
    activations: Float[Array, "B H W I"],
  ) -> em.EMOutput:
    """Returns the classes with leading axis [B].

    Args:
      poses: at as many positions as the offsets.
      activations: in [0, 1].

    Raises:
      TypeError: as for `ConvMatrixCaps`.
      ValueError: as for `ConvMatrixCaps`.
    """
    height, width, _ = self.offsets.shape
    num_below = self.transforms.shape[0]
    shape = self.pose_shape
    _check(poses, activations, num_below, shape, H=height, W=width)

    def route(poses, activations):
      return em.em_routing(
        self._votes(poses),
        activations.ravel(),
        self.beta_a[...],
        self.beta_u[...],
        **self.em._asdict(),
      )

    return jax.vmap(route)(poses, activations)

  def votes(
    self, poses: Float[Array, "B H W I P Q"]
  ) -> Float[Array, "B I_all J D"]:
    """The votes of all capsules for the classes, with their coordinates.

    Args:
      poses: at as many positions as the offsets.

    Returns:
      I_all = H W I capsules, by row, column and type.
    """
    return jax.vmap(self._votes)(poses)

  def _votes(self, poses):
    votes = numerics.einsum("hwipq,ijqr->hwijpr", poses, self.transforms[...])
    votes = votes.reshape(*votes.shape[:4], -1)
    offsets = jax.lax.stop_gradient(self.offsets[...])
    votes += offsets[:, :, None, None]
    return votes.reshape(-1, *votes.shape[-2:])


def _require(pose_shape, start, rngs):
  """Checks arguments that all layers have."""
  checks.rngs(rngs)
  checks.sequences(pose_shape=pose_shape)
  if len(pose_shape) != 2:
    raise ValueError(f"pose_shape is {pose_shape}; give rows and columns.")
  if not isinstance(start, Start):
    raise TypeError(f"start is {start!r}; give one of STARTS.values().")


def _check(poses, activations, num_below, pose_shape, **grid):
  rows, columns = pose_shape
  checks.arrays(
    {
      "poses": (poses, "B H W I P Q"),
      "activations": (activations, "B H W I"),
    },
    empty="B",
    I=num_below,
    P=rows,
    Q=columns,
    **grid,
  )
  checks.values(0.0, 1.0, activations=activations)


def kernel_init(scale):
  """The kernel initialiser of a convolution: LeCun's if no scale is given.

  Args:
    scale: standard deviation of a normal distribution, truncated at two
      standard deviations; None for LeCun's.
  """
  if scale is None:
    return nnx.initializers.lecun_normal()
  return nnx.initializers.truncated_normal(scale)


def _transforms(rngs, shape, size, identity, scale):
  """Matrices [... size size]: a multiple of the identity plus noise."""
  shape = (*shape, size, size)
  init = nnx.initializers.truncated_normal(scale)
  noise = init(rngs.params(), shape, jnp.float32)
  return identity * jnp.eye(size, dtype=jnp.float32) + noise
