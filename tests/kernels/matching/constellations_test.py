"""Variational inference of known templates against loops over points."""

import functools
import inspect
import unittest.mock

import cases
import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import widths
from absl.testing import absltest, parameterized

from capjax.data.sources import constellations
from kernels.matching import constellations as gcm
from kernels.matching import similarities

_TEMPLATES = similarities.templates(constellations.PATTERNS)
_MATCHINGS = ("permutation", "mixture")


def _image(seed=0, noise=0.0):
  """Points of two objects; those of the third are absent."""
  for number in range(100 * seed, 100 * seed + 100):
    drawn = constellations.sample(jax.random.key(number), noise=noise)
    if 7 <= drawn.presence.sum() <= 8:
      return drawn
  raise AssertionError


def _start(seed=0, rows=11):
  random = np.random.default_rng(seed)
  shares = random.uniform(0.05, 1, (rows, 11))
  return jnp.float32(np.log(shares / shares.sum(1, keepdims=True)))


def _maps(point):
  """F of a template point."""
  x, y = np.float64(point)
  return np.array([[1, 0, x, y], [0, 1, y, -x]])


def _update_oracle(log_r, drawn, precision, matching, num_sweeps):
  """Spec of the updates, with 4x4 matrices, a point at a time."""
  x, there = np.float64(drawn.points), np.asarray(drawn.presence) > 0
  points = np.float64(_TEMPLATES.points)
  owner = np.argmax(_TEMPLATES.members, axis=0)
  r = np.exp(np.float64(log_r))
  size, num_templates = len(points), len(_TEMPLATES.members)
  poses, covariances = [], []
  for k in range(num_templates):
    inverse, total = np.eye(4), np.zeros(4)
    for n in np.flatnonzero(owner == k):
      for m in np.flatnonzero(there):
        f = _maps(points[n])
        inverse += precision * r[m, n] * f.T @ f
        total += precision * r[m, n] * f.T @ x[m]
    covariances.append(np.linalg.inv(inverse))
    poses.append(covariances[-1] @ total)
  log_rho = np.full(log_r.shape, -np.log(size))
  for m in np.flatnonzero(there):
    for n in range(size):
      f, k = _maps(points[n]), owner[n]
      square = np.sum((x[m] - f @ poses[k]) ** 2)
      trace = np.trace(f.T @ f @ covariances[k])
      log_rho[m, n] -= precision / 2 * (square + trace)
  weights = np.exp(log_rho - log_rho.max())
  for _ in range(num_sweeps if matching == "permutation" else 0):
    weights /= weights.sum(0, keepdims=True)
    weights /= weights.sum(1, keepdims=True)
  weights /= weights.sum(1, keepdims=True)
  if matching == "mixture":
    weights[~there] = 0
  elbo = 0.0
  for k in range(num_templates):
    trace, det = np.trace(covariances[k]), np.linalg.det(covariances[k])
    elbo -= 0.5 * (trace + poses[k] @ poses[k] - 4 - np.log(det))
  for m, n in np.ndindex(*weights.shape):
    if weights[m, n]:
      elbo += weights[m, n] * (log_rho[m, n] - np.log(weights[m, n]))
  elbo += there.sum() * np.log(precision / (2 * np.pi))
  return weights, np.array(poses), elbo


def _broken(fault, log_r, points, presence, template, precision, **options):
  """The update with an error in it."""
  if fault == "absent_points_count":
    presence = jnp.ones_like(presence)
  elif fault == "mirrored":
    template = template._replace(points=template.points * jnp.array([1, -1.0]))
  elif fault == "no_sweep":
    options["num_sweeps"] = 0
  elif fault == "templates_mixed":
    template = template._replace(members=template.members[::-1])
  out = gcm.update(log_r, points, presence, template, precision, **options)
  if fault == "poses_of_points":
    out = out._replace(poses=out.poses[:, ::-1])
  elif fault == "falling":
    out = out._replace(log_assignments=out.log_assignments[::-1])
  return out


def check_update_matches_oracle(update, seed=0):
  drawn = _image(seed, noise=0.1)
  for matching in _MATCHINGS:
    for precision in (3.0, 300.0):
      # Weights of 0 in the oracle's plain numbers, not logarithms.
      options = dict(matching=matching, num_sweeps=3)
      args = drawn.points, drawn.presence, _TEMPLATES, jnp.float32(precision)
      got = update(_start(seed), *args, **options)
      want = _update_oracle(_start(seed), drawn, precision, **options)
      weights = jnp.exp(got.log_assignments)
      np.testing.assert_allclose(weights, want[0], atol=2e-4)
      np.testing.assert_allclose(got.poses, want[1], atol=1e-4)
      np.testing.assert_allclose(got.elbo, want[2], rtol=1e-4, atol=2e-3)


def check_bound_rises(update, seed=0):
  """At one precision, under either constraint."""
  drawn = _image(seed, noise=0.1)
  for matching in _MATCHINGS:
    step = jax.jit(functools.partial(update, matching=matching, num_sweeps=200))
    log_r, bounds = _start(seed), []
    for _ in range(25):
      out = step(
        log_r, drawn.points, drawn.presence, _TEMPLATES, jnp.float32(100.0)
      )
      log_r = out.log_assignments
      bounds.append(float(out.elbo))
    np.testing.assert_array_less(-2e-3, np.diff(bounds))
    assert bounds[-1] - bounds[0] > 1


@functools.cache
def _infer(**options):
  return jax.jit(functools.partial(gcm.infer, template=_TEMPLATES, **options))


def _watched_update():
  """A list for the precisions of updates, and an update that fills it."""
  seen = []
  update = gcm.update

  def watched(*arguments, precision, **options):
    jax.debug.callback(lambda x: seen.append(float(x)), precision)
    return update(*arguments, precision=precision, **options)

  return seen, watched


class UpdateTest(chex.TestCase):
  @parameterized.parameters(0, 1)
  def test_matches_oracle(self, seed):
    check_update_matches_oracle(gcm.update, seed)

  @parameterized.parameters(0, 1)
  def test_bound_rises(self, seed):
    check_bound_rises(gcm.update, seed)

  @parameterized.parameters(
    (check_update_matches_oracle, "absent_points_count"),
    (check_update_matches_oracle, "mirrored"),
    (check_update_matches_oracle, "no_sweep"),
    (check_update_matches_oracle, "templates_mixed"),
    (check_update_matches_oracle, "poses_of_points"),
    (check_bound_rises, "falling"),
  )
  @pytest.mark.long_after_first
  def test_broken_copy_fails(self, check, fault):
    with self.assertRaises(AssertionError):
      check(functools.partial(_broken, fault))

  @parameterized.parameters(
    ("mixtures", 11, "matching='mixtures'; pass"),
    ("permutation", 10, "10 rows; give 11 with matching='permutation'"),
    ("mixture", 10, "10 rows; give 11 with matching='mixture'"),
  )
  def test_bad_options_are_refused(self, matching, rows, message):
    drawn = _image()
    with self.assertRaisesRegex(ValueError, message):
      inspect.unwrap(gcm.update)(
        _start(rows=rows), drawn.points, drawn.presence, _TEMPLATES,
        jnp.float32(1.0), matching=matching,
      )  # fmt: skip

  def test_sinkhorn_balances_rows_and_columns(self):
    weights = jnp.exp(gcm.sinkhorn(3 * _start(), num_sweeps=50))
    np.testing.assert_allclose(weights.sum(0), 1, atol=1e-4)
    np.testing.assert_allclose(weights.sum(1), 1, atol=1e-5)
    same = gcm.sinkhorn(_start(), num_sweeps=0)
    np.testing.assert_array_equal(same, _start())


class InferTest(chex.TestCase):
  @parameterized.parameters(0, 1)
  @widths.samples_of_float32
  def test_finds_objects_and_their_poses(self, seed):
    drawn = _image(seed)
    found = _infer(num_restarts=20)(
      jax.random.key(seed), drawn.points, drawn.presence
    )
    there = np.asarray(drawn.presence) > 0
    objects = np.argmax(found.objects, axis=1)[there]
    # Two equal objects may be exchanged.
    together = objects[:, None] == objects
    truth = np.asarray(drawn.objects)[there]
    np.testing.assert_array_equal(together, truth[:, None] == truth)
    for m in np.flatnonzero(there):
      n = int(np.argmax(found.assignments[m]))
      k = int(np.argmax(_TEMPLATES.members[:, n]))
      place = _maps(_TEMPLATES.points[n]) @ found.poses[k]
      np.testing.assert_allclose(place, drawn.points[m], atol=0.01)

  def test_a_point_is_there_or_not(self):
    drawn, key = _image(), jax.random.key(0)
    want = _infer()(key, drawn.points, drawn.presence)
    for share in (0.5, 1e-3):
      got = _infer()(key, drawn.points, share * drawn.presence)
      chex.assert_trees_all_equal(got, want)

  def test_absent_points_may_be_anything(self):
    points = jnp.linspace(-1, 1, 10).reshape(5, 2)
    presence = jnp.array([1, 1, 1, 1, 0.0])

    def search(points):
      return gcm.infer(
        jax.random.key(0),
        points,
        presence,
        _TEMPLATES,
        num_restarts=1,
        max_updates=3,
      )

    want, got = (search(points.at[4].set(x)) for x in (0.5, jnp.nan))
    chex.assert_trees_all_equal(got, want)
    with self.assertRaisesRegex(ValueError, "points has NaN or infinite"):
      search(points.at[0].set(jnp.inf))

  def test_permutations_use_each_template_point_once(self):
    drawn = _image()
    found = _infer()(jax.random.key(0), drawn.points, drawn.presence)
    np.testing.assert_allclose(found.assignments.sum(1), drawn.presence, 1e-4)
    self.assertLess(found.assignments.sum(0).max(), 1.1)

  def test_bound_is_that_of_the_answer(self):
    """An update from the answer changes neither."""
    drawn = _image()
    found = _infer(num_restarts=20)(
      jax.random.key(0), drawn.points, drawn.presence
    )
    there = drawn.presence[:, None] > 0
    log_r = jnp.log(jnp.where(there, found.assignments, 1 / 11) + 1e-30)
    again = gcm.update(
      log_r, drawn.points, drawn.presence, _TEMPLATES, jnp.float32(1e4),
      num_sweeps=2,
    )  # fmt: skip
    np.testing.assert_allclose(again.poses, found.poses, atol=1e-3)
    np.testing.assert_allclose(again.elbo, found.elbo, atol=0.1)

  @pytest.mark.long
  def test_more_restarts_do_not_lower_the_bound(self):
    drawn, keys = _image(1), jax.random.split(jax.random.key(3), 4)
    one, many = (
      [_infer(**n)(key, drawn.points, drawn.presence).elbo for key in keys]
      for n in ({"num_restarts": 2, "max_updates": 60}, {"num_restarts": 20})
    )
    self.assertGreater(np.mean(many), np.mean(one))

  @parameterized.product(
    matching=_MATCHINGS, kind=("empty", "one", "same", "far")
  )
  def test_is_finite(self, matching, kind):
    points, presence = np.zeros((11, 2), np.float32), np.zeros(11, np.float32)
    if kind == "one":
      presence[3] = 1
    elif kind == "same":
      presence[:] = 1
    elif kind == "far":
      presence[:] = 1
      points[:] = 100 * np.random.default_rng(0).normal(size=points.shape)
    infer = _infer(matching=matching, num_restarts=2, max_updates=60)
    found = infer(jax.random.key(0), points, presence)
    chex.assert_tree_all_finite(found)
    np.testing.assert_allclose(found.assignments.sum(1), presence, atol=1e-4)
    np.testing.assert_allclose(found.objects.sum(1), presence, atol=1e-4)

  @pytest.mark.long
  @parameterized.parameters(*_MATCHINGS)
  def test_without_points_nothing_is_assigned(self, matching):
    found = gcm.infer(
      jax.random.key(0), jnp.zeros((0, 2)), jnp.zeros(0), _TEMPLATES,
      matching=matching,
    )  # fmt: skip
    self.assertEqual(found.objects.shape, (0, 3))
    self.assertTrue(np.isfinite(found.elbo))
    self.assertTrue(np.isfinite(found.poses).all())

  def test_the_precision_is_doubled_up_to_the_last(self):
    seen, watched = _watched_update()
    drawn = _image()
    with unittest.mock.patch.object(gcm, "update", watched):
      found = gcm.infer(
        jax.random.key(0), drawn.points, drawn.presence, _TEMPLATES,
        matching="mixture", first_precision=500.0, last_precision=3000.0,
        num_restarts=1,
      )  # fmt: skip
    jax.effects_barrier()
    self.assertEqual(list(dict.fromkeys(seen)), [500, 1000, 2000, 3000])
    self.assertLen(seen, int(found.num_updates) + 1)  # and one at the end

  def test_the_best_restart_is_returned(self):
    """The first restarts of a key are the same however many there are."""
    drawn = _image(noise=0.05)
    once, often = (_infer(num_restarts=n) for n in (1, 4))
    differ = 0
    for seed in range(6):
      image = jax.random.key(seed), drawn.points, drawn.presence
      one, best = once(*image), often(*image)
      self.assertGreaterEqual(best.elbo, one.elbo - 1e-3)
      if best.elbo < one.elbo + 0.1:
        self.assertEqual(best.num_updates, one.num_updates)
      differ += int(best.num_updates != one.num_updates)
    self.assertGreater(differ, 0)

  def test_two_certain_points_of_an_object_are_enough(self):
    """Their shares may add up to a little less than 2."""
    members = jnp.array([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]])
    shares = jnp.array(
      [[0.99, 0, 0.01, 0], [0, 0.99, 0, 0.01], [0, 0, 0.99, 0.01]]
    )
    self.assertFalse(gcm._lonely(shares[:2], members))
    self.assertTrue(gcm._lonely(shares, members))

  def test_no_search_exceeds_the_last_precision(self):
    """Not where it starts again, as here whenever it settles."""
    seen, watched = _watched_update()
    drawn = _image(noise=0.1)
    always = {"update": watched, "_lonely": lambda *_: jnp.array(True)}
    with unittest.mock.patch.multiple(gcm, **always):
      gcm.infer(
        jax.random.key(0), drawn.points, drawn.presence, _TEMPLATES,
        first_precision=500.0, last_precision=100.0, num_restarts=1,
        max_updates=300,
      )  # fmt: skip
    jax.effects_barrier()
    self.assertGreater(len(seen), 200)
    self.assertEqual(set(seen), {100.0})

  def test_batch_is_a_loop(self):
    keys = jax.random.split(jax.random.key(0), 3)
    drawn = jax.jit(jax.vmap(constellations.sample))(keys)
    infer = _infer(num_restarts=2, max_updates=6, last_precision=1e3)
    # Here the precision is traced.
    traced = _infer(num_restarts=2, max_updates=6)
    got = jax.vmap(lambda *image: traced(*image, last_precision=1e3))(
      keys, drawn.points, drawn.presence
    )
    for n, key in enumerate(keys):
      want = infer(key, drawn.points[n], drawn.presence[n])
      chex.assert_trees_all_close(
        jax.tree.map(lambda x, n=n: x[n], got), want, atol=2e-3, rtol=1e-3
      )

  @parameterized.parameters(
    ({"num_restarts": 0}, "give at least 1"),
    ({"max_updates": 0}, "max_updates is 0; give at least 1"),
    ({"num_sweeps": 0}, "num_sweeps is 0; give at least 1"),
    ({"tolerance": 0.0}, "tolerance is 0.0; give a finite number above 0"),
  )
  def test_bad_options_are_refused(self, options, message):
    drawn = _image()
    with self.assertRaisesRegex(ValueError, message):
      gcm.infer(
        jax.random.key(0), drawn.points, drawn.presence, _TEMPLATES, **options
      )

  def test_an_unknown_matching_is_refused(self):
    drawn = _image()
    with self.assertRaisesRegex(ValueError, "matching='mixtures'; pass"):
      inspect.unwrap(gcm.infer)(
        jax.random.key(0), drawn.points, drawn.presence, _TEMPLATES,
        matching="mixtures",
      )  # fmt: skip

  def test_products_are_not_rounded(self):
    drawn = _image()
    cases.assert_products_are_not_rounded(
      functools.partial(gcm.infer, template=_TEMPLATES),
      jax.random.key(0), drawn.points, drawn.presence,
    )  # fmt: skip
    cases.assert_products_are_not_rounded(
      gcm.update, _start(), drawn.points, drawn.presence, _TEMPLATES,
      jnp.float32(1.0),
    )  # fmt: skip

  def test_too_many_points_for_a_permutation_are_refused(self):
    points, presence = jnp.zeros((12, 2)), jnp.ones(12)
    with self.assertRaisesRegex(ValueError, "pass matching='mixture'"):
      gcm.infer(jax.random.key(0), points, presence, _TEMPLATES)


if __name__ == "__main__":
  absltest.main()
