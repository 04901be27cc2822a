"""affNIST: its files, and similar digits made from other images.

affNIST (T. Tieleman, 2013) holds MNIST digits under small affine transforms, 32
of each, on 40x40 pixels. A result on `affnist_like` images is not a result on
affNIST: the random transforms differ, and so may undocumented details.
"""

import math
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from capjax.data.dataset import Dataset
from capjax.kernels import geometry, rendering

_URL = "https://www.cs.toronto.edu/~tijmen/affNIST/32x/transformed"
_SIZE = 40
_NUM_CLASSES = 10
_FETCH_AGAIN = "fetch it again"


def affnist_like(
  key: PRNGKeyArray,
  image: Float[Array, "H W C"],
  *,
  canvas: tuple[int, int] = (_SIZE, _SIZE),
) -> Float[Array, "H2 W2 C"]:
  """Moves an image at random as affNIST moves its digits.

  Args:
    key: random key.
    image: in [0, 1], zeros around the ink.
    canvas: as for `affnist_like_pose`.

  Returns:
    [*canvas, C], in [0, 1].

  Raises:
    ValueError: `canvas` has no pixels.
  """
  pose = affnist_like_pose(key, image, canvas=canvas)
  return rendering.transform(image, pose, canvas=canvas)


def affnist_like_pose(
  key: PRNGKeyArray,
  image: Float[Array, "H W C"],
  *,
  canvas: tuple[int, int] = (_SIZE, _SIZE),
) -> Float[Array, "3 3"]:
  """Samples the transform of `affnist_like`, which depends on the ink's place.

  Independent and uniform: a rotation by -20 to 20 degrees, scales of x
  and y by 0.8 to 1.2, a shear by -0.2 to 0.2, in the order of
  `geometry.affine_matrix`; then, among all moves that leave no ink behind, one
  along each axis. Moves are by fractions of a pixel, so one interpolation
  applies the whole transform.

  Args:
    key: random key.
    image: [H, W, C]; ink is where any channel is above 0. All pixels that the
      interpolated ink reaches count, however faint.
    canvas: (rows, columns). Along an axis where the ink does not fit it is
      centred, and cut equally at both ends.

  Returns:
    [3, 3], as `rendering.transform` takes it; no translation if there is no
    ink.

  Differs from affNIST: the order of the transforms, and moves by fractions of a
  pixel, are our choice. The ranges are those documented for the data set.
  """
  turn = math.radians(20)
  low = jnp.array([0.8, 0.8, -turn, -0.2, -1, -1])
  high = jnp.array([1.2, 1.2, turn, 0.2, 1, 1])
  sampled = jax.random.uniform(key, (6,), minval=low, maxval=high)
  scale_x, scale_y, theta, shear, x, y = sampled
  pose = geometry.affine_matrix(scale_x, scale_y, theta, shear, 0, 0)

  is_ink = jnp.any(image > 0, axis=-1, keepdims=True)
  points = geometry.apply(pose, geometry.pixel_offsets(*image.shape[:2]))
  # Includes each pixel's bilinear footprint, two pixels wide and high.
  reach = jnp.sum(jnp.abs(pose[:2, :2]), axis=1)
  first = jnp.min(points, (0, 1), where=is_ink, initial=jnp.inf) - reach
  last = jnp.max(points, (0, 1), where=is_ink, initial=-jnp.inf) + reach

  # A footprint may end where the first row and column outside would begin.
  border = jnp.array([canvas[1] + 1, canvas[0] + 1]) / 2
  room = jnp.maximum(border - (last - first) / 2, 0)
  move = -(first + last) / 2 + room * jnp.array([x, y])
  move = jnp.where(jnp.any(is_ink), move, 0)
  return pose.at[:2, 2].set(move)


def read(path: str | os.PathLike[str]) -> Dataset:
  """Reads the test set of affNIST from its MATLAB files, unzipped.

  The files are in 32x/transformed on the page of the data set. `test.mat` is
  the whole test set; each of `test_batches/1.mat` to `32.mat` has one version
  of each digit.

  Args:
    path: a folder with `test.mat` or else `test_batches`, whose files are read
      one after the other, 2 before 10; or any one file.

  Returns:
    Images [N 40 40 1], labels, and no factors.

  Raises:
    FileNotFoundError: there is no such file; the message says what to do.
    ValueError: a file is incomplete, or not of affNIST.
  """
  path = pathlib.Path(path).expanduser()
  whole, batches = path / "test.mat", path / "test_batches"
  if path.is_file() or whole.is_file():
    files = [path if path.is_file() else whole]
  else:
    files = sorted(
      batches.glob("*.mat"), key=lambda file: (len(file.stem), file)
    )
  if not files:
    raise FileNotFoundError(
      f"{path}: neither a file, nor a folder with test.mat or "
      "test_batches/*.mat. Where there is a network:\n"
      f"  curl -fLO '{_URL}/test.mat.zip' && unzip test.mat.zip"
    )
  images, labels = zip(*map(_read_file, files), strict=True)
  return Dataset(
    np.concatenate(images), np.concatenate(labels), _NUM_CLASSES, {}
  )


def _read_file(path: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
  # Imported here since reading files is rare.
  from scipy import io

  with path.open("rb") as file:
    try:
      content = io.loadmat(file, variable_names=["affNISTdata"])
    # Damaged files raise errors of many kinds, IndexError among them.
    except Exception as error:
      raise ValueError(
        f"{path}: not a whole MATLAB file ({error}); {_FETCH_AGAIN}, and unzip "
        "it"
      ) from None
  struct = content.get("affNISTdata")
  names = getattr(struct, "dtype", np.dtype(bool)).names or ()
  if not {"image", "label_int"} <= set(names) or struct.size != 1:
    raise ValueError(
      f"{path}: no struct affNISTdata with image and label_int; name a file of "
      f"affNIST, from {_URL}"
    )
  pixels = struct["image"].item()
  labels = np.ravel(struct["label_int"].item())
  if pixels.dtype != np.uint8 or pixels.shape != (_SIZE**2, labels.size):
    raise ValueError(
      f"{path}: image is {pixels.dtype} {list(pixels.shape)}, but its "
      f"{labels.size} labels need uint8 [{_SIZE**2}, {labels.size}]; "
      f"{_FETCH_AGAIN}"
    )
  wrong = np.flatnonzero(~np.isin(labels, np.arange(_NUM_CLASSES)))
  if wrong.size or not labels.size:
    found = f"label {wrong[0]} is {labels[wrong[0]]}" if wrong.size else "empty"
    raise ValueError(
      f"{path}: {found}; the labels of affNIST are 0..9; {_FETCH_AGAIN}"
    )
  # Each column is an image, its pixels row by row.
  images = np.ascontiguousarray(pixels.T).reshape(-1, _SIZE, _SIZE, 1)
  return images, labels.astype(np.int32)
