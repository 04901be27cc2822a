"""CapsNet: dynamic routing between capsules (Sabour, Frosst, Hinton, 2017)."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from capjax import decoder, layers
from capjax.kernels import checks, routing

# Where parents of convolutional capsules compete for children; see `CapsNet`.
CONV_COMPETITIONS = ("window", "grid")


class CapsNet(nnx.Module):
  """The network of the paper's figures 1 and 2; defaults are its MNIST widths.

  Convolution and ReLU, primary capsules, class capsules by dynamic routing, and
  a decoder of three dense layers that reconstructs the image from one capsule.

  Initial parameters are those of the authors' code: normal with standard
  deviation 0.05 in the first convolution and 0.1 in the capsule layers,
  truncated at two standard deviations; biases 0.1. `decoder_init` selects those
  of the decoder.

  Images may have any size, but each pair of primary capsule and class has a
  matrix W_ij: [I J C D] numbers, 6 MB for images of 28x28 (I = 1152), 262 MB
  for 96x96 (I = 51,200), 1.8 GB for 224x224 (I = 346,112). Training with Adam
  takes four times as much. Larger strides or fewer types make fewer capsules.
  `shared_prototype` routing has one matrix for each capsule: a tenth of this,
  for ten classes. Routings that store the votes need [I J D] numbers for each
  image, 33 MB for 96x96; `layers.DenseCaps` says which do.
  """

  def __init__(
    self,
    image_shape: Sequence[int] = (28, 28, 1),
    num_classes: int = 10,
    *,
    conv_features: int = 256,
    conv_kernel: int = 9,
    residual_features: Sequence[int] = (),
    residual_blocks: int = 1,
    num_types: int = 32,
    part_size: int = 8,
    primary_kernel: int = 9,
    primary_stride: int = 2,
    primary_scale: float | None = None,
    pose_size: int = 16,
    conv_capsules: Sequence[int] = (),
    conv_capsules_kernel: int = 3,
    conv_competition: str = "window",
    hidden_capsules: Sequence[int] = (),
    routing: str | Callable = "dynamic",
    num_iterations: int | None = None,
    leaky: bool = False,
    routing_gradient: str = "all",
    transforms_scale: float = 0.1,
    decoder_features: Sequence[int] = (512, 1024),
    decoder_init: str = "lecun",
    dtype: jax.typing.DTypeLike = jnp.float32,
    rngs: nnx.Rngs,
  ):
    """Initialises the parameters.

    Args:
      image_shape: height, width and channels of the images.
      num_classes: J.
      conv_features: channels of the first convolution.
      conv_kernel: height and width of its kernel, in pixels.
      residual_features: channels of stages of residual blocks after it, each of
        which halves the grid (`layers.ResidualStages`). The paper has none.
      residual_blocks: blocks of each stage.
      num_types: primary capsules at each position.
      part_size: C, length of a primary capsule.
      primary_kernel: height and width of the kernel of the primary capsules.
      primary_stride: stride of the primary capsules.
      primary_scale: factor of the convolution of the primary capsules; None for
        1 / num_types, as in the authors' code, see `layers.PrimaryCaps`.
      pose_size: D, length of a class capsule, and of a hidden one; capsules of
        `conv_capsules` have the length of a primary one.
      conv_capsules: types of capsules at each position of each convolutional
        layer of capsules above the primary ones, from the lowest up. The paper
        has none.
      conv_capsules_kernel: K, capsules along each axis of their windows, at
        stride 1 and without padding.
      conv_competition: "window" routes each window of these layers on its own,
        by `routing` (`layers.ConvCaps`); "grid" makes them the 3D convolutions
        of DeepCaps, whose parents compete over all positions, always by dynamic
        routing (`layers.GridCaps`).
      hidden_capsules: numbers of capsules of each layer between the primary and
        the class capsules, above `conv_capsules`, from the lowest up; each is
        routed as the classes are. The paper has none.
      routing: one of `layers.routers.NAMES`, the paper's is "dynamic"; or a
        function with the signature of the routing kernels: it is called with
        the votes [I J D] of one image, and by keyword with `activations` [I]
        (lengths of the primary capsules' poses) and `bias` [J D] if its
        signature names them, and returns a `RoutingOutput`. For example
        `kernels.routing.dynamic_routing`; see
        `layers.custom_routing.FromFunction`.
      num_iterations: iterations of a routing that is given by name; with 1
        every part is divided evenly among the parents. By default the number in
        the routing's paper, 3 for dynamic routing.
      leaky: adds an orphan class to the routing, as for CIFAR-10. Not with
        `conv_competition="grid"`, whose layers have no orphan.
      routing_gradient: "all" for gradients through all iterations of a routing
        that is given by name, as in the authors' code; "last" for those through
        the last one alone, as in several other codes.
      transforms_scale: standard deviation of the matrices W_ij at the start,
        0.1 as in the authors' code. Mixtures ("em", "heinsen_em",
        "self", "variational") do not squash poses, which then shrink from layer
        to layer: try about 1 / sqrt(C), 0.35 for parts of length 8.
      decoder_features: widths of the decoder's hidden layers; empty for a
        network without decoder.
      decoder_init: one of `decoder.DECODER_INITS`.
      dtype: dtype of the convolutions; routing and decoder stay in float32.
      rngs: its `params` stream initialises the parameters.

    Raises:
      TypeError: if `routing` is a function that needs other arguments.
      ValueError: where the images are too small for the kernels, the stride is
        below 1, the routing or `decoder_init` is unknown or has no such
        options, or "grid" has no `conv_capsules`; or if the matrices W_ij do
        not fit the memory.
    """
    checks.rngs(rngs)
    checks.image_shape(image_shape)
    checks.counts(
      num_classes=num_classes,
      conv_features=conv_features,
      conv_kernel=conv_kernel,
      primary_kernel=primary_kernel,
      primary_stride=primary_stride,
      num_types=num_types,
      part_size=part_size,
      pose_size=pose_size,
      conv_capsules_kernel=conv_capsules_kernel,
      residual_blocks=residual_blocks,
    )
    checks.sequences(
      residual_features=residual_features,
      conv_capsules=conv_capsules,
      hidden_capsules=hidden_capsules,
      decoder_features=decoder_features,
    )
    checks.positive(transforms_scale=transforms_scale)
    if primary_scale is not None:
      checks.positive(primary_scale=primary_scale)
    checks.choice(CONV_COMPETITIONS, conv_competition=conv_competition)
    checks.choice(decoder.DECODER_INITS, decoder_init=decoder_init)
    if conv_competition == "grid" and not conv_capsules:
      raise ValueError(
        "conv_competition is 'grid' and conv_capsules is empty; give "
        "conv_capsules, or leave conv_competition out."
      )
    if leaky and conv_capsules and conv_competition == "grid":
      raise ValueError(
        "leaky is True, and layers of conv_competition='grid' have no orphan "
        "class; give conv_competition='window', or leave leaky out."
      )
    self.image_shape = tuple(image_shape)
    lost = (conv_capsules_kernel - 1) * len(conv_capsules)
    grid = _primary_grid(
      image_shape,
      conv_kernel=conv_kernel,
      halvings=len(residual_features),
      primary_kernel=primary_kernel,
      primary_stride=primary_stride,
    )
    if min(grid) <= lost:
      raise checks.ImageShapeError(
        f"a grid of {grid[0]}x{grid[1]} primary capsules is too small for "
        f"{len(conv_capsules)} layers of windows of {conv_capsules_kernel}; "
        "give fewer conv_capsules, or larger images."
      )
    truncated = jax.nn.initializers.truncated_normal
    bias_init = nnx.initializers.constant(0.1)
    self.conv = layers.Conv(
      image_shape[2],
      conv_features,
      conv_kernel,
      kernel_init=truncated(0.05),
      bias_init=bias_init,
      dtype=dtype,
      rngs=rngs,
    )
    self.residual = (
      layers.ResidualStages(
        conv_features,
        residual_features,
        num_blocks=residual_blocks,
        dtype=dtype,
        rngs=rngs,
      )
      if residual_features
      else None
    )
    self.primary = layers.PrimaryCaps(
      (conv_features, *residual_features)[-1],
      num_types,
      part_size,
      primary_kernel,
      stride=primary_stride,
      kernel_init=truncated(0.1),
      bias_init=bias_init,
      scale=1 / num_types if primary_scale is None else primary_scale,
      dtype=dtype,
      rngs=rngs,
    )
    options: dict[str, Any] = dict(
      num_iterations=num_iterations,
      routing_gradient=routing_gradient,
      transforms_init=truncated(transforms_scale),
      bias_init=bias_init,
      rngs=rngs,
    )
    of_name: dict[str, Any] = dict(routing=routing, leaky=leaky)
    types = (num_types, *conv_capsules)

    def in_windows(below: int, above: int) -> nnx.Module:
      sizes = below, part_size, above, part_size, conv_capsules_kernel
      if conv_competition == "grid":
        return layers.GridCaps(*sizes, **options)
      return layers.ConvCaps(*sizes, **(of_name | options))

    hidden = [in_windows(*pair) for pair in itertools.pairwise(types)]
    places = math.prod(size - lost for size in grid)
    counts = (places * types[-1], *hidden_capsules, num_classes)
    sizes = (part_size, *(pose_size for _ in counts[1:]))
    *dense, self.classes = (
      layers.DenseCaps(
        counts[n], sizes[n], counts[n + 1], sizes[n + 1], **of_name, **options
      )
      for n in range(len(hidden_capsules) + 1)
    )
    hidden += dense
    self.hidden = nnx.List(hidden) if hidden else None
    self.decoder = (
      decoder.Decoder(
        num_classes,
        pose_size,
        decoder_features,
        image_shape,
        init=decoder_init,
        rngs=rngs,
      )
      if decoder_features
      else None
    )

  def __call__(self, images: Float[Array, "B H W C"]) -> routing.RoutingOutput:
    """Finds the classes in images.

    Args:
      images: intensities in [0, 1]; `data.as_intensities` converts uint8.
        Without decoder any finite numbers, such as standardised images.

    Returns:
      With leading axis B: poses [B J D] of the class capsules, activations
      [B J] that the classes are present (the lengths of poses in dynamic
      routing), and coefficients [B I J], the shares of the capsules below: the
      primary ones, unless there are layers between.

    Raises:
      TypeError: if the images hold integers, or a function for `routing` does
        not return a `RoutingOutput`.
      ValueError: if the images have another shape than the model was made for
        (`checks.ImageShapeError`), values that are not finite or, with a
        decoder, outside of [0, 1]. Values are checked where they are known: not
        under jit.
    """
    decodes = self.decoder is not None
    checks.images(images, self.image_shape, intensities=decodes)
    return self.classes(*self.capsules(images)[-1])

  def capsules(
    self, images: Float[Array, "B H W C"]
  ) -> list[tuple[jax.Array, jax.Array | None]]:
    """The layers of capsules below the classes, from the primary ones up.

    Args:
      images: as for the network, but not checked.

    Returns:
      Poses [B ... I C] and activations [B ... I] of each layer. Primary and
      convolutional capsules have two axes of positions before that of the
      types. The activations of primary capsules are None: they are the lengths
      of the poses.
    """
    primary = self.primary(self.features(images))
    found: list[tuple[jax.Array, jax.Array | None]] = [(primary, None)]
    for layer in self.hidden or ():
      poses, activations, _ = layer(*found[-1])
      found.append((poses, activations))
    return found

  def features(
    self, images: Float[Array, "B H W C"]
  ) -> Float[Array, "B P Q F"]:
    """The inputs of the primary capsules: features after the last ReLU.

    Args:
      images: as for the network, but not checked.
    """
    features = jax.nn.relu(self.conv(images))
    if self.residual is not None:
      features = jax.nn.relu(self.residual(features))
    return features

  def decode(
    self,
    poses: Float[Array, "B J D"],
    classes: Int[Array, " B"] | Int[Array, "B J"],
  ) -> Float[Array, "B H W C"]:
    """Reconstructs images from one class capsule each, with the others masked.

    Args:
      poses: outputs of the class capsules.
      classes: the capsule to decode: the true class in training, the longest
        capsule at test; or, as [B J] of 0 and 1, all that are decoded together.

    Returns:
      Images with intensities in (0, 1).

    Raises:
      ValueError: if the network was made without decoder.
    """
    return decoder.decode(self.decoder, poses, classes)


def _primary_grid(
  image_shape: Sequence[int],
  *,
  conv_kernel: int,
  halvings: int,
  primary_kernel: int,
  primary_stride: int,
) -> tuple[int, int]:
  """Returns the rows and columns of the primary capsules of `CapsNet`.

  Args:
    image_shape: height, width and channels.
    conv_kernel: taps of the first convolution, without padding.
    halvings: how often residual stages then halve the grid, rounding up.
    primary_kernel: taps of the primary capsules, without padding.
    primary_stride: stride of the primary capsules.

  Raises:
    ImageShapeError: if the images are too small for the kernels.
  """
  height, width, _ = image_shape

  def along(size):
    rest = size - conv_kernel + 1
    for _ in range(halvings):
      rest = -(-rest // 2)
    if rest < primary_kernel:
      raise checks.ImageShapeError(
        f"images of {height}x{width} are too small for conv_kernel="
        f"{conv_kernel} and primary_kernel={primary_kernel}; give smaller "
        "ones, such as 3 and 3."
      )
    return (rest - primary_kernel) // primary_stride + 1

  return along(height), along(width)
