"""Figures of five categories, with random proportions.

Each is built in a unit of its own, x forward, y to its left and z up.
"""

import math

import numpy as np

from capjax.data.viewpoint_solids import parts
from capjax.data.viewpoint_solids.parts import ball, blade, box, ellipsoid, rod
from capjax.data.viewpoint_solids.raytracing import Figure

CATEGORIES = (
  "four-legged animals",
  "human figures",
  "airplanes",
  "trucks",
  "cars",
)
_UP, _LEFT = np.array([0.0, 0.0, 1.0]), np.array([0.0, 1.0, 0.0])


def figure(category: int, instance: int, *, seed: int = 0) -> Figure:
  """Makes one instance of a category.

  Args:
    category: index into CATEGORIES.
    instance: 0 or more.
    seed: with the other two it decides all proportions.

  Returns:
    A figure on the ground about the origin, facing x; the longest side of the
    box around it is 2.

  Raises:
    ValueError: there is no such category or instance.
  """
  if not 0 <= category < len(CATEGORIES) or instance < 0:
    raise ValueError(
      f"category={category}, instance={instance}; pass a category of "
      f"0..{len(CATEGORIES) - 1} and an instance of at least 0."
    )
  rng = np.random.default_rng([seed, category, instance])
  make = (_animal, _human, _airplane, _truck, _car)[category]
  return parts.assemble(make(rng), albedo=rng.uniform(0.65, 1.0))


def _animal(rng: np.random.Generator) -> list[parts.Part]:
  uniform = rng.uniform
  length, leg, girth = (
    uniform(0.45, 0.95),
    uniform(0.15, 0.95),
    uniform(0.18, 0.42),
  )
  thick = uniform(0.05, 0.13) * (1 + girth)
  shoulder, hip = leg + girth * 0.7, leg + girth * uniform(0.55, 0.8)
  solids = [
    ellipsoid((0, 0, (shoulder + hip) / 2), (length, 0.9 * girth, girth)),
    ellipsoid((0.55 * length, 0, shoulder), (girth, girth, 1.1 * girth)),
    ball((-0.6 * length, 0, hip), girth),
  ]
  for x, height in ((0.6 * length, shoulder), (-0.65 * length, hip)):
    for y in (-0.6 * girth, 0.6 * girth):
      swing = uniform(-0.2, 0.2)
      knee = x + swing, y, leg / 2
      foot = x + swing * uniform(0.2, 1.2), y, 0
      solids += [
        rod((x, y, height), knee, 1.5 * thick, taper=0.67),
        rod(knee, foot, thick, taper=0.8),
      ]
  solids += _animal_head(rng, (0.7 * length, 0, shoulder + 0.3 * girth), girth)
  tail, droop = uniform(0.1, 1.0), math.radians(uniform(-60, 20))
  rump = np.array([-0.6 * (length + girth), 0, hip + 0.3 * girth])
  end = rump + tail * np.array([-math.cos(droop), 0, math.sin(droop)])
  return [*solids, rod(rump, end, uniform(0.06, 0.14), taper=0.3)]


def _animal_head(rng, chest, girth) -> list[parts.Part]:
  uniform = rng.uniform
  neck, rise = uniform(0.15, 1.0), math.radians(uniform(-10, 80))
  head = chest + neck * np.array([math.cos(rise), 0, math.sin(rise)])
  skull, snout, ear = (
    uniform(0.13, 0.22),
    uniform(0.12, 0.5),
    uniform(0.05, 0.25),
  )
  nose = head + [snout, 0, -snout * uniform(0.0, 1.2)]
  solids = [
    rod(chest, head, 0.65 * girth, taper=skull / girth),
    ellipsoid(head, (1.1 * skull, 0.9 * skull, skull)),
    rod(head, nose, 0.75 * skull, taper=0.67),
    ball(nose, 0.5 * skull),
  ]
  horns = rng.random() < 0.3
  for side in (-1, 1):
    root = head + [-0.4 * skull, side * skull, 0.8 * skull]
    solids.append(ellipsoid(root, (0.04, 0.6 * ear, ear)))
    if horns:
      root = head + [0.2 * skull, side * 0.5 * skull, 0.6 * skull]
      tip = root + [0.15, side * 0.1, 0.25]
      solids.append(rod(root, tip, 0.04, taper=0.2))
  return solids


def _human(rng: np.random.Generator) -> list[parts.Part]:
  uniform = rng.uniform
  leg, torso, width = (
    uniform(0.75, 0.95),
    uniform(0.5, 0.65),
    uniform(0.17, 0.25),
  )
  thick, lean = uniform(0.07, 0.1), uniform(-0.05, 0.15)
  crouch = uniform(0.0, 0.35) * (rng.random() < 0.5)
  hip = (1 - 1.2 * crouch) * leg * _UP
  chest = hip + [lean, 0, torso]
  solids = [
    ellipsoid(hip, (1.5 * thick, 0.8 * width, 1.8 * thick)),
    ellipsoid((hip + chest) / 2, (1.5 * thick, 0.85 * width, 0.6 * torso)),
    ellipsoid(chest, (1.5 * thick, 1.15 * width, 1.5 * thick)),
  ]
  for side in (-1, 1):
    stride = side * uniform(0.05, 0.35)
    knee = np.array([stride + 0.06 + crouch, 0.7 * side * width, hip[2] / 2])
    foot = np.array([1.3 * stride, 0.8 * side * width, 0.05])
    out, raised, bend = (
      uniform(0.1, 0.6),
      uniform(-1.2, 0.9),
      uniform(-0.8, 1.3),
    )
    shoulder = chest + side * width * _LEFT
    elbow = chest + [
      0.15 * math.cos(raised),
      side * (1.2 * width + 0.25 * out),
      0.3 * math.sin(raised),
    ]
    hand = elbow + [0.28 * math.cos(bend), side * 0.05, 0.28 * math.sin(bend)]
    solids += [
      rod(hip + side * 0.5 * width * _LEFT, knee, 1.25 * thick, taper=0.8),
      rod(knee, foot, thick, taper=0.7),
      ellipsoid(foot + [0.07, 0, 0], (0.15, 0.07, 0.06)),
      rod(shoulder, elbow, 0.8 * thick, taper=0.8),
      rod(elbow, hand, 0.65 * thick, taper=0.8),
      ball(hand, 0.7 * thick),
    ]
  head, skull = chest + [lean / 2, 0, uniform(0.24, 0.3)], uniform(0.11, 0.15)
  solids += [
    rod(chest, head, 0.8 * thick),
    ellipsoid(head, (skull, 0.9 * skull, 1.15 * skull)),
  ]
  if rng.random() < 0.5:  # a hat
    brim = head + 0.5 * skull * _UP
    solids += [
      rod(brim, brim + 0.03 * _UP, skull * uniform(1.2, 1.9)),
      rod(brim, brim + skull * uniform(0.8, 1.5) * _UP, skull, taper=0.8),
    ]
  if rng.random() < 0.6:  # a staff
    tilt = uniform(-0.5, 0.5)
    half = uniform(0.4, 0.7) * np.array([math.sin(tilt), 0, math.cos(tilt)])
    solids.append(rod(hand - half, hand + half, 0.035))
  if rng.random() < 0.3:  # a coat
    hem = [0, 0, hip[2] * uniform(0.3, 0.6)]
    solids.append(rod(hem, hip, uniform(1.2, 1.7) * width, taper=0.6))
  if rng.random() < 0.4:  # a rucksack
    low = chest - [1.5 * thick + uniform(0.15, 0.3), 0.8 * width, 0.3]
    solids.append(box(low, chest + [-thick, 0.8 * width, 0.1]))
  if rng.random() < 0.5:  # a base
    solids.append(rod(-0.05 * _UP, 0 * _UP, uniform(0.4, 0.5)))
  return solids


def _airplane(rng: np.random.Generator) -> list[parts.Part]:
  uniform = rng.uniform
  radius, gear = uniform(0.08, 0.2), uniform(0.0, 0.25)
  height = gear + 1.2 * radius
  nose, tail = uniform(0.6, 1.1), -uniform(0.7, 1.1)
  rear = np.array([tail, 0, height + 0.4 * radius])
  solids = [
    ellipsoid((0.4 * nose, 0, height), (0.75 * nose, radius, 1.1 * radius)),
    rod((0.5 * nose, 0, height), rear, radius, taper=0.35),
    ellipsoid(
      (nose * uniform(0.35, 0.65), 0, height + 0.8 * radius),
      (0.22, 0.65 * radius, 0.6 * radius),
    ),
  ]
  span, chord = uniform(0.5, 1.2), uniform(0.25, 0.8)
  sweep, lift, tail_span = (
    uniform(-0.1, 0.8),
    uniform(0, 0.2),
    uniform(0.3, 0.6),
  )
  taper = uniform(0.15, 0.9)
  root = np.array([uniform(-0.1, 0.3), 0, height + radius * uniform(-0.6, 0.7)])
  biplane = rng.random() < 0.2
  engines = (0.35, 0.65)[: rng.integers(3)]
  wings = root, root + uniform(0.3, 0.4) * _UP
  for side in (-1, 1):
    for base in wings[: 2 if biplane else 1]:
      tip = base + [-sweep, side * span, lift]
      solids.append(blade(base, tip, chord, 0.06 * _UP, taper=taper))
    base = rear + [0.12, 0, 0]
    tip = base + [-0.4 * sweep, side * tail_span * span, 0]
    solids.append(blade(base, tip, 0.55 * chord, 0.045 * _UP, taper=taper))
    for share in engines:
      front = root + [chord / 2 - sweep * share, side * span * share, -0.07]
      solids.append(rod(front, front - [0.4, 0, 0], 0.075))
  base = rear + [0.15, 0, -0.4 * radius]
  tip = base + [-0.05 - 0.3 * sweep, 0, uniform(0.28, 0.45)]
  solids.append(blade(base, tip, 0.3, 0.045 * _LEFT, taper=taper))
  if not engines:  # a propeller
    hub = np.array([nose, 0, height])
    solids += [
      rod(hub, hub + [0.18, 0, 0], 0.6 * radius, taper=0.3),
      box(hub + [0.06, -0.035, -0.3], hub + [0.09, 0.035, 0.3]),
    ]
  if gear > 0.08:
    for x, y in (
      (0.6 * nose, 0),
      (root[0] - 0.1, 0.25),
      (root[0] - 0.1, -0.25),
    ):
      solids.append(rod((x, y, 0), (x, y, height), 0.035))
  return solids


def _wheels(xs, half_track, radius, width) -> list[parts.Part]:
  return [
    rod(
      (x, side * half_track, radius),
      (x, side * (half_track - width), radius),
      radius,
    )
    for x in xs
    for side in (-1, 1)
  ]


def _truck(rng: np.random.Generator) -> list[parts.Part]:
  uniform = rng.uniform
  length, width = uniform(1.5, 2.6), uniform(0.34, 0.52)
  wheel, floor, cab = (
    uniform(0.14, 0.23),
    uniform(0.2, 0.34),
    uniform(0.3, 0.55),
  )
  roof = floor + uniform(0.45, 0.8)
  hood = uniform(0.25, 0.4) if rng.random() < 0.5 else 0.0
  back, front = -length / 2, length / 2
  axles = [back + 1.6 * wheel, front - 1.8 * wheel]
  if rng.random() < 0.5:
    axles.append(back + 3.9 * wheel)
  solids = [
    box((back, -0.8 * width, floor - 0.1), (front, 0.8 * width, floor)),
    box(
      (front - hood - cab, -width, floor),
      (front - hood, width, roof),
      taper=uniform(0.82, 1.0),
      lean=-uniform(0, 0.06),
    ),
    *_wheels(axles, width, wheel, 0.13),
  ]
  if hood:
    bonnet = floor + (roof - floor) * uniform(0.4, 0.6)
    low = front - hood, -0.85 * width, floor
    solids.append(box(low, (front, 0.85 * width, bonnet), taper=0.92))
  load = _tank, _tipper, _flat_bed, _flat_bed, _closed_box, _closed_box
  make = load[rng.integers(len(load))]
  end = front - hood - cab - 0.06
  return [*solids, *make(rng, back, end, width, floor)]


def _closed_box(rng, back, end, width, floor) -> list[parts.Part]:
  height = rng.uniform(0.4, 1.1)
  return [box((back, -width, floor), (end, width, floor + height))]


def _tank(rng, back, end, width, floor) -> list[parts.Part]:
  del width
  radius = rng.uniform(0.34, 0.42)
  rear = np.array([back + 0.05, 0, floor + radius])
  hatch = np.array([(back + end) / 2, 0, floor + radius])
  return [
    rod(rear, (end, 0, rear[2]), radius),
    ellipsoid(rear, (0.1, radius, radius)),
    rod(hatch, hatch + (radius + 0.08) * _UP, 0.1),
  ]


def _tipper(rng, back, end, width, floor) -> list[parts.Part]:
  rim = floor + rng.uniform(0.4, 0.55)
  low, high = (back + 0.05, -0.85 * width, floor), (end, 0.85 * width, rim)
  heap = ((back + end) / 2, 0, floor + 0.45)
  return [
    box(low, high, taper=1.15),
    ellipsoid(heap, (0.4 * (end - back), 0.8 * width, 0.25)),
  ]


def _flat_bed(rng, back, end, width, floor) -> list[parts.Part]:
  wall = floor + rng.uniform(0.25, 0.4)
  solids = [
    box((back, -width, floor), (end, 0.06 - width, wall)),
    box((back, width - 0.06, floor), (end, width, wall)),
    box((back, -width, floor), (back + 0.06, width, wall)),
    box((back, -width, floor), (end, width, floor + 0.05)),
  ]
  if rng.random() < 0.5:
    low = end - rng.uniform(0.5, 0.9), -0.7 * width, floor
    high = end - 0.1, 0.7 * width, floor + rng.uniform(0.4, 0.6)
    solids.append(box(low, high))
  return solids


def _car(rng: np.random.Generator) -> list[parts.Part]:
  uniform = rng.uniform
  length, width, wheel = (
    uniform(1.4, 2.2),
    uniform(0.34, 0.5),
    uniform(0.13, 0.23),
  )
  floor, belt = uniform(0.1, 0.2), uniform(0.32, 0.54)
  back, front = -length / 2, length / 2
  start, roof = back + uniform(0.0, 0.45), belt + uniform(0.06, 0.42)
  solids = [
    box((back, -width, floor), (front, width, belt), taper=uniform(0.92, 0.98)),
    box(
      (start, -0.95 * width, belt - 0.02),
      (start + length * uniform(0.3, 0.7), 0.95 * width, roof),
      taper=uniform(0.6, 0.95),
      lean=uniform(-0.15, 0.06),
    ),
    *_wheels((back + 0.38, front - 0.36), width + 0.02, wheel, 0.14),
  ]
  for x, reach in ((front - 0.3, 0.45), (back + 0.25, 0.35)):
    bulge = reach, 0.9 * width, uniform(0.06, 0.13)
    solids.append(ellipsoid((x, 0, belt - 0.06), bulge))
  for x in (back, front):  # bumpers
    low = x - 0.05, -0.95 * width, floor + 0.04
    solids.append(box(low, (x + 0.05, 0.95 * width, floor + 0.14)))
  for side in (-1, 1):  # lamps
    lamp = front, side * 0.65 * width, belt - 0.12
    solids.append(ellipsoid(lamp, (0.05, 0.08, 0.06)))
  if rng.random() < 0.35:  # a spoiler
    x, z = back + 0.08, belt + 0.1
    solids.append(box((x - 0.08, -width, z), (x + 0.08, width, z + 0.03)))
    for y in (-0.8 * width, 0.8 * width):
      solids.append(rod((x, y, belt - 0.05), (x, y, z), 0.025))
  return solids
