"""Time and memory of whole training steps and calls, in their own process."""

import multiprocessing
import os
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any, NamedTuple, TypeVar
from unittest import mock

import jax
import numpy as np
import optax
from flax import nnx

from ..training import allocator, placing, train_step
from . import harness, rows

Result = TypeVar("Result")


class StepCost(NamedTuple):
  """The cost of one training step or call in a process of its own.

  Attributes:
    seconds: time of a step in a compiled loop of many steps, or of a call.
    temporary_bytes: memory that XLA allocates in addition to state and images.
    peak_bytes: peak resident memory of the process, including compilation; on
      accelerators the peak of the device's memory.
    compile_seconds: seconds of tracing and compilation.
  """

  seconds: float
  temporary_bytes: int
  peak_bytes: int
  compile_seconds: float

  def describe(self, batch: int) -> str:
    """The text that a benchmark prints."""
    return (
      f"{self.seconds:.3f} s, {batch / self.seconds:.1f} images/s, "
      f"{self.temporary_bytes / 1e6:.0f} MB temporary, "
      f"{self.peak_bytes / 1e6:.0f} MB at its peak, compiled in "
      f"{self.compile_seconds:.1f} s"
    )

  def row(self, system: str, setting: str) -> rows.Row:
    """A row of the table of all benchmarks."""
    return rows.Row(
      system,
      setting,
      self.seconds,
      compile_seconds=self.compile_seconds,
      peak_bytes=self.peak_bytes,
    )


def time_step(
  model: nnx.Module,
  loss: Callable[..., Any],
  sample: train_step.Sample,
  *,
  image_shape: Sequence[int],
  num_classes: int,
  batch: int,
  num_steps: int,
) -> StepCost:
  """Trains a model on noise; call it once in a process, to measure its peak.

  Args:
    model: the model to train.
    loss: as for `train_step.make_update`.
    sample: as for `train_step.make_update`.
    image_shape: [H, W, C] of the noise.
    num_classes: number of classes of the labels.
    batch: number of examples in a step.
    num_steps: number of timed steps.
  """
  mesh = placing.data_mesh(batch)
  optimizer = optax.adam(1e-3)
  update = train_step.make_update(
    loss, optimizer, sample=sample, batch_size=batch, mesh=mesh
  )
  rng = np.random.default_rng(0)
  examples = (num_steps + 1) * batch
  images = rng.integers(0, 256, (examples, *image_shape), np.uint8)
  labels = rng.integers(0, num_classes, examples, np.int32)
  state = train_step.init(model, optimizer, jax.random.key(0))
  state, images, labels = placing.replicate((state, images, labels), mesh)
  del model
  zeros = update.zeros(state, images, labels)
  start = time.perf_counter()
  run = update.add.lower(state, zeros, images, labels, 1).compile()
  compiled = time.perf_counter() - start
  allocator.trim()
  state, metrics = run(state, zeros, images, labels, 1)
  jax.block_until_ready(metrics)
  start = time.perf_counter()
  state, metrics = run(state, zeros, images, labels, num_steps)
  jax.block_until_ready(metrics)
  return StepCost(
    (time.perf_counter() - start) / num_steps,
    run.memory_analysis().temp_size_in_bytes,
    _peak(),
    compiled,
  )


def time_call(
  function: Callable[..., Any], *arguments: Any, rounds: int = 5
) -> StepCost:
  """Compiles and calls a function; once in a process, to measure its peak.

  Args:
    function: gives a pytree of arrays.
    *arguments: its arguments.
    rounds: number of timed calls, of which the median counts.
  """
  start = time.perf_counter()
  run = jax.jit(function).lower(*arguments).compile()
  compiled = time.perf_counter() - start
  allocator.trim()
  times, calls = [], harness.queued_calls()
  for _ in range(rounds + 1):  # the first warms up
    start = time.perf_counter()
    jax.block_until_ready([run(*arguments) for _ in range(calls)])
    times.append((time.perf_counter() - start) / calls)
  return StepCost(
    sorted(times[1:])[rounds // 2],
    run.memory_analysis().temp_size_in_bytes,
    _peak(),
    compiled,
  )


def _peak() -> int:
  """Peak memory of this process in bytes: resident, or on an accelerator."""
  stats = jax.local_devices()[0].memory_stats()
  if jax.default_backend() != "cpu" and stats:
    return stats["peak_bytes_in_use"]
  return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class CPUDivision(NamedTuple):
  """How the cores of a CPU are divided into devices.

  Attributes:
    environment: variables that give a process this number of devices.
    remark: text to add to the name of a row; empty for one device.
  """

  environment: dict[str, str]
  remark: str


def cpu_divisions(batch: int) -> list[CPUDivision]:
  """The divisions to time: one device; on a CPU also that of training."""
  if jax.default_backend() != "cpu":
    return [CPUDivision({}, "")]
  counts = sorted({1, placing.cpu_devices_for(batch)})
  return [
    CPUDivision(
      {"JAX_NUM_CPU_DEVICES": str(count)},
      f" on {count} CPU devices" if count > 1 else "",
    )
    for count in counts
  ]


def in_process(
  function: Callable[..., Result],
  *arguments: Any,
  environment: Mapping[str, str] | None = None,
) -> Result:
  """Calls a function of a module in a new process.

  Args:
    function: what is called.
    *arguments: its arguments.
    environment: variables that the process has in addition.
  """
  context = multiprocessing.get_context("spawn")
  with (
    mock.patch.dict(os.environ, environment or {}),
    futures.ProcessPoolExecutor(1, mp_context=context) as pool,
  ):
    return pool.submit(function, *arguments).result()
