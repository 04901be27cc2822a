"""Overlapping pairs: who is paired, where both lie, and how they add up."""

import functools
from unittest import mock

import cases
import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from capjax import data
from capjax.data.transforms import augment, overlap

# Classes of 3, 1, 0 and 5 examples.
_LABELS = np.array([3, 0, 3, 3, 1, 0, 3, 0, 3], np.int32)
_CLASSES = overlap.group_by_class(_LABELS)


def _image(height=4, width=5, channels=1, dtype=jnp.uint8, seed=0):
  """An image without zeros, in which no two pixels are alike."""
  size = height * width * channels
  rng = np.random.default_rng(seed)
  pixels = rng.choice(np.arange(30, 256), size, replace=False)
  pixels = pixels.reshape(height, width, channels)
  if dtype == jnp.uint8:
    return jnp.asarray(pixels, jnp.uint8)
  return jnp.asarray(pixels / 255, dtype)


def _pair(**options):
  return _image(**options, seed=0), _image(**options, seed=1)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _many(function, options, keys, first, second):
  one = functools.partial(function, **dict(options))
  return jax.vmap(one, (0, None, None))(keys, first, second)


def _overlay(function, first, second, *, seed=0, **options):
  """Overlays of one pair: images [N H W C] and parts [N 2 H W C]."""
  keys = cases.keys(4000, seed)
  got = _many(function, tuple(options.items()), keys, first, second)
  return jax.tree.map(np.asarray, got)


def _placed(image, down, right, pad):
  """Pixel by pixel: the image in a frame, shifted, cut at the border."""
  image = np.asarray(image)
  height, width, channels = image.shape
  out = np.zeros((height + 2 * pad, width + 2 * pad, channels), image.dtype)
  for h in range(height):
    for w in range(width):
      row, column = h + pad + down, w + pad + right
      if 0 <= row < out.shape[0] and 0 <= column < out.shape[1]:
        out[row, column] = image[h, w]
  return out


def check_partners_are_uniform_over_other_classes(choose, seed=0):
  draw = jax.jit(jax.vmap(choose, (0, None, None)))
  for label in (0, 1, 2, 3):
    drawn = np.asarray(draw(cases.keys(4000, seed), label, _CLASSES))
    allowed = [n for n in range(len(_LABELS)) if _LABELS[n] != label]
    assert set(drawn) <= set(allowed), f"{label} has a partner of its class"
    cases.assert_equally_often(np.sum(drawn == n) for n in allowed)


def check_each_draw_is_another_partner(choose):
  """Every number that can be sampled selects a different example."""
  for label in (0, 1, 2, 3):
    allowed = [n for n in range(len(_LABELS)) if _LABELS[n] != label]
    bounds = []

    def randint(key, shape, low, high, bounds=bounds):
      del key, shape
      bounds.append((int(low), int(high)))
      return jnp.int32(bounds.count(bounds[-1]) - 1)

    with mock.patch.object(jax.random, "randint", randint):
      key = jax.random.key(0)
      drawn = [int(choose(key, label, _CLASSES)) for _ in allowed]
    assert set(bounds) == {(0, len(allowed))}
    assert sorted(drawn) == allowed


def check_shifts_are_uniform_and_independent(overlay, pad=1, dtype=jnp.uint8):
  pair = _pair(dtype=dtype)
  _, parts = _overlay(overlay, *pair, pad=pad, max_shift=1)
  shifts = [(down, right) for down in (-1, 0, 1) for right in (-1, 0, 1)]
  counts = {
    _placed(pair[0], *first, pad).tobytes()
    + _placed(pair[1], *second, pad).tobytes(): 0
    for first in shifts
    for second in shifts
  }
  for first, second in parts:
    name = first.tobytes() + second.tobytes()
    assert name in counts, "not a shift in range of first, then second"
    counts[name] += 1
  cases.assert_equally_often(counts.values())


def check_image_is_the_sum_cut_at_white(overlay, dtype=jnp.uint8):
  white = 255 if dtype == jnp.uint8 else 1.0
  images, parts = _overlay(overlay, *_pair(dtype=dtype), pad=1, max_shift=1)
  assert images.max() == white
  images, parts = images[:20], parts[:20]
  assert images.dtype == parts.dtype == dtype
  sums = np.float64(parts[:, 0]) + np.float64(parts[:, 1])
  assert np.any(sums > white) and np.any((sums < white) & (sums > 0))
  rounding = 0.0 if dtype == jnp.uint8 else float(jnp.finfo(dtype).eps)
  for n, h, w, c in np.ndindex(*sums.shape):
    want = min(white, sums[n, h, w, c])
    assert abs(np.float64(images[n, h, w, c]) - want) <= rounding


def check_nothing_is_lost(overlay, pad=1):
  pair = _pair()
  _, parts = _overlay(overlay, *pair, pad=pad, max_shift=1)
  sums = parts.sum((2, 3, 4), dtype=np.int64)
  want = [np.asarray(image).sum(dtype=np.int64) for image in pair]
  np.testing.assert_array_equal(sums, np.broadcast_to(want, sums.shape))


def check_squares_overlap_as_in_the_paper(overlay, side=28, want=0.8):
  """The share of its area that a square has in common with its partner."""
  square = jnp.pad(
    jnp.ones((side, side, 1)), ((14 - side // 2,) * 2,) * 2 + ((0, 0),)
  )
  _, parts = _overlay(overlay, square, square)
  common = np.mean(np.sum(np.prod(parts, axis=1), (1, 2, 3))) / side**2
  np.testing.assert_allclose(common, want, atol=0.012)


def _range(label, classes):
  """Where a class begins and ends."""
  return jnp.sum(classes.labels < label), jnp.sum(classes.labels <= label)


def _any_partner(key, label, classes):
  del label
  return jax.random.randint(key, (), 0, len(classes.order))


def _partner_of_a_random_class(key, label, classes):
  """Every class, not every example, is equally likely."""
  class_key, key = jax.random.split(key)
  sizes = jnp.bincount(classes.labels, length=4).at[label].set(0)
  other = jax.random.categorical(class_key, jnp.log(1.0 * (sizes > 0)))
  place = jax.random.randint(key, (), *_range(other, classes))
  return classes.order[place]


def _partner_after_one_rejection(key, label, classes):
  """Samples twice, then takes the example after the class."""
  places = jax.random.randint(key, (2,), 0, len(classes.order))
  start, end = _range(label, classes)
  wrong = (places >= start) & (places < end)
  place = jnp.where(wrong[0], places[1], places[0])
  last = end % len(classes.order)
  return classes.order[jnp.where(wrong.all(), last, place)]


def _partner_without_the_last(key, label, classes):
  start, end = _range(label, classes)
  last = len(classes.order) - (end - start) - 1
  place = jax.random.randint(key, (), 0, last)
  return classes.order[jnp.where(place < start, place, place + end - start)]


@functools.cache
def _broken(fault):
  def overlay(key, first, second, *, pad=4, max_shift=4):
    if fault == "short":
      max_shift -= 1
    frame = ((pad, pad), (pad, pad), (0, 0))
    first_key, second_key = jax.random.split(key)
    if fault == "one_shift":
      first_key = second_key
    parts = []
    for part_key, image in ((first_key, first), (second_key, second)):
      if fault == "shifted_before":
        image = augment.shift(part_key, image, max_shift=max_shift)
        parts.append(jnp.pad(image, frame))
      elif fault == "wraps":
        shift = jax.random.randint(part_key, (2,), -max_shift, max_shift + 1)
        parts.append(jnp.roll(jnp.pad(image, frame), shift, (0, 1)))
      else:
        image = jnp.pad(image, frame)
        parts.append(augment.shift(part_key, image, max_shift=max_shift))
    first, second = parts
    image = first + jnp.minimum(second, overlap._white(first.dtype) - first)
    if fault == "not_clipped":
      image = first + second
    elif fault == "brightest":
      image = jnp.maximum(first, second)
    elif fault == "swapped":
      parts = parts[::-1]
    return overlap.Overlay(image, jnp.stack(parts))

  return overlay


class PartnerTest(chex.TestCase):
  @parameterized.parameters(0, 1)
  def test_partners_are_uniform_over_other_classes(self, seed):
    check_partners_are_uniform_over_other_classes(overlap.choose_partner, seed)

  def test_each_draw_is_another_partner(self):
    check_each_draw_is_another_partner(overlap.choose_partner)

  @parameterized.parameters(
    (check_partners_are_uniform_over_other_classes, _any_partner),
    (
      check_partners_are_uniform_over_other_classes,
      _partner_of_a_random_class,
    ),
    (
      check_partners_are_uniform_over_other_classes,
      _partner_after_one_rejection,
    ),
    (check_partners_are_uniform_over_other_classes, _partner_without_the_last),
    (check_each_draw_is_another_partner, _any_partner),
    (check_each_draw_is_another_partner, _partner_without_the_last),
  )
  @pytest.mark.long_after_first
  def test_broken_copy_fails(self, check, broken):
    with self.assertRaises(AssertionError):
      check(broken)

  def test_group_by_class(self):
    want = [n for k in range(4) for n in range(9) if _LABELS[n] == k]
    self.assertEqual(_CLASSES.order.tolist(), want)
    self.assertEqual(_CLASSES.labels.tolist(), sorted(_LABELS.tolist()))

  def test_traced_labels_give_the_same(self):
    def draw(key, label, labels):
      classes = overlap.group_by_class(labels)
      return classes, overlap.choose_partner(key, label, classes)

    draw = jax.jit(jax.vmap(draw, (0, 0, None)))
    keys, labels = cases.keys(len(_LABELS)), jnp.asarray(_LABELS)
    (order, sorted_labels), partners = draw(keys, labels, labels)
    for n, key in enumerate(keys[:2]):
      chex.assert_trees_all_equal((order[n], sorted_labels[n]), tuple(_CLASSES))
      want = overlap.choose_partner(key, labels[n], _CLASSES)
      self.assertEqual(partners[n], want)

  @parameterized.parameters(([2, 2, 2], r"\[2\]"), ([], r"\[\]"))
  def test_too_few_classes_are_refused(self, labels, message):
    with self.assertRaisesRegex(ValueError, f"the only class is {message}"):
      overlap.require_two_classes(np.array(labels, np.int32))
    overlap.require_two_classes(_LABELS)

  def test_labels_of_any_integers(self):
    """Classes need not be numbered without gaps, nor from 0."""
    labels = np.array([255, -7, 255], np.int32)
    classes = overlap.group_by_class(labels)
    for key in cases.keys(3):
      chosen = overlap.choose_partner(key, jnp.asarray(labels[0]), classes)
      self.assertEqual(chosen, 1)


class OverlayTest(chex.TestCase):
  @parameterized.product(pad=[0, 1], dtype=[jnp.uint8, jnp.float32])
  def test_shifts_are_uniform_and_independent(self, pad, dtype):
    check_shifts_are_uniform_and_independent(overlap.overlay, pad, dtype)

  @parameterized.parameters(jnp.uint8, jnp.float32, jnp.bfloat16)
  def test_image_is_the_sum_cut_at_white(self, dtype):
    check_image_is_the_sum_cut_at_white(overlap.overlay, dtype)

  @parameterized.parameters(1, 2)
  def test_nothing_is_lost(self, pad):
    check_nothing_is_lost(overlap.overlay, pad)

  def test_squares_overlap_as_in_the_paper(self):
    """Its 80% are those of the frames; the boxes of 20x20 have 73%."""
    check_squares_overlap_as_in_the_paper(overlap.overlay)
    check_squares_overlap_as_in_the_paper(overlap.overlay, 20, 0.726)

  @parameterized.parameters(
    (check_shifts_are_uniform_and_independent, "one_shift"),
    (check_shifts_are_uniform_and_independent, "short"),
    (check_shifts_are_uniform_and_independent, "swapped"),
    (check_shifts_are_uniform_and_independent, "shifted_before"),
    (check_image_is_the_sum_cut_at_white, "not_clipped"),
    (check_image_is_the_sum_cut_at_white, "brightest"),
    (check_nothing_is_lost, "shifted_before"),
    (check_squares_overlap_as_in_the_paper, "short"),
    (check_squares_overlap_as_in_the_paper, "one_shift"),
  )
  @pytest.mark.long_after_first
  def test_broken_copy_fails(self, check, fault):
    check(_broken(None))
    with self.assertRaises(AssertionError):
      check(_broken(fault))

  def test_without_a_frame_nothing_wraps(self):
    def check(overlay):
      check_shifts_are_uniform_and_independent(overlay, pad=0)

    check(_broken(None))
    with self.assertRaises(AssertionError):
      check(_broken("wraps"))

  def test_defaults_are_those_of_the_paper(self):
    """Pads and shifts by 4, every channel alike."""
    pair = _pair(channels=2)
    _, parts = _overlay(overlap.overlay, *pair)
    chex.assert_shape(parts, (4000, 2, 12, 13, 2))
    for place in (0, 8):
      corner = _placed(pair[0], place - 4, place - 4, 4)
      self.assertIn(corner.tobytes(), {part[0].tobytes() for part in parts})

  def test_key_decides(self):
    first, again, other = (
      _overlay(overlap.overlay, *_pair(), seed=seed, pad=1, max_shift=1)
      for seed in (0, 0, 1)
    )
    chex.assert_trees_all_equal(first, again)
    self.assertGreater(len(np.unique(first.image, axis=0)), 1)
    self.assertTrue(np.any(first.image != other.image))

  @chex.variants(with_jit=True, without_jit=True)
  def test_vmap_is_a_loop(self):
    def draw(key, label, first, second):
      keys = jax.random.split(key)
      partner = overlap.choose_partner(keys[0], label, _CLASSES)
      return partner, overlap.overlay(keys[1], first, second, pad=1)

    draw = self.variant(draw)
    pairs = [_pair(), _pair()[::-1]]
    first, second = (jnp.stack(images) for images in zip(*pairs, strict=True))
    keys, labels = cases.keys(2), jnp.array([1, 3])
    want = [draw(*x) for x in zip(keys, labels, first, second, strict=True)]
    want = jax.tree.map(lambda *leaves: jnp.stack(leaves), *want)
    got = jax.vmap(draw)(keys, labels, first, second)
    chex.assert_trees_all_equal(got, want)

  @parameterized.parameters(
    (_pair(), dict(pad=-1), "pad=-1"),
    (_pair(), dict(max_shift=-1), "max_shift=-1"),
    ((_image(), _image(dtype=jnp.float32)), {}, "uint8.*float32"),
    (tuple(x.astype(jnp.int32) for x in _pair()), {}, "int32; pass uint8"),
  )
  def test_bad_arguments_are_refused(self, pair, options, message):
    with self.assertRaisesRegex(ValueError, message):
      overlap.overlay(jax.random.key(0), *pair, **options)


def _box(ink):
  """Top, bottom, left and right of what is not zero in [N H W]."""
  ends = []
  for line in (ink.any(2), ink.any(1)):
    ends += [line.argmax(1), line.shape[1] - line[:, ::-1].argmax(1)]
  return ends


def test_real_digits_stay_whole_and_overlap(data_dir):
  """Digits overlap as boxes of 20x20 do: by 73% of the smaller one's box."""
  digits = data.load("mnist", "test", data_dir)
  images, labels = jnp.asarray(digits.images), jnp.asarray(digits.labels)
  classes = overlap.group_by_class(digits.labels)

  def draw(key, index):
    partner_key, key = jax.random.split(key)
    partner = overlap.choose_partner(partner_key, labels[index], classes)
    return partner, overlap.overlay(key, images[index], images[partner])

  indices = np.arange(2000)
  partners, (_, parts) = jax.jit(jax.vmap(draw))(cases.keys(2000), indices)
  assert not np.any(digits.labels[partners] == digits.labels[indices])
  pairs = digits.images[np.stack([indices, partners], axis=1)]
  np.testing.assert_array_equal(
    np.sum(np.asarray(parts), (2, 3, 4), dtype=np.int64),
    np.sum(pairs, (2, 3, 4), dtype=np.int64),
  )
  boxes = [_box(np.asarray(parts[:, n, ..., 0]) > 0) for n in (0, 1)]
  (top, bottom, left, right), others = boxes
  common = np.maximum(
    0, np.minimum(bottom, others[1]) - np.maximum(top, others[0])
  ) * np.maximum(0, np.minimum(right, others[3]) - np.maximum(left, others[2]))
  areas = [(b - t) * (r - l) for t, b, l, r in boxes]  # noqa: E741
  np.testing.assert_allclose(
    np.mean(common / np.minimum(*areas)), 0.73, atol=0.02
  )


def _owner(first, second, ink):
  """Of one pixel, by its two brightnesses."""
  if first > ink and second > ink or first <= ink and second <= ink:
    return -1
  return 0 if first > second else 1


@pytest.mark.parametrize("channels", [1, 3])
def test_pixels_belong_to_the_object_that_is_there_alone(channels):
  random = np.random.default_rng(0)
  parts = random.uniform(size=(2, 6, 5, channels)).astype(np.float32)
  got = overlap.owners(jnp.asarray(parts), ink=0.6)
  bright = parts.max(axis=-1)
  for y in range(6):
    for x in range(5):
      assert got[y, x] == _owner(*bright[:, y, x], ink=0.6)
  assert set(np.unique(got)) == {-1, 0, 1}
  assert np.all(overlap.owners(jnp.zeros((2, 3, 3, 1))) == -1)
  assert np.all(overlap.owners(jnp.ones((2, 3, 3, 1))) == -1)


def test_merged_objects_add_up_to_white():
  parts = jnp.asarray([[[[0.75]]], [[[0.5]]]])
  assert overlap.merge(parts).image.item() == 1
  parts = jnp.asarray([[[[200]]], [[[100]]]], jnp.uint8)
  assert overlap.merge(parts).image.item() == 255


if __name__ == "__main__":
  absltest.main()
