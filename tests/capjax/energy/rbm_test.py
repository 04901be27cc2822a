"""The capsule RBM as a module: inference, chains, and what it learns."""

import functools
import itertools
from unittest import mock

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import widths
from absl.testing import absltest, parameterized
from flax import nnx
from scipy import special

from capjax.energy import contrastive, rbm, units
from kernels import energy
from kernels.energy import families

_SHAPE = (2, 3, 1)
_SIZE = 6


def _model(seed=0, **options):
  model = rbm.CapsuleRBM(
    _SHAPE, num_capsules=3, capsule_size=2, rngs=nnx.Rngs(seed), **options
  )
  # Far from the start, where all is small.
  keys = iter(jax.random.split(jax.random.key(seed), 5))
  for name in ("visible", "hidden", "weights", "switches", "interaction"):
    variable = getattr(model, name)
    if variable is not None:
      noise = jax.random.normal(next(keys), variable[...].shape)
      variable[...] += 0.5 * noise if name != "hidden" else 0.1 * noise
  return model


def _images(count=4, seed=0):
  random = np.random.default_rng(seed)
  return jnp.float32(random.integers(2, size=(count, *_SHAPE)))


def _every_image():
  rows = np.array(list(itertools.product((0.0, 1.0), repeat=_SIZE)))
  return jnp.float32(rows.reshape(-1, *_SHAPE))


def _log_likelihood(model, images):
  """Exact: all images are enumerated."""
  free = -np.float64(model.free_energy(_every_image()))
  mean = -np.mean(np.float64(model.free_energy(images)))
  return mean - special.logsumexp(free)


def _squares(model, images, data, num_iterations):
  """The mean squares of Gaussian hidden units, given images: [B K J]."""
  linear, variance = model.hidden[0], -0.5 / model.hidden[-1]
  pixels = images.reshape(len(images), -1)
  drive = jnp.einsum("bm,mkj->bkj", pixels, model.weights[...])
  on = data.switches[..., None]
  if num_iterations is not None:  # by mean field
    return variance + (variance * (linear + on * drive)) ** 2
  means = variance * (linear + drive), variance * linear
  return variance + on * means[0] ** 2 + (1 - on) * means[1] ** 2


class ModelTest(parameterized.TestCase):
  def test_sizes_of_the_paper(self):
    model = rbm.CapsuleRBM(rngs=nnx.Rngs(0))
    sizes = [x.size for x in jax.tree.leaves(nnx.state(model, nnx.Param))]
    self.assertEqual(sum(sizes), 784 + 640 + 40 + 784 * 640)
    self.assertAlmostEqual(float(jnp.std(model.weights[...])), 1e-3, places=5)

  @pytest.mark.long
  def test_batches_are_kernels_of_each(self):
    model, images = _model(interaction=True), _images()
    capsules = model.infer(images)
    drives = model.drive(images)
    key = jax.random.key(0)
    keys = jax.random.split(key, len(images))
    drawn = model.sample_capsules(key, images)
    for n, image in enumerate(images):
      p = model.parameters
      drive = energy.drive_from_below(image.ravel(), p)
      one = jax.tree.map(lambda x, n=n: x[n], (drives, capsules, drawn))
      expected = (
        drive,
        energy.posterior(p.bias, drive),
        energy.sample(keys[n], p.bias, drive),
      )
      chex.assert_trees_all_close(one, expected, atol=1e-5)
      np.testing.assert_allclose(
        model.free_energy(images)[n],
        energy.free_energy(image.ravel(), p),
        rtol=1e-5,
      )
      np.testing.assert_allclose(
        model.reconstruct(capsules)[n].ravel(),
        jax.nn.sigmoid(energy.visible_parameters(one[1], p)[0]),
        atol=1e-6,
      )

  def test_mean_field_starts_from_the_prior(self):
    model, images = _model(), _images()
    start = model.infer(images, num_iterations=0)
    prior = jnp.broadcast_to(
      jax.nn.sigmoid(model.switches[...]), start.switches.shape
    )
    np.testing.assert_allclose(start.switches, prior, rtol=1e-6)
    noisy = model.infer(images, num_iterations=0, key=jax.random.key(0))
    off = special.logit(np.float64(noisy.switches)) - special.logit(prior)
    self.assertBetween(np.std(off), 0.05, 0.2)

  @parameterized.parameters("bernoulli", "gaussian")
  def test_independent_units_have_the_means_of_the_data(self, name):
    random = np.random.default_rng(0)
    images = jnp.float32(random.uniform(0.2, 0.9, size=(500, *_SHAPE)))
    natural = units.independent_units(name, images)
    moments = units.family(name).moments(natural)
    np.testing.assert_allclose(
      moments[0], jnp.mean(images, 0).ravel(), atol=1e-5
    )
    if name == "gaussian":  # the variance is below 1/10, the least allowed
      np.testing.assert_allclose(moments[1] - moments[0] ** 2, 0.1, atol=1e-5)

  @parameterized.parameters(
    ({"visible": "binary"}, "unknown family 'binary'; known"),
    ({"num_capsules": 0}, "num_capsules is 0; give at least 1"),
    ({"num_chains": -1}, "num_chains is -1; give"),
    ({"interaction": True, "switches": False}, "needs switches"),
  )
  def test_bad_sizes_are_refused(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      rbm.CapsuleRBM(**options, rngs=nnx.Rngs(0))


class LearningTest(parameterized.TestCase):
  _GOING_ON = dict(num_chains=5, age=3, block=True)

  @parameterized.product(
    num_iterations=(None, 2),
    num_chains=(0, 5),
    age=(0, 3),
    block=(True, False),
  )
  @pytest.mark.long
  def test_gradient_is_data_less_samples(self, **options):
    self.assertLess(self._worst(**options), 1e-5)

  @parameterized.parameters(
    (None, "gaussian", "bernoulli"), (2, "bernoulli", "gaussian"),
    (None, "gaussian", "gaussian"), (2, "gaussian", "gaussian"),
  )  # fmt: skip
  @pytest.mark.long
  def test_gradient_of_gaussian_units(self, num_iterations, *kinds):
    """Statistics x and x^2, h and h^2."""
    worst = self._worst(
      num_iterations=num_iterations, kinds=kinds, **self._GOING_ON
    )
    self.assertLess(worst, 1e-5)

  @pytest.mark.long
  @widths.samples_of_float32
  def test_chains_that_do_not_go_on_are_found_out(self):
    worst = self._worst(num_iterations=None, **self._GOING_ON, broken=True)
    self.assertGreater(worst, 0.1)

  @parameterized.parameters(
    dict(statistics=lambda x: jnp.stack([x, x])),
    dict(moments=lambda a: families.GAUSSIAN.moments(a).at[1].mul(0.9)),
  )
  @pytest.mark.long
  def test_wrong_second_statistics_are_found_out(self, **wrong):
    family = units.FAMILIES["gaussian"]._replace(**wrong)
    with mock.patch.dict(units.FAMILIES, gaussian=family):
      worst = self._worst(
        num_iterations=2, kinds=("gaussian",) * 2, **self._GOING_ON
      )
    self.assertGreater(worst, 0.01)

  def _worst(
    self,
    *,
    num_iterations,
    num_chains,
    age,
    block,
    broken=False,
    kinds=("bernoulli", "bernoulli"),
  ):
    """The largest error of the gradients and chains, redone sweep by sweep.

    Eqs. 11 and 12; `broken` expects chains that start from the data each time.
    """
    visible, hidden = kinds
    model = _model(
      interaction=True, num_chains=num_chains, visible=visible, hidden=hidden
    )
    if num_chains:
      random = np.random.default_rng(1)
      model.fantasy.set_value(
        rbm.PersistentChains(
          jnp.float32(random.integers(2, size=(num_chains, 3, 2))),
          jnp.float32(random.integers(2, size=(num_chains, 3))),
          jnp.float32(age),
        )
      )
    images, key, num_sweeps = _images(), jax.random.key(1), 2
    if "gaussian" in kinds:
      # Values that do not explode and are not their own squares.
      model.weights[...] /= 4
      low, high = (-0.4, 1.3) if visible == "gaussian" else (0.1, 0.9)
      images = low + (high - low) * images
      for bias in (model.visible, model.hidden):
        bias[...] = bias[...].at[1:].set(-0.5 - jnp.abs(bias[...][1:]))
    else:
      # Strong: with weak ones chains from anywhere meet after a sweep.
      model.weights[...] *= 4
    field_key, start_key, chain_key = jax.random.split(key, 3)
    data = model.infer(images, num_iterations=num_iterations, key=field_key)
    capsules = model.sample_capsules(start_key, images)
    sweeps = num_sweeps
    if num_chains:
      rows = jnp.arange(num_chains) % len(images)
      capsules = jax.tree.map(lambda x: x[rows], capsules)
      if age and not broken:
        capsules = model.capsules(model.fantasy.get_value())
      sweeps = num_sweeps if age else 10 * num_sweeps
    for index in range(sweeps):
      capsules, dreamt = model.sweep(
        jax.random.fold_in(chain_key, index), capsules, block=block
      )

    def statistics(x, capsules, squares):
      """Means of what each parameter meets in the energy."""
      x = x.reshape(len(x), -1)
      h = capsules.statistics[:, 0]
      return {
        "visible": jnp.mean(jnp.stack([x, x**2]), 1)[: len(model.visible)],
        "hidden": jnp.mean(jnp.stack([h, squares]), 1)[: len(model.hidden)],
        "switches": jnp.mean(capsules.switches, 0),
        "weights": jnp.einsum("bm,bkj->mkj", x, capsules.active) / len(x),
        "interaction": x.T @ capsules.switches / len(x),
      }

    loss = functools.partial(
      contrastive.contrastive_loss,
      num_iterations=num_iterations,
      num_sweeps=num_sweeps,
      block=block,
    )
    gradient, (errors, kept) = jax.jit(jax.grad(loss, has_aux=True))(
      model, images, key
    )
    want = jax.tree.map(
      jnp.subtract,
      statistics(dreamt, capsules, capsules.statistics[:, 0] ** 2),
      statistics(images, data, _squares(model, images, data, num_iterations)),
    )
    pairs = [
      (getattr(gradient, name)[...], value) for name, value in want.items()
    ]
    redrawn = jnp.abs(model.reconstruct(data) - images)
    pairs.append((errors, jnp.mean(redrawn, (1, 2, 3))))
    if num_chains:
      pairs.append((kept.hidden, capsules.statistics[:, 0]))
      pairs.append((kept.switches, capsules.switches))
      self.assertEqual(kept.age, age + sweeps)
    return max(float(jnp.max(jnp.abs(a - b))) for a, b in pairs)

  @parameterized.parameters(0, 5)
  @pytest.mark.long
  def test_the_module_is_differentiated_and_left_as_it_is(self, num_chains):
    model, images = _model(num_chains=num_chains), _images()
    before = jax.tree.map(np.array, model)
    loss = functools.partial(
      contrastive.contrastive_loss, num_iterations=1, num_sweeps=1
    )
    gradient, learned = jax.grad(loss, has_aux=True)(
      model, images, jax.random.key(0)
    )
    self.assertGreater(float(jnp.max(jnp.abs(gradient.weights[...]))), 0)
    loss(model, images, jax.random.key(0))  # nothing copies the model here
    chex.assert_trees_all_equal(jax.tree.map(np.array, model), before)
    if not num_chains:
      self.assertIsNone(learned.chains)
      return
    # Ten times one sweep at first, and one from there on.
    for age in (10, 11):
      model.set_chains(learned.chains)
      self.assertEqual(model.fantasy.get_value().age, age)
      _, learned = loss(model, images, jax.random.key(1))

  @pytest.mark.long
  def test_images_may_be_flat(self):
    model, images = _model(), _images()
    loss = jax.jit(
      lambda images: contrastive.contrastive_loss(
        model, images, jax.random.key(0), num_iterations=1, num_sweeps=1
      )
    )
    chex.assert_trees_all_close(
      loss(images.reshape(len(images), -1)), loss(images), rtol=1e-5
    )

  def test_no_sweeps_are_refused(self):
    with self.assertRaisesRegex(ValueError, "num_sweeps is 0"):
      contrastive.contrastive_loss(
        _model(), _images(), jax.random.key(0), num_iterations=1, num_sweeps=0
      )

  @parameterized.parameters("exact", "mean_field", "ascent")
  @pytest.mark.long
  def test_learning_raises_the_exact_likelihood(self, positive):
    """On a model small enough for its partition function to be summed."""
    model = rbm.CapsuleRBM(
      _SHAPE,
      num_capsules=3,
      capsule_size=2,
      num_chains=100,
      rngs=nnx.Rngs(0),
    )
    patterns = _images(3, seed=5)
    random = np.random.default_rng(0)
    images = patterns[random.integers(3, size=60)]
    optimizer = optax.sgd(-0.2 if positive == "ascent" else 0.2)
    graph, parameters, rest = nnx.split(model, nnx.Param, ...)

    def step(carry, key):
      parameters, rest = carry

      def of(parameters):
        merged = nnx.merge(graph, parameters, rest, copy=True)
        loss, learned = contrastive.contrastive_loss(
          merged,
          images,
          key,
          num_iterations=5 if positive == "mean_field" else None,
          num_sweeps=2,
          block=positive == "exact",
        )
        merged.set_chains(learned.chains)
        return loss, nnx.state(merged, nnx.Not(nnx.Param))

      gradient, rest = jax.grad(of, has_aux=True)(parameters)
      updates, _ = optimizer.update(gradient, optimizer.init(parameters))
      return (optax.apply_updates(parameters, updates), rest), None

    (parameters, rest), _ = jax.jit(
      lambda carry: jax.lax.scan(
        step, carry, jax.random.split(jax.random.key(0), 300)
      )
    )((parameters, rest))
    learned = nnx.merge(graph, parameters, rest)
    before = -_SIZE * np.log(2)
    after = _log_likelihood(learned, images)
    # Three equally frequent patterns have an entropy of log 3 = 1.1 nats.
    if positive == "ascent":
      self.assertLess(after, before)
    else:
      self.assertGreater(after, -2.2)


def test_free_energies_are_of_images_of_the_model():
  model, images = _model(), _images()
  with pytest.raises(ValueError, match="images / 255"):
    model.free_energy(255 * images)
  with pytest.raises(ValueError, match="give"):
    model.free_energy(images[:, 1:])


@pytest.mark.parametrize("block", [False, True])
def test_images_of_any_precision_give_a_loss(block):
  """The chains have the precision of the parameters."""
  model = _model(num_chains=3)
  losses = [
    contrastive.contrastive_loss(
      model,
      _images().astype(dtype),
      jax.random.key(0),
      num_iterations=None,
      num_sweeps=2,
      block=block,
    )[0]
    for dtype in (jnp.float32, jnp.bfloat16, jnp.float16)
  ]
  np.testing.assert_allclose(losses[1:], losses[0], rtol=0.02, atol=0.05)


if __name__ == "__main__":
  absltest.main()
