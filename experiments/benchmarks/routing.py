"""Compares dynamic routing, as on this device, with its textbook form.

  python -m experiments.benchmarks.routing

Both map primary capsules and transforms to class capsules and are timed in
turns in one process; each row also gives the floors: the fewest operations over
the matmul rate, and the fewest bytes over the memory rate.
"""

import functools
import math

import jax
from absl import flags

from capjax import layers
from capjax.kernels import numerics

from ..flags import limits
from . import harness, textbook

_BATCHES = flags.DEFINE_list("batches", ["1", "8", "32", "128"], "Batch sizes.")
_NUM_PARTS = flags.DEFINE_list(
  "num_parts", ["1152", "4608"], "Sizes I of the layer below."
)
limits.require_counts(_BATCHES, _NUM_PARTS, example="32,128")
_NUM_OBJECTS, _PART_SIZE, _POSE_SIZE, _NUM_ITERATIONS = 10, 8, 16, 3


def ours(poses: jax.Array, transforms: jax.Array) -> jax.Array:
  """The form that the model uses."""

  def route(poses):
    return layers.route_by_agreement(
      poses,
      transforms,
      num_iterations=_NUM_ITERATIONS,
      batch_size=batch_size,
    ).poses

  batch_size = len(poses)
  return jax.vmap(route)(poses)


def floors(
  batch: int, num_parts: int, rates: tuple[float, float], backward: bool
) -> tuple[float, float]:
  """Lower bounds in seconds from the operations and the bytes.

  Every input is read once and every gradient written once.
  """
  shape = (num_parts, _NUM_OBJECTS, _PART_SIZE, _POSE_SIZE)
  products = textbook.num_products(shape, _NUM_ITERATIONS)
  operations = 2 * batch * products * (3 if backward else 1)
  pairs = math.prod(shape)
  numbers = (batch * num_parts * _PART_SIZE + pairs) * (2 if backward else 1)
  return operations / rates[0], 4 * numbers / rates[1]


def main() -> None:
  ceilings = harness.rates()
  print(f"parts {harness.COLUMNS}")
  for num_parts in map(int, _NUM_PARTS.value):
    shape = (num_parts, _NUM_OBJECTS, _PART_SIZE, _POSE_SIZE)
    keys = jax.random.split(jax.random.key(0))
    transforms = 0.1 * jax.random.normal(keys[0], shape)
    for batch in map(int, _BATCHES.value):
      poses = numerics.squash(
        jax.random.normal(keys[1], (batch, num_parts, _PART_SIZE))
      )
      harness.race(
        f"{num_parts:5d}",
        batch,
        (textbook.dynamic_routing, ours),
        (poses, transforms),
        system=f"dynamic routing of {num_parts} parts",
        floors=functools.partial(floors, batch, num_parts, ceilings),
      )


if __name__ == "__main__":
  limits.run(main)
