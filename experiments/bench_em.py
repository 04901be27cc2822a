"""Races convolutional EM routing without stored votes against the textbook.

  python -m experiments.bench_em

Layers of the networks of Hinton et al. (2018). Both forms are timed in turns in
one process; where the votes and their copies would not fit in memory, ours runs
alone. Each row also gives the floors: the fewest operations over the matmul
rate, and the fewest bytes over the memory rate.
"""

import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from absl import app, flags

from experiments.common import benchmarking, textbook
from kernels import em, em_convolution

_BATCHES = flags.DEFINE_list("batches", ["1", "16", "64"], "Batch sizes.")
_LAYERS = flags.DEFINE_list(
  "layers",
  ["14:32:32:2", "14:8:16:2", "6:16:16:1"],
  "Layers as H:I:J:stride, with windows of 3x3.",
)
_MEMORY = flags.DEFINE_float(
  "memory", 8.0, "GB that the textbook form may take beside its arguments."
)
_TEMPERATURES = em.inverse_temperature_schedule(3)
_KERNEL, _SIDE = 3, 4


def ours(*arguments: jax.Array, stride: int) -> tuple[jax.Array, jax.Array]:
  """A batch through the kernel."""
  route = functools.partial(
    em_convolution.em_convolution,
    inverse_temperatures=_TEMPERATURES,
    stride=stride,
  )
  output = jax.vmap(route, (0, 0, None, None, None))(*arguments)
  return output.poses, output.activations


def theirs(*arguments: jax.Array, stride: int) -> tuple[jax.Array, jax.Array]:
  """A batch through the textbook form."""
  return textbook.em_convolution(
    *arguments, inverse_temperatures=_TEMPERATURES, stride=stride
  )


def with_gradient(form):
  """Value and gradients by all arguments of a scalar of the outputs."""

  def loss(*arguments):
    return sum(jnp.sum(jnp.square(x)) for x in form(*arguments))

  return jax.value_and_grad(loss, argnums=range(5))


def num_votes(size: int, types: int, parents: int, stride: int) -> int:
  """How many votes an example casts."""
  positions = ((size - _KERNEL) // stride + 1) ** 2
  return positions * _KERNEL**2 * types * parents


def floors(
  batch: int,
  votes: int,
  numbers: int,
  backward: bool,
  rates: tuple[float, float],
) -> tuple[float, float]:
  """Fewest seconds that the operations and the bytes take.

  Once formed (a product of 4x4 matrices), votes cost an M-step in each
  iteration (two weighted sums) and an E-step between two (a weighted distance),
  of 7 and 3 operations for each number. Backward costs twice as much. Every
  input is read once and every gradient written once.
  """
  iterations = len(_TEMPERATURES)
  for_each = 2 * _SIDE + 7 * iterations + 3 * (iterations - 1)
  operations = batch * votes * _SIDE**2 * for_each * (3 if backward else 1)
  return operations / rates[0], 4 * numbers * (1 + backward) / rates[1]


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {argv[1:]}")
  ceilings = benchmarking.rates()
  print(
    "H:I:J:stride batch pass              textbook          ours   faster"
    "  leaner   floor: flops, bytes"
  )
  for layer in _LAYERS.value:
    size, types, parents, stride = map(int, layer.split(":"))
    votes = num_votes(size, types, parents, stride)
    for batch in map(int, _BATCHES.value):
      shapes = (
        (batch, size, size, types, _SIDE, _SIDE),
        (batch, size, size, types),
        (_KERNEL, _KERNEL, types, parents, _SIDE, _SIDE),
      )
      keys = jax.random.split(jax.random.key(0), 3)
      arguments = (
        jax.random.normal(keys[0], shapes[0]),
        jax.random.uniform(keys[1], shapes[1]),
        0.3 * jax.random.normal(keys[2], shapes[2]),
        *jnp.zeros((2, parents)),
      )
      numbers = sum(map(math.prod, shapes))
      for backward in (False, True):
        forms = [
          functools.partial(form, stride=stride) for form in (ours, theirs)
        ]
        if backward:
          forms = [with_gradient(form) for form in forms]
        plan = jax.jit(forms[1]).lower(*arguments).compile().memory_analysis()
        fits = plan.temp_size_in_bytes < 1e9 * _MEMORY.value
        own, *rest = benchmarking.measure_all(
          forms if fits else forms[:1], *arguments
        )
        flops, transfer = floors(batch, votes, numbers, backward, ceilings)
        other = _format(rest[0]) if fits else "  too large".ljust(12)
        faster = f"{rest[0].seconds / own.seconds:7.2f}x" if fits else " " * 8
        leaner = plan.temp_size_in_bytes / own.temporary_bytes
        print(
          f"{layer:12s} {batch:5d} {'fwd+grad' if backward else 'forward':9s}"
          f"{other} {_format(own)} {faster}{leaner:7.1f}x"
          f" {1e3 * flops:7.1f} {1e3 * transfer:6.1f} ms",
          flush=True,
        )


def _format(cost: benchmarking.Cost) -> str:
  return f"{1e3 * cost.seconds:8.1f} ms {cost.temporary_bytes / 1e6:6.1f} MB"


if __name__ == "__main__":
  app.run(main)
