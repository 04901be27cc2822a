"""Measures and losses of tasks against what their models say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import saved_cases
from generative_cases import small

from capjax.generative import guides
from experiments.evaluation import equivariance
from experiments.tasks import constellation, generative, transforming, vae


def _case(name):
  images = saved_cases.images(saved_cases.image_shape(name), 3)
  return saved_cases.trained(name).model, jnp.float32(images) / 255


def test_errors_of_a_vae_are_means_of_absolute_differences():
  model, images = _case("vae")
  found = vae.measure(model, images, jnp.zeros(3, int))
  want = np.abs(np.float64(model.reconstruct(images)) - np.float64(images))
  np.testing.assert_allclose(
    found["reconstruction_error"], want.mean(axis=(1, 2, 3)), rtol=1e-5
  )


def test_errors_of_a_transforming_model_are_of_the_moved_image():
  model, images = _case("transforming")
  movement = jnp.tile(jnp.eye(3), (3, 1, 1)).at[:, 0, 2].set(2.0)
  moved = transforming.Moved(images, movement, jnp.tile(jnp.eye(3), (3, 1, 1)))
  found = transforming.measure(model, moved, images)["reconstruction_loss"]
  made = model(images, transforming.as_transforms(model, movement))
  squares = np.square(np.float64(made) - np.float64(images))
  np.testing.assert_allclose(found, squares.sum(axis=(1, 2, 3)), rtol=1e-4)


def test_present_capsules_are_counted():
  capsules, guide, images = small()
  model = guides.AmortisedCapsules(capsules, guide)
  found = generative.measure(model, images, jnp.zeros(len(images), int))
  for number, presences in enumerate(model.activities(images), start=1):
    want = np.float64(presences).sum(axis=1)
    np.testing.assert_allclose(found[f"present_{number}"], want, rtol=1e-5)


def test_the_loss_of_constellations_has_the_noise_of_its_key():
  model = saved_cases.trained("constellation").model
  random = np.random.default_rng(0)
  points = jnp.float32(random.uniform(-1, 1, (2, 11, 2)))
  sampled = constellation.constellations.Constellation(
    points, jnp.ones((2, 11)), jnp.zeros((2, 11), int)
  )
  losses = [
    constellation.loss(
      model, sampled, jnp.zeros(2, int), jax.random.key(seed), jnp.int32(0)
    )[0]
    for seed in (0, 0, 1)
  ]
  assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize(
  ("name", "axis"), [("shift_x_pixels", 1), ("shift_y_pixels", 0)]
)
def test_known_moves_of_poses_are_along_their_axes(name, axis):
  (move,) = (x for x in equivariance._moves(9) if x.name == name)
  image = jnp.zeros((9, 9, 1)).at[4, 4].set(1.0)
  moved = move.move(image, 2.0)
  np.testing.assert_allclose(moved, jnp.roll(image, 2, axis), atol=1e-6)
