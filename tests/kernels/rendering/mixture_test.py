"""Tests of images as mixtures of parts."""

import inspect

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized
from jax.test_util import check_grads

from kernels import rendering


def _inputs(seed=0, channels=2, mixing=1, dtype=jnp.float32):
  random = np.random.default_rng(seed)
  height, width, parts = 3, 4, 3
  return tuple(
    jnp.array(x, dtype)
    for x in (
      random.uniform(size=(height, width, channels)),
      random.uniform(size=(parts, height, width, channels)),
      random.normal(size=(parts, height, width, mixing)),
      random.uniform(0.1, 1, size=parts),
      random.uniform(size=channels),
      random.normal(size=mixing),
    )
  )


def _oracle(image, parts, logits, presence, background, rest, scale=1.0):
  image, parts, logits, presence, background, rest = (
    np.float64(x) for x in (image, parts, logits, presence, background, rest)
  )
  total, mean = 0.0, np.zeros(image.shape)
  for i, j, c in np.ndindex(image.shape):
    mixing = c % logits.shape[-1]
    weights = [
      presence[m] * np.exp(logits[m, i, j, mixing]) for m in range(len(parts))
    ]
    weights = np.array([*weights, np.exp(rest[mixing])])
    weights = weights / sum(weights)
    values = [*parts[:, i, j, c], background[c]]
    density = 0.0
    for weight, value in zip(weights, values, strict=True):
      error = (image[i, j, c] - value) / scale
      density += weight * np.exp(-0.5 * error**2) / scale / np.sqrt(2 * np.pi)
      mean[i, j, c] += weight * value
    total += np.log(density)
  return total, mean


class ExplainImageTest(parameterized.TestCase):
  @parameterized.product(
    seed=[0, 1], shape=[(1, 1), (2, 1), (2, 2)], scale=[1.0, 0.3]
  )
  def test_loops_agree(self, seed, shape, scale):
    inputs = _inputs(seed, *shape)
    got = rendering.explain_image(*inputs, scale=scale)
    log_prob, mean = _oracle(*inputs, scale)
    np.testing.assert_allclose(got.log_prob, log_prob, rtol=1e-4)
    np.testing.assert_allclose(got.mean, mean, rtol=1e-4)
    np.testing.assert_allclose(jnp.sum(got.coefficients, 0), 1, rtol=1e-5)

  def test_density_has_unit_mass(self):
    """Of one pixel."""
    image, *rest = _inputs(channels=1)
    rest = [x[:, :1, :1] for x in rest[:2]] + rest[2:]
    grid = jnp.linspace(-8, 9, 2001)

    def log_prob(value):
      return rendering.explain_image(jnp.full((1, 1, 1), value), *rest).log_prob

    mass = jnp.sum(jnp.exp(jax.vmap(log_prob)(grid))) * (grid[1] - grid[0])
    np.testing.assert_allclose(mass, 1, rtol=1e-3)

  def test_order_of_parts_does_not_matter(self):
    image, parts, logits, presence, *rest = _inputs()
    order = jnp.array([1, 2, 0])
    got = rendering.explain_image(
      image, parts[order], logits[order], presence[order], *rest
    )
    expected = rendering.explain_image(image, parts, logits, presence, *rest)
    np.testing.assert_allclose(got.log_prob, expected.log_prob, rtol=1e-5)
    # A mixture in which presences stay behind must be seen.
    broken = rendering.explain_image(
      image, parts[order], logits[order], presence, *rest
    )
    self.assertGreater(abs(broken.log_prob - expected.log_prob), 1e-3)

  def test_absent_parts_leave_the_background(self):
    image, parts, logits, presence, background, rest = _inputs()
    got = rendering.explain_image(
      image, parts, logits, 0 * presence, background, rest
    )
    np.testing.assert_allclose(
      got.mean, jnp.broadcast_to(background, image.shape), rtol=1e-5
    )

  @parameterized.product(
    dtype=[jnp.float32, jnp.bfloat16], logit=[100.0, 1e4, -1e4]
  )
  @pytest.mark.long
  def test_absent_parts_cover_nothing_at_any_logit(self, dtype, logit):
    """As if they were not among the parts."""
    image, parts, logits, presence, *rest = _inputs(dtype=dtype)
    logits, presence = logits.at[1].set(logit), presence.at[1].set(0)
    got = rendering.explain_image(image, parts, logits, presence, *rest)
    left = jnp.array([0, 2])
    want = rendering.explain_image(
      image, parts[left], logits[left], presence[left], *rest
    )
    np.testing.assert_allclose(got.log_prob, want.log_prob, rtol=1e-5)
    np.testing.assert_allclose(got.mean, want.mean, rtol=1e-5)
    np.testing.assert_array_equal(got.coefficients[1], 0)
    gradients = jax.grad(
      lambda *x: rendering.explain_image(*x).log_prob, range(6)
    )(image, parts, logits, presence, *rest)
    for x in gradients:
      self.assertTrue(np.isfinite(np.float32(x)).all())

  def test_a_presence_that_is_not_a_number_is_not_hidden(self):
    image, parts, logits, presence, *rest = _inputs()
    presence = presence.at[0].set(jnp.nan)
    explain = jax.jit(rendering.explain_image)  # known values are checked
    got = explain(image, parts, logits, presence, *rest)
    self.assertTrue(np.isnan(got.log_prob))

  @parameterized.parameters("logits", "background")
  def test_one_channel_of_either_logits_is_that_of_all(self, name):
    image, parts, logits, presence, background, rest = _inputs(channels=3)
    each = jnp.broadcast_to(logits, parts.shape), jnp.broadcast_to(rest, (3,))
    want = rendering.explain_image(
      image, parts, each[0], presence, background, each[1]
    )
    mixed = (logits, each[1]) if name == "logits" else (each[0], rest)
    got = rendering.explain_image(
      image, parts, mixed[0], presence, background, mixed[1]
    )
    chex.assert_trees_all_close(got, want, rtol=1e-6)

  @parameterized.parameters("logits", "background_logit")
  def test_logits_have_one_channel_or_all(self, name):
    names = "image", "parts", "logits", "presence", "background"
    inputs = dict(
      zip((*names, "background_logit"), _inputs(channels=3), strict=True)
    )
    x = inputs[name]
    inputs[name] = jnp.broadcast_to(x[..., :1], (*x.shape[:-1], 2))
    explain = inspect.unwrap(rendering.explain_image)
    with self.assertRaisesRegex(ValueError, f"{name} has 2 .*; give 1 or 3"):
      explain(**inputs)

  @parameterized.parameters(0.0, -1.0, float("nan"), np.float32(0))
  def test_scales_that_are_not_above_zero_are_refused(self, scale):
    explain = inspect.unwrap(rendering.explain_image)
    with self.assertRaisesRegex(ValueError, f"scale is {scale}; give"):
      explain(*_inputs(), scale=scale)
    with self.assertRaisesRegex(ValueError, f"scale is {scale}; give"):
      explain(*_inputs(), scale=jnp.float32(scale))

  def test_gradients(self):
    with jax.enable_x64(True):
      log_prob = jax.jit(lambda *x: rendering.explain_image(*x).log_prob)
      inputs = _inputs(dtype=jnp.float64)
      check_grads(log_prob, inputs, order=1, modes=("fwd", "rev"))

  @parameterized.parameters(jnp.float32, jnp.bfloat16)
  def test_saturated_logits_stay_finite(self, dtype):
    image, parts, logits, presence, background, rest = _inputs(dtype=dtype)
    for factor, there in ((1e4, 1), (-1e4, 0), (0, 0)):
      inputs = image, parts, factor * logits, there * presence, background, rest
      gradients = jax.grad(
        lambda *x: rendering.explain_image(*x).log_prob.astype(jnp.float32),
        range(6),
      )(*inputs)
      for x in (*rendering.explain_image(*inputs), *gradients):
        self.assertTrue(np.isfinite(np.float32(x)).all())


if __name__ == "__main__":
  absltest.main()
