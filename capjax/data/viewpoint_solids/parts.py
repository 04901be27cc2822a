"""Parts that figures are made of: solids placed in space, in any unit.

Space is (x, y, z) with z up; points are sequences of three numbers.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from capjax.data.viewpoint_solids.raytracing import Figure, Solids

# All figures have the same number of each, so that one program renders them.
_SLOTS = {"ellipsoid": 16, "cone": 16, "box": 9}

Point = Sequence[float | int] | Float[np.ndarray, "3"]


class Part(NamedTuple):
  """One solid.

  Attributes:
    kind: "ellipsoid", "cone" or "box".
    axes: [3, 3], its columns the half axes of the solid.
    centre: [3].
    top: its width at the end of the third axis, relative to the beginning.
  """

  kind: str
  axes: Float[np.ndarray, "3 3"]
  centre: Float[np.ndarray, "3"]
  top: float = 1.0


def ellipsoid(centre: Point, radii: Point) -> Part:
  """Makes an ellipsoid along the axes of space.

  Args:
    centre: its middle.
    radii: its half axes along x, y and z, > 0.
  """
  return Part("ellipsoid", np.diag(radii), np.array(centre, float))


def ball(centre: Point, radius: float) -> Part:
  """Makes a ball.

  Args:
    centre: its middle.
    radius: > 0.
  """
  return ellipsoid(centre, (radius,) * 3)


def rod(start: Point, end: Point, radius: float, *, taper: float = 1.0) -> Part:
  """Makes a round rod, whose radius at its end is `taper` times `radius`.

  Args:
    start: the middle of one end.
    end: the middle of the other end, another point.
    radius: at the start, > 0.
    taper: the radius at the end, relative to that at the start.
  """
  start, end = np.array(start, float), np.array(end, float)
  half = (end - start) / 2
  along = half / np.linalg.norm(half)
  side = np.cross(along, [0, 1, 0] if abs(along[1]) < 0.9 else [1, 0, 0])
  side *= radius / np.linalg.norm(side)
  axes = np.column_stack([side, np.cross(along, side), half])
  return Part("cone", axes, (start + end) / 2, taper)


def box(
  low: Point, high: Point, *, taper: float = 1.0, lean: float = 0.0
) -> Part:
  """Makes a box between two corners.

  Args:
    low: the lowest x, y and z.
    high: the highest.
    taper: the size of the upper face relative to the lower face.
    lean: the shift of the upper face along x.

  Returns:
    The part.
  """
  low, high = np.array(low, float), np.array(high, float)
  axes = np.diag((high - low) / 2)
  axes[0, 2] = lean / 2
  return Part("box", axes, (low + high) / 2 + [lean / 2, 0, 0], taper)


def blade(
  root: Point,
  tip: Point,
  chord: float,
  thickness: Point,
  *,
  taper: float = 1.0,
) -> Part:
  """Makes a wing or a fin.

  Args:
    root: the middle of its face at the fuselage.
    tip: the middle of its outer face.
    chord: its length along x at the root.
    thickness: [3], from one of its sides to the other.
    taper: chord and thickness at the tip relative to the root.

  Returns:
    The part.
  """
  root, tip = np.array(root, float), np.array(tip, float)
  axes = np.column_stack([[chord, 0, 0], thickness, tip - root]) / 2
  return Part("box", axes, (root + tip) / 2, taper)


def assemble(parts: Sequence[Part], *, albedo: float) -> Figure:
  """Makes a figure of size 2 that stands on the ground at the origin.

  Args:
    parts: up to 16 ellipsoids, 16 cones and 9 boxes.
    albedo: brightness relative to the ground.

  Returns:
    The figure; the longest side of the box around it is 2.

  Raises:
    ValueError: there are too many parts.
  """
  low, high = _bounds(parts)
  scale = 2 / np.max(high - low)
  foot = [*(low + high)[:2] / 2, low[2]]
  placed = [
    part._replace(axes=scale * part.axes, centre=scale * (part.centre - foot))
    for part in parts
  ]
  middle = scale * (high - low)[2] / 2
  return Figure(
    _solids(placed, "ellipsoid"),
    _solids(placed, "cone"),
    _solids(placed, "box"),
    albedo=np.float32(albedo),
    middle=np.float32(middle),
  )


def _solids(parts: Sequence[Part], kind: str) -> Solids:
  parts = [part for part in parts if part.kind == kind]
  free = _SLOTS[kind] - len(parts)
  if free < 0:
    raise ValueError(
      f"a figure of {len(parts)} parts of kind {kind!r}; make it of at most "
      f"{_SLOTS[kind]}."
    )
  # Unused slots hold a tiny solid far below the ground.
  speck = Part(kind, 1e-3 * np.eye(3), np.array([0.0, 0.0, -50.0]))
  parts += [speck] * free
  inverses = [np.linalg.inv(part.axes) for part in parts]
  frames = [
    np.column_stack([inverse, -inverse @ part.centre])
    for inverse, part in zip(inverses, parts, strict=True)
  ]
  tops = [part.top for part in parts]
  return Solids(np.array(frames, np.float32), np.array(tops, np.float32))


def _bounds(parts: Sequence[Part]) -> tuple[np.ndarray, np.ndarray]:
  """Returns the lowest and the highest corner of the box around all parts."""
  faces = []
  for kind, axes, centre, top in parts:
    if kind == "ellipsoid":
      faces.append((centre, np.linalg.norm(axes, axis=1)))
    else:
      order = 1 if kind == "box" else 2
      reach = np.linalg.norm(axes[:, :2], order, axis=1)
      faces += [
        (centre - axes[:, 2], reach),
        (centre + axes[:, 2], top * reach),
      ]
  middles, reaches = map(np.stack, zip(*faces, strict=True))
  return (middles - reaches).min(0), (middles + reaches).max(0)
