"""Forms of layers of matrix capsules on accelerators."""

import chex
import jax
import jax.numpy as jnp
import pytest
import tracing_loops
from flax import nnx

from capjax import matrix_capsules
from capjax.layers import matrix, platforms


def _num_turns(shape, num_classes, features, types):
  """Of the loops in a loss and its gradient, of a batch of two."""

  def make():
    return matrix_capsules.MatrixCapsules(
      shape,
      num_classes,
      features=features,
      types=types,
      implementation="at_once",
      rngs=nnx.Rngs(0),
    )

  graph, state = nnx.split(nnx.eval_shape(make))

  def loss(state, images):
    return jnp.sum(nnx.merge(graph, state)(images).activations)

  images = jax.ShapeDtypeStruct((2, *shape), jnp.float32)
  return tracing_loops.num_turns(jax.make_jaxpr(jax.grad(loss))(state, images))


@pytest.mark.long
@pytest.mark.parametrize(
  "network",
  [
    ((28, 28, 1), 10, 64, (8, 16, 16)),
    ((32, 32, 2), 5, 32, (32, 32, 32)),
  ],
  ids=["68K", "310K"],
)
def test_loops_of_accelerators_turn_few_times(network):
  assert 0 <= _num_turns(*network) <= 64


@pytest.mark.long
def test_memory_bounds_the_types_at_once(monkeypatch):
  small = ((28, 28, 1), 2, 4, (4, 4, 2))
  assert _num_turns(*small) == 0
  monkeypatch.setattr(matrix, "_AT_ONCE", 1)
  one_by_one = _num_turns(*small)
  # Two layers of 4 types, each with even shares, 3 iterations and gradients.
  assert one_by_one >= 2 * 4 * (1 + 3 + 3)


def test_layers_by_themselves_are_those_of_a_network():
  """With default options, for poses of two types on a grid of 3x4."""
  poses = jax.random.normal(jax.random.key(0), (2, 3, 4, 2, 4, 4))
  activations = jax.random.uniform(jax.random.key(1), poses.shape[:4])
  layer = matrix.ConvMatrixCaps(2, 3, 2, rngs=nnx.Rngs(0))
  found = layer(poses, activations)
  chex.assert_shape(found.poses, (2, 2, 3, 3, 4, 4))
  network = matrix_capsules.MatrixCapsules(
    (28, 28, 1), 2, features=2, types=(2, 3, 2), rngs=nnx.Rngs(0)
  )
  of_network = network.layers[0].em
  assert layer.em == of_network._replace(
    form=of_network.form._replace(cost_scale=100 * 3 / (2 * 2 * 2))
  )
  classes = matrix.ClassMatrixCaps(
    3, 5, jnp.zeros((2, 3, 16)), rngs=nnx.Rngs(0)
  )
  chex.assert_shape(classes(found.poses, found.activations).activations, (2, 5))
  assert classes.em.form.cost_scale == pytest.approx(100 * 5 / (2 * 3 * 3))


@pytest.mark.long
def test_both_implementations_agree():
  images = jax.random.normal(jax.random.key(0), (2, 15, 15, 1))
  outputs = [
    matrix_capsules.MatrixCapsules(
      (15, 15, 1),
      2,
      features=4,
      types=(3, 2, 2),
      padding="SAME",
      implementation=implementation,
      rngs=nnx.Rngs(0),
    )(images)
    for implementation in matrix.IMPLEMENTATIONS
  ]
  chex.assert_trees_all_close(*outputs, rtol=1e-4, atol=1e-5)


def test_the_form_is_that_of_the_known_platform():
  model = matrix_capsules.MatrixCapsules(
    (15, 15, 1),
    2,
    features=4,
    types=(3, 2, 2),
    padding="SAME",
    rngs=nnx.Rngs(0),
  )
  turns = {}
  for platform in ("cpu", "cuda"):
    with platforms.known(platform):
      turns[platform] = tracing_loops.num_turns(
        # A new function, since what was traced is kept.
        jax.make_jaxpr(lambda x: model(x))(jnp.zeros((1, 15, 15, 1)))
      )
  assert turns["cuda"] == 0 < turns["cpu"]


def test_another_implementation_is_refused():
  with pytest.raises(ValueError, match="implementation is 'fast'; give None"):
    matrix_capsules.MatrixCapsules(implementation="fast", rngs=nnx.Rngs(0))
