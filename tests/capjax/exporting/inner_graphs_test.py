"""Graphs of what happens inside models, against NumPy and the models."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import saved_cases
from flax import nnx
from scipy import special

from capjax import exporting


def _run(name, graph, *arguments):
  """A graph of a small model for one example, without the batch axis."""
  trained = saved_cases.trained(name)
  function = jax.jit(exporting.graph(trained, graph).function)
  found = function(*(np.asarray(x)[None] for x in arguments))
  return trained.model, {n: np.asarray(x[0]) for n, x in found.items()}


def test_iterations_of_routing_follow_the_procedure():
  (image,) = saved_cases.images((12, 12, 1), count=1)
  model, found = _run("capsnet", "routing", image)
  prepared = jnp.asarray(image[None], jnp.float32) / 255

  @nnx.jit
  def whole(model, images):
    features = jax.nn.relu(model.conv(images))
    return model.primary(features)[0], model(images).poses[0]

  parts, last = (np.asarray(x, np.float64) for x in whole(model, prepared))
  positions = parts.shape[:3]
  transforms = np.asarray(model.classes.transforms[...], np.float64)
  votes = np.einsum(
    "ic,ijcd->ijd", parts.reshape(-1, parts.shape[-1]), transforms
  )
  bias = np.asarray(model.classes.bias[...], np.float64)
  logits = np.zeros(votes.shape[:2])
  for number in range(3):
    coefficients = special.softmax(logits, axis=1)
    total = np.einsum("ij,ijd->jd", coefficients, votes) + bias
    length = np.linalg.norm(total, axis=1, keepdims=True)
    poses = length * total / (1 + length**2)
    agreements = np.einsum("ijd,jd->ij", votes, poses)
    logits += agreements
    wanted = {
      "coefficients": coefficients.reshape(*positions, -1),
      "agreements": agreements.reshape(*positions, -1),
      "poses": poses,
      "activations": np.linalg.norm(poses, axis=1),
    }
    for name, values in wanted.items():
      np.testing.assert_allclose(
        found[name][number], values, atol=2e-6, err_msg=f"{name} {number}"
      )
  np.testing.assert_allclose(
    found["part_activations"], np.linalg.norm(parts, axis=-1), atol=1e-6
  )
  # The last iteration is what the model returns.
  np.testing.assert_allclose(found["poses"][-1], last, atol=2e-6)


def _matrix(pose):
  return np.eye(3) + np.vstack([np.reshape(pose, (2, 3)), np.zeros(3)])


@pytest.mark.long
def test_parts_are_where_objects_expect_them():
  rng = np.random.default_rng(0)
  poses = rng.normal(size=(2, 6)).astype(np.float32)
  presences = np.float32([0.9, 0.2])
  model, found = _run("generative", "parts", poses, presences)
  relations = model.capsules.relations[0]
  offsets = np.asarray(relations.offsets[...], np.float64)
  affinities = np.exp(np.asarray(relations.affinities[...], np.float64))
  for part in range(3):
    # The dummy parent expects the identity.
    np.testing.assert_array_equal(found["part_poses"][part, 0], 0)
    for parent in range(2):
      wanted = _matrix(poses[parent]) @ _matrix(offsets[part, parent])
      np.testing.assert_allclose(
        _matrix(found["part_poses"][part, 1 + parent]), wanted, atol=1e-5
      )
    weights = np.append(relations.dummy_affinity, presences * affinities[part])
    np.testing.assert_allclose(
      found["choices"][part], weights / weights.sum(), rtol=1e-4
    )
  np.testing.assert_allclose(
    found["part_presences"], special.expit(relations.presences[...]), rtol=1e-5
  )


@pytest.mark.long
def test_shares_of_parts_sum_to_the_image():
  rng = np.random.default_rng(1)
  poses = rng.normal(size=(3, 6)).astype(np.float32) / 5
  presences = np.float32([1, 0, 0.5])
  _, found = _run("generative", "decoder", poses, presences)
  assert found["shares"].shape == (3, 12, 12, 1)
  np.testing.assert_allclose(found["shares"].sum(0), found["images"], atol=1e-6)
  np.testing.assert_array_equal(found["shares"][1], 0)
  assert found["shares"][0].max() > 0.1


@pytest.mark.long
def test_the_model_says_which_object_a_part_selected():
  (image,) = saved_cases.images((12, 12, 1), count=1)
  model, found = _run("generative", "model", image)
  assert found["object_poses"].shape == (2, 6)
  np.testing.assert_allclose(found["routing"].sum(1), np.ones(3), atol=1e-5)
  prepared = jnp.asarray(image[None], jnp.float32) / 255
  _, layers = nnx.jit(model.guide)(prepared)
  np.testing.assert_allclose(
    found["object_poses"], layers[1].poses[0], atol=1e-5
  )


@pytest.mark.parametrize("seed", [0, 1])
def test_a_sweep_samples_by_the_given_numbers(seed):
  rng = np.random.default_rng(seed)
  image = rng.integers(0, 2, (6, 6, 1)).astype(np.float32)
  known = rng.integers(0, 2, (6, 6, 1)).astype(np.float32)
  uniforms = [
    rng.uniform(size=shape).astype(np.float32)
    for shape in ((3,), (3, 2), (6, 6, 1))
  ]
  model, found = _run("rbm", "sweep", image, known, *uniforms)
  weights = np.asarray(model.weights[...], np.float64)
  hidden_bias = np.asarray(model.hidden[...], np.float64)[0]
  pixel_bias = np.asarray(model.visible[...], np.float64)[0]
  visible = image.ravel()
  log_odds = np.array(model.switches[...], np.float64)
  drive = np.zeros((3, 2))
  for k in range(3):
    for j in range(2):
      drive[k, j] = sum(visible[m] * weights[m, k, j] for m in range(36))
      on = np.logaddexp(0, hidden_bias[k, j] + drive[k, j])
      log_odds[k] += on - np.logaddexp(0, hidden_bias[k, j])
  switches = uniforms[0] < special.expit(log_odds)
  logits = hidden_bias + switches[:, None] * drive
  active = switches[:, None] * (uniforms[1] < special.expit(logits))
  means = special.expit(pixel_bias + np.einsum("kj,mkj->m", active, weights))
  means = means.reshape(6, 6, 1)
  sampled = uniforms[2] < means
  np.testing.assert_allclose(found["activities"], special.expit(log_odds), 1e-5)
  np.testing.assert_array_equal(found["switches"], switches)
  np.testing.assert_array_equal(found["active"], active)
  np.testing.assert_allclose(
    found["means"], np.where(known, image, means), rtol=1e-5
  )
  np.testing.assert_array_equal(
    found["samples"], np.where(known, image, sampled)
  )


@pytest.mark.parametrize(
  "name, graph, words",
  [
    ("rbm", "routing", "no iterations of dynamic routing"),
    ("self_routing", "routing", "routing='dynamic'"),
    ("capsnet", "parts", "no objects that expect parts"),
    ("plain_rbm", "sweep", "with switches"),
    ("capsnet", "sweep", "no sweep"),
  ],
)
def test_models_without_such_a_graph_are_refused(name, graph, words):
  with pytest.raises(ValueError, match=words):
    exporting.graph(saved_cases.trained(name), graph)
