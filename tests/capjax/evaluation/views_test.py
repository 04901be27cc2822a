"""Views: known transforms of one image about its middle."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from capjax.evaluation import views
from kernels import geometry, rendering


def _noise(height, width, channels=2, seed=0):
  return jax.random.uniform(jax.random.key(seed), (height, width, channels))


def _spots(height=41, width=61):
  """Smooth, with a different spot in each quarter."""
  rows = np.arange(height)[:, None] - (height - 1) / 2
  columns = np.arange(width) - (width - 1) / 2
  places = [(1.0, 9, 4), (0.7, -7, 8), (0.5, 6, -9), (0.3, -8, -6)]
  image = sum(
    mass * np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / 16)
    for mass, x, y in places
  )
  return jnp.asarray(image[..., None], jnp.float32)


def _oracle(image, matrix, canvas):
  """Each pixel of the canvas looks up where it came from, in float64."""
  image, back = np.float64(image), np.linalg.inv(np.float64(matrix))
  height, width, channels = image.shape
  out = np.zeros((*canvas, channels))
  for row in range(canvas[0]):
    for column in range(canvas[1]):
      place = column - (canvas[1] - 1) / 2, row - (canvas[0] - 1) / 2, 1
      x, y, _ = back @ place + ((width - 1) / 2, (height - 1) / 2, 0)
      for v in range(height):
        for u in range(width):
          weight = max(0, 1 - abs(x - u)) * max(0, 1 - abs(y - v))
          out[row, column] += weight * image[v, u]
  return out


_JITTED = {
  name: jax.jit(getattr(views, name))
  for name in ("rotate", "translate", "scale")
}
_TRANSFORM = jax.jit(rendering.transform, static_argnames="canvas")


def check_right_angles_are_rot90(rotate):
  for size in (8, 9):
    image = _noise(size, size)
    for turns in (-2, -1, 0, 1, 2):
      want = np.rot90(image, -turns)
      np.testing.assert_allclose(rotate(image, 90.0 * turns), want, atol=1e-5)


def check_rotation_is_rigid(rotate):
  """On an image that is not square; a spot turns clockwise."""
  for degrees in (-50.0, 30.0):
    got = np.asarray(rotate(_spots(), degrees))[..., 0]
    row, column = np.unravel_index(got.argmax(), got.shape)
    place = complex(column - 30, row - 20)
    want = complex(9, 4) * np.exp(1j * np.radians(degrees))
    assert abs(place - want) < 1


def check_whole_shifts_are_exact(translate):
  image = np.asarray(_noise(6, 9))
  for x, y in ((0, 0), (3, 0), (0, -2), (-4, 1), (20, 0)):
    want = np.zeros_like(image)
    for v in range(6):
      for u in range(9):
        if 0 <= v + y < 6 and 0 <= u + x < 9:
          want[v + y, u + x] = image[v, u]
    got = translate(jnp.asarray(image), x, y)
    np.testing.assert_allclose(got, want, atol=1e-5)


def check_half_a_pixel_is_a_mean(translate):
  image = _noise(6, 9)
  padded = np.pad(image, ((0, 0), (1, 0), (0, 0)))
  want = (padded[:, :-1] + padded[:, 1:]) / 2
  np.testing.assert_allclose(translate(image, 0.5, 0.0), want, atol=1e-5)


def check_scale_moves_spots(scale):
  for factor in (0.7, 1.3):
    got = np.asarray(scale(_spots(), factor))[..., 0]
    row, column = np.unravel_index(got.argmax(), got.shape)
    assert abs(complex(column - 30, row - 20) - factor * complex(9, 4)) < 1
    # Of the same heights, over an area factor^2 as large.
    mass = got.sum() / np.asarray(_spots()).sum()
    np.testing.assert_allclose(mass, factor**2, rtol=0.01)


def _anticlockwise(image, degrees):
  return views.rotate(image, -degrees)


def _radians(image, degrees):
  return views.rotate(image, jnp.rad2deg(degrees))


def _in_its_frame(image, degrees):
  """Turns in the [-1, 1] frame, in which a wide image is a square."""
  height, width, _ = image.shape
  units = geometry.pixel_units(height, width)
  pose = geometry.affine_matrix(1, 1, jnp.deg2rad(degrees), 0, 0, 0)
  return rendering.transform(image, pose * units[:, None] / units)


def _about_the_corner(image, degrees):
  height, width, _ = image.shape
  middle = geometry.affine_matrix(1, 1, 0.0, 0, width / 2, height / 2)
  turn = geometry.affine_matrix(1, 1, jnp.deg2rad(degrees), 0, 0, 0)
  pose = geometry.compose(turn, geometry.invert(middle))
  return rendering.transform(image, geometry.compose(middle, pose))


def _wraps(image, x, y):
  return jnp.roll(image, (round(y), round(x)), (0, 1))


class ViewsTest(chex.TestCase):
  @parameterized.parameters(
    (check_right_angles_are_rot90, "rotate"),
    (check_rotation_is_rigid, "rotate"),
    (check_whole_shifts_are_exact, "translate"),
    (check_half_a_pixel_is_a_mean, "translate"),
    (check_scale_moves_spots, "scale"),
  )
  def test_property(self, check, name):
    check(_JITTED[name])

  @parameterized.parameters(
    (check_right_angles_are_rot90, _anticlockwise),
    (check_right_angles_are_rot90, _radians),
    (check_right_angles_are_rot90, _about_the_corner),
    (check_rotation_is_rigid, _anticlockwise),
    (check_rotation_is_rigid, _in_its_frame),
    (check_whole_shifts_are_exact, lambda i, x, y: views.translate(i, y, x)),
    (check_whole_shifts_are_exact, lambda i, x, y: views.translate(i, -x, y)),
    (check_whole_shifts_are_exact, _wraps),
    (check_half_a_pixel_is_a_mean, _wraps),
    (check_scale_moves_spots, lambda i, factor: views.scale(i, 1 / factor)),
    (check_scale_moves_spots, lambda i, factor: views.scale(i, factor**2)),
  )
  def test_broken_copy_fails(self, check, broken):
    with self.assertRaises(AssertionError):
      check(jax.jit(broken) if broken is not _wraps else broken)

  @parameterized.parameters(
    ((5, 6), (5, 6)), ((4, 5), (7, 8)), ((6, 7), (3, 4))
  )
  def test_any_pose_on_any_canvas(self, size, canvas):
    image = _noise(*size)
    pose = geometry.affine_matrix(1.3, 0.8, 0.4, -0.3, 0.7, -1.2)
    got = _TRANSFORM(image, pose, canvas=canvas)
    np.testing.assert_allclose(got, _oracle(image, pose, canvas), atol=1e-5)

  @parameterized.parameters((28, 28, 1), (9, 14, 3), (1, 5, 1))
  def test_identity(self, *shape):
    image = jax.random.uniform(jax.random.key(0), shape)
    rotate, translate, scale = _JITTED.values()
    for got in (
      rotate(image, 0.0),
      translate(image, 0.0, 0.0),
      scale(image, 1.0),
      _TRANSFORM(image, jnp.eye(3)),
    ):
      np.testing.assert_array_equal(got, image)

  def test_larger_canvas_keeps_the_middle(self):
    image = _noise(5, 6)
    got = _TRANSFORM(image, jnp.eye(3), canvas=(9, 8))
    want = np.pad(image, ((2, 2), (1, 1), (0, 0)))
    np.testing.assert_allclose(got, want, atol=1e-6)

  def test_composition(self):
    """One after the other is all at once, but for interpolating twice."""
    rotate, translate, scale = _JITTED.values()
    image = _spots()
    for got, want in (
      (rotate(rotate(image, 25.0), 35.0), rotate(image, 60.0)),
      (rotate(rotate(image, 40.0), -40.0), image),
      (scale(scale(image, 1.3), 1 / 1.3), image),
      (translate(translate(image, 2.5, 1.0), -2.5, -1.0), image),
    ):
      # Edges are lost.
      inner = np.s_[8:-8, 18:-18]
      np.testing.assert_allclose(got[inner], want[inner], atol=0.06)

  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.parameters("rotate", "scale")
  @pytest.mark.long_after_first
  def test_many_parameters_at_once(self, name):
    view = self.variant(functools.partial(getattr(views, name), _noise(6, 7)))
    values = jnp.array([0.4, 1.0, 1.7])
    want = jnp.stack([view(value) for value in values])
    chex.assert_trees_all_close(jax.vmap(view)(values), want, atol=1e-5)

  def test_gradients_are_finite(self):
    """Also for an angle, at a right one and in an empty image."""
    for name in ("rotate", "scale"):
      view = jax.jit(jax.jacfwd(getattr(views, name), (0, 1)))
      for image in (_noise(6, 6), jnp.zeros((6, 6, 2))):
        for value in (1.0, 90.0):
          chex.assert_tree_all_finite(view(image, value))

  def test_dtype_is_that_of_the_image(self):
    image = _noise(6, 6).astype(jnp.bfloat16)
    chex.assert_type(_JITTED["rotate"](image, 30), jnp.bfloat16)

  @parameterized.parameters(0, -1.0, np.float32(-1), np.int64(0))
  def test_no_scale_is_refused(self, factor):
    with self.assertRaisesRegex(ValueError, f"factor is {factor}"):
      views.scale(_noise(4, 4), factor)

  def test_no_canvas_is_refused(self):
    with self.assertRaisesRegex(ValueError, "number of canvas is 0"):
      rendering.transform(_noise(4, 4), jnp.eye(3), canvas=(0, 4))


if __name__ == "__main__":
  absltest.main()
