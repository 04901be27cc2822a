"""Attacks: their largest change, its direction, and that they succeed."""

import functools
import itertools
from unittest import mock

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from capjax import losses
from capjax.evaluation import attacks
from kernels import routing

_SHAPE = (6, 5, 4, 1)
_NUM_CLASSES = 3
_ULP = 1e-6


def _images(seed=0, shape=_SHAPE):
  """In [0, 1], with pixels at both ends and some between."""
  noise = jax.random.uniform(jax.random.key(seed), shape, minval=-0.3)
  return jnp.clip(1.3 * noise, 0, 1)


_LABELS = jnp.array([0, 1, 2, 0, 1, 2])


def _weights(seed=0):
  """[P J], with pixels that no class looks at."""
  weights = jax.random.normal(jax.random.key(seed + 50), (20, _NUM_CLASSES))
  return weights.at[::4].set(0)


def _linear(images, labels, seed=0):
  """Cross-entropy of a linear model."""
  logits = images.reshape(len(images), -1) @ _weights(seed)
  return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1)[
    :, 0
  ]


def _oracle(images, labels, eps, *, num_steps, targeted, step_size):
  """Pixel by pixel in float64, with the gradient of `_linear` by hand."""
  images, weights = np.float64(images), np.float64(_weights())
  out = images.copy()
  for b, label in enumerate(np.asarray(labels)):
    for _ in range(num_steps):
      logits = out[b].ravel() @ weights
      shares = np.exp(logits - logits.max())
      shares /= shares.sum()
      shares[label] -= 1
      slopes = (weights @ shares).reshape(images.shape[1:])
      for index, slope in np.ndenumerate(slopes):
        step = 0.0 if slope == 0 else step_size * np.copysign(1, slope)
        value = out[b][index] + (-step if targeted else step)
        value = min(value, images[b][index] + eps, 1.0)
        out[b][index] = max(value, images[b][index] - eps, 0.0)
  return out


def _textbook(
  loss, images, labels, eps, *, num_steps, targeted, step_size, fault=None
):
  """Kurakin's iteration as printed, and ways to get it wrong."""
  sign = jnp.where(targeted, -1.0, 1.0)
  if fault == "sign":
    sign = -sign
  if fault == "never_targeted":
    sign = 1.0

  def move(_, attacked):
    point = images if fault == "old_gradient" else attacked
    slopes = jax.grad(lambda x: jnp.sum(loss(x, labels)))(point)
    direction = jnp.sign(slopes)
    if fault == "not_sign":
      direction = slopes / jnp.max(jnp.abs(slopes))
    if fault == "no_zero":
      direction = jnp.where(slopes >= 0, 1.0, -1.0)
    attacked = attacked + sign * step_size * direction
    if fault != "no_ball":
      attacked = jnp.clip(attacked, images - eps, images + eps)
    return attacked if fault == "no_range" else jnp.clip(attacked, 0, 1)

  return jax.lax.fori_loop(0, num_steps, move, images)


def _attack(loss, form=attacks.bim, **fault):
  """A compiled attack; it takes steps of `reach` eps together."""
  static = ("num_steps", "targeted") if form is attacks.bim else ()
  run = jax.jit(functools.partial(form, loss, **fault), static_argnames=static)

  def attack(images, labels, eps, *, num_steps=1, targeted=False, reach=1.0):
    step_size = reach * eps / num_steps
    options = dict(num_steps=num_steps, targeted=targeted, step_size=step_size)
    return np.asarray(run(images, labels, eps, **options))

  return attack


_BIM = _attack(_linear)


def check_matches_oracle(attack):
  for targeted in (False, True):
    for eps, num_steps, reach in ((0.1, 1, 1), (0.3, 5, 1), (0.02, 5, 2)):
      got = attack(
        _images(),
        _LABELS,
        eps,
        num_steps=num_steps,
        targeted=targeted,
        reach=reach,
      )
      want = _oracle(
        _images(),
        _LABELS,
        eps,
        num_steps=num_steps,
        targeted=targeted,
        step_size=reach * eps / num_steps,
      )
      np.testing.assert_allclose(got, want, atol=1e-5)


def check_stays_within_eps(attack):
  for eps in (0.0, 0.05, 0.4, 2.0):
    for num_steps in (1, 5):
      got = attack(_images(), _LABELS, eps, num_steps=num_steps, reach=3)
      np.testing.assert_array_less(np.abs(got - _images()), eps + _ULP)


def check_stays_within_zero_and_one(attack):
  for eps in (0.05, 0.9):
    for num_steps in (1, 5):
      got = attack(_images(), _LABELS, eps, num_steps=num_steps)
      assert 0 <= got.min() and got.max() <= 1


def check_loss_goes_the_right_way(attack):
  """Of every example, and the further the larger eps is."""
  for targeted in (False, True):
    way = -1 if targeted else 1
    values = []
    for eps in (0.0, 0.01, 0.1, 0.3):
      got = attack(_images(), _LABELS, eps, num_steps=5, targeted=targeted)
      values.append(way * _linear(got, _LABELS))
    assert np.all(np.diff(values, axis=0) > 0)


def check_pixels_without_gradient_stay(attack):
  got = attack(_images(), _LABELS, 0.3, num_steps=5).reshape(6, 20)
  images = np.asarray(_images()).reshape(6, 20)
  np.testing.assert_array_equal(got[:, ::4], images[:, ::4])
  inner = (images > 0.4) & (images < 0.6)
  inner[:, ::4] = False
  assert inner.sum() > 10
  assert np.all(got[inner] != images[inner])


def check_eps_is_used_up(attack):
  """A linear model's gradient keeps its sign here, so steps add up to eps."""
  for num_steps in (1, 5):
    got = attack(_images(), _LABELS, 0.02, num_steps=num_steps)
    change = np.abs(got - _images()).reshape(6, 20)
    np.testing.assert_allclose(np.max(change, axis=1), 0.02, rtol=1e-4)


_CHECKS = (
  check_matches_oracle,
  check_stays_within_eps,
  check_stays_within_zero_and_one,
  check_loss_goes_the_right_way,
  check_pixels_without_gradient_stay,
  check_eps_is_used_up,
)


def _bowl(images, labels):
  """A smooth loss that bends: its steepest way turns on the way up."""
  del labels
  x, y = images[:, 0, 0, 0] - 0.5, images[:, 0, 1, 0] - 0.5
  return jnp.sin(7 * x + 1) + jnp.sin(9 * y + 2) + 2 * x * y


def check_steps_beat_one(attack):
  """On a bending loss ten steps get at least as far as one, often further."""
  images = jax.random.uniform(jax.random.key(0), (200, 1, 2, 1))
  labels = jnp.zeros(200, jnp.int32)
  one, ten = (
    _bowl(attack(images, labels, 0.3, num_steps=n), labels) for n in (1, 10)
  )
  # Small steps end within one of them of a summit.
  assert np.mean(ten > one - 0.02) > 0.95
  assert np.mean(ten > one + 0.1) > 0.3


@jax.jit
def _capsules(images, labels):
  """The margin loss of capsules that vote with their pixels."""
  matrices = jax.random.normal(jax.random.key(0), (7, 3, 4, 5))
  votes = jnp.einsum("bhwc,hjwd->bhjd", images, matrices)
  route = functools.partial(routing.dynamic_routing, num_iterations=2)
  present = jax.nn.one_hot(labels, 3)
  return losses.margin_loss(jax.vmap(route)(votes).activations, present)


class AttacksTest(chex.TestCase):
  @parameterized.parameters(*_CHECKS)
  def test_property(self, check):
    check(_BIM)

  def test_textbook_form_is_right(self):
    right = _attack(_linear, _textbook, fault=None)
    for check in _CHECKS:
      check(right)

  @parameterized.parameters(
    (check_matches_oracle, "sign"),
    (check_matches_oracle, "not_sign"),
    (check_matches_oracle, "no_ball"),
    (check_matches_oracle, "no_range"),
    (check_matches_oracle, "never_targeted"),
    (check_stays_within_eps, "no_ball"),
    (check_stays_within_zero_and_one, "no_range"),
    (check_loss_goes_the_right_way, "sign"),
    (check_loss_goes_the_right_way, "never_targeted"),
    (check_pixels_without_gradient_stay, "no_zero"),
    (check_eps_is_used_up, "not_sign"),
  )
  @pytest.mark.long_after_first
  def test_broken_copy_fails(self, check, fault):
    with self.assertRaises(AssertionError):
      check(_attack(_linear, _textbook, fault=fault))

  def test_steps_beat_one(self):
    check_steps_beat_one(_attack(_bowl))

  def test_steps_along_the_first_gradient_beat_nothing(self):
    with self.assertRaises(AssertionError):
      check_steps_beat_one(_attack(_bowl, _textbook, fault="old_gradient"))

  @parameterized.parameters(False, True)
  def test_fgsm_is_one_step(self, targeted):
    got = attacks.fgsm(_linear, _images(), _LABELS, 0.1, targeted=targeted)
    want = _oracle(
      _images(),
      _LABELS,
      0.1,
      num_steps=1,
      targeted=targeted,
      step_size=0.1,
    )
    np.testing.assert_allclose(got, want, atol=1e-6)

  def test_ten_steps_that_reach_eps_by_default(self):
    got = attacks.bim(_linear, _images(), _LABELS, 0.5)
    want = _BIM(_images(), _LABELS, 0.5, num_steps=10)
    np.testing.assert_allclose(got, want, atol=1e-6)
    other = _BIM(_images(), _LABELS, 0.5, num_steps=5)
    assert np.any(np.abs(got - other) > 1e-3)

  @parameterized.parameters(jnp.float32, jnp.bfloat16)
  def test_no_eps_changes_nothing(self, dtype):
    images = _images().astype(dtype)
    for attack in (attacks.fgsm, attacks.bim):
      got = attack(_linear, images, _LABELS, jnp.float32(0))
      chex.assert_type(got, dtype)
      np.testing.assert_array_equal(got, images)

  def test_all_eps_and_directions_share_one_compilation(self):
    def attack(eps, targeted):
      return attacks.bim(_linear, _images(), _LABELS, eps, targeted=targeted)

    attack = jax.jit(chex.assert_max_traces(attack, 1))
    for eps, targeted in itertools.product((0.0, 0.1, 0.2), (False, True)):
      want = _BIM(_images(), _LABELS, eps, num_steps=10, targeted=targeted)
      np.testing.assert_allclose(attack(eps, targeted), want, atol=1e-6)

  def test_many_eps_at_once(self):
    eps = jnp.array([0.0, 0.1, 0.3])
    attack = jax.jit(
      functools.partial(attacks.bim, _linear, _images(), _LABELS, num_steps=5)
    )
    want = [attack(e) for e in eps]
    chex.assert_trees_all_close(jax.vmap(attack)(eps), jnp.stack(want))

  def test_examples_do_not_meet(self):
    """An image is attacked alone as it is among others."""
    together = _BIM(_images(), _LABELS, 0.2, num_steps=5)
    for n in range(len(_LABELS)):
      one = np.array([n])
      alone = _BIM(_images()[one], _LABELS[one], 0.2, num_steps=5)
      np.testing.assert_allclose(alone, together[one], atol=1e-6)

  def test_capsules(self):
    """The margin loss falls towards a target.

    A black image, in which no capsule votes for anything, stays.
    """
    images = _images(shape=(6, 7, 4, 1)).at[0].set(0)
    attack = _attack(_capsules)
    got = attack(images, _LABELS, 0.1, num_steps=3, targeted=True)
    np.testing.assert_array_equal(got[0], images[0])
    rise = _capsules(got, _LABELS) - _capsules(images, _LABELS)
    assert np.all(rise[1:] < 0)

  @parameterized.parameters(
    (dict(eps=-0.1), "eps is -0.1; give a finite number, 0 or more"),
    (dict(eps=np.float32(-0.5)), "eps is -0.5"),
    (dict(eps=np.int32(-1)), "eps is -1"),
    (dict(eps=0.1, num_steps=0), "num_steps is 0; give"),
    (dict(eps=0.1, step_size=-1.0), "step_size is -1"),
    (dict(eps=np.full(6, 0.1)), r"eps is \[6\]; give \[6 1 1 1\]"),
    (dict(eps=0.1, step_size=np.ones((6, 1))), r"step_size is \[6 1\]; give"),
  )
  def test_bad_options_are_refused(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      attacks.bim(_linear, _images(), _LABELS, **options)


def test_each_image_may_have_its_eps():
  eps = jnp.array([0.0, 0.1, 0.3, 0.1, 0.2, 0.0])
  got = attacks.fgsm(_linear, _images(), _LABELS, eps[:, None, None, None])
  for n, one in enumerate(eps):
    want = _BIM(_images(), _LABELS, one, num_steps=1)[n]
    np.testing.assert_allclose(got[n], want, atol=1e-6)
  with pytest.raises(ValueError, match="eps is -0.(1|09).*; give"):
    attacks.fgsm(_linear, _images(), _LABELS, -eps.reshape(6, 1, 1, 1) / 3)


@pytest.mark.parametrize("wrong", [-1.5, 3.0, 200.0])
def test_images_outside_of_the_range_are_refused(wrong):
  images = jnp.full((1, 2, 2, 1), 0.5).at[0, 0, 0].set(wrong)
  with pytest.raises(ValueError, match="give intensities in .0, 1."):
    attacks.fgsm(lambda x, _: jnp.sum(x, (1, 2, 3)), images, _LABELS[:1], 0.1)


def check_targets_are_all_others(draw):
  labels = jnp.repeat(jnp.arange(4), 3000)
  targets = np.asarray(draw(jax.random.key(0), labels, 4)).reshape(4, 3000)
  for label, drawn in enumerate(targets):
    counts = np.bincount(drawn, minlength=4)
    assert counts.size == 4 and counts[label] == 0
    others = np.delete(counts, label)
    np.testing.assert_array_less(np.abs(others - 1000), 6 * 1000**0.5)


def _with_randint(change):
  """`random_targets` sampled between other limits."""
  randint = jax.random.randint

  def draw(key, labels, num_classes):
    def changed(key, shape, low, high, dtype):
      return randint(key, shape, *change(low, high), dtype)

    with mock.patch.object(jax.random, "randint", changed):
      return attacks.random_targets(key, labels, num_classes)

  return draw


class RandomTargetsTest(parameterized.TestCase):
  def test_all_others_are_equally_likely(self):
    check_targets_are_all_others(attacks.random_targets)

  @parameterized.parameters(
    lambda low, high: (low - 1, high),
    lambda low, high: (low, high - 1),
    lambda low, high: (low, high + 1),
    lambda low, high: (low, low + 1),
  )
  @pytest.mark.long_after_first
  def test_broken_copy_fails(self, change):
    with self.assertRaises(AssertionError):
      check_targets_are_all_others(_with_randint(change))

  @parameterized.parameters(np.int8, np.uint8)
  def test_narrow_labels_do_not_overflow(self, dtype):
    count = 100 if dtype is np.int8 else 200
    labels = jnp.arange(count, dtype=dtype)
    keys = jax.random.split(jax.random.key(0), 300)
    targets = jax.vmap(attacks.random_targets, (0, None, None))(
      keys, labels, count
    )
    self.assertEqual(targets.dtype, dtype)
    self.assertFalse((targets == labels).any())
    counts = np.bincount(np.asarray(targets).ravel(), minlength=count)
    # Of 300 for each class the standard deviation is 17.
    self.assertLess(np.abs(counts - 300).max(), 90)

  def test_two_classes(self):
    labels = jnp.array([0, 1, 1, 0])
    got = attacks.random_targets(jax.random.key(0), labels, 2)
    np.testing.assert_array_equal(got, 1 - labels)
    assert got.dtype == labels.dtype

  def test_one_class_is_refused(self):
    with self.assertRaisesRegex(ValueError, "num_classes is 1"):
      attacks.random_targets(jax.random.key(0), jnp.zeros(3, jnp.int32), 1)


@pytest.mark.parametrize("eps", [0.01, 0.05])
def test_small_steps_of_bfloat16_images_are_not_lost(eps):
  images = jnp.array([0.9, 0.6, 0.1], jnp.bfloat16).reshape(1, 1, 3, 1)

  def loss(images, labels):
    return jnp.sum(images, axis=(1, 2, 3))

  for attack in (attacks.fgsm, attacks.bim):
    got = attack(loss, images, _LABELS[:1], eps)
    assert got.dtype == jnp.bfloat16
    moved = np.float64(got) - np.float64(images)
    # Numbers below 1 are 2^-8 apart.
    np.testing.assert_allclose(moved, eps, atol=2**-9)


if __name__ == "__main__":
  absltest.main()
