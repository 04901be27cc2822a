"""Annealed importance sampling against partition functions that are summed."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized
from flax import nnx
from scipy import special

from capjax.energy import rbm
from capjax.evaluation import likelihood

_SHAPE = (2, 4, 1)
_SIZE = 8


def _model(seed, **options):
  model = rbm.CapsuleRBM(
    _SHAPE,
    num_capsules=2,
    capsule_size=3,
    interaction=options.get("switches", True),
    rngs=nnx.Rngs(seed),
    **options,
  )
  keys = iter(jax.random.split(jax.random.key(seed), 5))
  for name in ("visible", "hidden", "weights", "switches", "interaction"):
    variable = getattr(model, name)
    if variable is not None:
      variable[...] += jax.random.normal(next(keys), variable[...].shape)
  return model


def _exact(model):
  """Log Z and exact samples, by enumeration of the images."""
  rows = np.array(list(itertools.product((0.0, 1.0), repeat=_SIZE)))
  images = jnp.float32(rows.reshape(-1, *_SHAPE))
  scores = -np.float64(model.free_energy(images))
  random = np.random.default_rng(0)
  drawn = random.choice(len(rows), 300, p=special.softmax(scores))
  return special.logsumexp(scores), images[drawn]


@functools.partial(jax.jit, static_argnames="num_temperatures")
def _estimate(model, base, backwards_from=None, num_temperatures=100):
  return likelihood.log_partition(
    jax.random.key(0),
    model,
    base,
    num_temperatures=num_temperatures,
    num_chains=300,
    backwards_from=backwards_from,
  )


def _cast(model, dtype):
  definition, state = nnx.split(model)
  return nnx.merge(definition, jax.tree.map(lambda x: x.astype(dtype), state))


class LikelihoodTest(parameterized.TestCase):
  def test_weights_in_bfloat16_have_chains_in_float32(self):
    narrow = _cast(_model(0), jnp.bfloat16)
    base = jnp.linspace(-1, 1, _SIZE)[None]
    got = _estimate(narrow, base)
    want = _estimate(_cast(narrow, jnp.float32), base)
    self.assertEqual(got.estimate.dtype, jnp.float32)
    np.testing.assert_allclose(got.estimate, want.estimate, rtol=1e-4)

  @parameterized.parameters(0, 1, 2, 3, 4, 5)
  @pytest.mark.long_after_first
  def test_agrees_with_the_sum_within_its_error(self, seed):
    # The fourth is a plain RBM.
    model = _model(seed, switches=seed != 3)
    log_z, samples = _exact(model)
    base = jnp.linspace(-1, 1, _SIZE)[None]
    below = _estimate(model, base)
    above = _estimate(model, base, samples)
    for estimate in (below, above):
      self.assertBetween(float(estimate.error), 1e-4, 0.3)
      self.assertLess(abs(estimate.estimate - log_z), 4 * estimate.error)
    self.assertLess(below.mean_log_weight, log_z)
    self.assertGreater(above.mean_log_weight, log_z)
    self.assertEqual(below.images.shape, (300, *_SHAPE))

  @pytest.mark.long
  def test_too_short_a_path_is_seen_in_the_bounds(self):
    model = _model(0)
    log_z, samples = _exact(model)
    base = jnp.zeros((1, _SIZE))
    gaps = []
    for count in (4, 100):
      below = _estimate(model, base, num_temperatures=count)
      above = _estimate(model, base, samples, num_temperatures=count)
      gaps.append(float(above.mean_log_weight - below.mean_log_weight))
    self.assertGreater(gaps[0], 5 * gaps[1])

  @pytest.mark.long
  def test_the_start_may_be_narrower_than_the_model(self):
    with jax.enable_x64(True):
      wide = _cast(_model(0), jnp.float64)
      estimate = _estimate(wide, jnp.zeros((1, _SIZE), jnp.float32))
      self.assertEqual(estimate.estimate.dtype, jnp.float64)

  def test_wrong_parameters_give_another_sum(self):
    model = _model(0)
    log_z, _ = _exact(model)
    model.hidden[...] += 0.5
    off = _estimate(model, jnp.zeros((1, _SIZE)))
    self.assertGreater(abs(off.estimate - log_z), 10 * off.error)

  def test_one_chain_is_refused(self):
    with self.assertRaisesRegex(ValueError, "at least 2"):
      likelihood.log_partition(
        jax.random.key(0), _model(0), jnp.zeros((1, _SIZE)), num_chains=1
      )
    with self.assertRaisesRegex(ValueError, "num_temperatures is 1"):
      _estimate(_model(0), jnp.zeros((1, _SIZE)), num_temperatures=1)

  @parameterized.parameters(False, True)
  def test_a_base_of_another_shape_is_refused(self, backwards):
    samples = jnp.zeros((2, _SIZE)) if backwards else None
    with self.assertRaisesRegex(ValueError, r"base is \[1 1\]; give"):
      likelihood.log_partition(
        jax.random.key(0), _model(0), jnp.zeros((1, 1)), num_chains=2,
        backwards_from=samples,
      )  # fmt: skip

  def test_backwards_the_samples_are_the_chains(self):
    likelihood.log_partition(
      jax.random.key(0),
      _model(0),
      jnp.zeros((1, _SIZE)),
      num_temperatures=3,
      num_chains=1,
      backwards_from=jnp.ones((2, *_model(0).image_shape)),
    )

  def test_gaussian_pixels_by_integration(self):
    model = rbm.CapsuleRBM(
      (1, 1, 1),
      num_capsules=1,
      capsule_size=2,
      visible="gaussian",
      rngs=nnx.Rngs(0),
    )
    model.weights[...] = jnp.array([[[1.0, -0.7]]])
    grid = jnp.linspace(-15, 15, 4001).reshape(-1, 1, 1, 1)
    scores = -np.float64(model.free_energy(grid))
    log_z = special.logsumexp(scores) + np.log(30 / 4000)
    estimate = _estimate(model, jnp.array([[0.3], [-0.8]]))
    self.assertLess(abs(estimate.estimate - log_z), 4 * estimate.error)

  @parameterized.parameters(0.9, 1.1, 30.0)
  def test_gaussian_pairs_are_proper_only_below_a_gain_of_one(self, gain):
    """Beyond, an estimate would come out finite, with a small error."""
    model = rbm.CapsuleRBM(
      (2, 1, 1),
      num_capsules=1,
      capsule_size=2,
      visible="gaussian",
      hidden="gaussian",
      switches=False,
      rngs=nnx.Rngs(0),
    )
    model.visible[...] = jnp.array([[0.3, -0.2], [-1.0, -0.4]])
    model.hidden[...] = jnp.array([[[0.1, 0.5]], [[-0.7, -0.5]]])
    weights = np.array([[0.8, 0.1], [-0.3, 0.6]])
    # The precision of (x, h): positive definite exactly if the gain is below 1.
    own = -2 * np.concatenate([model.visible[1], model.hidden[1, 0]])
    root = np.diag(own**-0.5)
    coupling = np.block(
      [[np.zeros((2, 2)), weights], [weights.T, np.zeros((2, 2))]]
    )
    weights *= gain / np.linalg.eigvalsh(root @ coupling @ root)[-1]
    coupling[:2, 2:], coupling[2:, :2] = weights, weights.T
    precision = np.diag(own) - coupling
    model.weights[...] = jnp.float32(weights).reshape(2, 1, 2)

    np.testing.assert_allclose(likelihood.gain(model), gain, rtol=1e-5)
    self.assertEqual(np.linalg.eigvalsh(precision)[0] > 0, gain < 1)
    found = _estimate(model, model.visible[...])
    if gain > 1:
      for x in (found.estimate, found.error, found.mean_log_weight):
        self.assertEqual(x, np.inf)
      return
    linear = np.concatenate([model.visible[0], model.hidden[0, 0]])
    want = (
      2 * np.log(2 * np.pi)
      - np.linalg.slogdet(precision)[1] / 2
      + linear @ np.linalg.solve(precision, linear) / 2
    )
    self.assertLess(abs(found.estimate - want), 4 * found.error + 1e-3)


if __name__ == "__main__":
  absltest.main()
