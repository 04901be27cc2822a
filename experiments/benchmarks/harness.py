"""Time and memory of compiled functions, and their lower bounds."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from capjax.kernels import numerics

from . import rows

# Header of the rows of `race`, after the label.
COLUMNS = (
  "batch pass              textbook          ours   faster  leaner"
  "   floor: flops, bytes"
)

# Calls shorter than this, in seconds, depend on the contents of the cache.
_SHORT = 0.05
# Number of calls that are timed together on accelerators. The host queues the
# next call while one runs, so that its delay counts only once.
_QUEUED = 20


class Cost(NamedTuple):
  """The cost of one call of a compiled function.

  Attributes:
    seconds: time of a call, the median over rounds, or the shortest.
    temporary_bytes: memory that XLA allocates besides arguments and results.
  """

  seconds: float
  temporary_bytes: int


def measure_all(
  functions: Sequence[Callable[..., Any]],
  *arguments: Any,
  rounds: int = 5,
  shortest: bool = False,
) -> list[Cost]:
  """Compiles functions and times them in turns, so that noise affects all.

  A call of less than 50 ms is timed right after another of the same function;
  on accelerators each is one of 20 that are queued.

  Args:
    functions: take the same arguments, and return pytrees of arrays.
    *arguments: the arguments of each function.
    rounds: number of timed calls of each, after three calls that warm up, or
      after one if it takes a second or more.
    shortest: take the shortest time, which other load of the machine affects
      least, instead of the median.

  Returns:
    The cost of each function.
  """
  compiled = [jax.jit(f).lower(*arguments).compile() for f in functions]

  calls = queued_calls()

  def seconds_of(run):
    start = time.perf_counter()
    jax.block_until_ready([run(*arguments) for _ in range(calls)])
    return (time.perf_counter() - start) / calls

  def is_short(run):
    """Warms up, and tells whether a call is short.

    The first calls are slower: most of their memory is new to the process.
    """
    seconds = seconds_of(run)
    for _ in range(2 if seconds < 1 else 0):
      seconds = seconds_of(run)
    return seconds < _SHORT

  are_short = [is_short(run) for run in compiled]
  times = [[] for _ in compiled]
  for _ in range(rounds):
    for run, short, seconds in zip(compiled, are_short, times, strict=True):
      if short and len(compiled) > 1:
        # Fill the cache again, which the other functions have used.
        jax.block_until_ready(run(*arguments))
      seconds.append(seconds_of(run))
  return [
    Cost(
      sorted(seconds)[0 if shortest else len(seconds) // 2],
      run.memory_analysis().temp_size_in_bytes,
    )
    for run, seconds in zip(compiled, times, strict=True)
  ]


def queued_calls() -> int:
  """Number of calls that are timed together: one on CPUs."""
  return 1 if jax.default_backend() == "cpu" else _QUEUED


def race(
  label: str,
  batch: int,
  forms: tuple[Callable[..., Any], Callable[..., Any]],
  arguments: Sequence[jax.Array],
  *,
  system: str,
  floors: Callable[[bool], tuple[float, float]],
  memory: float = math.inf,
) -> None:
  """Prints a row of `COLUMNS` for the forward pass, and one with gradients.

  Args:
    label: label of the row.
    batch: number of examples.
    forms: the textbook's function and ours, with the same arguments.
    arguments: the arguments; gradients are with respect to each of them.
    system: what is computed, for the table of all benchmarks.
    floors: `with gradients -> (seconds, seconds)`, lower bounds from the
      operations and from the bytes.
    memory: bytes that the textbook form may use in addition to its arguments;
      where it needs more, only ours runs.
  """
  for backward in (False, True):
    textbook, ours = (
      _with_gradient(form, len(arguments)) if backward else form
      for form in forms
    )
    plan = jax.jit(textbook).lower(*arguments).compile().memory_analysis()
    theirs = Cost(math.nan, plan.temp_size_in_bytes)
    if theirs.temporary_bytes < memory:
      theirs, own = measure_all([textbook, ours], *arguments)
    else:
      (own,) = measure_all([ours], *arguments)
    flops, transfer = floors(backward)
    kind = "with gradients" if backward else "forward"
    rows.note(
      rows.Row(
        system,
        f"batch {batch}, {kind}",
        own.seconds,
        theirs.seconds,
        flops,
        transfer,
      )
    )
    print(
      f"{label} {batch:5d} {'fwd+grad' if backward else 'forward':9s}"
      f"{_format(theirs)} {_format(own)}"
      f" {theirs.seconds / own.seconds:7.2f}x"
      f"{theirs.temporary_bytes / own.temporary_bytes:7.1f}x"
      f" {1e3 * flops:7.1f} {1e3 * transfer:6.1f} ms",
      flush=True,
    )


def _with_gradient(form, num_arguments):
  """Makes a function that returns the sum of squared results, and gradients."""

  def loss(*arguments):
    return sum(
      jnp.sum(jnp.square(x)) for x in jax.tree.leaves(form(*arguments))
    )

  return jax.value_and_grad(loss, argnums=range(num_arguments))


def _format(cost: Cost) -> str:
  taken = f"{1e3 * cost.seconds:.1f} ms"
  if math.isnan(cost.seconds):
    taken = "too large"
  return f"{taken:>11s} {cost.temporary_bytes / 1e6:6.1f} MB"


def matmul_rate(rounds: int = 10) -> float:
  """Floating-point operations per second of a float32 matrix product.

  Its operands are rounded as `jax.default_matmul_precision` says, and not at
  all where nothing is set, as in the models.
  """
  size = 2048 if jax.default_backend() == "cpu" else 8192
  x = jax.random.normal(jax.random.key(0), (size, size))
  product = jax.jit(numerics.matmul)
  jax.block_until_ready(product(x, x))
  best = float("inf")
  for _ in range(rounds):
    start = time.perf_counter()
    jax.block_until_ready(product(x, x))
    best = min(best, time.perf_counter() - start)
  return 2 * size**3 / best


def copy_rate(rounds: int = 10) -> float:
  """Bytes read and written per second where 1 is added to an array in place."""
  size = 2**25 if jax.default_backend() == "cpu" else 2**30
  x = jnp.ones(size)
  add = jax.jit(lambda a: a + 1, donate_argnums=0)
  best = float("inf")
  for _ in range(rounds + 1):
    start = time.perf_counter()
    x = jax.block_until_ready(add(x))
    best = min(best, time.perf_counter() - start)
  return 2 * x.nbytes / best


def rates() -> tuple[float, float]:
  """Prints and returns the device's rates: operations and bytes per second."""
  operations, transfer = matmul_rate(), copy_rate()
  rows.note(rows.machine(operations, transfer))
  print(
    f"device {jax.devices()[0].device_kind}, jax {jax.__version__}; ceilings "
    f"measured now: float32 matmul {operations / 1e9:.0f} GFLOP/s, memory "
    f"{transfer / 1e9:.0f} GB/s"
  )
  return operations, transfer
