"""The capsule Helmholtz machine against sums over all states of a small one."""

import itertools

import chex
import helmholtz_cases as cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import widths
from absl.testing import absltest, parameterized
from flax import nnx
from scipy import special

from capjax.energy import helmholtz
from kernels import energy


class ModelTest(parameterized.TestCase):
  def test_sizes_of_the_paper(self):
    model = helmholtz.CapsuleHM(rngs=nnx.Rngs(0))
    sizes = [x.size for x in jax.tree.leaves(nnx.state(model, nnx.Param))]
    layers = 784 * 640 + 640 * 640 + 2 * (640 + 40)
    self.assertEqual(sum(sizes), 784 + 2 * layers)

  def test_joint_density(self):
    model = cases.model()
    x = cases.images(1)[0].ravel()
    for bits in cases.every(6)[::5]:
      lower, upper = cases.layers(bits)
      states = [
        energy.state(jnp.float32(h), jnp.float32(z)) for h, z in (lower, upper)
      ]
      np.testing.assert_allclose(
        model._joint(x, states),
        cases.log_joint(model, np.float64(x), lower, upper),
        rtol=1e-5,
      )

  @pytest.mark.long
  def test_images_have_unit_mass(self):
    model = cases.model(1)
    total = [
      cases.log_likelihood(model, x)
      for x in cases.every(4).reshape(-1, *cases.SHAPE)
    ]
    self.assertAlmostEqual(special.logsumexp(total), 0, places=9)

  @parameterized.product(seed=(0, 1), gaussian=(False, True))
  @pytest.mark.long_after_first
  def test_bounds_hold_and_close(self, seed, gaussian):
    if gaussian:
      model, images = cases.gaussian(seed), cases.gaussian_images()
      density = cases.gaussian_log_likelihood
    else:
      model, images = cases.model(seed), cases.images()
      density = cases.log_likelihood
    truth = np.array([density(model, x) for x in images])
    bound = jax.jit(
      lambda model, key: model.bound(key, images, 20_000)
    )(model, jax.random.key(0))  # fmt: skip
    np.testing.assert_array_less(bound.elbo, truth)
    atol = 0.06 if gaussian else 0.03
    np.testing.assert_allclose(bound.importance, truth, atol=atol)

  @pytest.mark.long
  @widths.samples_of_float32
  def test_bounds_are_those_of_their_recognition_model(self):
    """Against sums over all states of q.

    Its upper layer is driven by samples of the lower one, or by expectations
    of it, exact or where mean field starts.
    """
    model, images = cases.model(2, scale=3.0), cases.images()
    ways = {
      "samples": {},
      "exact": {"from_expectations": True},
      "mean field": {"from_expectations": True, "num_iterations": 0},
    }
    expected = {
      "samples": None,
      "exact": np.float64(model.infer(images)[0].active),
      "mean field": np.float64(model.infer(images, num_iterations=0)[0].active),
    }
    want = {
      way: self._elbos(model, np.float64(images), active)
      for way, active in expected.items()
    }
    for way, options in ways.items():
      found = jax.jit(
        lambda key, options=options: model.bound(key, images, 20_000, **options)
      )(jax.random.key(0))
      np.testing.assert_allclose(found.elbo, want[way], atol=0.2)
      for other in want.keys() - {way}:
        away = np.abs(want[other] - np.array(found.elbo))
        self.assertGreater(np.max(away), 0.5)

  def _elbos(self, model, images, active):
    """In float64, with `active` [B K J] for the samples of the lower layer."""
    totals = np.zeros(len(images))
    for number, bits in itertools.product(range(len(images)), cases.every(6)):
      x, ((h1, z1), upper) = images[number].ravel(), cases.layers(bits)
      below = z1[:, None] * h1 if active is None else active[number]
      log_q = cases.log_recognition(model, x, below, (h1, z1), upper)
      log_p = cases.log_joint(model, x, (h1, z1), upper)
      totals[number] += np.exp(log_q) * (log_p - log_q)
    return totals

  def test_idle_iterations_are_refused(self):
    with self.assertRaisesRegex(ValueError, "num_iterations is 3, but"):
      cases.model().bound(
        jax.random.key(0), cases.images(), 1, num_iterations=3
      )

  @pytest.mark.long
  def test_ancestral_samples_have_the_marginals(self):
    model = cases.model(2)
    every = cases.every(4)
    chances = np.exp(
      [cases.log_likelihood(model, x) for x in every.reshape(-1, *cases.SHAPE)]
    )
    top_key, key, image_key = jax.random.split(jax.random.key(0), 3)
    top = model.sample_top(top_key, 20_000)
    lowest = model.sample_downwards(key, top)
    images = model.sample_images(image_key, lowest)
    np.testing.assert_allclose(
      np.mean(images, 0), np.mean(model.reconstruct(lowest), 0), atol=0.02
    )
    np.testing.assert_allclose(
      np.mean(images, 0).ravel(), chances @ every, atol=0.01
    )

  def test_layers_are_inferred_one_from_the_other(self):
    model, images = cases.model(), cases.images()
    for num_iterations in (None, 3):
      lower, upper = model.infer(images, num_iterations=num_iterations)
      for n, image in enumerate(images):
        first, second = model.recognition
        drive = np.einsum("m,mkj->kj", image.ravel(), first.weights[...])
        got = jax.tree.map(lambda x, n=n: x[n], (lower, upper))
        want = self._expect(first.bias, drive, num_iterations)
        chex.assert_trees_all_close(got[0], want, atol=1e-5)
        drive = np.einsum("kj,kjli->li", got[0].active, second.weights[...])
        want = self._expect(second.bias, drive, num_iterations)
        chex.assert_trees_all_close(got[1], want, atol=1e-5)

  def _expect(self, bias, hidden, num_iterations):
    drive = energy.Drive(jnp.array(hidden), jnp.zeros(len(hidden)))
    if num_iterations is None:
      return energy.posterior(bias, drive)
    start = jax.nn.sigmoid(bias.switches)
    return energy.mean_field(start, bias, drive, num_iterations=num_iterations)

  def test_dreams_come_from_the_top(self):
    model = cases.model()
    awake = model.infer(cases.images())
    dreamt, asleep = model.dream(jax.random.key(0), awake[-1])
    self.assertEqual(dreamt.shape, (3, *cases.SHAPE))
    chex.assert_trees_all_equal(asleep[-1], awake[-1])
    drive = np.einsum(
      "kjli,bli->bkj", model.generative[1].weights[...], awake[-1].active
    )
    for n in range(3):
      want = self._expect(model.generative[0].bias, drive[n], None)
      got = jax.tree.map(lambda x, n=n: x[n], asleep[0])
      chex.assert_trees_all_close(got, want, atol=1e-5)

  @parameterized.parameters(
    ({"num_capsules": ()}, "num_capsules is empty"),
    ({"num_capsules": (0, 3)}, "num_capsules is 0; give at least 1"),
    ({"capsule_size": 0}, "capsule_size is 0; give at least 1"),
    ({"hidden": "normal"}, "unknown family 'normal'"),
  )
  def test_bad_sizes_are_refused(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      helmholtz.CapsuleHM(**options, rngs=nnx.Rngs(0))


if __name__ == "__main__":
  absltest.main()
