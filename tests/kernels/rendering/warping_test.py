"""The warp against a loop, and what a warp must do to any picture."""

import functools
import inspect

import cases
import chex
import jax
import jax.numpy as jnp
import numpy as np
import processes
import pytest
from absl.testing import absltest, parameterized
from jax.test_util import check_grads

from kernels import geometry, rendering

_SEEDS = (0, 1)
_warp = jax.jit(rendering.warp, static_argnums=2)


def _case(seed, shape=(5, 4, 2), dtype=jnp.float32):
  """A random template and a random pose that leaves some of it in view."""
  template_key, pose_key = jax.random.split(jax.random.key(seed))
  template = jax.random.uniform(template_key, shape, dtype)
  raw = jax.random.normal(pose_key, (6,), dtype) / 5
  return template, geometry.pose_matrix(raw)


def _smooth(size):
  """A picture with nothing near its border and no sharp edge."""
  x, y = np.moveaxis(np.asarray(geometry.grid(size, size)), -1, 0)
  image = np.exp(-((x - 0.2) ** 2 + 2 * (y + 0.1) ** 2) / 0.08)
  return jnp.asarray(image[..., None], jnp.float32)


def _translation(columns, rows, size):
  """The pose that moves a square image by whole pixels."""
  step = 2 / (size - 1)
  return geometry.affine_matrix(1.0, 1.0, 0.0, 0.0, columns * step, rows * step)


def _rotation(theta):
  return geometry.affine_matrix(1.0, 1.0, theta, 0.0, 0.0, 0.0)


def _warp_oracle(template, pose, canvas):
  """Float64, pixel by pixel: sum_uv T[u, v] k(x - v) k(y - u)."""
  template = np.float64(template.astype(jnp.float32))
  inverse = np.linalg.inv(np.float64(pose.astype(jnp.float32)))
  (rows, columns, channels), (height, width) = template.shape, canvas
  out = np.zeros((height, width, channels))
  for h in range(height):
    for w in range(width):
      point = [2 * w / (width - 1) - 1, 2 * h / (height - 1) - 1, 1]
      x, y, _ = inverse @ point
      x, y = (x + 1) / 2 * (columns - 1), (y + 1) / 2 * (rows - 1)
      for u in range(rows):
        for v in range(columns):
          weight = max(0, 1 - abs(x - v)) * max(0, 1 - abs(y - u))
          out[h, w] += weight * template[u, v]
  return out


def check_matches_oracle(warp, shape=(5, 4, 2), canvas=(7, 9), seed=0):
  template, pose = _case(seed, shape)
  want = _warp_oracle(template, pose, canvas)
  np.testing.assert_allclose(warp(template, pose, canvas), want, atol=1e-5)


def check_identity(warp):
  image = jax.random.uniform(jax.random.key(0), (6, 9, 3))
  np.testing.assert_array_equal(warp(image, jnp.eye(3), (6, 9)), image)


def check_pixel_translation(warp):
  """Moves right and down are array shifts that let zeros in."""
  image = jax.random.uniform(jax.random.key(0), (8, 8, 1), minval=0.5)
  for columns, rows in [(3, 0), (0, 2), (-2, 1), (8, 0)]:
    want = np.zeros(image.shape)
    for h in range(8):
      for w in range(8):
        if 0 <= h - rows < 8 and 0 <= w - columns < 8:
          want[h, w] = image[h - rows, w - columns]
    got = warp(image, _translation(columns, rows, 8), (8, 8))
    np.testing.assert_allclose(got, want, atol=1e-5)


def check_quarter_turn(warp):
  """A positive angle turns x (right) towards y (down)."""
  image = jax.random.uniform(jax.random.key(0), (6, 6, 2))
  got = warp(image, _rotation(np.pi / 2), (6, 6))
  np.testing.assert_allclose(got, np.rot90(image, k=-1), atol=1e-5)


def check_mass_moves_with_the_pose(warp):
  """The centroid of what is drawn is the pose of the centroid."""
  image, canvas = _smooth(21), (61, 41)
  pose = geometry.affine_matrix(0.5, 0.7, 0.4, 0.2, 0.2, -0.3)
  drawn = warp(image, pose, canvas)

  def centroid(picture):
    points = geometry.grid(*picture.shape[:2])
    return jnp.sum(picture * points, (0, 1)) / jnp.sum(picture)

  want = geometry.apply(pose, centroid(image))
  np.testing.assert_allclose(centroid(drawn), want, atol=2e-3)


def check_zero_outside(warp):
  """Half-size templates touch half of the canvas, and fade over one spacing."""
  pose = geometry.affine_matrix(0.5, 0.5, 0.0, 0.0, 0.0, 0.0)
  got = np.asarray(warp(jnp.ones((9, 9, 1)), pose, (33, 33)))[..., 0]
  # One spacing of the template is two pixels of the canvas here.
  profile = np.zeros(33)
  profile[8:25], profile[[7, 25]] = 1, 0.5
  np.testing.assert_allclose(got, np.outer(profile, profile), atol=1e-5)


def check_inverse_restores(warp):
  image = _smooth(41)
  pose = geometry.affine_matrix(0.9, 1.1, 0.5, 0.1, 0.1, -0.1)
  there = warp(image, pose, (41, 41))
  back = warp(there, geometry.invert(pose), (41, 41))
  np.testing.assert_allclose(back, image, atol=0.05)
  np.testing.assert_array_less(0.3, jnp.max(jnp.abs(there - image)))


def check_linear_in_the_template(warp):
  a, pose = _case(0)
  b, _ = _case(1)
  want = 2 * warp(a, pose, (7, 9)) - warp(b, pose, (7, 9))
  np.testing.assert_allclose(warp(2 * a - b, pose, (7, 9)), want, atol=1e-5)


_CHECKS = (
  check_matches_oracle,
  check_identity,
  check_pixel_translation,
  check_quarter_turn,
  check_mass_moves_with_the_pose,
  check_zero_outside,
  check_inverse_restores,
  check_linear_in_the_template,
)


def _not_inverted(template, pose, canvas):
  return _warp(template, geometry.invert(pose), canvas)


def _x_y_swapped(template, pose, canvas):
  swap = jnp.eye(3)[jnp.array([1, 0, 2])]
  return _warp(template, swap @ pose @ swap, canvas)


def _image_transposed(template, pose, canvas):
  return _warp(jnp.swapaxes(template, 0, 1), pose, canvas)


def _half_pixel_centres(template, pose, canvas):
  """The other convention: -1 and 1 are the borders of the outer pixels."""
  rows, columns, _ = template.shape
  units = geometry.pixel_units(*canvas)
  widen = np.append(np.array([columns, rows]) / 2, 1)
  inner = np.diag(geometry.pixel_units(rows, columns) / widen)
  outer = np.diag(np.append(np.array(canvas[::-1]) / 2, 1) / units)
  return _warp(template, jnp.float32(outer @ pose @ inner), canvas)


def _off_by_half_a_pixel(template, pose, canvas):
  pose = geometry.compose(pose, _translation(0.5, 0.5, template.shape[1]))
  return _warp(template, pose, canvas)


def _beyond_the_edge(mode):
  """Continues the template beyond its edge, where zeros belong."""

  def warp(template, pose, canvas):
    rows, columns, _ = template.shape
    wide = jnp.pad(template, ((rows, rows), (columns, columns), (0, 0)), mode)
    widen = geometry.pixel_units(3 * rows, 3 * columns)
    widen = widen / geometry.pixel_units(rows, columns)
    return _warp(wide, pose * jnp.float32(widen), canvas)

  return warp


_wraps, _repeats_border = _beyond_the_edge("wrap"), _beyond_the_edge("edge")


def _nearest(template, pose, canvas):
  """Renders 8 times larger, each pixel as a block, so hardly interpolates."""
  rows, columns, _ = template.shape
  blocks = template.repeat(8, 0).repeat(8, 1)
  widen = geometry.pixel_units(rows * 8, columns * 8) / [8, 8, 1]
  widen = widen / geometry.pixel_units(rows, columns)
  return _warp(blocks, pose * jnp.float32(widen), canvas)


def _clipped(template, pose, canvas):
  return jnp.clip(_warp(template, pose, canvas), 0, 1)


def _shear_dropped(template, pose, canvas):
  return _warp(template, pose.at[0, 1].set(-pose[1, 0]), canvas)


class WarpTest(chex.TestCase):
  @parameterized.parameters(*_CHECKS)
  def test_property(self, check):
    check(_warp)

  @parameterized.parameters(
    (check_matches_oracle, _not_inverted),
    (check_matches_oracle, _shear_dropped),
    (check_matches_oracle, _half_pixel_centres),
    (check_matches_oracle, _nearest),
    (check_identity, _off_by_half_a_pixel),
    (check_identity, _image_transposed),
    (check_pixel_translation, _not_inverted),
    (check_pixel_translation, _x_y_swapped),
    (check_pixel_translation, _half_pixel_centres),
    (check_pixel_translation, _wraps),
    (check_quarter_turn, _not_inverted),
    (check_quarter_turn, _image_transposed),
    (check_mass_moves_with_the_pose, _not_inverted),
    (check_mass_moves_with_the_pose, _x_y_swapped),
    (check_mass_moves_with_the_pose, _off_by_half_a_pixel),
    (check_zero_outside, _wraps),
    (check_zero_outside, _repeats_border),
    (check_zero_outside, _half_pixel_centres),
    (check_inverse_restores, _off_by_half_a_pixel),
    (check_inverse_restores, _shear_dropped),
    (check_linear_in_the_template, _clipped),
  )
  @pytest.mark.long_after_first
  def test_broken_copy_fails(self, check, broken):
    with self.assertRaises(AssertionError):
      check(broken)

  @parameterized.product(
    shape=[(5, 4, 2), (3, 3, 1), (2, 6, 1)],
    canvas=[(7, 9), (4, 3)],
    seed=_SEEDS,
  )
  def test_shapes_match_oracle(self, shape, canvas, seed):
    check_matches_oracle(_warp, shape, canvas, seed)

  @chex.variants(with_jit=True, without_jit=True)
  @pytest.mark.long_after_first
  def test_vmap_is_a_loop(self):
    warp = self.variant(rendering.warp, static_argnums=2)
    templates, poses = jax.tree.map(
      lambda *leaves: jnp.stack(leaves), *(_case(seed) for seed in range(3))
    )
    # The canvas is closed over: vmap would take it for an array.
    got = jax.vmap(lambda template, pose: warp(template, pose, (6, 5)))(
      templates, poses
    )
    want = [warp(t, p, (6, 5)) for t, p in zip(templates, poses, strict=True)]
    chex.assert_trees_all_close(got, jnp.stack(want), atol=1e-6)

  @parameterized.product(seed=_SEEDS, gradient=["scatter", "products"])
  def test_gradients(self, seed, gradient):
    with jax.enable_x64(True):
      template, pose = _case(seed, dtype=jnp.float64)
      draw = functools.partial(
        rendering.warp, canvas=(6, 7), template_gradient=gradient
      )
      check_grads(jax.jit(draw), (template, pose), order=1)

  @parameterized.parameters("tx", "ty")
  def test_gradients_at_borders_are_those_of_one_side(self, name):
    """A whole shift, after which samples lie where the border begins."""
    with jax.enable_x64(True):
      template = jnp.ones((5, 5, 1), jnp.float64)
      pixel = 2 / (5 - 1)  # in the frame

      def draw(move):
        numbers = dict(tx=0.0, ty=0.0) | {name: pixel + move}
        pose = geometry.affine_matrix(1, 1, 0, 0, numbers["tx"], numbers["ty"])
        return rendering.warp(template, pose, (5, 5))

      slope, step = jax.jacfwd(draw)(0.0), 1e-6
      sides = [(draw(s * step) - draw(0.0)) / (s * step) for s in (1, -1)]
      is_one = np.minimum(*(np.abs(slope - side) for side in sides))
      np.testing.assert_allclose(is_one, 0, atol=1e-6)
      self.assertGreater(np.max(np.abs(sides[0] - sides[1])), 1)  # a kink

  @parameterized.parameters((1, (5, 4)), (2, (3, 6)), (3, (1, 1)))
  def test_both_sums_of_gradients_agree(self, channels, size):
    """Also where samples are on pixel centres, and of second order."""
    template, pose = _case(0, (*size, channels))

    def slope(gradient, template, pose):
      def energy(template, pose):
        drawn = rendering.warp(
          template, pose, (6, 7), template_gradient=gradient
        )
        return jnp.sum(drawn**3)

      return jax.grad(energy, (0, 1))(template, pose)

    def second(gradient, template, pose):
      return jax.jacfwd(lambda pose: slope(gradient, template, pose)[0])(pose)

    for at in (pose, jnp.eye(3), geometry.affine_matrix(1, 1, 0, 0, 0.5, 0.25)):
      for function in (slope, second):
        scattered, multiplied = (
          jax.jit(function, static_argnums=0)(gradient, template, at)
          for gradient in ("scatter", "products")
        )
        chex.assert_trees_all_close(multiplied, scattered, atol=1e-4, rtol=1e-5)

  def test_products_are_not_rounded(self):
    def gradient(template, pose):
      def energy(template):
        drawn = rendering.warp(
          template, pose, (6, 7), template_gradient="products"
        )
        return jnp.sum(drawn**2)

      return jax.grad(energy)(template)

    found = list(cases.precisions(jax.make_jaxpr(gradient)(*_case(0))))
    assert len(found) == 2  # of places, and of the gradient
    cases.assert_products_are_not_rounded(gradient, *_case(0))

  def test_products_have_no_scatter(self):
    def count(gradient):
      def energy(template, pose):
        return jnp.sum(
          rendering.warp(template, pose, (6, 7), template_gradient=gradient)
        )

      lowered = jax.jit(jax.grad(energy, (0, 1))).lower(*_case(0))
      return lowered.as_text().count('"stablehlo.scatter"(')

    assert count("scatter") == 1
    assert count("products") == 0

  @parameterized.parameters(1, 2)
  def test_values_with_and_without_a_gradient_agree(self, channels):
    template, pose = _case(0)
    template = template[..., :1] * jnp.arange(1.0, channels + 1)

    def draw(template, pose):
      return _warp(template, pose, (6, 7))

    alone = draw(template, pose)
    chex.assert_trees_all_close(
      jax.vjp(draw, template, pose)[0], alone, atol=1e-6
    )
    assert np.max(np.abs(alone)) > 0.1

  @parameterized.named_parameters(
    ("on_grid_points", jnp.eye(3)),
    ("zero_scale", jnp.diag(jnp.array([0.0, 0.0, 1.0]))),
    ("a_line", jnp.ones((3, 3))),
    ("all_zero", jnp.zeros((3, 3))),
    ("tiny", jnp.diag(jnp.array([1e-4, -1e-4, 1.0]))),
    ("huge", jnp.diag(jnp.array([1e6, 1e6, 1.0]))),
    ("far_away", jnp.eye(3).at[:2, 2].set(1e6)),
    ("touching", jnp.eye(3).at[0, 2].set(2.0)),
  )
  def test_degenerate_pose_is_finite(self, pose):
    def energy(template, pose):
      return jnp.sum(_warp(template, pose, (5, 5)) ** 2)

    template, _ = _case(0, (5, 5, 1))
    chex.assert_tree_all_finite(
      jax.value_and_grad(energy, (0, 1))(template, pose)
    )

  def test_one_pixel_template_is_a_tent(self):
    got = _warp(jnp.ones((1, 1, 1)), jnp.eye(3), (5, 5))[..., 0]
    tent = np.array([0, 0.5, 1, 0.5, 0])
    np.testing.assert_allclose(got, np.outer(tent, tent), atol=1e-6)
    middle = _warp(_case(0, (3, 3, 2))[0], jnp.eye(3), (1, 1))
    chex.assert_trees_all_close(middle[0, 0], _case(0, (3, 3, 2))[0][1, 1])

  @parameterized.product(dtype=[jnp.float32, jnp.bfloat16], seed=_SEEDS)
  @pytest.mark.long
  def test_low_precision_rounds_only_inputs_and_output(self, dtype, seed):
    template, pose = _case(seed, (16, 16, 1))
    template, pose = template.astype(dtype), pose.astype(dtype)
    got = _warp(template, pose, (50, 50))
    chex.assert_type(got, dtype)
    want = _warp_oracle(template, pose, (50, 50))
    tolerance = dict(atol=1e-5, rtol=float(jnp.finfo(dtype).eps))
    np.testing.assert_allclose(got.astype(jnp.float32), want, **tolerance)

  def test_templates_of_many_pixels_are_exact(self):
    """Float32 has no odd numbers above 2^24, which is 4096 x 4096."""
    template = jnp.zeros((4098, 4097, 1)).at[-1, -1].set(1).at[0, -1].set(2)
    corners = _warp(template, jnp.eye(3), (2, 2))[..., 0]
    np.testing.assert_allclose(corners, [[0, 2], [0, 1]], atol=1e-3)

  def test_a_pose_in_pixels_is_not_rounded(self):
    """Three pixels are exact in bfloat16, their share of a canvas is not."""
    image = jax.random.uniform(jax.random.key(0), (28, 28, 1))
    pose = geometry.affine_matrix(1, 1, 0, 0, 3, 0)
    moved, rounded = (
      rendering.transform(image, pose.astype(dtype), canvas=(50, 70))
      for dtype in (jnp.float32, jnp.bfloat16)
    )
    np.testing.assert_array_equal(moved, rounded)

  def test_low_precision_template_gradient_adds_up(self):
    def total(template):
      drawn = _warp(template, jnp.eye(3), (400, 400))
      return jnp.sum(drawn.astype(jnp.float32))

    # Each of the 2 x 2 pixels collects a quarter of 160,000: far more terms
    # than bfloat16 can add one by one.
    gradient = jax.grad(total)(jnp.ones((2, 2, 1), jnp.bfloat16))
    np.testing.assert_allclose(gradient.astype(jnp.float32), 40_000, rtol=0.01)

  def test_whole_shifts_are_exact_as_evaluations_compile_them(self):
    """Corners and weights that are rounded apart are those of other pixels."""
    optimised = (
      "--xla_backend_optimization_level=3 "
      "--xla_llvm_disable_expensive_passes=false"
    )
    code, printed = processes.Running(
      "shifting", package="", xla_flags=optimised
    ).wait()
    assert code == 0 and "shifted" in printed, printed

  def test_bad_arguments_are_refused(self):
    template, pose = _case(0)
    with self.assertRaisesRegex(
      ValueError, "number of canvas is 0; give at least 1"
    ):
      rendering.warp(template, pose, (0, 5))
    warp = inspect.unwrap(rendering.warp)
    with self.assertRaisesRegex(
      ValueError, "template_gradient='gather'; pass 'scatt"
    ):
      warp(template, pose, (5, 5), template_gradient="gather")
    with self.assertRaisesRegex(ValueError, "give "):
      warp(template[..., 0], pose, (5, 5))
    with self.assertRaisesRegex(ValueError, "give "):
      warp(template, pose[None], (5, 5))


if __name__ == "__main__":
  absltest.main()
