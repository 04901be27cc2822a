"""How images are moved, and the known movements of transforming models."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from capjax import transforming as models
from capjax.kernels import rendering
from capjax.specs import Spec
from experiments.tasks import transforming
from experiments.tasks.transforming import Movements

STILL = Movements(
  max_jitter=0, max_shift=0, max_rotation=0.0, max_scaling=0.0, max_shear=0.0
)
KEYS = jax.random.split(jax.random.key(0), 400)


def movements(limits, max_shift=0, pose="affine"):
  """Of all keys, in NumPy: the matrices without their last row."""
  sample = functools.partial(
    transforming.sample_movement, pose=pose, movements=STILL._replace(**limits)
  )
  return np.array(jax.vmap(sample, (0, None))(KEYS, max_shift))[:, :2]


def check_reach(values, middle, limit):
  """All values are within a limit of the middle, some near its ends."""
  off = np.asarray(values) - middle
  assert np.abs(off).max() < limit + 1e-5
  assert off.max() > 0.97 * limit and off.min() < -0.97 * limit


def test_rotations_reach_their_limit_in_degrees():
  found = movements({"max_rotation": 30.0})
  angles = np.arctan2(found[:, 1, 0], found[:, 0, 0])
  check_reach(np.degrees(angles), 0, 30)
  cos, sin, zero = np.cos(angles), np.sin(angles), 0 * angles
  want = np.array([[cos, -sin, zero], [sin, cos, zero]])
  np.testing.assert_allclose(found, np.moveaxis(want, -1, 0), atol=1e-6)


def test_width_and_height_are_scaled_on_their_own():
  found = movements({"max_scaling": 0.3})
  width, height = found[:, 0, 0], found[:, 1, 1]
  check_reach(width, 1, 0.3)
  check_reach(height, 1, 0.3)
  assert abs(np.corrcoef(width, height)[0, 1]) < 0.3
  found[:, 0, 0] = found[:, 1, 1] = 0
  assert not found.any()


def test_shears_are_along_x():
  found = movements({"max_shear": 0.4})
  check_reach(found[:, 0, 1], 0, 0.4)
  found[:, 0, 1] = 0
  np.testing.assert_array_equal(found, np.stack([np.eye(3)[:2]] * len(found)))


@pytest.mark.parametrize("pose", ["shift", "affine"])
def test_shifts_reach_their_limit_along_both_axes(pose):
  found = movements({}, max_shift=3, pose=pose)
  x, y = found[:, 0, 2], found[:, 1, 2]
  check_reach(x, 0, 3)
  check_reach(y, 0, 3)
  assert abs(np.corrcoef(x, y)[0, 1]) < 0.3
  is_whole = np.all(found == np.round(found))
  assert is_whole == (pose == "shift")
  np.testing.assert_array_equal(found[:, :, :2], [np.eye(2)] * len(found))


@pytest.mark.parametrize("pose", ["shift", "affine"])
def test_the_target_is_the_placed_image_after_the_movement(pose):
  task = transforming.make_task(
    Spec(models.TransformingAutoencoder, {"pose": pose}),
    optax.sgd(0.1),
    movements=Movements(
      max_jitter=1, max_shift=3, max_rotation=60.0, max_scaling=0.3
    ),
    canvas=11,
  )
  pixels = np.random.default_rng(0).integers(0, 256, (3, 7, 9, 1), np.uint8)
  labels = jnp.array([4, 5, 6])
  make = jax.jit(jax.vmap(task.sample, (0, None, None, None)))
  moved, targets = make(KEYS[:40], 2, jnp.asarray(pixels), labels)
  places, known = np.asarray(moved.place), np.asarray(moved.movement)
  assert np.abs(places[:, :2, 2]).max() <= 1
  assert 1 < np.abs(known[:, :2, 2]).max() <= 3
  assert abs(np.corrcoef(places[:, 0, 2], known[:, 0, 2])[0, 1]) < 0.5
  placed = np.zeros((11, 11, 1))
  placed[2:9, 1:10] = pixels[2] / 255.0
  render = jax.jit(jax.vmap(rendering.transform, (None, 0)))
  for got, poses in ((moved.image, places), (targets, known @ places)):
    want = render(jnp.float32(placed), jnp.float32(poses))
    np.testing.assert_allclose(got, want, atol=1e-4)
