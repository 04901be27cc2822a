"""Stereo pictures of a figure made of simple solids, by rays in closed form.

Space is (x, y, z) with z up; a figure with a size of about 2 stands at the
origin, on the ground z = 0. Two eyes look at it from the side of negative y,
the first one from the left. Each solid is an affine image of one of these:

  ellipsoid  x^2 + y^2 + z^2 <= 1
  cone       x^2 + y^2 <= w(z)^2,  |z| <= 1
  box        |x|, |y| <= w(z),     |z| <= 1

where w(z) runs from 1 at z = -1 to `top` at z = 1: cylinders and cuboids have
`top` 1, pointed ones 0.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

DISTANCE = 7.0  # from the point between the eyes to the target
BASELINE = 0.5  # between the eyes
HALF_WIDTH = 1.5  # of the picture, in the plane through the target
SUPERSAMPLING = 2  # along each axis of the picture
_SHADOW_REACH, _SHADOW_CELLS, _SHADOW_ZOOM = 3.4, 68, 3
_PENUMBRA = 0.13


class Solids(NamedTuple):
  """Solids of one kind.

  Attributes:
    frames: [K, 3, 4], each maps (x, y, z, 1) into the solid's own frame.
    tops: [K], at least 0; not used for ellipsoids.
  """

  frames: Float[ArrayLike, "K 3 4"]
  tops: Float[ArrayLike, " K"]


class Figure(NamedTuple):
  """Solids of one colour.

  Attributes:
    ellipsoids: E of them; E, C and B may be 0.
    cones: C of them.
    boxes: B of them.
    albedo: [], brightness relative to the ground, about 0.5 to 1.
    middle: [], half its height; the eyes look at the point at this height above
      the origin.
  """

  ellipsoids: Solids
  cones: Solids
  boxes: Solids
  albedo: Float[ArrayLike, ""]
  middle: Float[ArrayLike, ""]


class Lights(NamedTuple):
  """Lamps infinitely far away, one switched on for each picture.

  Attributes:
    directions: [L, 3], unit vectors to the lamps, z above 0.
    levels: [L], the ground's brightness in (0, 1].
    ambient: [L], the share of the light on the ground that is from the sky.
  """

  directions: Float[ArrayLike, "L 3"]
  levels: Float[ArrayLike, " L"]
  ambient: Float[ArrayLike, " L"]


class Hits(NamedTuple):
  """Where rays first meet a figure.

  Attributes:
    distances: [*R], along the ray; infinite where there is none.
    normals: [*R, 3], unit vectors out of the figure; 0 where there is none.
  """

  distances: Float[Array, "*R"]
  normals: Float[Array, "*R 3"]


def turn(figure: Figure, azimuth: Float[ArrayLike, ""]) -> Figure:
  """Turns a figure about the vertical, from x towards y.

  Args:
    figure: any.
    azimuth: [], radians.

  Returns:
    The figure, turned.
  """
  cos, sin = jnp.cos(azimuth), jnp.sin(azimuth)
  back = jnp.array([[cos, sin, 0], [-sin, cos, 0], [0, 0, 1]])
  back = jax.scipy.linalg.block_diag(back, jnp.ones((1, 1)))

  def turned(solids):
    return solids._replace(frames=jnp.asarray(solids.frames) @ back)

  return figure._replace(
    ellipsoids=turned(figure.ellipsoids),
    cones=turned(figure.cones),
    boxes=turned(figure.boxes),
  )


def stereo_rays(
  elevation: Float[ArrayLike, ""], height: Float[ArrayLike, ""], *, size: int
) -> tuple[Float[Array, "2 3"], Float[Array, "H W 2 3"]]:
  """Casts a ray through every pixel of both eyes' pictures.

  The eyes look side by side, not inwards, and their pictures are windows in the
  plane through the target. In that plane the first eye sees a point at depth z
  BASELINE (z - DISTANCE) / z to the left of where the second eye sees it.

  Args:
    elevation: [], radians above the horizontal.
    height: [], of the target, which is above the origin.
    size: rows and columns of the picture.

  Returns:
    The eyes, left and right, and unit directions; rows run down.
  """
  cos, sin = jnp.cos(elevation), jnp.sin(elevation)
  target = jnp.stack([0, 0, jnp.asarray(height)])
  right, up = jnp.array([1.0, 0, 0]), jnp.array([0, sin, cos])
  middle = target + DISTANCE * jnp.array([0, -cos, sin])
  eyes = middle + BASELINE / 2 * jnp.array([[-1.0], [1.0]]) * right
  grid = (jnp.arange(size) + 0.5) * 2 / size - 1
  window = target + HALF_WIDTH * (
    grid[:, None] * right - grid[:, None, None] * up
  )
  directions = window[:, :, None] - eyes
  return eyes, directions / jnp.linalg.norm(directions, axis=-1, keepdims=True)


def trace(
  figure: Figure,
  origins: Float[Array, "*#R 3"],
  directions: Float[Array, "*#R 3"],
) -> Hits:
  """Finds where rays enter a figure.

  Args:
    figure: any.
    origins: [*R, 3], outside of the solids.
    directions: [*R, 3], unit vectors.

  Returns:
    The first hits in front of the origins.
  """
  # Separate components, so that each step is one fused loop over the rays.
  rank = max(origins.ndim, directions.ndim)
  origin, direction = (
    jnp.moveaxis(x.reshape(*[1] * (rank - x.ndim), *x.shape), -1, 0)
    for x in (origins, directions)
  )
  shape = jnp.broadcast_shapes(origin.shape, direction.shape)[1:]
  nearest = jnp.full(shape, jnp.inf), (jnp.zeros(shape),) * 3
  for solids, enter in zip(figure[:3], (_ball, _cone, _box), strict=True):

    def closer(nearest, solid, enter=enter):
      frame, top = solid
      axes = frame[:, :3]
      heading = _times(axes, direction)
      local = [
        x + shift
        for x, shift in zip(_times(axes, origin), frame[:, 3], strict=True)
      ]
      # Starting from the point nearest to the solid's middle keeps rounding
      # errors small, also for thin solids.
      start = -_dot(local, heading) / _dot(heading, heading)
      local = [x + start * u for x, u in zip(local, heading, strict=True)]
      distance, normal = enter(local, heading, top)
      distance += start
      is_closer = (distance > 0) & (distance < nearest[0])
      distance, *normal = (
        jnp.where(is_closer, new, old)
        for new, old in zip(
          (distance, *_times(axes.T, normal)),
          (nearest[0], *nearest[1]),
          strict=True,
        )
      )
      return (distance, tuple(normal)), None

    solids = Solids(*map(jnp.asarray, solids))
    nearest, _ = jax.lax.scan(closer, nearest, solids)
  distances, normal = nearest
  length = jnp.sqrt(_dot(normal, normal))
  normals = jnp.stack(normal, axis=-1)
  return Hits(distances, normals / jnp.where(length > 0, length, 1)[..., None])


def ground_shadows(figure: Figure, lights: Lights) -> Float[Array, "S S L"]:
  """Renders how much light each point of the ground gets, on a square grid.

  Args:
    figure: any.
    lights: L lamps.

  Returns:
    [y, x, L], in [0, 1], 1 where nothing is in the way; shadows are blurred,
    and the sky is dimmed near and under the figure.
  """
  cells = (jnp.arange(_SHADOW_CELLS) + 0.5) * 2 / _SHADOW_CELLS - 1
  y, x = jnp.meshgrid(*[cells * _SHADOW_REACH] * 2, indexing="ij")
  ground = jnp.stack([x, y, jnp.zeros_like(x)], -1)
  zenith = jnp.array([[0, 0, 1.0]])
  directions = jnp.concatenate([jnp.asarray(lights.directions), zenith])
  hits = trace(figure, ground[..., None, :], directions)
  shadow = jnp.isfinite(hits.distances).astype(jnp.float32)
  cell = 2 * _SHADOW_REACH / _SHADOW_CELLS
  direct = _blur(shadow[..., :-1], _PENUMBRA / cell)
  sky = _blur(shadow[..., -1:], 2 * _PENUMBRA / cell)
  ambient = jnp.asarray(lights.ambient)
  light = ambient * (1 - sky) + (1 - ambient) * (1 - direct)
  size = _SHADOW_CELLS * _SHADOW_ZOOM
  return jax.image.resize(light, (size, size, light.shape[-1]), "linear")


def shade(
  figure: Figure,
  lights: Lights,
  shadows: Float[Array, "S S L"],
  origins: Float[Array, "*#R 3"],
  directions: Float[Array, "*R 3"],
) -> Float[Array, "*R L"]:
  """Renders what rays see under each lamp: the figure, matt, or the ground.

  Args:
    figure: any.
    lights: L lamps.
    shadows: [S, S, L], of `ground_shadows`.
    origins: [*R, 3], the eyes.
    directions: [*R, 3], unit vectors that point downwards.

  Returns:
    [*R, L], in [0, 1].
  """
  hits = trace(figure, origins, directions)
  on_ground = origins - (origins[..., 2:] / directions[..., 2:] * directions)
  cells = (on_ground[..., :2] / _SHADOW_REACH + 1) / 2 * len(shadows)
  column, row = jnp.moveaxis(cells.astype(jnp.int32), -1, 0)
  ground = shadows.at[row, column].get(mode="clip")

  distances = jnp.where(jnp.isfinite(hits.distances), hits.distances, 0)
  height = origins[..., 2] + distances * directions[..., 2]
  # The sky lights surfaces that face up; near the ground there is less light.
  sky = (0.55 + 0.45 * hits.normals[..., 2]) * (
    1 - 0.5 * jnp.exp(-5 * jnp.maximum(height, 0))
  )
  towards = jnp.asarray(lights.directions)
  facing = jnp.maximum(hits.normals @ towards.T, 0) / towards[:, 2]
  ambient = jnp.asarray(lights.ambient)
  light = ambient * sky[..., None] + (1 - ambient) * facing
  lit = figure.albedo * light
  is_figure = jnp.isfinite(hits.distances)[..., None]
  seen = jnp.asarray(lights.levels) * jnp.where(is_figure, lit, ground)
  return jnp.clip(seen, 0, 1)


def render(
  figure: Figure,
  lights: Lights,
  elevations: Float[ArrayLike, " N"],
  *,
  size: int,
) -> Float[Array, "N L H W 2"]:
  """Renders stereo pairs from several elevations under each lamp.

  The lamps share the rays, and the elevations share the shadows on the ground.

  Args:
    figure: any.
    lights: L lamps.
    elevations: [N], radians; at least 20 degrees, or else the horizon shows.
    size: rows and columns; each pixel is the mean of SUPERSAMPLING^2 rays.

  Returns:
    [N, L, size, size, 2], in [0, 1], left eye first.
  """
  shadows = ground_shadows(figure, lights)

  def view(elevation):
    rays = stereo_rays(elevation, figure.middle, size=SUPERSAMPLING * size)
    seen = shade(figure, lights, shadows, *rays)
    blocks = seen.reshape(size, SUPERSAMPLING, size, SUPERSAMPLING, 2, -1)
    return jnp.moveaxis(blocks.mean((1, 3)), -1, 0)

  return jax.lax.map(view, jnp.asarray(elevations))


def _dot(a, b) -> Float[Array, "*R"]:
  return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def _times(matrix, vector) -> list[Float[Array, "*R"]]:
  return [_dot(row, vector) for row in matrix]


# Each of the next three functions takes a ray in the frame of its solid: the
# point of the ray that is nearest to the origin, and the direction, of any
# length; and the `top` of the solid. It returns how many lengths of the
# direction from this point the ray enters the solid (infinite if it does not),
# and the normal there, of any length.


def _ball(point, direction, top):
  del top
  room = 1 - _dot(point, point)
  reach = jnp.sqrt(jnp.maximum(room, 0) / _dot(direction, direction))
  distance = jnp.where(room > 0, -reach, jnp.inf)
  return distance, [
    x - reach * u for x, u in zip(point, direction, strict=True)
  ]


def _cone(point, direction, top):
  slope, radius = (top - 1) / 2, (top + 1) / 2
  (x, y, z), (u, v, w) = point, direction
  width = radius + slope * z
  a = u * u + v * v - (slope * w) ** 2
  b = x * u + y * v - slope * w * width
  c = x * x + y * y - width * width
  root = jnp.sqrt(jnp.maximum(b * b - a * c, 0))
  # The two roots, each in the form that loses no digits.
  q = -(b + jnp.where(b < 0, -root, root))
  nearest, normal = jnp.inf, (0, 0, 0)
  for distance in (q / _away_from_zero(a), c / _away_from_zero(q)):
    height = z + distance * w
    is_closer = (b * b > a * c) & (jnp.abs(height) <= 1) & (distance < nearest)
    side = (
      x + distance * u,
      y + distance * v,
      -slope * (radius + slope * height),
    )
    normal = [
      jnp.where(is_closer, n, m) for n, m in zip(side, normal, strict=True)
    ]
    nearest = jnp.where(is_closer, distance, nearest)
  # Of the flat ends only the one that the ray meets first can be an entry.
  end = jnp.where(w < 0, 1.0, -1.0)
  distance = (end - z) / _away_from_zero(w)
  from_axis = (x + distance * u) ** 2 + (y + distance * v) ** 2
  is_closer = (from_axis <= (radius + slope * end) ** 2) & (distance < nearest)
  normal = [
    jnp.where(is_closer, n, m) for n, m in zip((0, 0, end), normal, strict=True)
  ]
  return jnp.where(is_closer, distance, nearest), normal


def _box(point, direction, top):
  slope, radius = (top - 1) / 2, (top + 1) / 2
  planes = [
    ((1, 0, -slope), radius),
    ((-1, 0, -slope), radius),
    ((0, 1, -slope), radius),
    ((0, -1, -slope), radius),
    ((0, 0, 1), 1),
    ((0, 0, -1), 1),
  ]
  enter, leave, normal = -jnp.inf, jnp.inf, (0, 0, 0)
  for outward, offset in planes:
    along = _away_from_zero(_dot(outward, direction))
    distance = (offset - _dot(outward, point)) / along
    is_entry = (along < 0) & (distance > enter)
    normal = [
      jnp.where(is_entry, n, m) for n, m in zip(outward, normal, strict=True)
    ]
    enter = jnp.where(is_entry, distance, enter)
    leave = jnp.where(along > 0, jnp.minimum(distance, leave), leave)
  return jnp.where(enter < leave, enter, jnp.inf), normal


def _away_from_zero(x) -> Float[Array, "*R"]:
  return jnp.where(jnp.abs(x) < 1e-9, 1e-9, x)


def _blur(image, sigma: float) -> Float[Array, "H W C"]:
  """Blurs by a Gaussian of `sigma` pixels, zeros outside."""
  radius = math.ceil(2.5 * sigma)
  taps = jnp.exp(-0.5 * (jnp.arange(-radius, radius + 1) / sigma) ** 2)
  taps /= taps.sum()
  for axis in (0, 1):
    padding = [(0, 0)] * 3
    padding[axis] = (radius, radius)
    padded = jnp.pad(image, padding)
    size = image.shape[axis]
    image = sum(
      tap * jax.lax.slice_in_dim(padded, n, n + size, axis=axis)
      for n, tap in enumerate(taps)
    )
  return image
