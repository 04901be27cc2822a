"""Rays and solids: closed forms, marching along rays in float64, symmetries."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from capjax.data.viewpoint_solids import parts, raytracing, solids

_ELEVATION = math.radians(40)
# Compiled once for each shape; without it, anew with every call.
_trace = jax.jit(raytracing.trace)


@jax.jit
def _render(figure):
  lights, elevations = solids.lights(), np.float32([_ELEVATION, 1.0])
  return raytracing.render(figure, lights, elevations, size=20)


def _unplaced(*chosen):
  """A figure of parts left where they are."""
  kinds = []
  for kind in parts._SLOTS:
    count = sum(part.kind == kind for part in chosen)
    every = parts._solids(chosen, kind)
    kinds.append(raytracing.Solids(*(column[:count] for column in every)))
  return raytracing.Figure(*kinds, np.float32(0.8), np.float32(0.5))


def _scene():
  return (
    parts.ellipsoid((0.3, -0.2, 0.5), (0.5, 0.3, 0.2)),
    parts.rod((-0.8, 0.1, 0.1), (-0.3, 0.4, 1.0), 0.2),
    parts.rod((0.2, 0.5, 0.0), (0.1, 0.2, 1.3), 0.3, taper=0.0),
    parts.rod((0.9, 0.0, 0.3), (0.4, 0.6, 0.4), 0.15, taper=1.8),
    parts.box((-0.6, -0.7, 0.0), (0.1, -0.4, 0.5), taper=0.5, lean=0.3),
    parts.blade((0, 0, 0.8), (-0.5, 0.9, 1.0), 0.4, (0, 0, 0.1), taper=0.4),
  )


def _inside(part, points):
  """Which points [T, 3] are in a part, from the definition of its kind."""
  x, y, z = np.linalg.solve(part.axes, (points - part.centre).T)
  width = (1 - z) / 2 + part.top * (1 + z) / 2
  if part.kind == "ellipsoid":
    return x**2 + y**2 + z**2 <= 1
  if part.kind == "cone":
    return (x**2 + y**2 <= width**2) & (abs(z) <= 1)
  return (abs(x) <= width) & (abs(y) <= width) & (abs(z) <= 1)


def _march(chosen, origin, direction):
  """The first point of a ray in any part: small steps, then halving."""
  steps = np.arange(0, 6, 2e-3)
  first = math.inf
  for part in chosen:
    hits = np.flatnonzero(_inside(part, origin + steps[:, None] * direction))
    if not hits.size:
      continue
    low, high = steps[hits[0]] - 2e-3, steps[hits[0]]
    for _ in range(45):
      middle = (low + high) / 2
      if _inside(part, (origin + middle * direction)[None])[0]:
        high = middle
      else:
        low = middle
    first = min(first, high)
  return first


def _rays(count, seed):
  """From a sphere around the scene towards points in it."""
  rng = np.random.default_rng(seed)
  outward = rng.normal(size=(count, 3))
  origins = 3 * outward / np.linalg.norm(outward, axis=1, keepdims=True)
  directions = rng.uniform([-0.7, -0.7, 0], [0.7, 0.7, 1], (count, 3)) - origins
  return origins, directions / np.linalg.norm(directions, axis=1, keepdims=True)


def check_distances(trace, seed=0, count=120):
  origins, directions = _rays(count, seed)
  got = np.asarray(
    trace(_unplaced(*_scene()), jnp.asarray(origins), jnp.asarray(directions))[
      0
    ]
  )
  expected = np.array(
    [_march(_scene(), *ray) for ray in zip(origins, directions, strict=True)]
  )
  assert 0.2 < np.isinf(expected).mean() < 0.8
  # Marching may step over a sliver; a ray in the middle of things it cannot.
  wrong = np.isinf(got) != np.isinf(expected)
  assert wrong.mean() <= 0.02, wrong.mean()
  both = np.isfinite(got) & np.isfinite(expected)
  error = abs(got[both] - expected[both])
  # Where a ray grazes an edge, so may one that steps over it.
  assert np.sort(error)[: -max(1, both.sum() // 50)].max() < 2e-5, error.max()


def check_normals(trace, seed=1, count=60):
  """A ray moved by e meets a plane -(n e) / (n d) later."""
  origins, directions = _rays(count, seed)
  normals = np.asarray(
    trace(_unplaced(*_scene()), jnp.asarray(origins), jnp.asarray(directions))[
      1
    ]
  )
  step, agreements = 1e-6, []
  for origin, direction, normal in zip(
    origins, directions, normals, strict=True
  ):
    distance = _march(_scene(), origin, direction)
    if math.isinf(distance):
      assert not normal.any()
      continue
    moved = [
      _march(_scene(), origin + step * axis, direction) for axis in np.eye(3)
    ]
    slope = (np.array(moved) - distance) / step
    agreements.append(normal @ slope / np.linalg.norm(slope))
  assert len(agreements) > count / 4
  # But for a ray or two by an edge.
  assert np.sort(agreements)[2] > 0.999, sorted(agreements)[:5]


def check_eyes(stereo_rays):
  """A ball before, at and behind the target, by both eyes."""
  size, height = 192, 0.5
  eyes, directions = stereo_rays(_ELEVATION, height, size=size)
  away = np.array([0, math.cos(_ELEVATION), -math.sin(_ELEVATION)])
  up = np.array([0, math.sin(_ELEVATION), math.cos(_ELEVATION)])
  for depth, side, rise in ((-2, 0.2, 0.5), (0, -0.6, -0.4), (2.5, 0, 0.3)):
    centre = np.array([side, 0, height]) + depth * away + rise * up
    figure = _unplaced(parts.ball(centre, 0.1))
    hits = np.isfinite(_trace(figure, eyes, directions).distances)
    rows, columns = (
      [places[hits[..., eye]].mean() for eye in range(2)]
      for places in np.mgrid[:size, :size]
    )
    z = raytracing.DISTANCE + depth
    pixel = 2 * raytracing.HALF_WIDTH / size
    disparity = raytracing.BASELINE * (z - raytracing.DISTANCE) / z / pixel
    np.testing.assert_allclose(columns[1] - columns[0], disparity, atol=0.3)
    scale = raytracing.DISTANCE / z / pixel
    np.testing.assert_allclose(
      np.mean(columns) - (size - 1) / 2, side * scale, atol=0.3
    )
    np.testing.assert_allclose(
      np.array(rows) - (size - 1) / 2, -rise * scale, atol=0.3
    )


def check_turn(turn):
  """Turning a figure equals moving the eye in the opposite direction."""
  figure, angle = _unplaced(*_scene()), math.radians(20)
  cos, sin = math.cos(angle), math.sin(angle)
  rotation = np.array([[cos, -sin, 0], [sin, cos, 0], [0, 0, 1]])
  origins, directions = _rays(200, 2)
  for steps in (1, 5):
    expected = _trace(figure, *map(jnp.asarray, (origins, directions)))
    back = np.linalg.matrix_power(rotation, steps)
    got = _trace(
      turn(figure, steps * angle),
      *(jnp.asarray(x @ back.T) for x in (origins, directions)),
    )
    same = np.isfinite(got.distances) == np.isfinite(expected.distances)
    assert same.mean() > 0.985
    both = np.isfinite(got.distances) & np.isfinite(expected.distances)
    error = abs(got.distances - expected.distances)[both]
    assert np.quantile(error, 0.97) < 1e-4, error.max()
    turned = np.asarray(expected.normals)[both] @ back.T
    agreement = np.sum(np.asarray(got.normals)[both] * turned, -1)
    assert np.quantile(agreement, 0.03) > 0.999


# What each check must find.
def _last_hit(figure, origins, directions):
  reach = 6.0
  hits = _trace(figure, origins + reach * directions, -directions)
  return raytracing.Hits(reach - hits.distances, hits.normals)


def _inward(figure, origins, directions):
  hits = _trace(figure, origins, directions)
  return hits._replace(normals=-hits.normals)


def _untapered(figure, origins, directions):
  bent = [s._replace(tops=1 + 0 * s.tops) for s in figure[:3]]
  return _trace(raytracing.Figure(*bent, *figure[3:]), origins, directions)


def _exchanged_eyes(*arguments, **options):
  eyes, directions = raytracing.stereo_rays(*arguments, **options)
  return eyes[::-1], directions[:, :, ::-1]


def _parallel_windows(*arguments, **options):
  """Both windows shifted along with their eyes: no disparity far away."""
  eyes, directions = raytracing.stereo_rays(*arguments, **options)
  return eyes, directions[:, :, :1].repeat(2, axis=2)


def _upside_down(*arguments, **options):
  eyes, directions = raytracing.stereo_rays(*arguments, **options)
  return eyes, directions[::-1]


def _turned_back(figure, azimuth):
  return raytracing.turn(figure, -azimuth)


_CHECKS = (
  (check_distances, _trace),
  (check_normals, _trace),
  (check_eyes, raytracing.stereo_rays),
  (check_turn, raytracing.turn),
)
_BROKEN = (
  (check_distances, _last_hit),
  (check_distances, _untapered),
  (check_normals, _inward),
  (check_normals, _untapered),
  (check_eyes, _exchanged_eyes),
  (check_eyes, _parallel_windows),
  (check_eyes, _upside_down),
  (check_turn, _turned_back),
)


class RaytracingTest(parameterized.TestCase):
  @parameterized.parameters(*_CHECKS)
  def test_holds(self, check, function):
    check(function)

  @parameterized.parameters(*_BROKEN)
  @pytest.mark.long_after_first
  def test_broken_copy_is_found(self, check, function):
    with self.assertRaises(AssertionError):
      check(function)

  def test_a_ball_in_closed_form(self):
    centre, radius = np.array([0.2, 0.1, 0.6]), 0.4
    rays = raytracing.stereo_rays(_ELEVATION, 0.5, size=40)
    got = _trace(_unplaced(parts.ball(centre, radius)), *rays)
    eyes, directions = map(np.float64, rays)
    along = np.sum((centre - eyes) * directions, -1)
    beside = np.linalg.norm(
      eyes + along[..., None] * directions - centre, axis=-1
    )
    clear = abs(beside - radius) > 1e-4
    hit = beside < radius
    np.testing.assert_array_equal(np.isfinite(got.distances)[clear], hit[clear])
    # Its silhouette is the disc of a cone around it.
    distance = np.linalg.norm(centre - eyes, axis=-1)
    sine = radius / distance
    angles = np.arccos(np.clip(along / distance, -1, 1))
    self.assertEqual(
      (angles < np.arcsin(sine))[clear].tolist(), hit[clear].tolist()
    )
    sure = hit & (beside < 0.99 * radius)
    depth = along - np.sqrt(np.maximum(radius**2 - beside**2, 0))
    np.testing.assert_allclose(got.distances[sure], depth[sure], atol=1e-5)
    normals = (eyes + depth[..., None] * directions - centre) / radius
    np.testing.assert_allclose(got.normals[sure], normals[sure], atol=1e-4)

  def test_thin_parts_are_not_lost_to_rounding(self):
    figure = _unplaced(parts.ellipsoid((0, 0, 0.5), (1, 0.005, 0.4)))
    origin = jnp.array([0.3, -7.0, 0.55])
    got = _trace(figure, origin, jnp.array([0.0, 1.0, 0.0]))
    inner = 1 - 0.3**2 - (0.05 / 0.4) ** 2
    expected = 7 - 0.005 * math.sqrt(inner)
    np.testing.assert_allclose(got.distances, expected, atol=2e-6)

  def test_what_is_behind_is_not_seen(self):
    figure = _unplaced(*_scene())
    origins, directions = map(jnp.asarray, _rays(50, 0))
    got = _trace(figure, origins, -directions)
    self.assertTrue(np.isinf(got.distances).all())
    np.testing.assert_array_equal(got.normals, 0)

  @pytest.mark.long
  def test_one_ray_or_many_compiled_or_not(self):
    figure = _unplaced(*_scene())
    origins, directions = map(jnp.asarray, _rays(12, 3))
    many = _trace(figure, origins, directions)
    with jax.disable_jit():
      plain = raytracing.trace(figure, origins, directions)
    np.testing.assert_allclose(plain.distances, many.distances, rtol=1e-5)
    np.testing.assert_allclose(plain.normals, many.normals, atol=1e-4)
    for n in range(12):
      one = _trace(figure, origins[n], directions[n])
      np.testing.assert_allclose(one.distances, many.distances[n], rtol=1e-5)
      np.testing.assert_allclose(one.normals, many.normals[n], atol=1e-4)

  def test_lamps_change_shading_alone(self):
    figure = _unplaced(*_scene())
    black = np.asarray(_render(figure._replace(albedo=np.float32(0)))) == 0
    self.assertBetween(black.mean(), 0.05, 0.5)
    np.testing.assert_array_equal(
      black, np.broadcast_to(black[:, :1], black.shape)
    )
    seen = np.asarray(_render(figure)).swapaxes(0, 1)
    shades = seen[:, black[:, 0]]
    for n in range(6):
      for m in range(n):
        self.assertGreater(abs(shades[n] - shades[m]).mean(), 0.02)

  def test_shadows_fall_away_from_the_lamp(self):
    figure, lights = _unplaced(parts.ball((0, 0, 0.5), 0.3)), solids.lights()
    shadows = np.asarray(jax.jit(raytracing.ground_shadows)(figure, lights))
    self.assertBetween(shadows.min(), 0, 0.6)
    self.assertLessEqual(shadows.max(), 1 + 1e-6)
    np.testing.assert_allclose(shadows[0], 1, atol=1e-6)
    size = len(shadows)
    places = ((np.arange(size) + 0.5) * 2 / size - 1) * 3.4
    for lamp, shadow in zip(
      lights.directions, np.moveaxis(shadows, -1, 0), strict=True
    ):
      row, column = np.unravel_index(shadow.argmin(), shadow.shape)
      cast = -0.5 * lamp[:2] / lamp[2]
      # The sky's shadow, under the ball, makes it appear nearer.
      place = np.array([places[column], places[row]])
      self.assertGreater(place @ cast, 0)
      self.assertLess(np.linalg.norm(place - cast), 0.3)

  def test_shadows_are_seen_where_they_fall(self):
    centre, lights = np.array([0.9, -0.4, 1.0]), solids.lights()
    figure = _unplaced(parts.ball(centre, 0.15))
    shadows = jax.jit(raytracing.ground_shadows)(figure, lights)
    places = centre - centre[2] / lights.directions[:, 2:] * lights.directions
    down = np.array([0.3, 0.2, -1.0]) / math.sqrt(1.13)
    for mirrored in (False, True):
      points = places[:, [1, 0, 2]] if mirrored else places
      origins = jnp.asarray(points - 4 * down, jnp.float32)
      directions = jnp.broadcast_to(jnp.float32(down), (6, 3))
      seen = raytracing.shade(figure, lights, shadows, origins, directions)
      ratio = np.diag(seen) / lights.levels
      self.assertBetween(ratio.min(), *((0.97, 1.01) if mirrored else (0.5, 1)))
      self.assertLess(ratio.max(), 1.01 if mirrored else 0.92)

  def test_the_left_eye_comes_first_and_rows_run_down(self):
    ball = _unplaced(parts.ball((0.5, -0.9, 1.7), 0.3))
    seen = _render(ball._replace(albedo=np.float32(0)))
    elevation, lamp, row, column, eye = np.nonzero(np.asarray(seen) == 0)
    self.assertLess(row[elevation == 0].mean(), 8)
    for n in range(2):
      left, right = (
        column[(elevation == n) & (eye == e)].mean() for e in (0, 1)
      )
      self.assertGreater(left, right + 0.3)
      self.assertGreater(right, 10)

  def test_empty_ground_has_the_level_of_the_lamp(self):
    seen = np.asarray(_render(_unplaced(*_scene())))
    self.assertEqual(seen.shape, (2, 6, 20, 20, 2))
    levels = np.broadcast_to(solids.lights().levels[:, None], (6, 2))
    np.testing.assert_allclose(seen[1, :, -1, 0], levels, atol=1e-5)


if __name__ == "__main__":
  absltest.main()
