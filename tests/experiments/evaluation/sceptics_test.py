"""Parse trees, starvation and moves of constructed models, which are known."""

import dataclasses

import cases
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from side_cases import Sides, dots, trained_on

import capjax
from capjax import data
from capjax.evaluation import inspection
from experiments.evaluation import models, sceptics
from experiments.training import task as tasks
from experiments.training.loop_config import LoopConfig


@pytest.fixture
def quarter_turns(monkeypatch):
  monkeypatch.setattr(sceptics.equivariance, "DEGREES", 90.0)


def test_half_of_the_parts_follow_the_image(run, quarter_turns):
  scores = sceptics.parse_tree(run, trained_on(Sides(), dots()))
  assert scores["routing_entropy"] == pytest.approx(0, abs=1e-6)
  # One of two parts is decided by the image, among as many of each parent.
  assert scores["image_information"] == pytest.approx(0.5, abs=1e-6)
  assert scores["share_to_class"] == pytest.approx((1 + 1 / 4) / 2)
  # A quarter turn changes the parent of that part, a pixel does not.
  assert scores["rotation_agreement"] == pytest.approx(0.5)
  assert scores["shift_agreement"] == pytest.approx(1)
  # Where both parts choose the first parent, there is nothing to agree upon.
  assert scores["shift_kappa"] == pytest.approx(3 / 4)
  assert scores["num_images"] == 8


def test_moves_change_classes_and_poses(run, quarter_turns):
  some = trained_on(Sides(), dots(), load_train=lambda: dots(16))
  scores = sceptics.moved(run, some)
  assert scores["accuracy"] == 1
  assert (scores["rotation_degrees"], scores["shift_pixels"]) == (90, 1)
  assert scores["rotation_accuracy"] == 0 and scores["rotation_changed"] == 1
  assert scores["shift_accuracy"] == 1 and scores["shift_changed"] == 0
  # Turned poses are those of the next side: a linear map, but not the same.
  assert scores["rotation_equivariance_error"] < 0.05
  assert scores["rotation_invariance_error"] > 1
  assert scores["shift_invariance_error"] < 1e-6


def test_moves_go_both_ways_and_are_compared_with_the_answers(
  run, quarter_turns
):
  """Of labels that are all wrong, one way of two makes the answers right."""
  wrong = dots(turns=1)
  some = trained_on(Sides(), wrong, load_train=lambda: dots(16))
  scores = sceptics.moved(run, some)
  assert scores["accuracy"] == 0 and scores["rotation_accuracy"] == 0.5
  assert scores["rotation_changed"] == 1 and scores["shift_changed"] == 0


def capsnet(**options):
  return capjax.CapsNet(
    (8, 8, 1), 3, conv_features=4, conv_kernel=3, num_types=2, part_size=4,
    primary_kernel=3, pose_size=4, decoder_features=(), rngs=nnx.Rngs(0),
    **options,
  )  # fmt: skip


def noise(count=6):
  random = np.random.default_rng(0)
  images = random.integers(0, 256, (count, 8, 8, 1), np.uint8)
  return data.Dataset(images, np.arange(count, dtype=np.int32) % 3, 3, {})


def test_capsules_without_inputs_starve(run):
  """Weights and biases of two hidden capsules of four are 0."""
  model = capsnet(hidden_capsules=(4,))
  layer = model.hidden[0]
  for name in ("transforms", "bias"):
    value = np.array(getattr(layer, name)[...])
    (value[:, :2] if name == "transforms" else value[:2])[...] = 0
    setattr(layer, name, nnx.Param(jnp.asarray(value)))
  scores = sceptics.starvation(run, trained_on(model, noise()))
  assert scores["layer_capsules"] == [8, 4, 3]
  assert scores["layer_dead"] == [0, 0.5, 0]
  assert scores["layer_active"][1] == 0.5
  assert scores["dead_capsules"] == pytest.approx(2 / 15)
  every = inspection.capsule_activations(
    model, jnp.float32(noise().images) / 255
  )
  want = [float(np.mean(x)) for x in every]
  np.testing.assert_allclose(scores["layer_mean"], want, rtol=1e-4)


def test_many_layers_stay_in_order(run):
  hidden = (4, 5, 6, 7, 9, 10, 11, 12, 13, 14)
  model = capsnet(hidden_capsules=hidden)
  scores = sceptics.starvation(run, trained_on(model, noise()))
  assert scores["layer_capsules"] == [8, *hidden, 3]


def test_one_image_tells_no_errors_of_poses(run):
  some = trained_on(Sides(), dots(), load_train=lambda: dots(16))
  with pytest.raises(ValueError, match="1 test images are too few .* --images"):
    sceptics.moved(run, some, models.Options(images=1))


def test_accuracy_is_that_of_networks_with_each_number_of_iterations(run):
  test = noise()
  model = cases.perturbed(capsnet(num_iterations=2))
  scores = sceptics.more_routing(run, trained_on(model, test))
  assert scores["own_iterations"] == 2
  assert scores["iteration"] == [1, 2, 3, 4, 5]
  assert scores["iteration_routing_entropy"][0] == pytest.approx(1)
  images = jnp.float32(test.images) / 255
  for number in (1, 2):
    other = nnx.clone(model)
    other.classes.route = dataclasses.replace(
      model.classes.route, num_iterations=number
    )
    right = np.argmax(other(images).activations, axis=1) == test.labels
    assert scores["iteration_accuracy"][number - 1] == np.mean(right)


def test_one_pass_has_one_iteration(run):
  model = capsnet(routing="uniform")
  scores = sceptics.more_routing(run, trained_on(model, noise()))
  assert scores["own_iterations"] == 1 and scores["iteration"] == [1]
  assert scores["iteration_routing_entropy"] == [pytest.approx(1)]


class Linear(nnx.Module):
  def __init__(self):
    self.weights = nnx.Param(jnp.ones((64, 3)))

  def __call__(self, images):
    return images.reshape(len(images), -1) @ self.weights[...]


def test_costs_of_a_product(run):
  test = noise()
  some = tasks.Task(*[None] * 8, scores=lambda model, images: model(images))
  config = LoopConfig(1, batch_size=2)
  trained = models.Trained(some, config, Linear(), 0, {}, test, {})
  scores = sceptics.costs(run, trained)
  assert scores["num_parameters"] == 64 * 3
  assert scores["num_operations"] == 2 * 64 * 3
