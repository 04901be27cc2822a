"""Convolutions of capsules against loops over windows, in float64 NumPy."""

import functools
import math

import cases
import chex
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import oracles
import pytest
import routing_rows
from flax import nnx

from capjax import layers
from capjax.layers import matrix, routers
from kernels import numerics, routing

_GRID, _I, _C, _J, _D, _K = (4, 5), 2, 3, 4, 5, 3
_WINDOWS = [("VALID", 1), ("VALID", 2), ("SAME", 1), ("SAME", 2), ("SAME", 3)]


def _layer(seed=0, kernel=_K, sizes=(_C, _D), **options):
  """With parameters that start equal made different."""
  part_size, pose_size = sizes
  layer = layers.ConvCaps(
    _I, part_size, _J, pose_size, kernel, **options, rngs=nnx.Rngs(seed)
  )
  random = np.random.default_rng(seed)
  return jax.tree.map(
    lambda x: x + jnp.array(random.normal(size=x.shape), x.dtype) / 4, layer
  )


def _children(seed=0, shape=(_C,), grid=_GRID):
  random = np.random.default_rng(seed + 10)
  poses = jnp.array(random.normal(size=(2, *grid, _I, *shape)), jnp.float32)
  activations = jnp.array(random.uniform(size=(2, *grid, _I)), jnp.float32)
  return poses / 2, activations


@jax.jit
def _call(layer, *arguments):
  return layer(*arguments)


def _seen(poses, activations, *, stride, padding, kernel=_K):
  """Yields position, children [K*K*I ...] of a window and their activations."""
  height, width = activations.shape[:2]
  before = (0, 0)
  sizes = [(n - kernel) // stride + 1 for n in (height, width)]
  if padding == "SAME":
    sizes = [math.ceil(n / stride) for n in (height, width)]
    missing = (
      max((m - 1) * stride + kernel - n, 0)
      for m, n in zip(sizes, (height, width), strict=True)
    )
    before = [m // 2 for m in missing]
  for y in range(sizes[0]):
    for x in range(sizes[1]):
      found, present = [], []
      for v in range(kernel):
        for u in range(kernel):
          row, column = y * stride + v - before[0], x * stride + u - before[1]
          inside = 0 <= row < height and 0 <= column < width
          for i in range(_I):
            if inside:
              found.append(poses[row, column, i])
              present.append(activations[row, column, i])
            else:
              found.append(np.zeros_like(poses[0, 0, 0]))
              present.append(0.0)
      yield (y, x), np.array(found), np.array(present)


def _votes(found, transforms):
  """u_i W_ij, of vectors or of matrices in rows."""
  votes = [
    [(pose @ matrix).reshape(-1) for matrix in row]
    for pose, row in zip(found, transforms, strict=True)
  ]
  return np.array(votes)


def _route(name, route, votes, found, present, bias):
  """Dynamic routing in NumPy, others by their kernels in float64."""
  if name == "dynamic":
    return oracles.dynamic_routing(votes, bias=bias)
  parameters = {}
  if isinstance(route, nnx.Module):
    parameters = {
      path[0]: jnp.float64(x[...])
      for path, x in nnx.to_flat_state(nnx.state(route))
    }
  output = routing_rows.LAYERS[name].route(
    *map(jnp.asarray, (votes, found, present, bias)), parameters
  )
  return output[:3]


def check_matches_loops(call, name, padding, stride, shapes=((_C,), (_D,))):
  below, above = shapes
  sizes = [x if len(x) > 1 else x[0] for x in shapes]
  layer = _layer(sizes=sizes, routing=name, stride=stride, padding=padding)
  poses, activations = _children(shape=below)
  got = call(layer, poses, activations)
  transforms, bias = (
    np.float64(x[...]) for x in (layer.window.transforms, layer.window.bias)
  )
  with jax.enable_x64(True):
    for b in range(2):
      arrays = np.float64(poses[b]), np.float64(activations[b])
      count = 0
      for place, found, present in _seen(
        *arrays, stride=stride, padding=padding
      ):
        votes = _votes(found, transforms)
        want = _route(name, layer.window.route, votes, found, present, bias)
        shapes = (_J, *above), (_J,), (_K, _K, _I, _J)
        for field, shape, x in zip(got._fields, shapes, want, strict=True):
          value = getattr(got, field)[(b, *place)]
          np.testing.assert_allclose(
            value, np.reshape(x, shape), atol=2e-5, err_msg=field
          )
        count += 1
      assert got.activations.shape[1] * got.activations.shape[2] == count


@pytest.mark.parametrize(("padding", "stride"), _WINDOWS)
def test_windows_match_loops(padding, stride):
  check_matches_loops(_call, "dynamic", padding, stride)


@pytest.mark.parametrize("name", routers.NAMES[1:])
@pytest.mark.long_after_first
def test_routings_match_loops(name):
  check_matches_loops(_call, name, "SAME", 2)


@pytest.mark.parametrize("name", routers.NAMES)
@pytest.mark.long_after_first
def test_matrices_match_loops(name):
  check_matches_loops(_call, name, "VALID", 2, ((2, 3), (2, 2)))


def _wrong(layer, poses, activations, *, fault):
  """Faults in which children a window has."""
  if fault == "transposed":
    poses, activations = (x.swapaxes(1, 2) for x in (poses, activations))
  elif fault == "types_reversed":
    poses, activations = poses[..., ::-1, :], activations[..., ::-1]
  elif fault == "padded_before":
    poses, activations = (
      jnp.roll(x, 1, axis=2).at[:, :, 0].set(0) for x in (poses, activations)
    )
  elif fault == "activations_forgotten":
    activations = None
  return _call(layer, poses, activations)


@pytest.mark.parametrize(
  ("fault", "name", "padding"),
  [
    ("transposed", "dynamic", "SAME"),
    ("types_reversed", "dynamic", "VALID"),
    ("padded_before", "dynamic", "SAME"),
    ("activations_forgotten", "variational", "SAME"),
  ],
)
@pytest.mark.long_after_first
def test_broken_copy_fails(fault, name, padding):
  with pytest.raises(AssertionError):
    check_matches_loops(
      functools.partial(_wrong, fault=fault), name, padding, 2
    )


@pytest.mark.parametrize("name", routers.NAMES)
@pytest.mark.long_after_first
def test_one_full_window_is_the_dense_layer(name):
  layer = _layer(routing=name)
  poses, activations = _children(grid=(_K, _K))
  got = _call(layer, poses, activations)
  assert got.activations.shape == (2, 1, 1, _J)
  want = _call(layer.window, poses, activations)
  for field in got._fields:
    one, other = getattr(got, field), getattr(want, field)
    np.testing.assert_allclose(one.reshape(other.shape), other, atol=1e-6)


def test_a_function_routes_windows():
  def mean_of_votes(votes):
    poses = numerics.squash(jnp.mean(votes, axis=0))
    shares = jnp.full(votes.shape[:2], 1 / votes.shape[1])
    return routing.RoutingOutput(poses, numerics.safe_norm(poses), shares)

  layer, (poses, activations) = _layer(routing=mean_of_votes), _children()
  assert layer.window.bias is None
  got = _call(layer, poses)
  transforms = np.float64(layer.window.transforms[...])
  for place, found, _ in _seen(
    np.float64(poses[1]), np.float64(activations[1]), stride=1, padding="VALID"
  ):
    votes = _votes(found, transforms)
    want = [oracles.squash(np.mean(votes[:, j], axis=0)) for j in range(_J)]
    np.testing.assert_allclose(got.poses[(1, *place)], want, atol=1e-5)


@pytest.mark.parametrize("name", routers.NAMES)
@pytest.mark.parametrize("shape", [(_C,), (2, 3)])
@pytest.mark.long_after_first
def test_gradients_are_finite_and_reach_every_parameter(name, shape):
  """Also where no child is there."""
  sizes = (_C, _D) if len(shape) == 1 else ((2, 3), (2, 2))
  layer = _layer(sizes=sizes, routing=name, stride=2, padding="SAME")

  @jax.jit
  @functools.partial(jax.grad, argnums=(0, 1, 2))
  def gradient(layer, poses, activations):
    output = layer(poses, activations)
    return sum(jnp.sum(jnp.cos(x)) for x in output)

  children = _children(shape=shape)
  found = gradient(layer, *children)
  chex.assert_tree_all_finite(found)
  for leaf in jax.tree.leaves(found[:2]):
    assert np.any(leaf)
  chex.assert_tree_all_finite(gradient(layer, *(0 * x for x in children)))


@pytest.mark.long
def test_layers_stack():
  """Vectors below and above, activations given on; and matrices of EM."""
  features = jax.random.uniform(jax.random.key(0), (2, 9, 9, 3))
  primary = layers.PrimaryCaps(3, 2, 4, 3, stride=2, rngs=nnx.Rngs(0))
  between = layers.ConvCaps(2, 4, 3, 5, 3, routing="self", rngs=nnx.Rngs(1))
  top = layers.DenseCaps(12, 5, 3, 6, routing="em", rngs=nnx.Rngs(2))
  found = between(primary(features))
  chex.assert_shape(found.poses, (2, 2, 2, 3, 5))
  chex.assert_shape(top(found.poses, found.activations).poses, (2, 3, 6))
  primary = matrix.PrimaryMatrixCaps(3, 2, pose_shape=(3, 3), rngs=nnx.Rngs(0))
  between = layers.ConvCaps(
    2, (3, 3), 2, (3, 3), 3, routing="em", stride=2, rngs=nnx.Rngs(1)
  )
  found = between(*primary(features))
  chex.assert_shape(found.poses, (2, 4, 4, 2, 3, 3))


def test_equal_layers_share_what_is_compiled():
  count = []

  @jax.jit
  def run(layer, poses):
    count.append(1)
    return layer(poses)

  for seed in range(2):
    run(_layer(seed), _children()[0])
  assert len(count) == 1


def test_default_start():
  """Transforms of standard deviation 0.1, cut at two of them; biases 0.1."""
  layer = layers.ConvCaps(8, 8, 16, 16, 3, rngs=nnx.Rngs(0))
  values = np.asarray(layer.window.transforms[...])
  assert values.shape == (72, 16, 8, 16)
  np.testing.assert_allclose(values.std(), 0.08796, rtol=0.01)
  np.testing.assert_array_equal(layer.window.bias[...], np.float32(0.1))


@pytest.mark.parametrize(
  ("options", "words"),
  [
    (dict(kernel=0), "kernel_size is 0; give at least 1"),
    (dict(stride=0), "stride is 0; give at least 1"),
    (dict(padding="FULL"), "padding is 'FULL'; give 'VALID' or 'SAME'"),
    (dict(routing="median"), "routing 'median' is unknown; give one of"),
    (dict(sizes=(_C, (2, 2))), "give two lengths of vectors, or"),
  ],
)
def test_options_that_do_not_fit_are_refused(options, words):
  with pytest.raises(ValueError, match=words):
    _layer(**options)


@pytest.mark.parametrize(
  ("poses", "activations", "words"),
  [
    ((2, 4, 5, 3, 3), None, r"poses is \[2 4 5 3 3\]; give"),
    ((2, 20, 2, 3), None, r"poses is \[2 20 2 3\]; give"),
    (
      (2, 2, 5, 2, 3),
      None,
      "window of 3x3 needs a grid at least as large, not",
    ),
    ((2, 4, 5, 2, 3), (2, 4, 5, 1), r"activations is \[2 4 5 1\]; give"),
  ],
)
def test_children_that_do_not_fit_are_refused(poses, activations, words):
  given = [jnp.zeros(x) for x in (poses, activations) if x is not None]
  # Without the checks of annotations, which only tests make.
  jaxtyping.config.update("jaxtyping_disable", True)
  try:
    with pytest.raises(ValueError, match=words):
      _layer()(*given)
    with pytest.raises(TypeError, match="poses holds int(32|64); give"):
      _layer()(jnp.zeros((2, 4, 5, 2, 3), int))
  finally:
    jaxtyping.config.update("jaxtyping_disable", False)


def test_votes_are_not_stored_for_many_windows():
  """By dynamic routing, whose largest array is then the transforms'."""
  layer = _layer(kernel=2)
  poses = jnp.zeros((2, 16, 16, _I, _C))
  text = jax.jit(lambda layer, x: layer(x).poses).lower(layer, poses).as_text()
  assert f"{2 * 225}x{4 * _I}x{_J}x{_D}x" not in text
  stored = _layer(kernel=2, routing="variational")
  text = jax.jit(lambda layer, x: layer(x).poses).lower(stored, poses).as_text()
  assert f"{2 * 225}x{4 * _I}x{_J}x{_D}x" in text


def test_products_are_not_rounded():
  for name in routers.NAMES:
    cases.assert_products_are_not_rounded(_layer(routing=name), _children()[0])


@pytest.mark.parametrize("routing", ["em", "heinsen_em", "variational"])
@pytest.mark.parametrize("size", [8, (4, 4)])
def test_poses_of_mixtures_keep_their_size_in_a_stack(routing, size):
  shape = (size,) if isinstance(size, int) else size
  poses = jax.random.normal(jax.random.key(0), (4, 5, 5, 4, *shape))
  activations = jnp.ones((4, 5, 5, 4))
  spreads = []
  for init in (None, nnx.initializers.truncated_normal(0.1)):
    stack = [
      layers.ConvCaps(
        4, size, 4, size, 3, routing=routing, transforms_init=init,
        bias_init=None, rngs=nnx.Rngs(n),
      )
      for n in range(2)
    ]  # fmt: skip
    below = poses, activations
    for layer in stack:
      below = layer(*below)[:2]
    spreads.append(float(jnp.std(below[0])))
  # The mean of votes that do not agree is smaller than each; much smaller with
  # the matrices of CapsNet.
  assert 0.02 < spreads[0] < 1.5
  assert spreads[1] < spreads[0] / 4
