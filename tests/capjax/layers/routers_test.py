"""Routings with parameters: in a layer, under transformations, in training."""

import functools

import cases
import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import routing_rows
from absl.testing import absltest, parameterized
from flax import nnx

from capjax import layers, losses
from capjax.layers import routers
from kernels import numerics, routing

_SIZES = {"num_parts": 6, "part_size": 3, "num_objects": 3, "pose_size": 4}
_WITH_PARAMETERS = routers.NAMES[1:]


def _router(name, seed=0, **options):
  return routers.router(name, **_SIZES, rngs=nnx.Rngs(seed), **options)


class _Broken(nnx.Module):
  """A router with a fault in what it passes on."""

  def __init__(self, route, fault):
    self.route = route
    self.fault = fault

  def __call__(self, poses, transforms, *, activations, bias):
    if self.fault == "bias_forgotten":
      bias = 0 * bias
    elif self.fault == "transforms_detached":
      transforms = jax.lax.stop_gradient(transforms)
    elif self.fault == "objects_shuffled":
      transforms = transforms[:, ::-1]
    output = self.route(poses, transforms, activations=activations, bias=bias)
    if self.fault == "activations_detached":
      return jax.lax.stop_gradient(output)
    return output


def _layer(name, seed=0, *, fault=None, **options):
  layer = layers.DenseCaps(
    *_SIZES.values(),
    routing=name,
    transforms_init=nnx.initializers.normal(0.5),
    bias_init=nnx.initializers.constant(0.1),
    rngs=nnx.Rngs(seed + 1),
  )
  route = _router(name, seed, **options)
  layer.route = nnx.data(_Broken(route, fault)) if fault else route
  return layer


@jax.jit
def _call(layer, *arguments):
  """Compiled once for each kind of layer."""
  return layer(*arguments)


def _perturbed(module, seed=0):
  """With parameters that start equal made different."""
  random = np.random.default_rng(seed)
  return jax.tree.map(
    lambda x: x + jnp.array(random.normal(size=x.shape), x.dtype) / 4, module
  )


def _examples(seed=0, num_examples=32):
  """Poses of parts [B I C], each class about its own, and the classes."""
  random = np.random.default_rng(seed)
  shape = (_SIZES["num_parts"], _SIZES["part_size"])
  centres = random.normal(size=(_SIZES["num_objects"], *shape))
  labels = random.integers(_SIZES["num_objects"], size=num_examples)
  noise = random.normal(size=(num_examples, *shape)) / 4
  poses = numerics.squash(jnp.array(centres[labels] + noise, jnp.float32))
  return poses, jnp.array(labels)


def _parameters(router):
  """Names and values; of a routing without parameters, none."""
  if not isinstance(router, nnx.Module):
    return []
  state = nnx.state(router, nnx.Param)
  return [(path[0], value[...]) for path, value in nnx.to_flat_state(state)]


def _kernel(name, layer, poses):
  """What each router should compute of one example, from stored votes."""
  router = getattr(layer.route, "route", layer.route)
  votes = jnp.einsum("ic,ijcd->ijd", poses, layer.transforms[...])
  lengths = jnp.linalg.norm(poses, axis=1)
  return routing_rows.LAYERS[name].route(
    votes, poses, lengths, layer.bias[...], dict(_parameters(router))
  )


def _margin_loss(layer, poses, labels):
  present = jax.nn.one_hot(labels, _SIZES["num_objects"])
  output = layer(poses)
  return jnp.mean(losses.margin_loss(output.activations, present))


def check_layer_routes_each_example(name, fault=None):
  layer = _perturbed(_layer(name, fault=fault))
  poses, _ = _examples(num_examples=3)
  got = jax.jit(lambda layer, poses: layer(poses))(layer, poses)
  kernel = jax.jit(functools.partial(_kernel, name))
  want = [kernel(layer, example) for example in poses]
  want = jax.tree.map(lambda *leaves: jnp.stack(leaves), *want)
  chex.assert_trees_all_close(got, want, atol=1e-5)


def check_every_parameter_learns(name, fault=None):
  layer = _perturbed(_layer(name, fault=fault))
  poses, labels = _examples()

  @jax.jit
  @functools.partial(jax.grad, argnums=(0, 1))
  def gradient(layer, poses):
    reconstruction = jnp.mean(jnp.square(layer(poses).poses))
    return _margin_loss(layer, poses, labels) + reconstruction

  gradients = gradient(layer, poses)
  chex.assert_tree_all_finite(gradients)
  for leaf in jax.tree.leaves(gradients):
    assert np.any(leaf), "a parameter without gradient"
  # Parts that are not there: zero poses, and without a bias zero votes.
  layer.bias[...] *= 0
  chex.assert_tree_all_finite(gradient(layer, 0 * poses))


def check_training_lowers_the_margin_loss(name, fault=None):
  layer = _layer(name, fault=fault)
  poses, labels = _examples()
  optimizer = optax.adam(0.03)

  def update(carry, _):
    layer, state = carry
    loss, gradient = jax.value_and_grad(_margin_loss)(layer, poses, labels)
    updates, state = optimizer.update(gradient, state, layer)
    return (optax.apply_updates(layer, updates), state), loss

  start = layer, optimizer.init(layer)
  _, history = jax.jit(lambda start: jax.lax.scan(update, start, length=40))(
    start
  )
  chex.assert_tree_all_finite(history)
  np.testing.assert_array_less(history[-1], 0.5 * history[0])


class RoutersTest(chex.TestCase):
  @parameterized.product(
    name=routers.NAMES,
    check=[check_layer_routes_each_example, check_every_parameter_learns],
  )
  @pytest.mark.long_after_first
  def test_layer(self, name, check):
    check(name)

  @parameterized.parameters(*routers.NAMES)
  @pytest.mark.long_after_first
  def test_training_lowers_the_margin_loss(self, name):
    check_training_lowers_the_margin_loss(name)

  @parameterized.parameters(
    ("dynamic", check_layer_routes_each_example, "bias_forgotten"),
    ("self", check_layer_routes_each_example, "bias_forgotten"),
    ("variational", check_layer_routes_each_example, "objects_shuffled"),
    ("self_attention", check_every_parameter_learns, "bias_forgotten"),
    ("self", check_every_parameter_learns, "transforms_detached"),
    ("self", check_training_lowers_the_margin_loss, "activations_detached"),
  )
  @pytest.mark.long_after_first
  def test_broken_copy_fails(self, name, check, fault):
    with self.assertRaises(AssertionError):
      check(name, fault)

  @parameterized.parameters(*routers.NAMES)
  @pytest.mark.long_after_first
  def test_equal_layers_share_what_is_compiled(self, name):
    """A function kept by a module would make equal layers differ."""
    count = []

    @jax.jit
    def run(layer, poses):
      count.append(1)
      return layer(poses)

    poses, _ = _examples(num_examples=2)
    for seed in range(3):
      run(_layer(name, seed), poses)
    self.assertLen(count, 1)

  def test_options_of_dynamic_routing_are_passed_on(self):
    default = routers.DynamicRouting(num_iterations=3, leaky=False)
    self.assertEqual(_router("dynamic"), default)
    changed = routers.DynamicRouting(num_iterations=2, leaky=True)
    self.assertEqual(_router("dynamic", num_iterations=2, leaky=True), changed)
    self.assertNotEqual(default, changed)
    poses, _ = _examples(num_examples=1)
    transforms = _layer("dynamic").transforms[...]
    got = changed(poses[0], transforms)
    want = routing.transform_and_route(
      poses[0], transforms, num_iterations=2, leaky=True
    )
    chex.assert_trees_all_close(got, want, atol=1e-6)

  def test_dynamic_routing_goes_by_the_size_of_the_batch(self):
    """Few examples store their votes, many are routed in pieces: a loop."""

    def loops(num_examples):
      poses, _ = _examples(num_examples=num_examples)
      layer = jax.jit(lambda layer, poses: layer(poses))
      return layer.lower(_layer("dynamic"), poses).as_text().count("while")

    self.assertEqual(loops(8), 0)
    self.assertGreater(loops(9), 0)

  @parameterized.product(name=routers.NAMES, num_examples=[2, 20])
  def test_products_are_not_rounded(self, name, num_examples):
    poses, _ = _examples(num_examples=num_examples)
    cases.assert_products_are_not_rounded(_layer(name), poses)

  @parameterized.parameters(
    "dynamic", "inverted_attention", "variational", "em"
  )
  @pytest.mark.long_after_first
  def test_iterations_are_passed_on(self, name):
    poses, _ = _examples(num_examples=1)
    arguments = poses[0], _layer("dynamic").transforms[...]
    bias = jnp.full((3, 4), 0.1)
    once = _router(name, num_iterations=1)(*arguments, bias=bias)
    np.testing.assert_allclose(once.coefficients, 1 / 3, rtol=1e-6)
    more = _router(name, num_iterations=2)(*arguments, bias=bias)
    self.assertGreater(np.ptp(more.coefficients), 1e-3)

  @parameterized.parameters(
    *(n for n, x in routers.ROUTERS.items() if "gradient" in x.options)
  )
  @pytest.mark.long_after_first
  def test_gradient_is_passed_on(self, name):
    poses, _ = _examples(num_examples=9)

    def slope(gradient):
      layer = _layer(name, gradient=gradient)

      def energy(poses):
        return jnp.sum(jnp.cos(layer(poses).poses))

      return jax.jit(jax.value_and_grad(energy))(poses)

    (value, whole), (same, last) = slope("all"), slope("last")
    np.testing.assert_allclose(value, same, rtol=1e-6)
    self.assertGreater(np.max(np.abs(whole - last)), 1e-6)

  @parameterized.parameters(*routers.NAMES)
  def test_the_table_says_which_options_are_taken(self, name):
    given = {"num_iterations": 2, "gradient": "last", "leaky": True}
    for option, value in given.items():
      if option in routers.ROUTERS[name].options:
        _router(name, **{option: value})  # that it has an effect: see below
      else:
        with self.assertRaisesRegex(ValueError, name):
          _router(name, **{option: value})

  def test_only_iterations_have_gradients_to_leave_out(self):
    for name in ("self", "uniform", "top1", "prototype"):
      with self.assertRaisesRegex(ValueError, f"{name} .* no gradient through"):
        _router(name, gradient="last")
    for name in routers.NAMES:
      with self.assertRaisesRegex(
        ValueError, "gradient is 'first'; give 'all'"
      ):
        _router(name, gradient="first")
    with self.assertRaisesRegex(ValueError, "the gradient are of routings by"):
      _router(routing.dynamic_routing, gradient="last")

  def test_zero_iterations_are_refused(self):
    for name in ("dynamic", "inverted_attention", "variational", "em"):
      with self.assertRaisesRegex(ValueError, "num_iterations is 0; give"):
        _router(name, num_iterations=0)

  def test_one_pass_has_no_iterations(self):
    for name in ("self", "self_attention"):
      _router(name, num_iterations=1)
      for count in (0, 3):
        with self.assertRaisesRegex(ValueError, f"{name} .* of {count}; give"):
          _router(name, num_iterations=count)

  @parameterized.parameters(*_WITH_PARAMETERS)
  def test_only_dynamic_routing_leaks(self, name):
    with self.assertRaisesRegex(ValueError, f"{name} .* no leaky form"):
      _router(name, leaky=True)

  def test_unknown_name_is_refused(self):
    with self.assertRaisesRegex(ValueError, "'mean' is unknown; .*variational"):
      _router("mean")

  @parameterized.parameters(*routers.NAMES)
  def test_parameters_have_the_shapes_of_the_papers(self, name):
    got = {path: x.shape for path, x in _parameters(_router(name))}
    self.assertEqual(got, routing_rows.LAYERS[name].shapes)

  def test_shared_votes_need_one_matrix_of_each_part(self):
    route, poses = _router("shared_prototype"), _examples(num_examples=1)[0][0]
    with self.assertRaisesRegex(ValueError, r"\[6 3 3 4\]; give one matrix"):
      route(poses, jnp.ones((6, 3, 3, 4)))


class DenseCapsTest(chex.TestCase):
  @parameterized.parameters(*routers.NAMES)
  def test_parts_have_a_matrix_for_each_object_or_one(self, name):
    shared = name == "shared_prototype"
    dense, conv = (
      _layer(name),
      layers.ConvCaps(2, 3, 3, 4, 2, routing=name, rngs=nnx.Rngs(0)),
    )
    self.assertEqual(dense.transforms.shape, (6, 1 if shared else 3, 3, 4))
    conv_shape = conv.window.transforms.shape
    self.assertEqual(conv_shape, (8, 1 if shared else 3, 3, 4))

  @parameterized.parameters(*routers.NAMES)
  @pytest.mark.long_after_first
  def test_bias_may_be_left_out(self, name):
    def layer(bias_init):
      return layers.DenseCaps(
        *_SIZES.values(), routing=name, bias_init=bias_init, rngs=nnx.Rngs(0)
      )

    with_bias, without = layer(nnx.initializers.zeros), layer(None)
    self.assertEqual(
      cases.num_parameters(with_bias) - cases.num_parameters(without), 12
    )
    poses, _ = _examples(num_examples=2)
    chex.assert_trees_all_close(
      _call(with_bias, poses), _call(without, poses), atol=1e-6
    )

  @parameterized.parameters(*routers.NAMES)
  def test_names_make_the_routing(self, name):
    layer = layers.DenseCaps(*_SIZES.values(), routing=name, rngs=nnx.Rngs(0))
    self.assertIs(type(layer.route), type(_router(name)))

  @parameterized.parameters(*routers.NAMES)
  @pytest.mark.long_after_first
  def test_matrices_vote_by_products(self, name):
    """As do vectors whose transforms hold the matrix for each row."""
    random = np.random.default_rng(0)
    matrices = jnp.array(random.normal(size=(2, 6, 2, 3)), jnp.float32) / 3
    layer = layers.DenseCaps(
      6, (2, 3), 3, (2, 4), routing=name, rngs=nnx.Rngs(0)
    )
    flat = layers.DenseCaps(6, 6, 3, 8, routing=name, rngs=nnx.Rngs(0))
    flat.route, flat.bias = layer.route, layer.bias
    blocks = jnp.kron(jnp.eye(2), layer.transforms[...])
    flat.transforms = nnx.Param(blocks)
    for activations in (None, jnp.array(random.uniform(size=(2, 6)))):
      got = _call(layer, matrices, activations)
      self.assertEqual(got.poses.shape, (2, 3, 2, 4))
      got = got._replace(poses=got.poses.reshape(2, 3, 8))
      want = _call(flat, matrices.reshape(2, 6, 6), activations)
      chex.assert_trees_all_close(got, want, atol=1e-5)

  @parameterized.parameters(*routers.NAMES)
  def test_absent_parts_have_no_effect_where_activations_count(self, name):
    layer, (poses, _) = _layer(name), _examples(num_examples=2)
    activations = jnp.ones((2, 6)).at[:, -2:].set(0.0)
    got = _call(layer, poses, activations)
    others = _call(layer, poses.at[:, -2:].multiply(-2.0), activations)
    counts = routing_rows.LAYERS[name].counts
    for field in ("poses", "activations"):
      close = np.allclose(
        getattr(got, field), getattr(others, field), atol=1e-6
      )
      self.assertEqual(close, counts, field)

  @parameterized.parameters(*routers.NAMES)
  def test_the_table_says_whether_activations_are_used(self, name):
    layer, (poses, _) = _layer(name), _examples(num_examples=2)
    got, others = (
      _call(layer, poses, jnp.linspace(low, 1.0, 12).reshape(2, 6))
      for low in (0.2, 0.9)
    )
    same = np.array_equal(got.coefficients, others.coefficients)
    same = same and np.array_equal(got.poses, others.poses)
    self.assertEqual(not same, routers.ROUTERS[name].uses_activations)

  def test_axes_of_a_grid_are_parts(self):
    layer, (poses, _) = _layer("self"), _examples(num_examples=2)
    want = _call(layer, poses, jnp.ones((2, 6)))
    grid = poses.reshape(2, 1, 2, 3, 3)
    chex.assert_trees_all_equal(
      _call(layer, grid, jnp.ones((2, 1, 2, 3))), want
    )

  @parameterized.parameters(
    ((2, 5, 3), None, "poses are .2 5 3.; give .B 6 3., .* 6 capsules"),
    ((2, 6, 4), None, "poses are .2 6 4.; give .B 6 3."),
    ((6, 3), None, "poses are .6 3.; give .B 6 3."),
    ((2, 6, 3), (2, 5), "activations are .2 5.; give .B 6."),
  )
  def test_other_parts_are_refused(self, poses, activations, words):
    activations = None if activations is None else jnp.zeros(activations)
    with self.assertRaisesRegex(ValueError, words):
      _layer("dynamic")(jnp.zeros(poses), activations)

  def test_activations_outside_of_0_to_1_are_refused(self):
    for value in (-1.0, 7.0):
      with self.assertRaisesRegex(ValueError, "activations has values from"):
        _layer("em")(jnp.ones((2, 6, 3)), jnp.full((2, 6), value))
    windows = layers.ConvCaps(2, 3, 2, 4, 1, rngs=nnx.Rngs(0))
    with self.assertRaisesRegex(ValueError, "activations has values from"):
      windows(jnp.ones((1, 2, 2, 2, 3)), jnp.full((1, 2, 2, 2), -1.0))

  @parameterized.parameters("em", "heinsen_em", "heinsen_vectors")
  def test_long_poses_are_no_probabilities(self, name):
    layer = _layer(name)
    poses = jnp.full((2, 6, 3), 3**-0.5)  # of length 1, with its rounding
    layer(poses)
    jax.jit(lambda layer: layer(poses).poses)(layer)  # poses are known here too
    with self.assertRaisesRegex(
      ValueError, "poses have lengths up to 2, which"
    ):
      layer(2 * poses)
    layer(2 * poses, jnp.ones((2, 6)))

  @parameterized.parameters(
    ((6, 3, 3, (2, 2)), "part_size is 3 and pose_size is .2, 2.; give"),
    ((6, (2, 3), 3, (3, 2)), "as many rows"),
    ((0, 3, 3, 4), "num_parts is 0; give at least 1"),
    ((6, 3, 3, 0), "pose_size is 0; give at least 1"),
  )
  def test_sizes_that_do_not_fit_are_refused(self, sizes, words):
    with self.assertRaisesRegex(ValueError, words):
      layers.DenseCaps(*sizes, rngs=nnx.Rngs(0))


if __name__ == "__main__":
  absltest.main()
