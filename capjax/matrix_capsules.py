"""Matrix capsules with EM routing (Hinton, Sabour, Frosst, 2018)."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from capjax import layers
from kernels import em, em_convolution

FORMS = {"official": em.OFFICIAL, "paper": em.PAPER}
COORDINATES = ("relative", "pixels", "none")
_POSE_SHAPES = {"matrix": (4, 4), "vector": (1, 16)}
# beta_a and beta_u at the start, of layers and of classes. With the form of the
# paper parents that explain nothing are rather off than on.
_BETAS = {"layers": (-1.0, 0.0), "classes": (-1.0, 0.0)}
_OFFICIAL_BETAS = {"layers": (0.5, 0.5), "classes": (1.0, 2.0)}
# The code's class capsules have more children than its other capsules.
_CLASS_COOLING = 0.25
_CLASS_MASS_FLOOR = 1e-5


class MatrixCapsulesOutput(NamedTuple):
  """What the network says of images.

  Attributes:
    activations: [B J] in [0, 1], of the classes.
    poses: [B J P R], of the classes.
    coefficients: [B I J], the share of each capsule below that each class
      takes.
  """

  activations: Float[Array, "B J"]
  poses: Float[Array, "B J P R"]
  coefficients: Float[Array, "B I J"]


class PrimaryMatrixCaps(nnx.Module):
  """A pose for each capsule, linear in the features, and an activation.

  The activation is sigmoid(logit - 1) of a linear logit, as in the authors'
  code, so that capsules start rather off; the paper has sigmoid(logit)
  (Hinton et al., 2018).
  """

  def __init__(
    self,
    in_features: int,
    num_types: int,
    *,
    pose_shape: tuple[int, int] = (4, 4),
    rngs: nnx.Rngs,
  ):
    """Draws the parameters.

    Args:
      in_features: channels of the features.
      num_types: I, capsules at each position.
      pose_shape: P, Q.
      rngs: its `params` stream draws the parameters.
    """
    size = pose_shape[0] * pose_shape[1]
    self.poses = layers.Conv(in_features, num_types * size, 1, rngs=rngs)
    self.activations = layers.Conv(in_features, num_types, 1, rngs=rngs)
    self.pose_shape = pose_shape

  def __call__(
    self, features: Float[Array, "B H W C"]
  ) -> tuple[Float[Array, "B H W I P Q"], Float[Array, "B H W I"]]:
    """Returns poses and activations in [0, 1]."""
    activations = jax.nn.sigmoid(self.activations(features) - 1)
    poses = self.poses(features)
    shape = (*activations.shape, *self.pose_shape)
    return poses.reshape(shape), activations


class ConvMatrixCaps(nnx.Module):
  """Windows of capsules vote for the capsules above them, by EM routing."""

  def __init__(
    self,
    num_below: int,
    num_types: int,
    kernel_size: int,
    *,
    stride: int,
    padding: str,
    pose_shape: tuple[int, int],
    inverse_temperatures: Sequence[float],
    form: em.Form,
    betas: tuple[float, float],
    rngs: nnx.Rngs,
  ):
    """Draws the parameters.

    Args:
      num_below: I, types below.
      num_types: J, types above.
      kernel_size: capsules along each axis of a window.
      stride: between windows.
      padding: "VALID" or "SAME".
      pose_shape: P, Q of the poses below; those above are as large.
      inverse_temperatures: of each iteration.
      form: of EM routing.
      betas: beta_a and beta_u at the start.
      rngs: its `params` stream draws the parameters.
    """
    shape = (kernel_size, kernel_size, num_below, num_types)
    self.transforms = nnx.Param(_transforms(rngs, shape, pose_shape[1]))
    self.beta_a, self.beta_u = (
      nnx.Param(jnp.full(num_types, start)) for start in betas
    )
    self.options = {
      "inverse_temperatures": tuple(inverse_temperatures),
      "stride": stride,
      "padding": padding,
      "form": form,
    }

  def __call__(
    self,
    poses: Float[Array, "B H W I P Q"],
    activations: Float[Array, "B H W I"],
  ) -> em.EMOutput:
    """Returns capsules with leading axes [B oH oW]."""
    return jax.vmap(
      lambda *children: em_convolution.em_convolution(
        *children,
        self.transforms[...],
        self.beta_a[...],
        self.beta_u[...],
        **self.options,
      )
    )(poses, activations)


class ClassMatrixCaps(nnx.Module):
  """All capsules vote for the classes, and tell where they are.

  Capsules of one type share their transforms at all positions.
  """

  def __init__(
    self,
    num_below: int,
    num_classes: int,
    offsets: Float[Array, "H W D"],
    *,
    pose_shape: tuple[int, int],
    inverse_temperatures: Sequence[float],
    form: em.Form,
    betas: tuple[float, float],
    rngs: nnx.Rngs,
  ):
    """Draws the parameters.

    Args:
      num_below: I, types below.
      num_classes: J.
      offsets: added to the votes from each position.
      pose_shape: P, Q of the poses below; those above are as large.
      inverse_temperatures: of each iteration.
      form: of EM routing.
      betas: beta_a and beta_u at the start.
      rngs: its `params` stream draws the parameters.
    """
    shape = (num_below, num_classes)
    self.transforms = nnx.Param(_transforms(rngs, shape, pose_shape[1]))
    self.beta_a, self.beta_u = (
      nnx.Param(jnp.full(num_classes, start)) for start in betas
    )
    self.offsets = layers.Fixed(offsets)
    self.options = {
      "inverse_temperatures": tuple(inverse_temperatures),
      "form": form._replace(mass_floor=_CLASS_MASS_FLOOR),
    }

  def __call__(
    self,
    poses: Float[Array, "B H W I P Q"],
    activations: Float[Array, "B H W I"],
  ) -> em.EMOutput:
    """Returns the classes with leading axis [B]."""
    size = poses.shape[-2] * poses.shape[-1]

    def route(poses, activations):
      votes = jnp.einsum(
        "hwipq,ijqr->hwijpr", poses, self.transforms[...], precision="highest"
      )
      votes = votes.reshape(*votes.shape[:4], size)
      votes += self.offsets[...][:, :, None, None]
      return em.em_routing(
        votes.reshape(-1, *votes.shape[-2:]),
        activations.ravel(),
        self.beta_a[...],
        self.beta_u[...],
        **self.options,
      )

    return jax.vmap(route)(poses, activations)


class MatrixCapsules(nnx.Module):
  """A convolution, primary capsules, two layers of them, and classes.

  Defaults are the paper's network for smallNORB with A = B = C = D = 32; its
  small one has `features=64, types=(8, 16, 16)`.
  """

  def __init__(
    self,
    image_shape: Sequence[int] = (32, 32, 2),
    num_classes: int = 5,
    *,
    features: int = 32,
    types: tuple[int, int, int] = (32, 32, 32),
    num_iterations: int = 3,
    final_inverse_temperature: float = 0.01,
    padding: str = "VALID",
    coordinates: str = "relative",
    pose: str = "matrix",
    form: str = "paper",
    rngs: nnx.Rngs,
  ):
    """Draws the parameters.

    Args:
      image_shape: height, width and channels of the images.
      num_classes: E.
      features: A, channels of the convolution of 5x5 with stride 2.
      types: B, C, D of capsules at each position: primary, and in two layers
        with windows of 3x3, the first with stride 2.
      num_iterations: of EM routing in every layer.
      final_inverse_temperature: above 0; see `em.inverse_temperature_schedule`.
        With the official form the classes have a quarter of it.
      padding: "VALID" as in the authors' code, or "SAME".
      coordinates: one of `COORDINATES`: the paper's coordinate addition as in
        IBM's code or as in the authors', or none.
      pose: "matrix" of 4x4, or "vector" of 16 with transforms of 16x16.
      form: one of `FORMS`.
      rngs: its `params` stream draws the parameters.

    Raises:
      ValueError: if an option is unknown or out of range, or the images are too
        small.

    Differs from paper: with its form beta_a counts in units of the last
    iteration's logit, lambda beta_a, and starts at -1, since with lambda below
    0.01 no optimiser would move it; the classes then have the lambda of the
    other layers, not the quarter of the authors' code. Transforms start at the
    identity and noise, convolutions as is usual for them; the paper is silent,
    and the deviations in the authors' code are 0.3, 0.5 and 3.
    """
    for name, value, known in (
      ("padding", padding, ("VALID", "SAME")),
      ("coordinates", coordinates, COORDINATES),
      ("pose", pose, tuple(_POSE_SHAPES)),
      ("form", form, tuple(FORMS)),
    ):
      if value not in known:
        raise ValueError(f"{name} is {value!r}; give {' or '.join(known)}.")
    if (padding, coordinates) == ("SAME", "pixels"):
      raise ValueError(
        "coordinates='pixels' are of windows without padding; give "
        "padding='VALID' or coordinates='relative'."
      )
    if not 0 < final_inverse_temperature < math.inf:
      raise ValueError(
        f"final_inverse_temperature is {final_inverse_temperature}; give a "
        "finite number above 0, such as 0.01."
      )
    windows = [(5, 2), (1, 1), (3, 2), (3, 1)]
    grid = [_grid(size, windows, padding) for size in image_shape[:2]]
    if min(grid) < 1:
      raise ValueError(
        f"images of {image_shape[0]}x{image_shape[1]} are too small for "
        "windows of 5, 3 and 3 with strides of 2, 2 and 1; pad them, or give "
        "padding='SAME'."
      )
    pose_shape = _POSE_SHAPES[pose]
    temperatures = em.inverse_temperature_schedule(
      num_iterations, final=final_inverse_temperature
    )
    primary, *upper = types
    constants, betas, cooling = FORMS[form], _OFFICIAL_BETAS, _CLASS_COOLING
    if form == "paper":
      # In units of the last logit: else no step of Adam would move it.
      scale = 1 / temperatures[-1]
      constants = constants._replace(beta_a_scale=scale)
      betas, cooling = _BETAS, 1.0
    options = {"pose_shape": pose_shape, "form": constants, "rngs": rngs}
    self.conv = layers.Conv(
      image_shape[2], features, 5, stride=2, padding=padding, rngs=rngs
    )
    self.primary = PrimaryMatrixCaps(
      features, primary, pose_shape=pose_shape, rngs=rngs
    )
    self.layers = nnx.List(
      ConvMatrixCaps(
        below,
        above,
        kernel,
        stride=stride,
        padding=padding,
        inverse_temperatures=temperatures,
        betas=betas["layers"],
        **options,
      )
      for below, above, (kernel, stride) in zip(
        types[:-1], upper, windows[2:], strict=True
      )
    )
    self.classes = ClassMatrixCaps(
      types[-1],
      num_classes,
      _offsets(image_shape, windows, grid, coordinates, pose_shape),
      inverse_temperatures=[cooling * t for t in temperatures],
      betas=betas["classes"],
      **options,
    )

  def __call__(self, images: Float[Array, "B H W C"]) -> MatrixCapsulesOutput:
    poses, activations = self.primary(jax.nn.relu(self.conv(images)))
    for layer in self.layers:
      capsules = layer(poses, activations)
      poses, activations = capsules.poses, capsules.activations
    classes = self.classes(poses, activations)
    shape = (*classes.activations.shape, *poses.shape[-2:])
    return MatrixCapsulesOutput(
      classes.activations, classes.poses.reshape(shape), classes.coefficients
    )


def _transforms(rngs, shape, size):
  """Matrices [... size size] near the identity."""
  noise = jax.random.normal(rngs.params(), (*shape, size, size))
  return jnp.eye(size) + 0.1 * noise


def _grid(size, windows, padding):
  """Capsules along an axis of `size` pixels, after all windows."""
  for kernel, stride in windows:
    reach = 0 if padding == "SAME" else kernel - 1
    size = -(-(size - reach) // stride)
  return size


def _offsets(image_shape, windows, grid, coordinates, pose_shape):
  """What the votes of each position gain: [H W D]."""
  size = pose_shape[0] * pose_shape[1]
  if coordinates == "none":
    return jnp.zeros((*grid, size))
  if coordinates == "pixels":
    axes = [em.pixel_coordinates(n, windows) for n in image_shape[:2]]
    entries = (0, 1)
  else:
    axes = [em.relative_coordinates(n) for n in grid]
    entries = (pose_shape[1] - 1, 2 * pose_shape[1] - 1)
    entries = entries if pose_shape[0] > 1 else (0, 1)
  rows, columns = axes
  return em.coordinate_addition(columns, rows, entries=entries, pose_size=size)
