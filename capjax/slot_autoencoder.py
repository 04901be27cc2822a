"""An autoencoder of images whose objects are slots.

Slot attention (Locatello et al., 2020) or its invariant form (Biza et al.,
2023) binds slots to the features of a convolutional network; each slot is
decoded to an image and a mask, and the masks mix the images.

Axes: B batch, J slots, D numbers of a slot, H W C image, h w features of it.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from capjax import layers
from capjax.kernels import checks, geometry, numerics, routing
from capjax.layers import attention, convolution, slots

_KERNEL = 5  # taps of the encoder's convolutions along each axis
_DECODER_KERNEL = 3


class SlotImages(NamedTuple):
  """Images as mixtures of the images of slots.

  Attributes:
    reconstructions: [B H W C], in [0, 1].
    parts: [B J H W C], the image of each slot alone, in [0, 1].
    masks: [B J H W], the share of each slot in a pixel; sums to 1 over slots.
    slots: the slots, and the shares that they won.
  """

  reconstructions: Float[Array, "B H W C"]
  parts: Float[Array, "B J H W C"]
  masks: Float[Array, "B J H W"]
  slots: slots.Slots


class SlotAutoencoder(nnx.Module):
  """A convolutional encoder, slot attention and a broadcast decoder.

  The decoder copies a slot to every place of a coarse grid (Watters et al.,
  2019) and adds an embedding of the place: its place in the image or, for
  invariant slots, in the slot's frame. Convolutions then double the grid until
  its cells are pixels.

  Differs from paper: the encoder halves the image first; the decoder doubles by
  convolutions whose channels become pixels, in place of transposed ones;
  colours go through a sigmoid.
  """

  def __init__(
    self,
    image_shape: Sequence[int] = (28, 28, 1),
    *,
    num_slots: int = 3,
    slot_size: int = 32,
    num_iterations: int = 3,
    features: int = 32,
    num_convs: int = 3,
    num_doublings: int = 2,
    start: slots.Start = "sampled",
    invariant: bool = False,
    dtype: jax.typing.DTypeLike = jnp.float32,
    rngs: nnx.Rngs,
  ):
    """Initialises the parameters.

    Args:
      image_shape: (H, W, C) of the images.
      num_slots: J.
      slot_size: D.
      num_iterations: rounds of slot attention.
      features: channels of all convolutions.
      num_convs: convolutions of the encoder; the first has stride 2.
      num_doublings: how often the decoder doubles its grid.
      start: how initial slots are made, as for `layers.slots.SlotAttention`.
      invariant: whether slots have frames of reference.
      dtype: dtype of the products of dense layers and convolutions, as for
        `layers.dense.set_dtype`; attention and masks are in float32.
      rngs: its `params` stream initialises the parameters.

    Raises:
      ValueError: if a count is below 1, or `start` is unknown.
    """
    checks.rngs(rngs)
    checks.image_shape(image_shape)
    checks.counts(
      slot_size=slot_size,
      features=features,
      num_convs=num_convs,
      num_doublings=num_doublings,
    )
    self.image_shape = tuple(image_shape)
    channels = image_shape[-1]
    self.convs = nnx.List(
      layers.Conv(
        features if n else channels,
        features,
        _KERNEL,
        stride=1 if n else 2,
        padding="SAME",
        rngs=rngs,
      )
      for n in range(num_convs)
    )
    self.place = None if invariant else layers.Linear(2, features, rngs=rngs)
    self.norm = attention.norm(features, rngs)
    self.mix = nnx.List(
      layers.Linear(features, features, rngs=rngs) for _ in range(2)
    )
    self.attention = slots.SlotAttention(
      features,
      num_slots=num_slots,
      size=slot_size,
      num_iterations=num_iterations,
      start=start,
      invariant=invariant,
      rngs=rngs,
    )
    self.decoder_place = layers.Linear(2, slot_size, rngs=rngs)
    self.doublings = nnx.List(
      layers.Conv(
        features if n else slot_size,
        4 * features,
        _DECODER_KERNEL,
        padding="SAME",
        rngs=rngs,
      )
      for n in range(num_doublings)
    )
    self.last = layers.Conv(
      features, channels + 1, _DECODER_KERNEL, padding="SAME", rngs=rngs
    )
    layers.dense.set_dtype(self, dtype)

  def __call__(
    self,
    images: Float[Array, "B H W C"],
    *,
    key: PRNGKeyArray | None = None,
  ) -> SlotImages:
    """Explains images by slots.

    Args:
      images: in [0, 1].
      key: samples the initial slots; without it they are the same in all
        images.

    Raises:
      TypeError: as `encode`.
      ValueError: as `encode`.
    """
    found = self.encode(images, key=key)
    reconstructions, parts, masks = self.decode(found.contents, found.frames)
    return SlotImages(reconstructions, parts, masks, found)

  def encode(
    self,
    images: Float[Array, "B H W C"],
    *,
    key: PRNGKeyArray | None = None,
  ) -> slots.Slots:
    """Binds slots to images.

    Args:
      images: in [0, 1].
      key: samples the initial slots; without it they are the same in all
        images.

    Raises:
      TypeError: if the images hold integers.
      ValueError: if the images have another shape or, where values are known
        (not under jit), intensities outside of [0, 1].
    """
    checks.images(images, self.image_shape, intensities=True)
    for conv in self.convs:
      images = jax.nn.relu(conv(images))
    rows, columns, features = images.shape[1:]
    points = self._points(rows, columns, 2)
    members = images.reshape(len(images), -1, features).astype(jnp.float32)
    if self.place is not None:
      members = members + self.place(points)
    first, second = self.mix
    members = second(jax.nn.relu(first(self.norm(members))))
    return self.attention(
      members,
      jnp.ones(members.shape[:2]),
      points=jnp.broadcast_to(points, (len(images), *points.shape)),
      key=key,
    )

  def decode(
    self,
    contents: Float[Array, "B J D"],
    frames: routing.Frames | None = None,
  ) -> tuple[
    Float[Array, "B H W C"],
    Float[Array, "B J H W C"],
    Float[Array, "B J H W"],
  ]:
    """Renders slots: the images, those of each slot alone, and the masks.

    Args:
      contents: the slots.
      frames: their frames, for a model whose slots have frames.

    Raises:
      ValueError: if frames are missing, or given to slots without frames.
    """
    if self.place is None and frames is None:
      raise ValueError("frames are None; give the frames of invariant slots.")
    if self.place is not None and frames is not None:
      raise ValueError("this model has slots without frames; leave out frames.")
    height, width, channels = self.image_shape
    step = 2 ** len(self.doublings)
    rows, columns = math.ceil(height / step), math.ceil(width / step)
    points = self._points(rows, columns, step)
    if frames is None:
      places = self.decoder_place(points)
    else:
      seen = jax.vmap(routing.relative_points, (None, 0))(points, frames)
      places = jnp.moveaxis(self.decoder_place(seen), 1, 2)
    batch, num_slots, size = contents.shape
    grid = contents[:, :, None] + places
    grid = grid.reshape(batch * num_slots, rows, columns, size)
    for conv in self.doublings:
      grid = convolution.depth_to_space(jax.nn.relu(conv(grid)))
    decoded = self.last(grid)[:, :height, :width].astype(jnp.float32)
    decoded = decoded.reshape(batch, num_slots, *decoded.shape[1:])
    parts = jax.nn.sigmoid(decoded[..., :channels])
    masks = numerics.softmax(decoded[..., channels], 1)
    images = numerics.einsum("bjhw,bjhwc->bhwc", masks, parts)
    return images, parts, masks

  def _points(self, rows: int, columns: int, step: int) -> Float[Array, "I 2"]:
    """The middles (x, y) of cells of `step` pixels, in [-1, 1], row by row."""
    height, width, _ = self.image_shape
    cells = geometry.pixel_offsets(rows, columns).reshape(-1, 2)
    # Cells start with the first pixel, and may reach beyond the last.
    middles = cells + jnp.array([columns - 1, rows - 1]) / 2 + 0.5
    return middles * jnp.array([2 * step / width, 2 * step / height]) - 1


def loss(
  model: SlotAutoencoder,
  images: Float[Array, "B H W C"],
  key: PRNGKeyArray | None,
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
  """The squared error of an image, summed over pixels (section 3.3).

  Args:
    model: the autoencoder.
    images: in [0, 1].
    key: samples the initial slots; None for the same slots in all images.

  Returns:
    The mean over the batch, and the same by name.

  Differs from paper: the sum over pixels; the paper takes the mean.
  """
  errors = jnp.square(model(images, key=key).reconstructions - images)
  value = jnp.sum(errors) / len(images)
  return value, {"loss": value}
