"""Capsules by 3D convolutions against loops over windows, in float64 NumPy."""

import functools

import cases
import chex
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import oracles
import pytest
from flax import nnx

from capjax import layers

_GRID, _I, _C, _J, _D, _K = (4, 5), 2, 3, 3, 4, 3


def _layer(seed=0, **options):
  layer = layers.GridCaps(
    _I, _C, _J, _D, options.pop("kernel", _K), **options, rngs=nnx.Rngs(seed)
  )
  random = np.random.default_rng(seed)
  return jax.tree.map(
    lambda x: x + jnp.array(random.normal(size=x.shape), x.dtype) / 2, layer
  )


def _poses(seed=0):
  random = np.random.default_rng(seed + 10)
  return jnp.array(random.normal(size=(2, *_GRID, _I, _C)), jnp.float32)


@jax.jit
def _call(layer, poses):
  return layer(poses)


def _oracle(layer, poses, stride, padding):
  """Of one example: votes by a loop over taps, then dynamic routing."""
  kernel, bias = (np.float64(x[...]) for x in (layer.transforms, layer.bias))
  votes = []
  for i in range(_I):
    found = oracles.convolve(
      poses[None, :, :, i], kernel, stride=stride, padding=padding
    )[0]
    votes.append(found.reshape(*found.shape[:2], _J, _D))
  votes = np.array(votes)
  grid = votes.shape[1:3]
  v, lengths, k = oracles.dynamic_routing(
    votes.reshape(_I, -1, _D), bias=np.tile(bias, (grid[0] * grid[1], 1))
  )
  return (
    v.reshape(*grid, _J, _D),
    lengths.reshape(*grid, _J),
    k.reshape(_I, *grid, _J),
  )


def check_matches_oracle(call, stride=1, padding="VALID"):
  layer, poses = _layer(stride=stride, padding=padding), _poses()
  got = call(layer, poses)
  for b in range(2):
    want = _oracle(layer, poses[b], stride, padding)
    cases.assert_outputs_close([x[b] for x in got], want, atol=2e-5)


@pytest.mark.parametrize(
  ("stride", "padding"), [(1, "VALID"), (2, "SAME"), (1, "SAME")]
)
def test_matches_loops(stride, padding):
  check_matches_oracle(_call, stride, padding)


def _wrong(layer, poses, *, fault):
  if fault == "transposed":
    poses = poses.swapaxes(1, 2)
  elif fault == "types_reversed":
    poses = poses[..., ::-1, :]
  elif fault == "poses_reversed":
    poses = poses[..., ::-1]
  return _call(layer, poses)


@pytest.mark.parametrize(
  "fault", ["transposed", "types_reversed", "poses_reversed"]
)
def test_broken_copy_fails(fault):
  with pytest.raises(AssertionError):
    check_matches_oracle(functools.partial(_wrong, fault=fault))


def test_gradients_are_finite_and_reach_every_parameter():
  layer = _layer()

  @jax.jit
  @functools.partial(jax.grad, argnums=(0, 1))
  def gradient(layer, poses):
    return sum(jnp.sum(jnp.cos(x)) for x in layer(poses))

  found = gradient(layer, _poses())
  chex.assert_tree_all_finite(found)
  assert all(np.any(leaf) for leaf in jax.tree.leaves(found))
  chex.assert_tree_all_finite(gradient(layer, 0 * _poses()))


@pytest.mark.parametrize(
  ("options", "words"),
  [
    (dict(kernel=0), "kernel_size is 0; give at least 1"),
    (dict(stride=0), "stride is 0; give at least 1"),
    (dict(padding="FULL"), "padding is 'FULL'; give 'VALID' or 'SAME'"),
    (dict(num_iterations=0), "num_iterations is 0; give at least 1"),
    (dict(routing_gradient="none"), "gradient is 'none'; give 'all' or"),
  ],
)
def test_options_that_do_not_fit_are_refused(options, words):
  with pytest.raises(ValueError, match=words):
    _layer(**options)


def test_narrow_poses_keep_their_type():
  layer, poses = _layer(), _poses()
  narrow = jnp.bfloat16(poses)
  for output, same in ((layer(narrow), layer(jnp.float32(narrow))),):
    assert all(x.dtype == jnp.bfloat16 for x in jax.tree.leaves(output))
    np.testing.assert_allclose(
      jnp.float32(output.poses), same.poses, rtol=0.02, atol=0.01
    )


def test_poses_that_do_not_fit_are_refused():
  # Without the checks of annotations, which only tests make.
  jaxtyping.config.update("jaxtyping_disable", True)
  try:
    with pytest.raises(ValueError, match=r"poses is \[2 4 5 3 3\]; give"):
      _layer()(jnp.zeros((2, *_GRID, 3, _C)))
    with pytest.raises(TypeError, match="poses holds int(32|64); give"):
      _layer()(jnp.zeros((2, *_GRID, _I, _C), int))
  finally:
    jaxtyping.config.update("jaxtyping_disable", False)


def test_products_are_not_rounded():
  cases.assert_products_are_not_rounded(_layer(), _poses())
