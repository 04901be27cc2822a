"""Matrix capsules with EM routing (Hinton, Sabour, Frosst, 2018)."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from capjax import layers
from capjax.kernels import checks
from capjax.kernels.routing import RoutingOutput, em
from capjax.layers import matrix

STARTS = matrix.STARTS
FORMS = {"official": em.OFFICIAL, "paper": em.PAPER}
COORDINATES = ("relative", "pixels", "none")
_POSE_SHAPES = {"matrix": (4, 4), "vector": (1, 16)}
# Initial beta_a and beta_u of layers and of classes. With the form of the
# paper, parents without children have activations below 1/2.
_BETAS = {"layers": (-1.0, 0.0), "classes": (-1.0, 0.0)}
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
    data_amount: float | None = 100.0,
    routing_gradient: str = "all",
    implementation: str | None = None,
    dtype: jax.typing.DTypeLike = jnp.float32,
    rngs: nnx.Rngs,
  ):
    """Initialises the parameters.

    Args:
      image_shape: height, width and channels of the images.
      num_classes: E.
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
      form: one of `FORMS`. The whole of the authors' code is form="official",
        start="official", data_amount=None.
      start: one of `STARTS`, scales of the initial parameters.
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

    Differs from paper:
      - With the paper's form beta_a is given in units of the last iteration's
        logit, lambda beta_a, and starts at -1: with lambda below 0.01 the steps
        of an optimiser would not change the logit. In IBM's code beta_a starts
        at -1000, its logit at -1.4.
        The classes have the lambda of the other layers, not the quarter of the
        authors' code.
      - Costs are scaled to an amount of data. Without it activations of
        convolutional capsules hardly depend on the votes at the start.
      - Transforms start at the identity with little noise, convolutions with
        their usual initialiser; the paper does not say. With more noise a child
        votes differently for each parent, and the iterations of EM choose
        parents by that noise.
    """
    checks.rngs(rngs)
    for name, value, known in (
      ("padding", padding, ("VALID", "SAME")),
      ("coordinates", coordinates, COORDINATES),
      ("pose", pose, tuple(_POSE_SHAPES)),
      ("form", form, tuple(FORMS)),
      ("start", start, tuple(STARTS)),
      ("routing_gradient", routing_gradient, ("all", "last")),
    ):
      if value not in known:
        raise ValueError(f"{name} is {value!r}; give {' or '.join(known)}.")
    if (padding, coordinates) == ("SAME", "pixels"):
      raise ValueError(
        "coordinates='pixels' are of windows without padding; give "
        "padding='VALID' or coordinates='relative'."
      )
    checks.positive(final_inverse_temperature=final_inverse_temperature)
    if data_amount is not None:
      checks.positive(data_amount=data_amount)
    checks.sequences(types=types)
    windows = [(5, 2), (1, 1), (3, 2), (3, 1)]
    if len(types) != 3:
      raise ValueError(
        f"types is {tuple(types)}; give three numbers, of the primary capsules "
        "and of two layers of convolutional ones."
      )
    checks.image_shape(image_shape)
    checks.counts(num_classes=num_classes, features=features)
    self.image_shape = tuple(image_shape)
    grid = [_grid(size, windows, padding) for size in image_shape[:2]]
    if min(grid) < 1:
      sides = itertools.count(1)
      least = next(x for x in sides if _grid(x, windows, padding) > 0)
      raise checks.ImageShapeError(
        f"images of {image_shape[0]}x{image_shape[1]} are too small for "
        "windows of 5, 3 and 3 with strides of 2, 2 and 1; pad them to "
        f"{least}x{least} or more, or give padding='SAME' (--padding=SAME)."
      )
    pose_shape = _POSE_SHAPES[pose]
    temperatures = em.inverse_temperature_schedule(
      num_iterations, final=final_inverse_temperature
    )
    primary, *upper = types
    constants, betas, cooling = FORMS[form], _OFFICIAL_BETAS, _CLASS_COOLING
    if form == "paper":
      # In units of the last logit: otherwise steps of Adam are far too small.
      scale = 1 / temperatures[-1]
      constants = constants._replace(beta_a_scale=scale)
      betas, cooling = _BETAS, 1.0
    scales = STARTS[start]

    def form_for(num_children, num_parents):
      if data_amount is None:
        return constants
      scale = em.amount_of_data_scale(
        num_children, num_parents, amount=data_amount
      )
      return constants._replace(cost_scale=scale)

    options: dict[str, Any] = {
      "pose_shape": pose_shape,
      "start": scales,
      "rngs": rngs,
    }
    routing: dict[str, Any] = {"gradient": routing_gradient, **options}
    self.conv = layers.Conv(
      image_shape[2],
      features,
      5,
      stride=2,
      padding=padding,
      kernel_init=matrix.kernel_init(scales.convolution),
      rngs=rngs,
    )
    self.primary = matrix.PrimaryMatrixCaps(features, primary, **options)
    self.layers = nnx.List(
      matrix.ConvMatrixCaps(
        below,
        above,
        kernel,
        stride=stride,
        padding=padding,
        inverse_temperatures=temperatures,
        form=form_for(kernel**2 * below, above),
        betas=betas["layers"],
        implementation=implementation,
        **routing,
      )
      for below, above, (kernel, stride) in zip(
        types[:-1], upper, windows[2:], strict=True
      )
    )
    self.classes = matrix.ClassMatrixCaps(
      types[-1],
      num_classes,
      _offsets(image_shape, windows, grid, coordinates, pose_shape),
      inverse_temperatures=[cooling * t for t in temperatures],
      form=form_for(math.prod(grid) * types[-1], num_classes),
      betas=betas["classes"],
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
      ValueError: if the images have another shape.
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


def _grid(size, windows, padding):
  """Counts the capsules along an axis of `size` pixels, after all windows."""
  for kernel, stride in windows:
    reach = 0 if padding == "SAME" else kernel - 1
    size = -(-(size - reach) // stride)
  return size


def _offsets(image_shape, windows, grid, coordinates, pose_shape):
  """Coordinates that are added to the votes of each position: [H W D]."""
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
