"""The examples of docs/building.md run as printed, and train."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import processes
import pytest
from flax import nnx

from capjax import data

# The examples train networks.
pytestmark = pytest.mark.long

PAGE = processes.ROOT / "docs" / "building.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def scopes():
  """The names that each example leaves, which the next begin with."""
  scope, found = {}, []
  for number, example in enumerate(EXAMPLES):
    exec(compile(example, f"{PAGE.name}, example {number}", "exec"), scope)
    found.append(dict(scope))
  return found


def _accuracy(activations, labels):
  return np.mean(np.argmax(activations, axis=-1) == labels)


def test_statistics_are_kept_by_an_update(scopes):
  norm = scopes[1]["normalised"].norm
  assert np.all(np.abs(norm.mean[...]) > 0.001)


def test_a_network_of_ones_own_learns(scopes):
  """Random guesses would be right for a tenth."""
  scope = scopes[0]
  first, last = (
    np.mean(scope["history"][x]) for x in (slice(5), slice(-5, None))
  )
  assert last < first / 3
  test = data.load("digits", "test")
  outputs = scope["model"](data.as_intensities(test.images))
  assert _accuracy(outputs.activations, test.labels) > 0.8
  shapes = jax.tree.map(jnp.shape, outputs)
  assert shapes == ((360, 10, 16), (360, 10), (360, 32, 10))


def test_a_routing_of_ones_own_routes(scopes):
  scope = scopes[2]
  np.testing.assert_allclose(
    np.sum(scope["outputs"].coefficients, axis=-1), 1, atol=1e-5
  )
  gradient = jax.grad(scope["loss"])(
    scope["own"], scope["images"][:8], scope["labels"][:8]
  )
  assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(gradient))
  assert np.any(gradient.classes.bias[...])
  learnt = jax.grad(scope["loss"])(
    scope["learnt"], scope["images"][:8], scope["labels"][:8]
  )
  assert learnt.classes.route.function.log_distance[...] != 0


def test_weights_of_a_network_with_a_function_are_kept(scopes):
  scope = scopes[3]
  kept, now = (
    [np.asarray(x) for x in leaves]
    for leaves in (scope["leaves"], scope["restored"])
  )
  assert len(now) == len(kept) > 3
  for was, came in zip(kept, now, strict=True):
    np.testing.assert_array_equal(was, came)
  again = jax.tree.leaves(nnx.state(scope["capsnet"]))
  np.testing.assert_array_equal(again[0], kept[0])


def test_poses_are_matrices(scopes):
  assert scopes[4]["matrices"].shape == (2, 6, 6, 3, 4, 4)


def test_members_of_an_ensemble_differ_and_learn(scopes):
  scope = scopes[5]
  values = np.asarray(scope["values"])
  assert values.shape == (3, 60)
  assert np.all(np.mean(values[:, -5:], axis=1) < values[:, 0] / 2)
  activations = np.asarray(scope["activations"])
  assert activations.shape == (3, 5, 10)
  assert np.min(np.ptp(activations, axis=0).max(axis=-1)) > 1e-3
  one = jax.tree.map(lambda x: x[1], scope["members"])
  alone = one(scope["images"][:5]).activations
  np.testing.assert_allclose(activations[1], alone, atol=1e-5)
  test = data.load("digits", "test")
  called = scope["call"](scope["members"], data.as_intensities(test.images))
  mean = np.mean(called.activations, axis=0)
  assert _accuracy(mean, test.labels) > 0.8


def test_sizes_are_known_without_memory(scopes):
  assert scopes[6]["number"] > 9e9
