"""Scenes: images of two objects of different classes, made from any data set.

The objects overlap as in MultiMNIST, or are moved as in affNIST.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

from capjax.data.transforms.preprocessing import Preprocessing
from capjax.kernels import checks

from ..training import augmentation, pairs, train_step
from . import multimnist


class Scene(NamedTuple):
  """How two images are combined into one.

  Attributes:
    kind: "multimnist" overlays two images, as `overlap.overlay` does;
      "affnist_like" puts them anywhere on a canvas, each moved as
      `affnist.affnist_like` does.
    pad: of "multimnist", width in pixels of the frame around each image.
    max_shift: of "multimnist", largest shift of each object in pixels.
    canvas: of "affnist_like", side of the canvas in pixels.
  """

  kind: str = "multimnist"
  pad: int = 4
  max_shift: int = 4
  canvas: int = 40

  @property
  def is_overlaid(self) -> bool:
    """Whether the objects overlap by construction.

    Raises:
      ValueError: if the kind is neither of the two.
    """
    if self.kind not in augmentation.SCENES:
      raise ValueError(
        f"scene={self.kind!r}; pass 'multimnist' or 'affnist_like'."
      )
    return self.kind == "multimnist"

  def sampler(self) -> train_step.Sample:
    """The `Sample` of a scene and its `pairs.Objects`, from two images."""
    if self.is_overlaid:
      return functools.partial(
        pairs.sample, pad=self.pad, max_shift=self.max_shift
      )
    canvas = (self.canvas, self.canvas)
    return functools.partial(pairs.sample_moved, canvas=canvas)

  def steps(self, image_shape: Sequence[int]) -> Preprocessing:
    """Puts one image [H W C] in the middle of the canvas."""
    height, width, _ = image_shape
    frame = (height + 2 * self.pad, width + 2 * self.pad)
    canvas = frame if self.is_overlaid else (self.canvas, self.canvas)
    return Preprocessing(canvas=canvas)

  def shape(self, image_shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of scenes of images [H W C].

    Raises:
      checks.ImageShapeError: if objects would leave the scene.
    """
    if self.is_overlaid:
      multimnist.check_shift(image_shape, self.pad, self.max_shift)
    elif self.canvas < max(image_shape[:2]):
      raise checks.ImageShapeError(
        f"images of {image_shape[0]}x{image_shape[1]} do not fit on a canvas "
        f"of canvas={self.canvas} (--canvas); give a larger one"
      )
    return self.steps(image_shape).output_shape(tuple(image_shape))
