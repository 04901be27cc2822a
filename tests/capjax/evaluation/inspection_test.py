"""What is inside a network, against its own outputs and against loops."""

import functools

import cases
import jax
import numpy as np
import pytest
from flax import nnx

from capjax import matrix_capsules
from capjax.evaluation import inspection
from capjax.layers import routers

_CASES = ("dynamic", "sinkhorn", "em", "heinsen_em")


def _matrix():
  return matrix_capsules.MatrixCapsules(
    (18, 18, 1), 3, features=3, types=(2, 3, 4), num_iterations=2,
    rngs=nnx.Rngs(0),
  )  # fmt: skip


def _follow(model, images, **options):
  @jax.jit
  def both(model, images):
    return inspection.iterations(model, images, **options), model(images)

  return both(model, images)


@pytest.mark.parametrize("name", _CASES)
@pytest.mark.long_after_first
def test_the_last_iteration_is_that_of_the_network(name):
  model = cases.perturbed(cases.capsnet(routing=name))
  images, _ = cases.batch()
  found, output = _follow(model, images)
  assert found.coefficients.shape == (3, 4, *output.coefficients.shape[1:])
  np.testing.assert_allclose(
    found.coefficients[-1], output.coefficients, atol=1e-5
  )
  np.testing.assert_allclose(found.poses[-1], output.poses, atol=1e-5)
  np.testing.assert_allclose(found.coefficients[0], 1 / 3, rtol=1e-5)
  assert np.ptp(found.coefficients[1]) > 1e-4
  # Activations scale the votes of mixtures alone.
  poses, _ = model.capsules(images)[-1]
  lengths = np.linalg.norm(poses, axis=-1).reshape(len(images), -1)
  want = lengths if "em" in name else np.ones_like(lengths)
  np.testing.assert_allclose(found.activations, want, rtol=1e-5)


@pytest.mark.parametrize("name", ["dynamic", "sinkhorn", "em", "grid"])
@pytest.mark.long_after_first
def test_capsules_below_may_be_in_windows(name):
  """Their grid becomes one axis of parts."""
  options = {"conv_competition": "grid"} if name == "grid" else {}
  routing = "dynamic" if name == "grid" else name
  model = cases.capsnet(
    routing=routing, conv_capsules=(3,), conv_capsules_kernel=2, **options
  )
  images, _ = cases.batch()
  found, output = _follow(cases.perturbed(model), images)
  num_parts = model.classes.num_parts
  assert found.activations.shape == (len(images), num_parts)
  np.testing.assert_allclose(
    found.coefficients[-1], output.coefficients, atol=1e-5
  )
  distances = inspection.vote_distances(found)
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(distances))


@pytest.mark.long
def test_matrix_capsules_are_followed():
  model = cases.perturbed(_matrix())
  images = jax.random.normal(jax.random.key(0), (2, 18, 18, 1))
  found, output = _follow(model, images)
  np.testing.assert_allclose(
    found.coefficients[-1], output.coefficients, atol=1e-5
  )
  np.testing.assert_allclose(
    found.poses[-1].reshape(output.poses.shape), output.poses, atol=1e-5
  )
  assert len(found.poses) == 2
  # EM has means of votes that each iteration weighs.
  distances, weights = inspection.vote_distances(found)
  for b, j in np.ndindex(2, 3):
    w = np.float64(weights[-1, b, :, j])
    votes = np.float64(found.votes[b, :, j])
    mean = w @ votes / w.sum()
    held = w @ votes / (w.sum() + 1e-5)  # the floor of the masses of classes
    np.testing.assert_allclose(held, found.poses[-1, b, j], atol=1e-3)
    for i in (0, 3):
      want = np.sqrt(np.sum((votes[i] - mean) ** 2))
      np.testing.assert_allclose(distances[-1, b, i, j], want, rtol=0.01)
  layers = jax.jit(inspection.layer_activations)(model, images)
  assert [x.shape for x in layers] == [(2, 2), (2, 3), (2, 4), (2, 3)]
  np.testing.assert_allclose(layers[-1], output.activations, atol=1e-6)


def test_a_type_is_as_active_as_its_most_active_capsule():
  model = cases.perturbed(cases.capsnet())
  images, _ = cases.batch()
  types, _ = inspection.layer_activations(model, images)
  every, _ = inspection.capsule_activations(model, images)
  by_position = np.reshape(every, (len(every), -1, types.shape[1]))
  np.testing.assert_array_equal(types, by_position.max(axis=1))


def test_changes_of_logits_add_up_to_them():
  """The coefficients of an iteration are the softmax of all changes before."""
  model = cases.perturbed(cases.capsnet())
  images, _ = cases.batch()
  found, _ = _follow(model, images, at_least=4)
  assert len(found.poses) == 4
  votes, poses = np.float64(found.votes), np.float64(found.poses)
  logits = np.zeros(found.coefficients.shape[1:])
  changes = inspection.logit_changes(found)
  for r in range(3):
    change = np.einsum("bijd,bjd->bij", votes, poses[r])
    want = np.mean(np.abs(change), axis=(1, 2))
    np.testing.assert_allclose(changes[r], want, rtol=1e-4)
    logits += change
    weights = np.exp(logits)
    np.testing.assert_allclose(
      found.coefficients[r + 1],
      weights / weights.sum(-1, keepdims=True),
      atol=1e-5,
    )


@pytest.mark.parametrize("name", routers.NAMES)
def test_routings_by_name_iterate_as_their_rows_say(name):
  """By default, with iterations of one's own, and followed in shapes."""
  model = jax.eval_shape(functools.partial(cases.capsnet, routing=name))
  found = inspection.own_iterations(model)
  images, _ = cases.batch()
  followed = jax.eval_shape(inspection.iterations, model, images)
  if "num_iterations" not in routers.ROUTERS[name].options:
    assert (found, followed) == (1, None)
    return
  assert found > 1 and len(followed.poses) == found
  model = jax.eval_shape(
    functools.partial(cases.capsnet, routing=name, num_iterations=5)
  )
  assert inspection.own_iterations(model) == 5


def test_one_pass_has_no_iterations():
  images, _ = cases.batch()
  for name in ("uniform", "self_attention"):
    model = cases.capsnet(routing=name)
    assert inspection.iterations(model, images) is None
  layers = jax.eval_shape(inspection.layer_activations, cases.capsnet(), images)
  assert [x.shape for x in layers] == [(4, 3), (4, 3)]
  assert inspection.iterations(cases.efficient_capsnet(), images) is None


@pytest.mark.long
def test_hidden_capsules_are_seen():
  model = cases.perturbed(cases.capsnet(hidden_capsules=(6, 5)))
  images, _ = cases.batch()
  found, output = _follow(model, images)
  np.testing.assert_allclose(
    found.class_activations[-1], output.activations, atol=1e-5
  )
  np.testing.assert_allclose(
    found.coefficients[-1], output.coefficients, atol=1e-5
  )
  assert found.votes.shape == (4, 5, 3, 5)
  types = jax.eval_shape(inspection.layer_activations, model, images)
  assert [x.shape for x in types] == [(4, 3), (4, 6), (4, 5), (4, 3)]
  every = jax.jit(inspection.capsule_activations)(model, images)
  assert [x.shape for x in every] == [(4, 48), (4, 6), (4, 5), (4, 3)]
  np.testing.assert_allclose(every[-1], output.activations, atol=1e-5)


def test_types_of_parts_at_positions():
  """As primary or convolutional capsules, and not as those of dense layers."""
  for make, want in (
    (cases.capsnet, 3),
    (
      functools.partial(
        cases.capsnet, conv_capsules=(4, 2), conv_capsules_kernel=2
      ),
      2,
    ),
    (functools.partial(cases.capsnet, hidden_capsules=(6,)), None),
    (cases.efficient_capsnet, None),
  ):
    assert inspection.positioned_types(jax.eval_shape(make)) == want


def test_a_network_has_the_iterations_it_was_given():
  numbers = {
    name: inspection.own_iterations(cases.capsnet(routing=name, **options))
    for name, options in (
      ("uniform", {}),
      ("self_attention", {}),
      ("dynamic", {"num_iterations": 4}),
      ("top1", {"num_iterations": 2}),
      ("em", {}),
    )
  }
  assert list(numbers.values()) == [1, 1, 4, 2, 3]
  assert inspection.own_iterations(_matrix()) == 2
  assert inspection.own_iterations(cases.efficient_capsnet()) == 1
