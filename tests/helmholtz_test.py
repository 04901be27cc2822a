"""The capsule Helmholtz machine against sums over all states of a small one."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import absltest, parameterized
from flax import nnx
from scipy import special

from capjax import boltzmann, helmholtz
from kernels import energy

_SHAPE = (2, 2, 1)
_LAYERS, _J = (2, 1), 1


def _model(seed=0, scale=0.7, **options):
  model = helmholtz.CapsuleHM(
    _SHAPE,
    num_capsules=_LAYERS,
    capsule_size=_J,
    rngs=nnx.Rngs(seed),
    **options,
  )
  graph, parameters, rest = nnx.split(model, nnx.Param, ...)
  leaves, tree = jax.tree.flatten(parameters)
  keys = jax.random.split(jax.random.key(seed), len(leaves))
  moved = [
    x + scale * jax.random.normal(key, x.shape)
    for x, key in zip(leaves, keys, strict=True)
  ]
  return nnx.merge(graph, jax.tree.unflatten(tree, moved), rest)


def _images(count=3, seed=0):
  random = np.random.default_rng(seed)
  return jnp.float32(random.integers(2, size=(count, *_SHAPE)))


def _every(size):
  return np.array(list(itertools.product((0.0, 1.0), repeat=size)))


def _sigmoid_log(logits, values):
  """Log p of Bernoulli values."""
  return np.sum(values * logits - np.logaddexp(0, logits))


def _log_joint_oracle(model, x, lower, upper):
  """Eq. 13 of one state in float64: the layers' sums by enumeration."""
  (h1, z1), (h2, z2) = lower, upper
  a = np.float64(model.visible[...][0])
  first, second = model.generative
  w1, w2 = (np.float64(layer.weights[...]) for layer in (first, second))
  logits = a + np.einsum("mkj,k,kj->m", w1, z1, h1)
  total = _sigmoid_log(logits, x)

  def score(h, z):
    met = np.einsum("k,l,kj,kjli,li->", z, z2, h, w2, h2)
    alone = np.sum(first.hidden[...][0] * h) + first.switches[...] @ z
    return float(met + alone)

  count = _LAYERS[0]
  states = _every(2 * count)
  scores = [score(s[:count, None], s[count:]) for s in states]
  total += score(h1, z1) - special.logsumexp(scores)
  total += _sigmoid_log(np.float64(second.hidden[...][0]), h2)
  return total + _sigmoid_log(np.float64(second.switches[...]), z2)


def _layers(bits):
  """Both layers' (h, z) from six bits."""
  return (bits[:2, None], bits[2:4]), (bits[4:5, None], bits[5:6])


def _log_likelihood_oracle(model, image):
  x = np.float64(image).ravel()
  return special.logsumexp(
    [_log_joint_oracle(model, x, *_layers(bits)) for bits in _every(6)]
  )


class ModelTest(parameterized.TestCase):
  def test_sizes_of_the_paper(self):
    model = helmholtz.CapsuleHM(rngs=nnx.Rngs(0))
    sizes = [x.size for x in jax.tree.leaves(nnx.state(model, nnx.Param))]
    layers = 784 * 640 + 640 * 640 + 2 * (640 + 40)
    self.assertEqual(sum(sizes), 784 + 2 * layers)

  def test_joint_density(self):
    model = _model()
    x = _images(1)[0].ravel()
    for bits in _every(6)[::5]:
      lower, upper = _layers(bits)
      states = [
        energy.state(jnp.float32(h), jnp.float32(z)) for h, z in (lower, upper)
      ]
      np.testing.assert_allclose(
        model._joint(x, states),
        _log_joint_oracle(model, np.float64(x), lower, upper),
        rtol=1e-5,
      )

  def test_images_have_unit_mass(self):
    model = _model(1)
    total = [
      _log_likelihood_oracle(model, x) for x in _every(4).reshape(-1, *_SHAPE)
    ]
    self.assertAlmostEqual(special.logsumexp(total), 0, places=9)

  @parameterized.parameters(0, 1)
  def test_bounds_hold_and_close(self, seed):
    model, images = _model(seed), _images()
    truth = np.array([_log_likelihood_oracle(model, x) for x in images])
    bound = jax.jit(
      lambda model, key: model.bound(key, images, 20_000)
    )(model, jax.random.key(0))  # fmt: skip
    np.testing.assert_array_less(bound.elbo, truth)
    np.testing.assert_allclose(bound.importance, truth, atol=0.03)

  def test_ancestral_samples_have_the_marginals(self):
    model = _model(2)
    every = _every(4)
    chances = np.exp(
      [_log_likelihood_oracle(model, x) for x in every.reshape(-1, *_SHAPE)]
    )
    images = model.sample(jax.random.key(0), None, count=20_000)
    np.testing.assert_allclose(
      np.mean(images, 0).ravel(), chances @ every, atol=0.01
    )

  def test_layers_are_inferred_one_from_the_other(self):
    model, images = _model(), _images()
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
    model = _model()
    awake = model.infer(_images())
    dreamt, asleep = model.dream(jax.random.key(0), awake[-1])
    self.assertEqual(dreamt.shape, (3, *_SHAPE))
    chex.assert_trees_all_equal(asleep[-1], awake[-1])
    drive = np.einsum(
      "kjli,bli->bkj", model.generative[1].weights[...], awake[-1].active
    )
    for n in range(3):
      want = self._expect(model.generative[0].bias, drive[n], None)
      got = jax.tree.map(lambda x, n=n: x[n], asleep[0])
      chex.assert_trees_all_close(got, want, atol=1e-5)

  def test_bad_sizes_are_refused(self):
    with self.assertRaisesRegex(ValueError, "num_capsules is empty"):
      helmholtz.CapsuleHM(num_capsules=(), rngs=nnx.Rngs(0))
    with self.assertRaisesRegex(ValueError, "unknown family 'normal'"):
      helmholtz.CapsuleHM(hidden="normal", rngs=nnx.Rngs(0))


class LearningTest(parameterized.TestCase):
  @parameterized.parameters("wake", "sleep", "broken")
  def test_gradients_are_those_of_the_densities(self, kind):
    model, images, key = _model(), _images(), jax.random.key(3)
    gradient = jax.grad(
      lambda model: helmholtz.wake_sleep_loss(
        model, images, key, num_iterations=None
      )[0]
    )(model)
    awake = model.infer(images)
    dreamt, asleep = model.dream(key, awake[-1])

    def wake(model):
      x = images.reshape(len(images), -1)
      return -jnp.mean(jax.vmap(model._joint)(x, awake))

    def sleep(model):
      x = dreamt.reshape(len(images), -1)
      layers = asleep if kind == "sleep" else awake

      def one(x, layers):
        total, below = 0.0, x
        for layer, capsules in zip(model.recognition, layers, strict=True):
          drive = helmholtz._upwards(below, layer)
          total += model._log_prob(capsules, layer.bias, drive)
          below = capsules
        return total

      return -jnp.mean(jax.vmap(one)(x, layers))

    want = jax.grad(wake if kind == "wake" else sleep)(model)
    part = "generative" if kind == "wake" else "recognition"
    off = max(
      float(jnp.max(jnp.abs(a - b)))
      for a, b in zip(
        jax.tree.leaves(getattr(gradient, part)),
        jax.tree.leaves(getattr(want, part)),
        strict=True,
      )
    )
    self.assertEqual(off < 1e-5, kind != "broken")

  @parameterized.parameters(None, 5)
  def test_learning_raises_the_exact_likelihood(self, num_iterations):
    model = _model(1, scale=1.0)
    patterns = jnp.float32(np.array([[1, 1, 0, 0], [0, 0, 1, 1]]))
    patterns = patterns.reshape(2, *_SHAPE)
    images = jnp.tile(patterns, (20, 1, 1, 1))
    optimizer = optax.sgd(0.3)
    graph, parameters, rest = nnx.split(model, nnx.Param, ...)

    def step(parameters, key):
      gradient = jax.grad(
        lambda p: helmholtz.wake_sleep_loss(
          nnx.merge(graph, p, rest, copy=True),
          images,
          key,
          num_iterations=num_iterations,
        )[0]
      )(parameters)
      updates, _ = optimizer.update(gradient, optimizer.init(parameters))
      return optax.apply_updates(parameters, updates), None

    parameters, _ = jax.jit(
      lambda p: jax.lax.scan(step, p, jax.random.split(jax.random.key(0), 1500))
    )(parameters)
    learned = nnx.merge(graph, parameters, rest)
    before, after = (
      np.mean([_log_likelihood_oracle(m, x) for x in patterns])
      for m in (model, learned)
    )
    # The best that independent pixels could do is -4 log 2 = -2.77.
    self.assertLess(before, -2.77)
    self.assertGreater(after, -2.3)

  def test_it_starts_from_machines_that_were_trained_one_by_one(self):
    model = _model()
    first = boltzmann.CapsuleRBM(
      _SHAPE, num_capsules=2, capsule_size=1, rngs=nnx.Rngs(1)
    )
    second = boltzmann.CapsuleRBM(
      (2, 1), num_capsules=1, capsule_size=1, rngs=nnx.Rngs(2)
    )
    helmholtz.start_from(model, [first, second])
    for layers in (model.generative, model.recognition):
      np.testing.assert_array_equal(layers[0].weights, first.weights)
      np.testing.assert_array_equal(
        layers[1].weights[...].reshape(2, 1, 1), second.weights[...]
      )
    images = _images()
    chex.assert_trees_all_close(
      model.infer(images)[0], first.infer(images), atol=1e-6
    )

  def test_machines_that_do_not_fit_are_refused(self):
    def machine(shape, count, **options):
      return boltzmann.CapsuleRBM(
        shape, num_capsules=count, capsule_size=1, rngs=nnx.Rngs(0), **options
      )

    for machines, message in (
      ([machine(_SHAPE, 2)], "1 machines for 2 layers"),
      (
        [machine(_SHAPE, 2, interaction=True), machine((2, 1), 1)],
        "machine 0 has Omega",
      ),
      (
        [machine(_SHAPE, 2), machine((2, 1), 1, visible="gaussian")],
        "machine 1 has other families",
      ),
    ):
      with self.assertRaisesRegex(ValueError, message):
        helmholtz.start_from(_model(), machines)

  def test_gaussian_units_stay_finite(self):
    model = _model(scale=0.1, visible="gaussian", hidden="gaussian")
    gradient = jax.grad(
      lambda model: helmholtz.wake_sleep_loss(
        model, _images(), jax.random.key(0), num_iterations=3
      )[0]
    )(model)
    chex.assert_tree_all_finite(nnx.state(gradient, nnx.Param))


if __name__ == "__main__":
  absltest.main()
