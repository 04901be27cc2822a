"""Figures of robustness: valid files whose pixels follow what they show."""

import math

import matplotlib.image
import numpy as np
import pytest

from experiments.figures import curves

_BLUE = np.array([0x1F, 0x77, 0xB4]) / 255
_ORANGE = np.array([0xFF, 0x7F, 0x0E]) / 255
RED = np.array([0xC8, 0x10, 0x2E]) / 255
GREY = np.array([0x55, 0x55, 0x55]) / 255
_DIM = 0.4  # brightest of the images below, so that only paper is white


def _pixels(path):
  assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
  pixels = matplotlib.image.imread(path)[..., :3]
  np.testing.assert_array_equal(pixels[0, 0], 1)
  return pixels


def _where(pixels, color):
  """Rows and columns of the pixels that have a colour, or almost so."""
  return np.nonzero(np.all(np.abs(pixels - color) < 0.02, axis=-1))


def _count(pixels, color):
  return _where(pixels, color)[0].size


def _images(*shape, seed=0):
  rng = np.random.default_rng(seed)
  images = rng.uniform(0, _DIM, shape).astype(np.float32)
  images.flags.writeable = False  # as arrays of JAX are
  return images


def _panel(*lines, **labels):
  """A panel whose lines are named a, b, c."""
  texts = dict(title="t", xlabel="x", ylabel="y") | labels
  lines = {
    name: dict(zip(*line, strict=True))
    for name, line in zip("abc", lines, strict=False)
  }
  return curves.Panel(**texts, lines=lines)


def _draw(tmp_path, *panels, **options):
  """As diagnostics; as accuracies if there is an option."""
  path = tmp_path / "new" / "lines.png"
  draw = curves.accuracy_curves if options else curves.diagnostic_curves
  assert draw(panels, str(path), **options) == path
  return _pixels(path)


_EPS = [0.0, 0.1, 0.2, 0.3]


@pytest.mark.parametrize(
  "panels",
  [
    [_panel((_EPS, [1.0, 0.8, 0.3, 0.0]))],
    [_panel(([0.0], [0.5]))],
    [_panel((_EPS, [1.0, 0.8, 0.3, 0.0])), _panel(([-90, 90], [-1.0, 1.0]))],
    [_panel((range(100), np.linspace(0, 1, 100)))],
    [_panel(([1, 2], [np.float32(0.5), 1]), ([1], [0.2]), ([], []))],
    [_panel(([], [])), _panel(([1, 2], [math.nan, 0.5]))],
    [_panel(([0, 1], [0, 1]))] * 4,
  ],
)
@pytest.mark.filterwarnings("error")
def test_lines_of_any_kind(panels, tmp_path):
  pixels = _draw(tmp_path, *panels, chance=0.2)
  assert pixels.shape[0] > 400
  assert pixels.shape[1] > 400 * len(panels)
  assert _count(pixels, _BLUE) > 20


def test_higher_values_are_drawn_higher(tmp_path):
  """By as much as the scale says, and in no other panel."""
  other = _panel(([0, 1], [0.3, 0.3]))
  rows, others = [], []
  for value in (0.25, 0.5, 0.75):
    pixels = _draw(tmp_path, other, _panel(([0, 1], [value, value])))
    left, right = np.split(pixels, [pixels.shape[1] // 2], axis=1)
    # Below the legend.
    rows.append(np.median(_where(right[60:], _BLUE)[0]))
    others.append(left)
    np.testing.assert_array_equal(left, others[0])
  assert rows[0] > rows[1] > rows[2]
  assert rows[0] - rows[1] == pytest.approx(rows[1] - rows[2], abs=2)


def test_points_are_sorted(tmp_path):
  line = [0, 1, 2], [0.1, 0.9, 0.3]
  shuffled = [2, 0, 1], [0.3, 0.1, 0.9]
  want = _draw(tmp_path, _panel(line))
  np.testing.assert_array_equal(_draw(tmp_path, _panel(shuffled)), want)


def test_a_label_keeps_its_colour(tmp_path):
  """The second panel has only the second line, which is orange there too."""
  first = _panel(([0, 1], [0.2, 0.2]), ([0, 1], [0.8, 0.8]))
  second = first._replace(lines={"b": {0: 0.5, 1: 0.5}})
  pixels = _draw(tmp_path, first, second)[60:]
  left, right = np.split(pixels, [pixels.shape[1] // 2], axis=1)
  assert _count(left, _BLUE) > 100 and _count(left, _ORANGE) > 100
  assert _count(right, _BLUE) == 0 and _count(right, _ORANGE) > 100


def test_chance_stands_where_it_should_in_every_panel(tmp_path):
  def row(value):
    panel = _panel(([0, 1], [0.5, 0.5]))
    pixels = _draw(tmp_path, panel, panel, chance=value)
    halves = np.split(pixels, [pixels.shape[1] // 2], axis=1)
    first, second = (
      np.median(_where(half[100:380, 150:], GREY)[0]) for half in halves
    )
    assert first == second
    return first

  rows = [row(value) for value in (0.3, 0.6, 0.9)]
  assert rows[0] - rows[1] == pytest.approx(rows[1] - rows[2], abs=2)
  assert rows[1] - rows[2] > 50


def test_every_text_counts(tmp_path):
  plain = _panel((_EPS, [1.0, 0.8, 0.3, 0.1]))
  renamed = plain._replace(lines={"other": plain.lines["a"]})
  seen = [
    _draw(tmp_path, panel)
    for panel in (
      plain,
      plain._replace(title="other"),
      plain._replace(xlabel="other"),
      plain._replace(ylabel="other"),
      renamed,
    )
  ] + [_draw(tmp_path, plain, chance=chance) for chance in (None, 0.1)]
  assert len({pixels.tobytes() for pixels in seen}) == len(seen)


@pytest.mark.parametrize(
  "panels", [[], [_panel()], [_panel(([], [])), _panel(([0], [math.inf]))]]
)
def test_nothing_to_draw(panels, tmp_path):
  with pytest.raises(ValueError, match="finite point"):
    curves.diagnostic_curves(panels, tmp_path / "lines.png")


def _histograms(tmp_path, activations, labels):
  path = tmp_path / "new" / "histograms.png"
  names = list(map(str, range(activations.shape[1])))
  made = curves.activation_histograms(activations, labels, names, str(path))
  assert made == path
  return _pixels(path)


@pytest.mark.parametrize("num_classes", [1, 3, 5, 10])
@pytest.mark.filterwarnings("error")
@pytest.mark.long_after_first
def test_histograms_of_any_number_of_classes(num_classes, tmp_path):
  """Also where no example is of the last class."""
  rng = np.random.default_rng(0)
  activations = rng.uniform(0, 1, (50, num_classes)).astype(np.float32)
  labels = rng.integers(0, max(1, num_classes - 1), 50)
  pixels = _histograms(tmp_path, activations, labels)
  # The last class but one in its place: another figure.
  swapped = activations[:, ::-1]
  same = np.array_equal(_histograms(tmp_path, swapped, labels), pixels)
  assert same == (num_classes == 1)


def test_histograms_tell_present_from_absent(tmp_path):
  """Bars of the class on the right, of all else on the left, then swapped."""
  labels = np.arange(200) % 2
  right = np.where(np.eye(2)[labels], 0.9, 0.1)
  blue, grey = 0.6 * _BLUE + 0.4, 0.6 * GREY + 0.4
  middles = []
  for activations in (right, 1 - right):
    pixels = _histograms(tmp_path, activations, labels)[60:]
    pixels = pixels[:, : pixels.shape[1] // 2]  # the first class
    middles.append([np.median(_where(pixels, c)[1]) for c in (blue, grey)])
    assert min(_count(pixels, c) for c in (blue, grey)) > 200
  (blue_right, grey_left), (blue_left, grey_right) = middles
  assert grey_left == pytest.approx(blue_left, abs=3)
  assert grey_right == pytest.approx(blue_right, abs=3)
  assert blue_right - grey_left > 80


def _sheet(tmp_path, images, **options):
  path = tmp_path / "new" / "sheet.png"
  rows, columns = images.shape[:2]
  texts = dict(row_labels=range(rows), column_labels=range(columns)) | options
  assert curves.contact_sheet(images, path=str(path), **texts) == path
  return _pixels(path)


@pytest.mark.parametrize("shape", [(1, 1), (2, 5), (4, 3)])
@pytest.mark.parametrize("image", [(28, 28, 1), (8, 9, 3), (12, 8, 2)])
@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.filterwarnings("error")
def test_each_image_is_seen_in_its_place(shape, image, labelled, tmp_path):
  images = _images(*shape, *image)
  options = dict(labels=np.zeros(shape, int)) if labelled else {}
  before = _sheet(tmp_path, images, **options)
  brighter = images.copy()
  brighter[-1, -1] += 0.3
  after = _sheet(tmp_path, brighter, **options)
  rows, columns = np.nonzero(np.any(before != after, axis=-1))
  height, width = before.shape[:2]
  assert 80 < np.ptp(rows) < height / shape[0]
  assert 80 < np.ptp(columns) < width / shape[1]
  # Images are not stretched.
  wide = image[1] * (2 if image[2] == 2 else 1)
  ratio = np.ptp(columns) / np.ptp(rows)
  assert ratio == pytest.approx(wide / image[0], rel=0.05)
  assert rows.max() > 0.6 * height and columns.max() > 0.7 * width


def test_mistakes_are_red(tmp_path):
  images = _images(3, 4, 28, 28, 1)
  labels = np.arange(4)
  right = np.broadcast_to(labels, (3, 4))
  one, most = right.copy(), right + 1
  one[1, 2] = 9
  counts = [
    _count(_sheet(tmp_path, images, labels=labels, predictions=x), RED)
    for x in (right, one, most)
  ]
  assert counts[0] == 0
  assert counts[2] > 9 * counts[1] > 9 * 300
  frame = _where(_sheet(tmp_path, images, labels=labels, predictions=one), RED)
  # Around the third image of the second row.
  assert 80 < np.ptp(frame[1]) < 120


def test_labels_without_predictions_are_grey(tmp_path):
  images = np.zeros((2, 3, 28, 28, 1))
  labels = [[3], [4]]
  plain = _sheet(tmp_path, images)
  labelled = _sheet(tmp_path, images, labels=labels)
  assert _count(plain, GREY) < _count(labelled, GREY)
  same = _sheet(
    tmp_path, images, labels=labels, predictions=[[3, 3, 3], [4, 4, 4]]
  )
  np.testing.assert_array_equal(same, labelled)


def test_sheet_shows_every_text(tmp_path):
  images = _images(1, 2, 16, 16, 1)
  plain = dict(labels=[0, 1], predictions=[[0, 2]])
  seen = [
    _sheet(tmp_path, images, **plain | change)
    for change in (
      {},
      dict(row_labels=["other"]),
      dict(column_labels=["a", "b"]),
      dict(labels=[0, 3]),
      dict(predictions=[[0, 4]]),
    )
  ]
  assert len({pixels.tobytes() for pixels in seen}) == len(seen)


@pytest.mark.parametrize(
  "options, fault",
  [
    (dict(row_labels=["a"]), "1 row and 3 column labels for 2 x 3"),
    (dict(column_labels="abcd"), "2 row and 4 column labels for 2 x 3"),
    (dict(predictions=np.zeros((2, 3))), "predictions without labels"),
  ],
)
def test_wrong_options(options, fault, tmp_path):
  with pytest.raises(ValueError, match=fault):
    _sheet(tmp_path, _images(2, 3, 8, 8, 1), **options)


def test_wrong_images(tmp_path):
  with pytest.raises(ValueError, match="divide them by 255"):
    _sheet(tmp_path, np.zeros((1, 1, 8, 8, 1), np.uint8))


def test_intervals_are_those_of_wilson():
  """Values of statsmodels' proportion_confint(method="wilson")."""
  for share, count, want in (
    (0.0, 10, (0.0, 0.27753)),
    (0.5, 100, (0.40383, 0.59617)),
    (0.9, 1000, (0.87984, 0.91709)),
  ):
    assert curves.interval(share, count) == pytest.approx(want, abs=1e-4)


def test_fewer_images_have_longer_bars(tmp_path):
  def height(count):
    panel = _panel(([0, 1], [0.5, 0.5]))
    panel = panel._replace(counts={"a": count} if count else {})
    rows, _ = _where(_draw(tmp_path, panel, chance=0.01)[60:], _BLUE)
    return np.ptp(rows)

  without, many, few = height(0), height(10_000), height(20)
  assert without <= many < few


def test_flat_diagnostics_show_their_range(tmp_path):
  def height(lowest):
    panel = _panel(([0, 1], [lowest, 0.9]))
    return np.ptp(_where(_draw(tmp_path, panel)[60:], _BLUE)[0])

  # On the axis from 0 to 1 the first would be a tenth as high.
  assert height(0.85) > 0.8 * height(0.4)


def test_values_above_1_are_within_the_axes(tmp_path, monkeypatch):
  sheets = []
  monkeypatch.setattr(curves, "save", lambda sheet, path: sheets.append(sheet))
  panels = [
    curves.Panel("", "shift", "error", {"a": {0.0: 0.2, 1.0: highest}})
    for highest in (0.9, 1.06, 1 + 4e-7)
  ]
  curves.accuracy_curves(panels, tmp_path / "a.png")
  assert [x.get_ylim() for x in sheets[0].axes] == [
    (0, 100),
    (0, 125),
    (0, 100),
  ]


def test_bars_of_each_class_sum_to_100(sheets):
  """Of 8 images: 3 of the first class, 5 of the second, none of the last."""
  activations = np.array([0.05, 0.05, 0.5, 0.5, 0.5, 0.98, 0.98, 1.0])
  activations = np.stack([activations, 1 - activations, activations], axis=1)
  labels = np.array([1, 1, 1, 1, 1, 0, 0, 0])
  curves.activation_histograms(activations, labels, ["a", "b", "c"], "x.png")
  # Shares of activations from 0.04, 0.48 and 0.96, which begin bars.
  low, middle, high = 1, 12, 24
  everything = {low: 25, middle: 37.5, high: 37.5}
  want = [
    {"class absent": {low: 40, middle: 60}, "class present": {high: 100}},
    {
      "class absent": {0: 100},
      "class present": {middle: 60, 23: 40},
    },
    {"class absent": everything, "class present": {}},
  ]
  for place, bars in zip(sheets[0].axes, want, strict=True):
    for patch, (name, shares) in zip(place.patches, bars.items(), strict=True):
      values, edges, _ = patch.get_data()
      assert patch.get_label() == name
      np.testing.assert_allclose(edges, np.linspace(0, 1, 26))
      expected = np.zeros(25)
      expected[list(shares)] = list(shares.values())
      np.testing.assert_allclose(values, expected)


@pytest.mark.parametrize(
  ("values", "percent", "limits"),
  [
    ([0.2, 0.9], True, (0, 100)),
    ([-0.1, 0.9], True, (-25, 100)),
    ([-0.25, 0.9], True, (-25, 100)),
    ([-0.26, 1.3], True, (-50, 150)),
    ([-1.0, 0.0], True, (-100, 100)),
    ([0.85, 0.9], True, (0, 100)),
    ([0.85, 0.9], False, (0.845, 0.905)),
    ([-0.1, 0.0], False, (-0.11, 0.01)),
    ([0.9, 1.0], False, (0.89, 1)),
    ([0.5, 0.5], False, (0, 1)),
    ([-0.3, 0.9], False, (-0.5, 1)),
  ],
)
def test_an_axis_holds_all_values_and_ends_at_quarters(
  sheets, values, percent, limits
):
  """Lines of diagnostics that are almost flat have an axis of their own."""
  panel = _panel(([0, 1], values))
  draw = curves.accuracy_curves if percent else curves.diagnostic_curves
  draw([panel], "x.png")
  (place,) = sheets[0].axes
  assert place.get_ylim() == pytest.approx(limits)


def test_bars_are_as_high_as_intervals(sheets):
  """In percent, at each point of the line of shares alone."""
  panel = _panel(([2, 0, 1], [0.9, 0.5, 0.0]), ([0, 1], [0.3, 0.4]))
  curves.accuracy_curves([panel._replace(counts={"a": 100})], "x.png")
  (place,) = sheets[0].axes
  (bars,) = place.collections
  # By SciPy's binomtest(count, 100).proportion_ci(method="wilson").
  want = [
    (0, 40.383, 59.617),
    (1, 0.0, 3.6993),
    (2, 82.5633, 94.4773),
  ]
  found = [(*x[0], x[1, 1]) for x in bars.get_segments()]
  np.testing.assert_allclose(found, want, atol=1e-2)
