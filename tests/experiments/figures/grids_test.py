"""Figures: valid files, whose pixels change with what they should show."""

import math

import matplotlib.image
import numpy as np
import pytest
from matplotlib.backends import backend_agg

from experiments.figures import curves, grids

RED = np.array([0xC8, 0x10, 0x2E]) / 255
_DIM = 0.4  # brightest of the images below, so that only paper is white


def _line(step, split="train", **values):
  return {"step": step, "split": split, **values}


def _frozen(array):
  """A view that cannot be written to, as arrays of JAX give."""
  array = np.asarray(array)
  array.flags.writeable = False
  return array


def _images(*shape, seed=0):
  rng = np.random.default_rng(seed)
  return _frozen(rng.uniform(0, _DIM, shape).astype(np.float32))


def _pixels(path):
  assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
  pixels = matplotlib.image.imread(path)[..., :3]
  np.testing.assert_array_equal(pixels[0, 0], 1)
  return pixels


def _red(pixels):
  """How many pixels have the colour of mistakes."""
  return int(np.all(np.abs(pixels - RED) < 0.02, axis=-1).sum())


def _box(pixels):
  """Height and width of what is not white or almost so."""
  rows, columns = np.nonzero(np.any(pixels < 0.9, axis=-1))
  return np.ptp(rows) + 1, np.ptp(columns) + 1


def _show(path, images, labels, predictions):
  """The pixels of a figure in which each image is its own reconstruction."""
  labels, predictions = _frozen(labels), _frozen(predictions)
  written = grids.reconstructions(images, images, labels, predictions, path)
  assert written == path
  return _pixels(path)


_TRAIN = [
  _line(step, accuracy=1 - 10 / step, loss=5 / step, margin_loss=2 / step)
  for step in range(20, 400, 20)
]
_VALIDATION = [
  _line(step, "validation", accuracy=accuracy, loss=0.1)
  for step, accuracy in ((100, 0.9), (200, 0.97), (300, 0.95))
]


@pytest.mark.parametrize(
  "metrics",
  [
    _TRAIN + _VALIDATION,
    _TRAIN,
    _VALIDATION,
    _TRAIN[:1],
    [_line(0, accuracy=1.0, loss=0.0)],
    [_line(5, accuracy=1.0), _line(9, accuracy=0.9), _line(12, accuracy=1.0)],
    [_line(5, loss=-3.0), _line(9, loss=2.0)],
    [_line(5, loss=0.5), _line(9, loss=math.nan), _line(12, loss=math.inf)],
    [_line(5, loss=None, accuracy=0.5)],
    [_line(10**6, loss=1e-9), _line(2 * 10**6, loss=1e9)],
  ],
)
@pytest.mark.filterwarnings("error")
def test_learning_curves_of_any_run(metrics, tmp_path):
  path = tmp_path / "new" / "curves.png"
  assert grids.learning_curves(metrics, str(path)) == path
  height, width = _box(_pixels(path))
  assert height > 400 and width > 400


def test_learning_curves_mark_the_checkpoint_that_is_reported(tmp_path):
  def draw(reported):
    lines = [
      _line(100 * n, "validation", accuracy=accuracy)
      for n, accuracy in enumerate((0.8, 0.9, 0.7), 1)
    ]
    path = grids.learning_curves(
      lines, tmp_path / "curves.png", reported=reported
    )
    # The dotted line is the only grey thing this dark away from the axes.
    grey = np.abs(_pixels(path)[150:450, 120:] - 0x55 / 255).max(axis=-1) < 0.01
    return int(np.argmax(grey.sum(axis=0)))

  first, second, third = draw(100), draw(200), draw(300)
  assert first < second < third
  assert second - first == pytest.approx(third - second, abs=2)


def test_measures_of_one_unit_share_a_panel():
  line = _line(
    1, "validation", accuracy=0.9, loss=0.1, margin_loss=0.2, elbo=-3.0,
    reconstruction_error=0.06, least_peak=0.5,
  )  # fmt: skip
  assert grids._groups(grids._curves([line], "elbo")) == {
    "error (%)": ["error"],
    "loss": ["loss", "margin_loss"],
    "elbo (nats)": ["elbo"],
    "mean reconstruction error": ["reconstruction_error"],
  }
  negative = {**line, "loss": -5.0, "margin_loss": -1.0}
  assert grids._groups(grids._curves([negative], None)) == {
    "error (%)": ["error"],
    "training loss": ["loss"],
    "margin loss": ["margin_loss"],
    "mean reconstruction error": ["reconstruction_error"],
  }


@pytest.mark.parametrize("chosen_by", ["accuracy", "elbo"])
def test_what_chose_the_checkpoint_is_ringed(tmp_path, chosen_by):
  lines = [
    _line(10 * n, "validation", loss=1.0 / n, **{chosen_by: 0.1 * n})
    for n in range(1, 6)
  ]
  path = tmp_path / "curves.png"

  def count(**options):
    return _red(_pixels(grids.learning_curves(lines, path, **options)))

  assert count(reported=30) == 0
  assert count(reported=30, chosen_by=chosen_by) > 20


@pytest.mark.parametrize("suffix", [".png", ".pdf"])
def test_figures_are_written_by_their_suffix(tmp_path, suffix):
  files = [
    grids.learning_curves(_TRAIN, tmp_path / f"{n}{suffix}").read_bytes()
    for n in range(2)
  ]
  assert files[0] == files[1]
  assert files[0].startswith({".png": b"\x89PNG", ".pdf": b"%PDF"}[suffix])


def test_learning_curves_show_every_split_and_loss(tmp_path):
  seen = {
    grids.learning_curves(lines, tmp_path / "curves.png").read_bytes()
    for lines in (
      _TRAIN,
      _TRAIN + _VALIDATION,
      [{**line, "reconstruction_loss": 0.3} for line in _TRAIN],
    )
  }
  assert len(seen) == 3


def test_learning_curves_leave_out_other_entries(tmp_path):
  more = [{**line, "epoch": 0.1, "learning_rate": 1e-3} for line in _TRAIN]
  more.append(_line(5000, "test", accuracy=0.1))
  want = grids.learning_curves(_TRAIN, tmp_path / "want.png")
  got = grids.learning_curves(more, tmp_path / "got.png")
  assert got.read_bytes() == want.read_bytes()


def test_learning_curves_of_nothing(tmp_path):
  with pytest.raises(ValueError, match="finite accuracy or loss"):
    grids.learning_curves([_line(1, loss=math.nan)], tmp_path / "curves.png")


def test_examples_are_spread_over_classes_right_ones_first():
  labels = _frozen([0, 0, 0, 1, 1, 2, 2, 2, 1, 0])
  wrong = [2, 5, 6, 9]
  predictions = labels.copy()
  predictions[wrong] = 7
  # Right: 0 at 0 1; 1 at 3 4 8; 2 at 7. Wrong: 0 at 2 9; 2 at 5 6.
  choose = grids.choose_examples
  assert choose(labels, predictions, 5, 3).tolist() == [0, 3, 7, 1, 4, 2, 5, 9]
  assert choose(labels, predictions, 9, 9).tolist() == [
    *(0, 3, 7, 1, 4, 8),
    *(2, 5, 9, 6),
  ]
  assert choose(labels, labels, 2, 9).tolist() == [0, 3]
  images = np.arange(10)[choose(labels, predictions, 0, 0)]
  assert images.size == 0


@pytest.mark.parametrize(
  "shape", [(28, 28, 1), (8, 8, 3), (11, 5, 1), (5, 11, 3), (9, 9, 2)]
)
@pytest.mark.long_after_first
def test_mistakes_are_red(shape, tmp_path):
  images = _images(11, *shape)
  labels = np.arange(11) % 3
  right = _show(tmp_path / "right.png", images, labels, labels)
  assert _red(right) == 0
  predictions = np.where(np.arange(11) == 4, 2, labels)
  one = _show(tmp_path / "one.png", images, labels, predictions)
  all_wrong = _show(tmp_path / "all.png", images, labels, labels + 1)
  assert _red(all_wrong) > 9 * _red(one) > 0


def test_images_keep_their_colours_and_sides(tmp_path):
  """A red input beside a blue reconstruction, and the eyes of a stereo pair."""
  red, blue = np.zeros((2, 1, 16, 16, 3))
  red[..., 0] = blue[..., 2] = 1
  path = tmp_path / "pair.png"
  pixels = _pixels(grids.reconstructions(red, blue, [0], [0], path))
  is_red = np.all(pixels == (1, 0, 0), axis=-1)
  is_blue = np.all(pixels == (0, 0, 1), axis=-1)
  assert is_red.sum() == pytest.approx(is_blue.sum(), rel=0.05)
  assert is_red.sum() > 80**2
  assert np.nonzero(is_red)[1].max() < np.nonzero(is_blue)[1].min()

  eyes = np.zeros((1, 16, 16, 2)) + (0.25, 0.75)
  grid = eyes.reshape(1, 1, 1, 16, 16, 2)
  pixels = _pixels(grids.perturbations(grid, [0], ["pair"], path))
  dark = np.all(np.abs(pixels - 0.25) < 0.01, axis=-1)
  light = np.all(np.abs(pixels - 0.75) < 0.01, axis=-1)
  middle = pixels.shape[0] // 2
  assert dark[middle].sum() == pytest.approx(light[middle].sum(), abs=2)
  assert np.nonzero(dark)[1].max() < np.nonzero(light[middle])[0].max()


@pytest.mark.parametrize("shape", [(1, 16, 11), (3, 4, 5), (7, 2, 3)])
@pytest.mark.parametrize("image", [(28, 28, 1), (6, 9, 3), (8, 8, 2)])
@pytest.mark.long_after_first
def test_each_perturbed_image_is_seen(shape, image, tmp_path):
  path = tmp_path / "new" / "perturbations.png"
  grid = _images(*shape, *image)
  offsets = _frozen(np.linspace(-0.25, 0.25, shape[2]))
  labels = _frozen(np.arange(shape[0]))
  assert grids.perturbations(grid, offsets, labels, path) == path
  before = _pixels(path)
  brighter = grid.copy()
  brighter[-1, -1, -1] += 0.3
  after = _pixels(grids.perturbations(brighter, offsets, labels, path))
  rows, columns = np.nonzero(np.any(before != after, axis=-1))
  # The last image of the last panel, and nothing else.
  num_columns = min(5, shape[0])
  height, width = before.shape[:2]
  assert 0 < np.ptp(rows) < height / shape[1]
  assert 0 < np.ptp(columns) < width / num_columns / shape[2]
  assert rows.min() > height / 2


@pytest.mark.parametrize(
  "shape", [(3, 16, 11, 32, 20, 3), (2, 16, 11, 8, 8, 1)]
)
def test_titles_of_perturbations_are_inside(shape, tmp_path, monkeypatch):
  above = []

  def look(sheet, path):
    canvas = backend_agg.FigureCanvasAgg(sheet)
    canvas.draw()
    boxes = [x.title.get_window_extent(canvas.renderer) for x in sheet.axes]
    above.extend(sheet.bbox.height - box.y1 for box in boxes)

  monkeypatch.setattr(grids, "save", look)
  offsets = np.linspace(-0.25, 0.25, shape[2])
  grids.perturbations(np.zeros(shape), offsets, range(shape[0]), tmp_path / "x")
  assert len(above) == shape[0] and min(above) >= 1


def test_perturbations_label_rows_columns_and_panels(tmp_path):
  grid = _images(1, 2, 3, 8, 8, 1)

  def draw(offsets, label):
    path = tmp_path / "perturbations.png"
    return grids.perturbations(grid, offsets, [label], path).read_bytes()

  plain = draw([-0.1, 0, 0.1], 3)
  assert draw([-0.1, -1e-17, 0.1], "3") == plain
  assert draw([-0.2, 0, 0.1], 3) != plain
  assert draw([-0.1, 0, 0.1], 4) != plain


@pytest.mark.parametrize(
  "images, fault",
  [
    (np.zeros((1, 8, 8, 1), np.uint8), "divide them by 255"),
    (np.zeros((1, 8, 8, 4)), "4 channels"),
  ],
)
def test_wrong_images(images, fault, tmp_path):
  with pytest.raises(ValueError, match=fault):
    grids.reconstructions(images, images, [0], [0], tmp_path / "a.png")
  with pytest.raises(ValueError, match=fault):
    grids.perturbations(images[None, None], [0], [0], tmp_path / "a.png")


def test_values_outside_the_range_are_clipped(tmp_path):
  inside = _images(1, 8, 8, 1) > _DIM / 2
  inside = inside.astype(np.float32)
  outside = 3 * inside - 1
  want = _show(tmp_path / "want.png", inside, [0], [0])
  np.testing.assert_array_equal(
    _show(tmp_path / "got.png", outside, [0], [0]), want
  )


def test_names_of_classes_may_hold_dollar_signs(tmp_path):
  """Two of them would be read as mathematics, which these are not."""
  names = ["$5_$10", "a^$_$"]
  images = _images(2, 2, 3, 4, 4, 1)
  grids.perturbations(images, [-1, 0, 1], names, tmp_path / "a.png")
  curves.contact_sheet(
    images[:, :, 0],
    names,
    names,
    tmp_path / "b.png",
    labels=np.array(names),
    predictions=np.array([names[::-1]] * 2),
  )
