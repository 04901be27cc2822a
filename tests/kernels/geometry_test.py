"""Poses against loops written from the equations, and their group laws."""

import inspect

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized
from jax.test_util import check_grads

from kernels import geometry

_SEEDS = (0, 1)


def _raw(seed, *batch):
  return jax.random.normal(jax.random.key(seed), (*batch, 6))


def _poses(seed, *batch, kind="affine"):
  return geometry.pose_matrix(_raw(seed, *batch), kind)


def _points(seed, count=5):
  return jax.random.uniform(jax.random.key(seed + 100), (count, 2), minval=-1.0)


def _pose_oracle(raw, kind):
  """One pose in float64, from the published parameterisation."""
  sx, sy, theta, shear, tx, ty = (float(value) for value in raw)
  sx, sy = (1 / (1 + np.exp(-value)) + 0.01 for value in (sx, sy))
  cos, sin = np.cos(2 * np.pi * theta), np.sin(2 * np.pi * theta)
  shear, tx, ty = (np.tanh(5 * value) for value in (shear, tx, ty))
  if kind == "similarity":
    return np.array([[sx * cos, -sx * sin, tx], [sx * sin, sx * cos, ty],
                     [0, 0, 1]])  # fmt: skip
  return np.array([
    [sx * cos + shear * sy * sin, -sx * sin + shear * sy * cos, tx],
    [sy * sin, sy * cos, ty],
    [0, 0, 1],
  ])  # fmt: skip


def check_matches_oracle(pose_matrix, kind="affine", seed=0):
  raw = _raw(seed, 2, 3)
  got = pose_matrix(raw, kind)
  want = [[_pose_oracle(row, kind) for row in rows] for rows in np.array(raw)]
  np.testing.assert_allclose(got, np.array(want), atol=1e-5)


def check_similarity_keeps_angles(pose_matrix, seed=0):
  """Right angles stay right, and both axes grow alike."""
  linear = pose_matrix(_raw(seed, 8), "similarity")[:, :2, :2]
  gram = jnp.einsum("bpq,bpr->bqr", linear, linear)
  np.testing.assert_allclose(gram[:, 0, 1], 0, atol=1e-5)
  np.testing.assert_allclose(gram[:, 0, 0], gram[:, 1, 1], rtol=1e-5)
  np.testing.assert_array_less(0, jnp.linalg.det(linear))


def check_inverse_undoes(invert, seed=0):
  poses = _poses(seed, 7)
  identity = jnp.broadcast_to(jnp.eye(3), poses.shape)
  # 1e-4: a scale of 0.01 would cost two digits.
  chex.assert_trees_all_close(
    geometry.compose(poses, invert(poses)), identity, atol=1e-4
  )
  chex.assert_trees_all_close(
    geometry.compose(invert(poses), poses), identity, atol=1e-4
  )


def check_composition_is_application(compose, seed=0):
  a, b = _poses(seed, 2)
  points = _points(seed)
  chex.assert_trees_all_close(
    geometry.apply(compose(a, b), points),
    geometry.apply(a, geometry.apply(b, points)),
    atol=1e-5,
  )


def check_apply_is_homogeneous_product(apply, seed=0):
  pose, points = _poses(seed), _points(seed)
  want = [(np.float64(pose) @ [x, y, 1.0])[:2] for x, y in np.float64(points)]
  np.testing.assert_allclose(apply(pose, points), np.array(want), atol=1e-5)


def check_grid_has_corners_at_one(grid):
  got = grid(3, 5)
  want = [[(-1 + x / 2, -1 + y) for x in range(5)] for y in range(3)]
  np.testing.assert_array_equal(got, np.array(want))


def _rotation_reversed(params, kind):
  return geometry.pose_matrix(params * jnp.array([1, 1, -1, 1, 1, 1]), kind)


def _axes_swapped(params, kind):
  return geometry.pose_matrix(params[..., jnp.array([1, 0, 2, 3, 5, 4])], kind)


def _always_affine(params, kind):
  del kind
  return geometry.pose_matrix(params, "affine")


def _inverse_without_translation(pose):
  return geometry.invert(pose).at[..., :2, 2].set(-pose[..., :2, 2])


def _half_pixel_grid(height, width):
  shrink = jnp.array([(width - 1) / width, (height - 1) / height])
  return geometry.grid(height, width) * shrink


class GeometryTest(chex.TestCase):
  @parameterized.product(kind=["affine", "similarity"], seed=_SEEDS)
  def test_pose_matrix_matches_oracle(self, kind, seed):
    check_matches_oracle(geometry.pose_matrix, kind, seed)

  @parameterized.product(
    case=[
      (check_similarity_keeps_angles, geometry.pose_matrix),
      (check_inverse_undoes, geometry.invert),
      (check_composition_is_application, geometry.compose),
      (check_apply_is_homogeneous_product, geometry.apply),
    ],
    seed=_SEEDS,
  )
  def test_property(self, case, seed):
    check, function = case
    check(function, seed=seed)

  @parameterized.named_parameters(
    ("reversed", check_matches_oracle, _rotation_reversed),
    ("axes_swapped", check_matches_oracle, _axes_swapped),
    ("affine", check_similarity_keeps_angles, _always_affine),
    ("half_inverse", check_inverse_undoes, _inverse_without_translation),
    ("transpose", check_inverse_undoes, lambda a: jnp.swapaxes(a, -1, -2)),
    (
      "order",
      check_composition_is_application,
      lambda a, b: geometry.compose(b, a),
    ),
    (
      "row_vectors",
      check_apply_is_homogeneous_product,
      lambda a, p: geometry.apply(a.T, p),
    ),
    (
      "y_x_points",
      check_apply_is_homogeneous_product,
      lambda a, p: geometry.apply(a, p[..., ::-1])[..., ::-1],
    ),
    ("half_pixel", check_grid_has_corners_at_one, _half_pixel_grid),
    (
      "y_x_grid",
      check_grid_has_corners_at_one,
      lambda h, w: geometry.grid(h, w)[..., ::-1],
    ),
  )
  def test_broken_copy_fails(self, check, broken):
    with self.assertRaises(AssertionError):
      check(broken)

  def test_grid(self):
    check_grid_has_corners_at_one(geometry.grid)

  def test_axis_of_one_pixel_is_in_the_middle(self):
    np.testing.assert_array_equal(geometry.grid(1, 1), np.zeros((1, 1, 2)))
    np.testing.assert_array_equal(geometry.grid(1, 2)[0, :, 0], [-1, 1])

  def test_affine_matrix_is_shear_scale_rotation(self):
    cos, sin = np.cos(0.7), np.sin(0.7)
    want = (
      np.array([[1, 0.3, 0.5], [0, 1, -0.2], [0, 0, 1]])
      @ np.diag([2.0, 0.5, 1.0])
      @ np.array([[cos, -sin, 0], [sin, cos, 0], [0, 0, 1]])
    )
    got = geometry.affine_matrix(2.0, 0.5, 0.7, 0.3, 0.5, -0.2)
    np.testing.assert_allclose(got, want, atol=1e-6)

  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.parameters("affine", "similarity")
  @pytest.mark.long_after_first
  def test_batch_is_a_loop(self, kind):
    raw = _raw(0, 2)
    pose_matrix = self.variant(lambda row: geometry.pose_matrix(row, kind))
    loop = jnp.stack([pose_matrix(row) for row in raw])
    chex.assert_trees_all_close(pose_matrix(raw), loop, atol=1e-6)
    chex.assert_trees_all_close(jax.vmap(pose_matrix)(raw), loop, atol=1e-6)
    invert = self.variant(geometry.invert)
    want = jnp.stack([invert(pose) for pose in loop])
    chex.assert_trees_all_close(invert(loop), want, rtol=1e-5)

  @parameterized.parameters("affine", "similarity")
  def test_gradients(self, kind):
    with jax.enable_x64(True):
      raw = jnp.asarray(_raw(0, 2), jnp.float64) / 4
      points = jnp.asarray(_points(0), jnp.float64)

      @jax.jit
      def moved(raw, points):
        a, b = geometry.pose_matrix(raw, kind)
        return geometry.apply(geometry.compose(a, geometry.invert(b)), points)

      check_grads(moved, (raw, points), order=1)

  @parameterized.product(value=[0.0, 1e4, -1e4], kind=["affine", "similarity"])
  @pytest.mark.long_after_first
  def test_extreme_parameters_are_finite(self, value, kind):
    @jax.jit
    def inverse(raw):
      return geometry.invert(geometry.pose_matrix(raw, kind))

    raw = jnp.full(6, value)
    chex.assert_tree_all_finite(inverse(raw))
    chex.assert_tree_all_finite(jax.jacrev(inverse)(raw))
    chex.assert_tree_all_finite(jax.jacfwd(inverse)(raw))

  @parameterized.parameters(0.0, 1e-4, -1e-4, 1e-12)
  def test_inverse_of_a_singular_pose_is_finite(self, scale):
    pose = jnp.diag(jnp.array([scale, abs(scale), 1.0])).at[:2, 2].set(0.3)
    chex.assert_tree_all_finite(geometry.invert(pose))
    chex.assert_tree_all_finite(jax.jacrev(geometry.invert)(pose))

  @parameterized.parameters(jnp.float32, jnp.bfloat16)
  def test_low_precision_rounds_only_inputs_and_outputs(self, dtype):
    raw = _raw(0, 16).astype(dtype)
    pose = geometry.pose_matrix(raw)
    want = np.array([_pose_oracle(row, "affine") for row in np.array(raw)])
    tolerance = dict(atol=0, rtol=1.01 * float(jnp.finfo(dtype).eps))
    if dtype == jnp.float32:
      tolerance = dict(atol=1e-5)
    np.testing.assert_allclose(pose.astype(jnp.float32), want, **tolerance)
    inverse = geometry.invert(pose)
    chex.assert_type([pose, inverse, geometry.compose(pose, pose)], dtype)
    chex.assert_type(geometry.apply(pose[0], pose[0, :, :2]), dtype)
    want = np.linalg.inv(np.float64(pose.astype(jnp.float32)))
    tolerance = dict(atol=1e-5, rtol=max(1e-4, tolerance.get("rtol", 0)))
    np.testing.assert_allclose(inverse.astype(jnp.float32), want, **tolerance)

  def test_unknown_kind_is_refused(self):
    with self.assertRaisesRegex(ValueError, "'rigid'.*affine"):
      inspect.unwrap(geometry.pose_matrix)(jnp.zeros(6), "rigid")

  def test_a_stack_of_poses_is_refused(self):
    with self.assertRaisesRegex(ValueError, r"pose is \[2 3 3\]; give \[3 3\]"):
      inspect.unwrap(geometry.apply)(jnp.zeros((2, 3, 3)), jnp.zeros((2, 2)))


if __name__ == "__main__":
  absltest.main()
