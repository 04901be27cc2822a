"""Importance-weighted bounds of generative capsules."""

import functools
import math

import chex
import generative_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import widths
from absl.testing import absltest
from flax import nnx
from numpyro import infer

from capjax import generative
from capjax.generative import guides, inference, numpyro_programs

_K, _NUM_KEYS = 8, 300
_bound = jax.jit(inference.importance_bound, static_argnames="num_samples")
_draw = jax.jit(lambda capsules, parts: capsules.render(parts))


@functools.cache
def _case():
  """Weights that differ, but not so much that one alone counts."""
  capsules, guide, images = generative_cases.small(True, (2, 1))
  capsules = nnx.clone(capsules)
  capsules.pixel_scale = 1.0
  return capsules, guide, images


@functools.cache
def _black():
  """One layer; pictures are black whatever the parts, and q is the prior."""
  shape, rngs = generative_cases.SHAPE, nnx.Rngs(0)
  capsules = generative.GenerativeCapsules(
    shape, num_capsules=(2,), template_size=3, rngs=rngs
  )
  capsules.colours[...] = jnp.full_like(capsules.colours[...], -1e4)
  encoder = guides.PartEncoder(shape, 2, features=(3,), rngs=rngs)
  encoder.maps.kernel[...] *= 0
  guide = guides.CapsuleGuide([encoder])
  guide.add_scales(scale=capsules.top_scale, rngs=rngs)
  return capsules, guide, 0.2 * _case()[2]


@functools.cache
def _bounds(num_samples):
  """Bounds with many keys, [N B], and effective numbers of samples."""

  @jax.jit
  def run(capsules, guide, images, keys):
    def one(key):
      return inference.importance_bound(
        capsules, guide, images, key, num_samples=num_samples
      )

    return jax.lax.map(one, keys)

  return run(*_case(), jax.random.split(jax.random.key(3), _NUM_KEYS))


def _oracle(key, *, fault=""):
  """The bound and the effective samples, term by term in float64."""
  capsules, guide, images = _case()
  weights = np.zeros((_K, len(images)))
  for k, sample_key in enumerate(jax.random.split(key, _K)):
    posteriors, drawn = generative_cases.guide(guide, images, sample_key)
    means = np.float64(_draw(capsules, drawn[0]))
    relations, drawn, posteriors, pixels = jax.tree.map(
      np.float64, (capsules.relations[0](), drawn, posteriors, images)
    )
    for b in range(len(images)):
      log = np.sum(_log_normal(pixels[b], means[b], capsules.pixel_scale))
      parts, top = (jax.tree.map(lambda x, b=b: x[b], x) for x in drawn)
      log += _log_concrete(top.logits[0], float(capsules.top_presences[0]))
      log += np.sum(_log_normal(top.poses[0], 0, capsules.top_scale))
      for i in range(len(parts.logits)):
        log += _log_child(capsules, relations, i, parts, top)
      for q, layer in zip(posteriors, (parts, top), strict=True):
        for i in range(len(layer.logits)):
          scales = np.exp(q.log_scales[b, i])
          log -= _log_concrete(layer.logits[i], q.log_odds[b, i])
          log -= np.sum(_log_normal(layer.poses[i], q.poses[b, i], scales))
      weights[k, b] = log
  if fault == "mean_of_logs":
    return np.mean(weights, axis=0), None
  if fault == "sum":
    return np.logaddexp.reduce(weights), None
  w = np.exp(weights - np.max(weights, axis=0))
  bounds = np.max(weights, axis=0) + np.log(np.mean(w, axis=0))
  return bounds, np.sum(w, axis=0) ** 2 / np.sum(w**2, axis=0)


def _log_child(capsules, relations, i, child, top):
  t = 1 / (1 + np.exp(-child.logits[i]))
  odds = np.exp(relations.log_affinities[i])
  odds[1] /= 1 + np.exp(-top.logits[0])
  terms = []
  expected = _matrix(top.poses[0]) @ _matrix(relations.offsets[i, 0])
  places = [
    (np.zeros(6), capsules.dummy_scale),
    ((expected - np.eye(3))[:2].ravel(), relations.scales[i, 0]),
  ]
  for j, (mean, scale) in enumerate(places):
    off = capsules.off_scale
    scale = (t / scale**2 + (1 - t) / off**2) ** -0.5
    terms.append(
      np.log(odds[j] / np.sum(odds))
      + _log_concrete(child.logits[i], relations.presence_logits[i, j])
      + np.sum(_log_normal(child.poses[i], mean, scale))
    )
  return np.logaddexp(*terms)


def _log_concrete(logit, log_odds, temperature=0.5):
  d = log_odds - temperature * logit
  return np.log(temperature) + d - 2 * np.logaddexp(0, d)


def _log_normal(x, mean, scale):
  return -(((x - mean) / scale) ** 2) / 2 - np.log(scale * np.sqrt(2 * np.pi))


def _matrix(pose):
  return np.eye(3) + np.concatenate([pose.reshape(2, 3), np.zeros((1, 3))])


class ImportanceTest(chex.TestCase):
  @widths.samples_of_float32
  def test_matches_oracle(self):
    key = jax.random.split(jax.random.key(3), _NUM_KEYS)[0]
    bounds, effective = _oracle(key)
    assert 2 < np.max(effective) < _K - 1, effective
    got = jax.tree.map(lambda x: x[0], _bounds(_K))
    np.testing.assert_allclose(got.bounds, bounds, rtol=1e-5)
    np.testing.assert_allclose(got.effective_samples, effective, rtol=1e-3)
    for fault in ("mean_of_logs", "sum"):
      wrong, _ = _oracle(key, fault=fault)
      assert np.min(np.abs(got.bounds - wrong)) > 0.1, fault

  def test_one_sample_gives_the_elbo(self):
    key = jax.random.key(5)
    got = _bound(*_case(), key, num_samples=1)
    want = jax.jit(guides.elbo)(*_case(), key)
    np.testing.assert_allclose(got.bounds, want, rtol=1e-6)
    np.testing.assert_allclose(got.effective_samples, 1, rtol=1e-6)

  @pytest.mark.long
  def test_rises_with_the_samples(self):
    one, many = _bounds(1), _bounds(_K)
    rise = many.bounds - one.bounds
    error = np.std(rise, axis=0) / _NUM_KEYS**0.5
    np.testing.assert_array_less(10 * error, np.mean(rise, axis=0))
    effective = many.effective_samples
    assert np.min(effective) >= 1 - 1e-5 and np.max(effective) <= _K + 1e-5

  @pytest.mark.long
  def test_is_that_of_numpyro(self):
    """As `RenyiELBO` of order 0, in the mean over keys."""
    renyi = infer.RenyiELBO(alpha=0, num_particles=_K)
    model = functools.partial(numpyro_programs.model, summed=True)

    @jax.jit
    def theirs(capsules, guide, images, keys):
      program = functools.partial(numpyro_programs.guide, guide)

      def one(key):
        return -renyi.loss(key, {}, model, program, capsules, images)

      return jax.lax.map(one, keys)

    got = theirs(*_case(), jax.random.split(jax.random.key(4), _NUM_KEYS))
    ours = np.sum(_bounds(_K).bounds, axis=1)
    error = math.hypot(np.std(got), np.std(ours)) / _NUM_KEYS**0.5
    assert abs(np.mean(got) - np.mean(ours)) < 5 * error
    elbos = np.sum(_bounds(1).bounds, axis=1)
    assert abs(np.mean(got) - np.mean(elbos)) > 10 * error

  @pytest.mark.long
  def test_all_samples_count_where_the_guide_is_the_posterior(self):
    capsules, guide, images = _black()
    got = _bound(capsules, guide, images, jax.random.key(0), num_samples=5)
    want = _log_normal(np.float64(images), 0, capsules.pixel_scale)
    np.testing.assert_allclose(got.bounds, want.sum((1, 2, 3)), rtol=1e-5)
    np.testing.assert_allclose(got.effective_samples, 5, rtol=1e-4)

  @pytest.mark.long
  def test_memory_does_not_grow_with_the_samples(self):
    *model, images = _black()

    def size(num_samples):
      def loss(both):
        bounds, _ = inference.importance_bound(
          *both, images, jax.random.key(0), num_samples=num_samples
        )
        return jnp.sum(bounds)

      compiled = jax.jit(jax.grad(loss)).lower(model).compile()
      return compiled.memory_analysis().temp_size_in_bytes

    self.assertLess(size(64), 1.2 * size(2))

  def test_poses_that_are_taken_as_known_are_refused(self):
    case = generative_cases.small()
    with pytest.raises(ValueError, match="--gaussian_poses"):
      inference.importance_bound(*case, jax.random.key(0), num_samples=3)
    with pytest.raises(ValueError, match="num_samples is 0"):
      inference.importance_bound(*_case(), jax.random.key(0), num_samples=0)


if __name__ == "__main__":
  absltest.main()
