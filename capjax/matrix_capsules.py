"""Matrix capsules with EM routing (Hinton, Sabour, Frosst, 2018)."""

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from capjax import layers
from capjax.kernels import checks
from capjax.kernels.routing import RoutingOutput, em
from capjax.layers import em_forms, matrix

STARTS = matrix.STARTS
FORMS = {"official": em.OFFICIAL, "paper": em.PAPER}
COORDINATES = ("relative", "pixels", "none")
_POSE_SHAPES = {"matrix": (4, 4), "vector": (1, 16)}
# Sizes and strides of the convolution, the primary capsules and two layers.
_WINDOWS = [(5, 2), (1, 1), (3, 2), (3, 1)]
# Initial beta_a and beta_u of layers and of classes.
_BETAS = {"layers": em_forms.BETAS, "classes": em_forms.BETAS}
_OFFICIAL_BETAS = {"layers": (0.5, 0.5), "classes": (1.0, 2.0)}
# The code's class capsules have more children than its other capsules.
_CLASS_COOLING = 0.25


class MatrixCapsules(nnx.Module):
  """A convolution, primary capsules, two convolutional layers, and classes.

  Default widths are the paper's with A = B = C = D = 32; its small network has
  `features=64, types=(8, 16, 16)`. On smallNORB the paper's images have the
  shape (32, 32, 2) and 5 classes.
  """

  def __init__(
    self,
    image_shape: Sequence[int] = (28, 28, 1),
    num_classes: int = 10,
    *,
    features: int = 32,
    types: tuple[int, int, int] = (32, 32, 32),
    num_iterations: int = 3,
    final_inverse_temperature: float = 0.01,
    padding: str = "VALID",
    coordinates: str = "relative",
    pose: str = "matrix",
    form: str = "paper",
    start: str = "identity",
    data_amount: float | None = em.DATA_AMOUNT,
    routing_gradient: str = "all",
    implementation: str | None = None,
    dtype: jax.typing.DTypeLike = jnp.float32,
    rngs: nnx.Rngs,
  ):
    """Initialises the parameters.

    Args:
      image_shape: height, width and channels of the images.
      num_classes: J (E in the paper).
      features: A, channels of the convolution of 5x5 with stride 2.
      types: B, C, D, types of capsules at each position: the primary ones, and
        those of two layers with windows of 3x3, the first with stride 2.
      num_iterations: iterations of EM routing in every layer.
      final_inverse_temperature: above 0; see `em.inverse_temperature_schedule`.
        With the official form the classes have a quarter of it.
      padding: "VALID" as in the authors' code, or "SAME".
      coordinates: one of `COORDINATES`: the paper's coordinate addition as in
        IBM's code or as in the authors', or none.
      pose: "matrix" of 4x4, or "vector" of 16 with transforms of 16x16.
      form: one of `FORMS`. The authors' code has form="official",
        start="official", coordinates="pixels" and data_amount=None.
      start: one of `STARTS`, scales of the initial parameters. "official" has
        those that the authors' code names; there the primary capsules have no
        biases, and the order of its channels gives the activations of 30 of 32
        types the scale of poses.
      data_amount: above 0, the number of children to which the cost of a parent
        in any layer is scaled, 100 in IBM's code (Gritzman, 2019); see
        `em.amount_of_data_scale`. None leaves costs as they are.
      routing_gradient: "all" for gradients through all iterations, "last" for
        those of the last M-step alone; see `em.em_routing`.
      implementation: how the convolutional layers route: "loops", "at_once", or
        None for the one that suits JAX's default devices; see
        `layers.matrix.ConvMatrixCaps`. "loops" has gradients by reverse mode
        alone; `jax.jvp` and `jax.hessian` need "at_once".
      dtype: dtype of the convolutions, as for `layers.dense.set_dtype`; votes
        and EM routing stay in float32.
      rngs: its `params` stream initialises the parameters.

    Raises:
      ValueError: if an option is unknown or out of range, or the images are too
        small.

    Differs from paper: with the paper's form beta_a is given in units of the
    last iteration's logit, lambda beta_a, and starts at -1: with lambda below
    0.01 the steps of an optimiser would not change the logit. In IBM's code
    beta_a starts at -1000, its logit at -1.4. Costs are scaled to an amount of
    data; without it activations of convolutional capsules hardly depend on the
    votes at the start. Transforms start at the identity with little noise,
    convolutions with their usual initialiser, where the paper does not say:
    with more noise a child votes differently for each parent, and the
    iterations of EM choose parents by that noise.

    Differs from the authors' code: with the paper's form the classes have the
    lambda of the other layers, not a quarter of it.
    """
    checks.rngs(rngs)
    checks.padding(padding)
    checks.choice(COORDINATES, coordinates=coordinates)
    checks.choice(_POSE_SHAPES, pose=pose)
    checks.choice(FORMS, form=form)
    checks.choice(STARTS, start=start)
    checks.choice(("all", "last"), routing_gradient=routing_gradient)
    if (padding, coordinates) == ("SAME", "pixels"):
      raise ValueError(
        "coordinates='pixels' are of windows without padding; give "
        "padding='VALID' or coordinates='relative'."
      )
    checks.positive(final_inverse_temperature=final_inverse_temperature)
    if data_amount is not None:
      checks.positive(data_amount=data_amount)
    checks.sequences(types=types)
    if len(types) != 3:
      raise ValueError(
        f"types is {tuple(types)}; give three numbers, of the primary capsules "
        "and of two layers of convolutional ones."
      )
    checks.image_shape(image_shape)
    checks.counts(num_classes=num_classes, features=features)
    self.image_shape = tuple(image_shape)
    grid = _grid(image_shape, padding)
    pose_shape = _POSE_SHAPES[pose]
    temperatures = em.inverse_temperature_schedule(
      num_iterations, final=final_inverse_temperature
    )
    costs = _costs(form, data_amount, temperatures)
    scales = STARTS[start]
    options: dict[str, Any] = {
      "pose_shape": pose_shape,
      "start": scales,
      "rngs": rngs,
    }
    routing: dict[str, Any] = {"routing_gradient": routing_gradient, **options}
    self.conv = layers.Conv(
      image_shape[2],
      features,
      5,
      stride=2,
      padding=padding,
      kernel_init=matrix.kernel_init(scales.convolution),
      rngs=rngs,
    )
    self.primary = matrix.PrimaryMatrixCaps(features, types[0], **options)
    self.layers = nnx.List(
      matrix.ConvMatrixCaps(
        below,
        above,
        kernel,
        stride=stride,
        padding=padding,
        inverse_temperatures=temperatures,
        form=costs.form(kernel**2 * below, above),
        betas=costs.betas["layers"],
        implementation=implementation,
        **routing,
      )
      for below, above, (kernel, stride) in zip(
        types[:-1], types[1:], _WINDOWS[2:], strict=True
      )
    )
    self.classes = matrix.ClassMatrixCaps(
      types[-1],
      num_classes,
      _offsets(image_shape, grid, coordinates, pose_shape),
      inverse_temperatures=[costs.cooling * t for t in temperatures],
      form=costs.form(math.prod(grid) * types[-1], num_classes),
      betas=costs.betas["classes"],
      **routing,
    )
    layers.dense.set_dtype(self, dtype)

  def __call__(self, images: Float[Array, "B H W C"]) -> RoutingOutput:
    """Finds the classes in images.

    Args:
      images: any floating-point numbers; in the paper standardised images.

    Returns:
      Poses [B J P R] of the classes, their activations [B J] in [0, 1], and the
      coefficients [B I J], the share of each capsule below that goes to each.

    Raises:
      TypeError: if the images hold integers.
      ValueError: if the images have another shape, or values are known and not
        finite.
    """
    *_, (poses, activations) = self.capsules(images)
    classes = self.classes(poses, activations)
    shape = (*classes.activations.shape, *poses.shape[-2:])
    return RoutingOutput(
      classes.poses.reshape(shape), classes.activations, classes.coefficients
    )

  def capsules(
    self, images: Float[Array, "B H W C"]
  ) -> list[tuple[Float[Array, "B ..."], Float[Array, "B ..."]]]:
    """Poses [B H W I P Q] and activations [B H W I] below the classes.

    Layers are in order from the primary capsules up.

    Args:
      images: as for the network.

    Raises:
      TypeError: as for the network.
      ValueError: as for the network.
    """
    checks.images(images, self.image_shape)
    found = [self.primary(jax.nn.relu(self.conv(images)))]
    for layer in self.layers:
      capsules = layer(*found[-1])
      found.append((capsules.poses, capsules.activations))
    return found


class _Costs(NamedTuple):
  """How the layers of a network weigh costs in EM routing.

  Attributes:
    constants: of the form, before they are scaled.
    betas: initial beta_a and beta_u of "layers" and "classes".
    cooling: the classes' inverse temperatures, as a share of the others.
    data_amount: as of the network.
  """

  constants: em.Form
  betas: dict[str, tuple[float, float]]
  cooling: float
  data_amount: float | None

  def form(self, num_children: int, num_parents: int) -> em.Form:
    """The form of a layer: costs scaled to the amount of data, if any."""
    return em_forms.scale_costs(
      self.constants, num_children, num_parents, self.data_amount
    )


def _costs(
  form: str, data_amount: float | None, temperatures: Sequence[float]
) -> _Costs:
  """The costs of a network by one of `FORMS`."""
  if form == "official":
    return _Costs(FORMS[form], _OFFICIAL_BETAS, _CLASS_COOLING, data_amount)
  constants = em_forms.paper_form(temperatures)
  return _Costs(constants, _BETAS, 1.0, data_amount)


def _grid(image_shape: Sequence[int], padding: str) -> list[int]:
  """Rows and columns of capsules below the classes.

  Raises:
    ImageShapeError: if the images are too small to have any.
  """
  grid = [_positions(size, padding) for size in image_shape[:2]]
  if min(grid) < 1:
    sides = itertools.count(1)
    least = next(x for x in sides if _positions(x, padding) > 0)
    raise checks.ImageShapeError(
      f"images of {image_shape[0]}x{image_shape[1]} are too small for "
      "windows of 5, 3 and 3 with strides of 2, 2 and 1; pad them to "
      f"{least}x{least} or more, or give padding='SAME' (--padding=SAME)."
    )
  return grid


def _positions(size, padding):
  """Counts the capsules along an axis of `size` pixels, after all windows."""
  for kernel, stride in _WINDOWS:
    reach = 0 if padding == "SAME" else kernel - 1
    size = -(-(size - reach) // stride)
  return size


def _offsets(image_shape, grid, coordinates, pose_shape):
  """Coordinates that are added to the votes of each position: [H W D]."""
  size = pose_shape[0] * pose_shape[1]
  if coordinates == "none":
    return jnp.zeros((*grid, size))
  if coordinates == "pixels":
    axes = [em.pixel_coordinates(n, _WINDOWS) for n in image_shape[:2]]
    entries = (0, 1)
  else:
    axes = [em.relative_coordinates(n) for n in grid]
    entries = (pose_shape[1] - 1, 2 * pose_shape[1] - 1)
    entries = entries if pose_shape[0] > 1 else (0, 1)
  rows, columns = axes
  return em.coordinate_addition(columns, rows, entries=entries, pose_size=size)
