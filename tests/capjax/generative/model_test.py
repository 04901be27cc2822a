"""The generative model of capsules against NumPyro's own sums and draws."""

import functools
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from absl.testing import absltest, parameterized
from flax import nnx
from numpyro import infer

from capjax import generative
from capjax.generative import amortised
from capjax.generative import numpyro_programs as programs
from capjax.layers import platforms
from kernels.matching import selection
from kernels.matching.selection import Capsules

_COUNTS = (4, 3, 2)


@functools.cache
def _model(seed=0, counts=_COUNTS):
  """A small model with numbers that training could have given it."""
  capsules = generative.GenerativeCapsules(
    (10, 12, 2), num_capsules=counts, template_size=5, rngs=nnx.Rngs(seed)
  )
  keys = iter(jax.random.split(jax.random.key(seed + 1), 50))
  for leaf in jax.tree.leaves(nnx.state(capsules), is_leaf=_is_variable):
    noise = jax.random.normal(next(keys), leaf.shape)
    leaf[...] = leaf[...] + 0.5 * noise
  return capsules


def _is_variable(x):
  return isinstance(x, nnx.Variable)


@functools.cache
def _draws(seed=0, counts=_COUNTS):
  """Layers and images, drawn by NumPyro."""
  return _draw(_model(seed, counts), jax.random.key(seed))


@jax.jit
def _draw(capsules, key):
  draw = infer.Predictive(programs.model, num_samples=1)
  sites = draw(key, capsules, num_images=3)
  return {name: x[0] for name, x in sites.items()}


def _layers(draws):
  return tuple(
    Capsules(draws[f"presence_{layer}"], draws[f"pose_{layer}"])
    for layer in range(1, 4)
    if f"pose_{layer}" in draws
  )


def _known(layers):
  """A guide that knows the layers: its bound is the log joint."""

  def guide(capsules, images, **options):
    del options
    plates = numpyro.plate("images", len(images), dim=-2)
    for number, layer in enumerate(layers, start=1):
      count = capsules.num_capsules[number - 1]
      with plates, numpyro.plate(f"capsules_{number}", count):
        numpyro.sample(f"presence_{number}", dist.Delta(layer.logits))
        numpyro.sample(f"pose_{number}", dist.Delta(layer.poses, event_dim=1))

  return guide


@functools.partial(jax.jit, static_argnums=(0, 1))
def _bound(estimate, program, capsules, layers, images):
  key, guide = jax.random.key(0), _known(layers)
  return -estimate.loss(key, {}, program, guide, capsules, images)


def _brute_force(capsules, layers, images):
  """The sum over every selection of every child, and the shares [I 1+J]."""
  sites = {
    **{f"presence_{n}": x.logits for n, x in enumerate(layers, start=1)},
    **{f"pose_{n}": x.poses for n, x in enumerate(layers, start=1)},
  }

  @jax.jit
  def joint(chosen):
    with numpyro.handlers.block():
      return infer.util.log_density(
        programs.model,
        (capsules, images),
        {},
        {**sites, "selection_1": chosen[None]},
      )[0]

  chosen = np.array(list(itertools.product(range(3), repeat=3)))
  logs = np.array([joint(row) for row in chosen], np.float64)
  total = np.logaddexp.reduce(logs)
  shares = np.zeros((3, 3))
  for row, weight in zip(chosen, np.exp(logs - total), strict=True):
    shares[np.arange(3), row] += weight
  return total, shares


def _log_joint(capsules, layers, images):
  return capsules.log_joint(layers, images)


def test_arguments_reach_the_model_and_the_guide():
  model = amortised.amortised_capsules(
    (9, 9, 1), num_capsules=(2, 2), template_size=3, conv_features=(2,),
    width=4, temperature=0.7, pixel_scale=0.3, scale_floor=0.2,
    scale_prior=0.4, off_scale=3.0, rngs=nnx.Rngs(0),
  )  # fmt: skip
  assert model.guide.temperature == model.capsules.temperature == 0.7
  assert model.capsules.pixel_scale == 0.3
  assert model.capsules.scale_floor == 0.2
  assert model.capsules.scale_prior == 0.4
  assert model.capsules.off_scale == 3.0 and model.capsules.dummy_scale == 2.0


def test_absent_children_have_the_scale_off_and_others_that_of_the_dummy():
  """Log densities of children without parents, at poses of 1."""
  capsules = generative.GenerativeCapsules(
    (9, 9, 1), num_capsules=(1, 1), template_size=3, off_scale=3.0,
    dummy_scale=5.0, rngs=nnx.Rngs(0),
  )  # fmt: skip
  absent = jnp.full((1, 1), -40.0)
  found = []
  for logit in (-40.0, 40.0):
    child = Capsules(jnp.full((1, 1), logit), jnp.ones((1, 1, 6)))
    zero = child._replace(poses=jnp.zeros((1, 1, 6)))
    parents = Capsules(absent, jnp.zeros((1, 1, 6)))
    there, middle = (
      capsules.select((x, parents))[0].log_densities[0, 0]
      for x in (child, zero)
    )
    found.append(middle - there)
  for cost, scale in zip(found, (3.0, 5.0), strict=True):
    np.testing.assert_allclose(cost, 6 / 2 / scale**2, rtol=1e-3)


class GenerativeTest(chex.TestCase):
  @parameterized.parameters((0, _COUNTS), (1, _COUNTS), (0, (3, 2)))
  @pytest.mark.long
  def test_selections_sum_out_as_numpyro_enumerates_them(self, seed, counts):
    capsules, draws = _model(seed, counts), _draws(seed, counts)
    layers, images = _layers(draws), draws["image"][:, 0]
    want = jnp.sum(jax.jit(_log_joint)(capsules, layers, images))

    enumerate_all = infer.TraceEnum_ELBO(max_plate_nesting=2)
    got = _bound(enumerate_all, programs.model, capsules, layers, images)
    # The sum is of hundreds of nats of either sign.
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-3)
    summed = functools.partial(programs.model, summed=True)
    got = _bound(infer.Trace_ELBO(), summed, capsules, layers, images)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-3)

  def test_selections_sum_out_as_brute_force_does(self):
    """Every selection of every child in turn, by NumPyro's joint density."""
    counts = (3, 2)
    capsules, draws = _model(0, counts), _draws(0, counts)
    layers = jax.tree.map(lambda x: x[:1], _layers(draws))
    images = draws["image"][:1, 0]
    total, shares = _brute_force(capsules, layers, images)
    got = jax.jit(_log_joint)(capsules, layers, images)[0]
    np.testing.assert_allclose(got, total, rtol=1e-5)
    routing = capsules.select(layers)[0].routing[0]
    np.testing.assert_allclose(routing, shares, atol=1e-4)

  @pytest.mark.long
  def test_every_variable_is_drawn(self):
    draws = _draws()
    for layer, count in enumerate(_COUNTS, start=1):
      self.assertEqual(draws[f"presence_{layer}"].shape, (3, count))
      self.assertEqual(draws[f"pose_{layer}"].shape, (3, count, 6))
    for layer in (1, 2):
      chosen = draws[f"selection_{layer}"]
      assert chosen.min() >= 0 and chosen.max() <= _COUNTS[layer]
    draw = jax.jit(lambda capsules, parts: capsules.render(parts))
    means = draw(_model(), _layers(draws)[0])
    np.testing.assert_allclose(means, draws["mean_image"], atol=1e-6)
    noise = draws["image"][:, 0] - draws["mean_image"]
    np.testing.assert_allclose(np.std(noise), 0.15, rtol=0.1)
    chex.assert_tree_all_finite(draws)

  def test_children_follow_their_parents(self):
    """A child with one sure parent is where that expects it."""
    capsules = generative.GenerativeCapsules(
      (8, 8, 1), num_capsules=(3, 1), scale_floor=1e-4, rngs=nnx.Rngs(0)
    )
    relations = capsules.relations[0]
    relations.affinities[...] += 30.0
    relations.presences[...] += 30.0
    relations.scales[...] -= 30.0
    capsules.top_presences[...] += 30.0
    draws = _draw(capsules, jax.random.key(0))
    parents, children = draws["pose_2"][:, 0], draws["pose_1"]
    offsets = relations.offsets[...][:, 0]

    def matrix(pose):
      top = np.reshape(pose, (2, 3))
      return np.eye(3) + np.concatenate([top, np.zeros((1, 3))])

    for b, i in itertools.product(range(2), range(3)):
      want = matrix(parents[b]) @ matrix(offsets[i])
      np.testing.assert_allclose(matrix(children[b, i]), want, atol=2e-3)

  @pytest.mark.long
  def test_a_part_at_the_identity_is_its_template(self):
    capsules = generative.GenerativeCapsules(
      (9, 9, 1), num_capsules=(1,), template_size=5, rngs=nnx.Rngs(0)
    )
    parts = Capsules(jnp.full((1, 1), 60.0), jnp.zeros((1, 1, 6)))
    got = capsules.render(parts)[0]
    want = np.zeros((9, 9, 1))
    want[2:7, 2:7] = capsules.templates.colours[0]
    np.testing.assert_allclose(got, want, atol=1e-5)
    absent = parts._replace(logits=jnp.full((1, 1), -60.0))
    np.testing.assert_allclose(capsules.render(absent), 0, atol=1e-6)

  def test_gradients_reach_every_parameter(self):
    draws = _draws()
    layers, images = _layers(draws), draws["image"][:, 0]

    @jax.jit
    @jax.grad
    def gradient(capsules):
      return jnp.sum(capsules.log_joint(layers, images))

    leaves = jax.tree.leaves(gradient(_model()))
    self.assertLen(leaves, 11)
    for leaf in leaves:
      assert np.all(np.isfinite(leaf)) and np.any(leaf != 0)

  def test_accelerators_render_and_differentiate_the_same(self):
    draws = _draws()
    layers, images = _layers(draws), draws["image"][:, 0]
    found, scatters = [], []
    for name in ("cpu", "gpu"):
      # A function of its own, so that it is traced for this platform.
      function = jax.jit(
        jax.value_and_grad(
          lambda capsules: jnp.sum(capsules.log_joint(layers, images))
        )
      )
      with platforms.known(name):
        lowered = function.lower(_model())
      scatters.append(lowered.as_text().count('"stablehlo.scatter"('))
      found.append(lowered.compile()(_model()))
    assert scatters[0] > scatters[1]
    chex.assert_trees_all_close(*found, rtol=1e-4, atol=1e-3)

  def test_finite_where_all_is_absent_or_present(self):
    layers, images = _layers(_draws()), _draws()["image"][:, 0]

    @jax.jit
    @jax.value_and_grad
    def energy(both):
      capsules, layers = both
      return jnp.sum(capsules.log_joint(layers, images))

    for logit in (-1e4, 1e4):
      extreme = tuple(
        x._replace(logits=jnp.full_like(x.logits, logit)) for x in layers
      )
      chex.assert_tree_all_finite(energy((_model(), extreme)))

  @parameterized.parameters(
    ({"num_capsules": ()}, "give one number for each layer"),
    ({"num_capsules": (3, 0)}, "num_capsules is 0; give at least 1"),
    ({"scale_floor": 0.0}, "scale_floor is 0.0; give a finite number"),
    ({"dummy_affinity": -1.0}, "dummy_affinity is -1.0; give a finite number"),
    ({"template_size": 0}, "template_size is 0; give at least 1"),
  )
  def test_bad_numbers_are_refused(self, options, message):
    with pytest.raises(ValueError, match=message):
      generative.GenerativeCapsules(**options, rngs=nnx.Rngs(0))

  @pytest.mark.long
  def test_float64_agrees_strictly(self):
    """The kernel, NumPyro's enumeration, and every selection in turn."""
    counts = (3, 2)
    with jax.enable_x64(True):
      capsules = _model.__wrapped__(3, counts)
      draws = _draw(capsules, jax.random.key(3))
      layers, images = _layers(draws), draws["image"][:, 0]
      kernel = np.asarray(jax.jit(_log_joint)(capsules, layers, images))
      self.assertEqual(kernel.dtype, np.float64)
      enumerated = _bound(
        infer.TraceEnum_ELBO(max_plate_nesting=2), programs.model, capsules,
        layers, images,
      )  # fmt: skip
      first = jax.tree.map(lambda x: x[:1], layers)
      total, _ = _brute_force(capsules, first, images[:1])
    np.testing.assert_allclose(np.sum(kernel), enumerated, rtol=0, atol=1e-5)
    np.testing.assert_allclose(kernel[0], total, rtol=0, atol=1e-5)


class ScalePriorTest(chex.TestCase):
  def _value(self, scale_prior, *, weight=1.0):
    """By log sigma, the bound of a child that is where its parent expects it.

    Args:
      scale_prior: None for a floor that is nearly 0.
      weight: of the prior.
    """
    options = {"scale_floor": 1e-6}
    if scale_prior is not None:
      options = {"scale_floor": 0.1, "scale_prior": scale_prior}
    capsules = generative.GenerativeCapsules(
      (8, 8, 1), num_capsules=(1, 1), template_size=3, **options,
      rngs=nnx.Rngs(0),
    )  # fmt: skip
    sure = jnp.full((1, 1), 60.0)
    parents = Capsules(sure, 0.3 * jnp.arange(6.0).reshape(1, 1, 6) - 0.5)
    offsets = capsules.relations[0].offsets[...]
    poses = selection.expected_poses(parents.poses[0], offsets)[:, 1:][0]
    layers = (Capsules(sure, poses[None]), parents)
    logs = np.linspace(-12, 1, 131)

    def value(capsules, log):
      scales = capsules.relations[0].scales
      scales[...] = jnp.log(jnp.expm1(jnp.exp(log))).reshape(1, 1)
      bound = capsules.log_prior(layers)[0]
      return bound + weight * capsules.log_scale_prior()

    run = jax.jit(jax.vmap(value, (None, 0)))
    return logs, np.asarray(run(capsules, jnp.float32(logs)))

  def test_scales_vanish_without_prior_and_floor(self):
    logs, values = self._value(None)
    np.testing.assert_array_less(np.diff(values[logs < -1]), 0)
    self.assertGreater(values[0] - values[-1], 60)

  @parameterized.parameters(0.3, 0.5)
  def test_scales_sink_so_far_with_the_prior(self, spread):
    logs, values = self._value(spread)
    want = np.log(0.1) - 6 * spread**2
    np.testing.assert_allclose(logs[np.argmax(values)], want, atol=0.06)

  def test_a_prior_that_counts_once_does_not_hold_them(self):
    logs, values = self._value(0.5, weight=1e-3)
    self.assertEqual(np.argmax(values), 0)

  def test_density_is_that_of_normal_logs(self):
    capsules = generative.GenerativeCapsules(
      (8, 8, 1), num_capsules=_COUNTS, template_size=3, scale_floor=0.2,
      scale_prior=0.4, rngs=nnx.Rngs(0),
    )  # fmt: skip
    want = 0.0
    for number, relations in enumerate(capsules.relations):
      shape = relations.scales.shape
      noise = jax.random.normal(jax.random.key(number), shape)
      relations.scales[...] = noise
      for scale in np.log1p(np.exp(np.float64(noise))).ravel() + 1e-6:
        want -= (np.log(scale) - np.log(0.2)) ** 2 / (2 * 0.4**2)
        want -= np.log(0.4 * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(capsules.log_scale_prior(), want, rtol=1e-5)
    self.assertEqual(_model().log_scale_prior(), 0)


if __name__ == "__main__":
  absltest.main()
