"""How a capsule Helmholtz machine learns, against loops and exact sums."""

from unittest import mock

import chex
import helmholtz_cases as cases
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import widths
from absl.testing import absltest, parameterized
from flax import nnx

from capjax.energy import contrastive, rbm, units, wake_sleep
from kernels.energy import families


def _wrong_moments(natural):
  """Without the variance in the mean of the squares."""
  mean, _ = families.GAUSSIAN.moments(natural)
  return jnp.stack([mean, mean**2])


_WRONG = (
  {
    "testcase_name": "of_pixels",
    "kind": "wake",
    "statistics": lambda x: jnp.stack([x, x]),
  },
  {"testcase_name": "awake", "kind": "wake", "moments": _wrong_moments},
  {"testcase_name": "asleep", "kind": "sleep", "moments": _wrong_moments},
)


class LearningTest(parameterized.TestCase):
  @parameterized.product(
    kind=("wake", "sleep", "broken"), gaussian=(False, True)
  )
  @pytest.mark.long_after_first
  def test_gradients_are_those_of_the_densities(self, kind, gaussian):
    off = self._worst(kind, gaussian)
    self.assertEqual(off < 1e-5, kind != "broken")

  @parameterized.named_parameters(*_WRONG)
  def test_wrong_second_statistics_are_found_out(self, kind, **wrong):
    family = units.FAMILIES["gaussian"]._replace(**wrong)
    with mock.patch.dict(units.FAMILIES, gaussian=family):
      self.assertGreater(self._worst(kind, gaussian=True), 0.01)

  def _worst(self, kind, gaussian):
    """The largest error of a gradient, compared with those of log densities."""
    if gaussian:
      model, images = cases.gaussian(), cases.gaussian_images()
    else:
      model, images = cases.model(), cases.images()
    gradient, want, lowest = jax.jit(_gradients, static_argnums=0)(
      kind, model, images
    )
    part = "generative" if kind == "wake" else "recognition"
    pairs = list(
      zip(
        jax.tree.leaves(getattr(gradient, part)),
        jax.tree.leaves(getattr(want, part)),
        strict=True,
      )
    )
    if kind == "wake":
      pairs.append((gradient.visible[...], _pixels(model, images, lowest)))
    return max(float(np.max(np.abs(a - b))) for a, b in pairs)

  def test_gradients_by_mean_field_are_the_papers(self):
    """Eqs. 24 and 25, for one image, in loops."""
    model, images, key = cases.model(3), cases.images(1), jax.random.key(3)
    gradient = jax.grad(
      lambda model: wake_sleep.wake_sleep_loss(
        model, images, key, num_iterations=3
      )[0]
    )(model)
    awake = model.infer(images, num_iterations=3)
    dreamt, asleep = model.dream(key, awake[-1], num_iterations=3)
    for part, x, layers in (
      ("generative", images, awake),
      ("recognition", dreamt, asleep),
    ):
      learning = getattr(model, part)
      found = getattr(gradient, part)
      x = np.float64(x[0]).ravel()
      states = [_Plain(layer) for layer in layers]
      if part == "generative":
        above = states[1].active, learning[1].weights[...]
        drives = [
          _drive_down(*above),
          np.zeros(learning[1].hidden[...][0].shape),
        ]
        logits = np.array(model.visible[...][0], np.float64)
        for m, k, j in np.ndindex(learning[0].weights[...].shape):
          logits[m] += (
            learning[0].weights[...][m, k, j] * states[0].active[k, j]
          )
        gap = x - 1 / (1 + np.exp(-logits))
        np.testing.assert_allclose(-gradient.visible[...][0], gap, atol=1e-5)
        outer = np.einsum("m,kj->mkj", gap, states[0].active)
        np.testing.assert_allclose(-found[0].weights[...], outer, atol=1e-5)
      else:
        drives = [
          _drive_up(x, learning[0].weights[...]),
          _drive_up(states[0].active, learning[1].weights[...]),
        ]
      for number, (layer, drive) in enumerate(
        zip(learning, drives, strict=True)
      ):
        expected = _mean_field(layer, drive, 3)
        state = states[number]
        np.testing.assert_allclose(
          -found[number].hidden[...][0],
          state.hidden - expected.hidden,
          atol=1e-5,
        )
        np.testing.assert_allclose(
          -found[number].switches[...],
          state.switches - expected.switches,
          atol=1e-5,
        )
        gap = state.active - expected.active
        if part == "recognition":
          below = x if number == 0 else states[0].active
          want = np.multiply.outer(below, gap)
          np.testing.assert_allclose(
            -found[number].weights[...], want, atol=1e-5
          )
        elif number == 0:
          want = np.multiply.outer(gap, states[1].active)
          np.testing.assert_allclose(-found[1].weights[...], want, atol=1e-5)

  @parameterized.parameters(None, 5)
  @widths.samples_of_float32
  @pytest.mark.long
  def test_learning_raises_the_exact_likelihood(self, num_iterations):
    model = cases.model(1, scale=1.0)
    patterns = jnp.float32(np.array([[1, 1, 0, 0], [0, 0, 1, 1]]))
    patterns = patterns.reshape(2, *cases.SHAPE)
    images = jnp.tile(patterns, (20, 1, 1, 1))
    optimizer = optax.sgd(0.3)
    graph, parameters, rest = nnx.split(model, nnx.Param, ...)

    def step(parameters, key):
      gradient = jax.grad(
        lambda p: wake_sleep.wake_sleep_loss(
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
      np.mean([cases.log_likelihood(m, x) for x in patterns])
      for m in (model, learned)
    )
    # The best that independent pixels could do is -4 log 2 = -2.77.
    self.assertLess(before, -2.77)
    self.assertGreater(after, -2.3)

  def test_images_may_be_flat(self):
    model, images = cases.model(), cases.images(5)
    loss = jax.jit(
      lambda images: wake_sleep.wake_sleep_loss(
        model, images, jax.random.key(0), num_iterations=None
      )
    )
    chex.assert_trees_all_close(
      loss(images.reshape(len(images), -1)), loss(images), rtol=1e-5
    )

  def test_it_starts_from_machines_that_were_trained_one_by_one(self):
    model = cases.model()
    first = rbm.CapsuleRBM(
      cases.SHAPE, num_capsules=2, capsule_size=1, rngs=nnx.Rngs(1)
    )
    second = rbm.CapsuleRBM(
      (2, 1), num_capsules=1, capsule_size=1, rngs=nnx.Rngs(2)
    )
    wake_sleep.start_from(model, [first, second])
    for layers in (model.generative, model.recognition):
      np.testing.assert_array_equal(layers[0].weights, first.weights)
      np.testing.assert_array_equal(
        layers[1].weights[...].reshape(2, 1, 1), second.weights[...]
      )
    # Nothing shares a buffer, which training would give away twice.
    places = [x.unsafe_buffer_pointer() for x in jax.tree.leaves(model)]
    self.assertLen(set(places), len(places))
    images = cases.images()
    chex.assert_trees_all_close(
      model.infer(images)[0], first.infer(images), atol=1e-6
    )

  def test_machines_that_do_not_fit_are_refused(self):
    def machine(shape, count, **options):
      return rbm.CapsuleRBM(
        shape, num_capsules=count, capsule_size=1, rngs=nnx.Rngs(0), **options
      )

    for machines, message in (
      ([machine(cases.SHAPE, 2)], "1 machines for 2 layers"),
      (
        [machine(cases.SHAPE, 2, interaction=True), machine((2, 1), 1)],
        "machine 0 has Omega",
      ),
      (
        [machine(cases.SHAPE, 2), machine((2, 1), 1, visible="gaussian")],
        "machine 1 has other families",
      ),
    ):
      with self.assertRaisesRegex(ValueError, message):
        wake_sleep.start_from(cases.model(), machines)


class StackTest(parameterized.TestCase):
  def _machines(self, **options):
    shapes = [cases.SHAPE, (2, 3), (3, 2)]
    counts = [(2, 3), (3, 2), (2, 2)]
    machines = [
      rbm.CapsuleRBM(
        shape, num_capsules=k, capsule_size=j, rngs=nnx.Rngs(n), **options
      )
      for n, (shape, (k, j)) in enumerate(zip(shapes, counts, strict=True))
    ]
    return [cases.shaken(machine) for machine in machines]

  def test_the_top_sees_the_active_units_below(self):
    machines, images = self._machines(), cases.images()
    lower = machines[0].infer(images, num_iterations=4).active
    upper = machines[1].infer(lower, num_iterations=4).active
    stack = wake_sleep.Stack(machines)
    chex.assert_trees_all_close(
      stack.below_top(images, num_iterations=4), upper, atol=1e-6
    )
    alone = wake_sleep.Stack(machines[:1])
    chex.assert_trees_all_equal(alone.below_top(images), images)

  @pytest.mark.long
  def test_only_the_top_learns_and_keeps_the_biases_below(self):
    machines = self._machines(num_chains=4)
    stack = wake_sleep.Stack(machines)
    np.testing.assert_array_equal(
      stack.top.visible[...][0], machines[1].hidden[...].ravel()
    )

    def loss(stack):
      seen = stack.below_top(cases.images())
      return contrastive.contrastive_loss(
        stack.top, seen, jax.random.key(0), num_iterations=2, num_sweeps=2
      )[0]

    graph, parameters, rest = nnx.split(stack, nnx.Param, ...)
    gradient = jax.grad(lambda p: loss(nnx.merge(graph, p, rest, copy=True)))(
      parameters
    )
    whole = jax.grad(loss, allow_int=True)(
      stack
    )  # of all arrays, as a short recipe has it
    np.testing.assert_array_equal(whole.top.visible[...], 0)
    *lower, top = gradient["machines"].values()
    self.assertNotIn("visible", top)
    self.assertGreater(float(jnp.max(jnp.abs(top["weights"][...]))), 0)
    for x in jax.tree.leaves(lower):
      np.testing.assert_array_equal(x, 0)

  def test_machines_that_do_not_fit_are_refused(self):
    first, second, _ = self._machines()
    with self.assertRaisesRegex(ValueError, "machine 1 has visible units of"):
      wake_sleep.Stack([first, first])
    gaussian = rbm.CapsuleRBM(
      (2, 3), num_capsules=1, capsule_size=1, visible="gaussian",
      rngs=nnx.Rngs(0),
    )  # fmt: skip
    with self.assertRaisesRegex(ValueError, "another number or family"):
      wake_sleep.Stack([first, gaussian])


def _gradients(kind, model, images):
  """Of the loss; of -log p or -log q; and the lowest layer, awake.

  `broken` takes the layers of the wake phase for those of the sleep phase.
  """
  key = jax.random.key(3)
  gradient = jax.grad(
    lambda model: wake_sleep.wake_sleep_loss(
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
        drive = layer.driven_by(below)
        total += model._log_prob(capsules, layer.bias, drive)
        below = capsules
      return total

    return -jnp.mean(jax.vmap(one)(x, layers))

  want = jax.grad(wake if kind == "wake" else sleep)(model)
  return gradient, want, awake[0]


def _pixels(model, images, lowest):
  """The gradient of -log p(x | h, z) by the visible biases, in loops."""
  weights = np.float64(model.generative[0].weights[...])
  bias = np.float64(model.visible[...])
  total = np.zeros_like(bias)
  for image, active in zip(images, lowest.active, strict=True):
    linear = bias[0] + np.einsum("mkj,kj->m", weights, np.float64(active))
    x = np.float64(image).ravel()
    if len(bias) == 1:
      total += _sigmoid(linear) - x
    else:
      variance = -1 / (2 * bias[1])
      mean = linear * variance
      total += [mean - x, mean**2 + variance - x**2]
  return total / len(images)


class _Plain:
  """A layer of one image in float64."""

  def __init__(self, capsules):
    self.hidden = np.float64(capsules.statistics[0, 0])
    self.switches = np.float64(capsules.switches[0])
    self.active = np.float64(capsules.active[0])


class _Expected(_Plain):
  def __init__(self, hidden, switches):
    self.hidden, self.switches = hidden, switches
    self.active = switches[:, None] * hidden


def _sigmoid(x):
  return 1 / (1 + np.exp(-x))


def _drive_down(above, weights):
  out = np.zeros(weights.shape[:2])
  for index in np.ndindex(weights.shape):
    out[index[:2]] += weights[index] * above[index[2:]]
  return out


def _drive_up(below, weights):
  out = np.zeros(weights.shape[-2:])
  for index in np.ndindex(weights.shape):
    out[index[-2:]] += weights[index] * below[index[:-2]]
  return out


def _mean_field(layer, drive, num_iterations):
  """Units and switches in turn, from the biases of the switches."""
  b, c = np.float64(layer.hidden[...][0]), np.float64(layer.switches[...])
  z = _sigmoid(c)
  h = _sigmoid(b + z[:, None] * drive)
  for _ in range(num_iterations):
    z = _sigmoid(c + np.sum(h * drive, axis=1))
    h = _sigmoid(b + z[:, None] * drive)
  return _Expected(h, z)


if __name__ == "__main__":
  absltest.main()
