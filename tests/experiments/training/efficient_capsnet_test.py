"""Training Efficient-CapsNet, whose batch normalisation keeps statistics."""

import cases
import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from absl.testing import absltest, parameterized
from flax import nnx

from capjax import losses

_ADAM = optax.adam(0.01)


def _batch(seed=0, size=3):
  return cases.batch(seed, size, cases.EFFICIENT_IMAGE_SHAPE)


def _perturbed(seed=0):
  return cases.perturbed(cases.efficient_capsnet(seed), seed)


def _statistics(model):
  return jax.tree.leaves(nnx.state(model, nnx.BatchStat))


@jax.jit
def _run(model, images, classes):
  """The output, an image of it, and the statistics that the call leaves."""
  output = model(images)
  drawn = model.decode(output.poses, classes)
  return output, drawn, nnx.state(model, nnx.BatchStat)


def check_learns(update):
  """Adam lowers the loss and statistics follow the data."""
  model, (images, labels) = cases.efficient_capsnet(), _batch()
  opt_state = _ADAM.init(nnx.state(model, nnx.Param))
  before = [np.array(x) for x in _statistics(model)]
  history = []
  for _ in range(40):
    model, opt_state, loss = update(model, opt_state, images, labels)
    history.append(loss)
  np.testing.assert_array_less(history[-1], 0.5 * history[0])
  for a, b in zip(before, _statistics(model), strict=True):
    np.testing.assert_array_less(1e-4, np.max(np.abs(a - b)))


def check_update_keeps_the_tree(update):
  """So that the next step needs no compilation."""
  model = cases.efficient_capsnet()
  opt_state = _ADAM.init(nnx.state(model, nnx.Param))
  updated, *_ = update(model, opt_state, *_batch())
  chex.assert_trees_all_equal_structs(model, updated)


def _loss(model, images, labels):
  return losses.capsnet_loss(
    model, images, labels, reconstruction_weight=0.0005
  )[0]


_gradients = jax.jit(jax.grad(_loss))


@jax.jit
def _update(model, opt_state, images, labels):
  """Differentiates parameters; carries over what else the call changes."""
  graph, parameters, rest = nnx.split(model, nnx.Param, ...)

  def of_parameters(parameters):
    # Variables may only change at the level of the trace that made them.
    model = nnx.merge(graph, parameters, rest, copy=True)
    loss = _loss(model, images, labels)
    return loss, nnx.state(model, nnx.Not(nnx.Param))

  gradient = jax.value_and_grad(of_parameters, has_aux=True)
  (loss, rest), gradients = gradient(parameters)
  updates, opt_state = _ADAM.update(gradients, opt_state, parameters)
  parameters = optax.apply_updates(parameters, updates)
  return nnx.merge(graph, parameters, rest), opt_state, loss


def _forgetful(model, opt_state, images, labels):
  """Drops the statistics that the call leaves."""
  updated, opt_state, loss = _update(model, opt_state, images, labels)
  graph, parameters, _ = nnx.split(updated, nnx.Param, ...)
  rest = nnx.state(model, nnx.Not(nnx.Param))
  return nnx.merge(graph, parameters, rest), opt_state, loss


def _without_gradient(model, opt_state, images, labels):
  """Keeps the statistics alone."""
  updated, _, loss = _update(model, opt_state, images, labels)
  graph, _, rest = nnx.split(updated, nnx.Param, ...)
  parameters = nnx.state(model, nnx.Param)
  return nnx.merge(graph, parameters, rest), opt_state, loss


def _mode_left_on(*arguments):
  """Returns the model in evaluation mode."""
  model, opt_state, loss = _update(*arguments)
  model.eval()
  return model, opt_state, loss


class EfficientTrainingTest(chex.TestCase):
  @parameterized.parameters(check_learns, check_update_keeps_the_tree)
  def test_training(self, check):
    check(_update)

  @parameterized.parameters(
    (check_learns, _forgetful),
    (check_learns, _without_gradient),
    (check_update_keeps_the_tree, _mode_left_on),
  )
  @pytest.mark.long
  def test_broken_copy_fails(self, check, broken):
    with self.assertRaises(AssertionError):
      check(broken)

  def test_mode_is_part_of_the_tree(self):
    """So that a compiled function of one mode is never run in the other."""
    training, evaluating = cases.efficient_capsnet(), cases.efficient_capsnet()
    evaluating.eval()
    self.assertNotEqual(*map(jax.tree.structure, (training, evaluating)))
    evaluating.train()
    chex.assert_trees_all_equal_structs(training, evaluating)

  def test_statistics_stay_where_they_are_not_returned(self):
    model = cases.efficient_capsnet()
    before = [np.array(x) for x in _statistics(model)]
    *_, returned = _run(model, *_batch())
    chex.assert_trees_all_equal(_statistics(model), before)
    for a, b in zip(before, jax.tree.leaves(returned), strict=True):
      self.assertGreater(np.max(np.abs(a - b)), 0)

  @pytest.mark.long
  def test_differentiable_at_blank_images(self):
    """All votes of a fresh model are zero there."""
    model, labels = cases.efficient_capsnet(), _batch()[1]
    images = jnp.zeros((3, *cases.EFFICIENT_IMAGE_SHAPE))
    output, *_ = _run(model, images, labels)
    np.testing.assert_array_equal(output.poses, 0)
    gradients = nnx.state(_gradients(model, images, labels), nnx.Param)
    chex.assert_tree_all_finite(gradients)

  def test_every_parameter_takes_part(self):
    gradients = nnx.state(_gradients(_perturbed(), *_batch()), nnx.Param)
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradients):
      name = jax.tree_util.keystr(path)
      self.assertTrue(np.all(np.isfinite(leaf)), name)
      self.assertGreater(np.max(np.abs(leaf)), 0, name)


if __name__ == "__main__":
  absltest.main()
