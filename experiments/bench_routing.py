"""Races dynamic routing without stored votes against the textbook form.

  python -m experiments.bench_routing

Both map primary capsules and transforms to class capsules and are timed in
turns in one process; each row also gives the floors: the fewest operations over
the matmul rate, and the fewest bytes over the memory rate.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from absl import app, flags

from capjax import layers
from experiments.common import benchmarking, textbook
from kernels import numerics

_BATCHES = flags.DEFINE_list("batches", ["1", "32", "128"], "Batch sizes.")
_NUM_PARTS = flags.DEFINE_list(
  "num_parts", ["1152", "4608"], "Sizes I of the layer below."
)
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


def with_gradient(form):
  """Value and gradients by poses and transforms of a scalar of the outputs."""

  def loss(poses, transforms):
    return jnp.sum(jnp.square(form(poses, transforms)))

  return jax.value_and_grad(loss, argnums=(0, 1))


def floors(
  batch: int, num_parts: int, backward: bool, rates: tuple[float, float]
) -> tuple[float, float]:
  """Fewest seconds that the operations and the bytes take.

  The first iteration needs one product of poses with transforms, each later one
  two (agreement and weighted sum). Backward, each product has two transposes.
  Every input is read once and every gradient written once.
  """
  pairs = num_parts * _NUM_OBJECTS * _PART_SIZE * _POSE_SIZE
  products = 1 + 2 * (_NUM_ITERATIONS - 1)
  operations = 2 * batch * pairs * products * (3 if backward else 1)
  numbers = (batch * num_parts * _PART_SIZE + pairs) * (2 if backward else 1)
  return operations / rates[0], 4 * numbers / rates[1]


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {argv[1:]}")
  ceilings = benchmarking.rates()
  print(
    "parts batch pass              textbook          ours   faster  leaner"
    "   floor: flops, bytes"
  )
  for num_parts in map(int, _NUM_PARTS.value):
    shape = (num_parts, _NUM_OBJECTS, _PART_SIZE, _POSE_SIZE)
    keys = jax.random.split(jax.random.key(0))
    transforms = 0.1 * jax.random.normal(keys[0], shape)
    for batch in map(int, _BATCHES.value):
      poses = numerics.squash(
        jax.random.normal(keys[1], (batch, num_parts, _PART_SIZE))
      )
      for backward in (False, True):
        forms = [textbook.dynamic_routing, ours]
        if backward:
          forms = [with_gradient(form) for form in forms]
        theirs, own = benchmarking.measure_all(forms, poses, transforms)
        flops, transfer = floors(batch, num_parts, backward, ceilings)
        name = "fwd+grad" if backward else "forward"
        print(
          f"{num_parts:5d} {batch:5d} {name:9s}"
          f"{_format(theirs)} {_format(own)}"
          f" {theirs.seconds / own.seconds:7.2f}x"
          f"{theirs.temporary_bytes / own.temporary_bytes:7.1f}x"
          f" {1e3 * flops:7.1f} {1e3 * transfer:6.1f} ms",
          flush=True,
        )


def _format(cost: benchmarking.Cost) -> str:
  return f"{1e3 * cost.seconds:8.1f} ms {cost.temporary_bytes / 1e6:6.1f} MB"


if __name__ == "__main__":
  app.run(main)
