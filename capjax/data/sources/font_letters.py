"""Latin letters, rendered from the fonts that Matplotlib ships."""

import functools
import importlib.util
import pathlib
from typing import TYPE_CHECKING

import numpy as np
from etils import epy

from capjax.data.dataset import Dataset

if TYPE_CHECKING:
  import matplotlib
  from PIL import Image, ImageDraw, ImageFont
  from scipy import ndimage
else:
  with epy.lazy_imports():  # only these letters need them
    import matplotlib
    from PIL import Image, ImageDraw, ImageFont
    from scipy import ndimage

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
FONTS = (
  *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique"),
  *("DejaVuSans-BoldOblique", "DejaVuSansMono", "DejaVuSansMono-Bold"),
  *("DejaVuSansMono-Oblique", "DejaVuSansMono-BoldOblique", "DejaVuSerif"),
  *("DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic"),
  *("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic"),
  *("STIXGeneralBolIta", "cmr10", "cmb10", "cmss10", "cmti10", "cmtt10"),
)
_NUM_EACH = {"train": 800, "test": 400}  # images of each of the 26 letters
_SEEDS = {"train": 0, "test": 1}
_SIDE, _BOX = 28, 20  # of an image, and of the box that its letter fits into
SHAPE = (_SIDE, _SIDE, 1)
_LARGE = 96  # side of the image in which a letter is turned and sheared
_POINTS = 48  # size of the font there
_MAX_ROTATION = np.deg2rad(15)
_MAX_SHEAR = 0.2


def load(split: str) -> Dataset:
  """Renders letters in the form of MNIST's digits, to compare with them.

  Each image is a capital or a small letter, of one of 21 fonts, turned by up
  to 15 degrees and sheared by up to 0.2 along x, all sampled uniformly with the
  split's own seed. As in MNIST (LeCun et al., 1998), the letter is scaled to
  fit a box of 20x20 and placed on 28x28 with its centre of mass in the middle,
  as far as the box stays inside. The intensities are those of antialiasing.

  Both splits have the same fonts. Some letters look like digits: O, I, l, Z and
  S. Other versions of Matplotlib, Pillow and FreeType may render other pixels:
  then the fingerprint of the data differs too.

  Args:
    split: "train", 800 images of each letter, or "test", 400 of each; in an
      order that is random.

  Returns:
    The images and labels; the class does not tell capitals from small letters,
    as in the letters of EMNIST (Cohen et al., 2017).

  Raises:
    ModuleNotFoundError: if Matplotlib or Pillow is not installed.
  """
  for module in ("matplotlib", "PIL"):
    if importlib.util.find_spec(module) is None:
      raise ModuleNotFoundError(
        f"letters are rendered with {module}, which is missing; install it by "
        "`pip install '.[train]'`, in the folder of this repository",
        name=module,
      )
  rng = np.random.default_rng(_SEEDS[split])
  labels = np.repeat(np.arange(len(LETTERS)), _NUM_EACH[split])
  labels = rng.permutation(labels).astype(np.int32)
  small = rng.random(len(labels)) < 0.5
  fonts = rng.integers(len(FONTS), size=len(labels))
  rotations = rng.uniform(-_MAX_ROTATION, _MAX_ROTATION, len(labels))
  shears = rng.uniform(-_MAX_SHEAR, _MAX_SHEAR, len(labels))
  images = np.zeros((len(labels), *SHAPE), np.uint8)
  for n, label in enumerate(labels):
    letter = LETTERS[label].lower() if small[n] else LETTERS[label]
    large = _large(FONTS[fonts[n]], letter)
    images[n, ..., 0] = _normalise(_deform(large, rotations[n], shears[n]))
  return Dataset(images, labels, len(LETTERS), {})


@functools.cache
def _large(font: str, letter: str) -> "Image.Image":
  """One letter in the middle of a large image."""
  image = Image.new("L", (_LARGE, _LARGE))
  middle = _LARGE / 2, _LARGE / 2
  ImageDraw.Draw(image).text(
    middle, letter, fill=255, font=_font(font), anchor="mm"
  )
  return image


@functools.cache
def _font(name: str) -> "ImageFont.FreeTypeFont":
  folder = pathlib.Path(matplotlib.get_data_path()) / "fonts/ttf"
  return ImageFont.truetype(
    str(folder / f"{name}.ttf"),
    _POINTS,
    layout_engine=ImageFont.Layout.BASIC,
  )


def _deform(
  image: "Image.Image", rotation: float, shear: float
) -> "Image.Image":
  """Turns an image about its middle, and shears it along x."""
  cos, sin = np.cos(rotation), np.sin(rotation)
  # From a pixel of the result to one of the image.
  inverse = np.array([[cos, sin], [-sin, cos]]) @ [[1, shear], [0, 1]]
  middle = np.full(2, _LARGE / 2)
  offset = middle - inverse @ middle
  rows = np.column_stack([inverse, offset]).ravel().tolist()
  return image.transform(
    image.size,
    Image.Transform.AFFINE,
    rows,
    resample=Image.Resampling.BILINEAR,
  )


def _normalise(image: "Image.Image") -> np.ndarray:
  """Scales a letter to the box, and centres its mass; uint8 [28 28]."""
  letter = image.crop(image.getbbox())
  scale = _BOX / max(letter.size)
  width, height = (max(1, round(side * scale)) for side in letter.size)
  size = width, height
  drawn = np.asarray(letter.resize(size, Image.Resampling.LANCZOS), np.uint8)
  y, x = (
    int(np.clip(round(_SIDE / 2 - 0.5 - at), 0, _SIDE - side))
    for at, side in zip(ndimage.center_of_mass(drawn), drawn.shape, strict=True)
  )
  placed = np.zeros((_SIDE, _SIDE), np.uint8)
  placed[y : y + height, x : x + width] = drawn
  return placed
