"""The figure of objects as shares of pixels: who has which colour."""

import colorsys

import numpy as np

from experiments.figures import object_masks

HUES = np.array([colorsys.hsv_to_rgb(n / 3, 1, 1) for n in range(3)])
# Five pixels in a row: their brightness, their true object and their shares.
INK = np.array([1.0, 0.5, 0.8, 0.9, 0.0])
OWNERS = np.array([0, 0, 1, -1, -1])
MASKS = np.array(
  [[0.1, 0.2, 0.3, 0.1, 0.6],
   [0.3, 0.7, 0.2, 0.3, 0.3],
   [0.6, 0.1, 0.5, 0.6, 0.1]]
)  # fmt: skip


def test_pixels_have_the_colours_of_their_objects(tiled):
  images = INK.reshape(1, 1, 5, 1)
  object_masks.object_masks(
    images, images / 2, MASKS[None, :, None], OWNERS[None, None], "x.png"
  )
  rows = dict(zip(tiled["row_labels"], tiled["images"][:, 0], strict=True))
  bright = INK[:, None]
  grey = np.full(3, 0.35)
  red, blue = np.array([1.0, 0.2, 0.2]), np.array([0.2, 0.6, 1.0])
  true = np.array([red, red, blue, grey, grey])
  want = {
    "image": np.tile(bright, 3),
    "reconstruction": np.tile(bright / 2, 3),
    "true objects": true * bright,
    "found objects": HUES[[2, 1, 2, 2, 0]] * bright,
  }
  # Of the ink, the third object has 1.59, the second 1.08, the first 0.53.
  for n in (2, 1, 0):
    want[f"object {n + 1}"] = (MASKS[n] * INK)[:, None] * HUES[n]
  assert list(rows) == list(want)
  for name, row in want.items():
    np.testing.assert_allclose(rows[name], row, atol=0.07, err_msg=name)
  assert tiled["columns"] == 1
