"""Training on images in memory and in files: images a second, and memory.

  python -m experiments.benchmarks.streaming
  python -m experiments.benchmarks.streaming --gigabytes=3

Writes noise in the shape of MNIST as ArrayRecord files into a temporary folder,
which is removed. The first form times the updates of a linear model, which cost
next to nothing, and of CapsNet at a quarter of its widths, on the same batches.
The second trains this CapsNet by `train_capsnet` for a few steps on images of
the given size, in a process of its own, and prints its peak memory.
"""

import pathlib
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import jax
import numpy as np
import optax
from absl import flags
from flax import nnx

import capjax
from capjax import data, losses

from ..flags import limits
from ..training import placing, streaming, train_step

_GIGABYTES = flags.DEFINE_float(
  "gigabytes", None, "Size of the set that is trained on, in 10^9 bytes.",
  lower_bound=0.01,
)  # fmt: skip
_STEPS = flags.DEFINE_integer(
  "steps", 200, "Updates that are timed, or trained.", lower_bound=1
)
_BATCH = flags.DEFINE_integer("batch", 128, "Batch size.", lower_bound=1)
_SHAPE, _CLASSES, _BLOCK = (28, 28, 1), 10, 10_000
_ROUNDS = 4
# The widths of CapsNet's convolution and of its primary capsules: a quarter.
_FEATURES = flags.DEFINE_integer(
  "features", 64, "Features of the convolution.", lower_bound=1
)
_TYPES = flags.DEFINE_integer(
  "types", 8, "Types of primary capsules.", lower_bound=1
)


class Linear(nnx.Module):
  """Logits of each pixel's intensity."""

  def __init__(self):
    self.layer = nnx.Linear(int(np.prod(_SHAPE)), _CLASSES, rngs=nnx.Rngs(0))

  def __call__(self, images: jax.Array) -> jax.Array:
    return self.layer(images.reshape(len(images), -1))


def noise(count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Blocks of random images, and random labels."""
  rng = np.random.default_rng(0)
  for start in range(0, count, _BLOCK):
    size = min(_BLOCK, count - start)
    images = rng.integers(0, 256, (size, *_SHAPE), np.uint8)
    yield images, rng.integers(0, _CLASSES, size)


def write(folder: pathlib.Path, count: int) -> None:
  """Writes `count` images to train on, and 500 to test."""
  names = tuple(map(str, range(_CLASSES)))
  data.write_records(folder, noise(count), noise(500), class_names=names)


def rates(
  train: data.Dataset,
  make: Callable[[], nnx.Module],
  loss: train_step.Loss,
) -> list[float]:
  """Images a second in memory and from files, without compilation.

  Both are timed in turns, so that noise affects both. Hardly anything is read
  ahead, so that a turn reads what it trains on.
  """
  batch, count = _BATCH.value, -(-_STEPS.value // _ROUNDS)
  sample = train_step.sample_labelled(lambda key, image: image)
  mesh = placing.data_mesh(batch)
  optimizer = optax.sgd(1e-3)
  update = train_step.make_update(
    loss, optimizer, sample=sample, batch_size=batch, mesh=mesh
  )
  streamed = streaming.Streamed(
    update,
    sample,
    train,
    batch_size=batch,
    num_steps=count * _ROUNDS + 1,
    mesh=mesh,
    ahead=1,
  )
  labels = placing.replicate(train.labels, mesh)
  images = placing.replicate(train.images.whole(), mesh)
  updates, given = (update, streamed), (images, train.images)
  states, seconds = [], [0.0, 0.0]
  for one, some in zip(updates, given, strict=True):
    state = train_step.init(make(), optimizer, jax.random.key(0))
    state = placing.replicate(state, mesh)
    zeros = one.zeros(state, some, labels)
    state, _ = one.add(state, zeros, some, labels, 1)  # compiles
    states.append(jax.block_until_ready(state))
  for _ in range(_ROUNDS):
    for n, (one, some) in enumerate(zip(updates, given, strict=True)):
      start = time.perf_counter()
      states[n], totals = one.add(states[n], zeros, some, labels, count)
      jax.block_until_ready(totals)
      seconds[n] += time.perf_counter() - start
  return [count * _ROUNDS * batch / x for x in seconds]


def time_both(folder: pathlib.Path) -> None:
  """Prints a row for reading alone, and one for each model."""
  count = (_STEPS.value + _ROUNDS + 2) * _BATCH.value  # within one epoch
  write(folder, count)
  train = data.load(str(folder), "train", stream=True)
  sample = train_step.sample_labelled(lambda key, image: image)
  mesh = placing.data_mesh(_BATCH.value)
  steps = streaming.Steps(sample, train, jax.random.key(0), _BATCH.value)
  numbers = range(_STEPS.value)
  batches = streaming.read(train.images, steps, numbers, mesh, ahead=1)
  next(batches)
  start = time.perf_counter()
  for batch in batches:
    jax.block_until_ready(streaming.place(batch, mesh))
  rate = (_STEPS.value - 1) * _BATCH.value / (time.perf_counter() - start)
  print(f"reading alone: {rate:,.0f} images/s from files", flush=True)

  def of_logits(model, images, labels, key, step):
    return losses.classifier_loss(model(images), labels)

  def of_capsules(model, images, labels, key, step):
    weight = losses.RECONSTRUCTION_WEIGHTS["paper"]
    return losses.capsnet_loss(
      model, images, labels, reconstruction_weight=weight
    )

  def make_capsnet():
    return capjax.CapsNet(
      _SHAPE,
      conv_features=_FEATURES.value,
      num_types=_TYPES.value,
      rngs=nnx.Rngs(0),
    )

  for name, make, loss in (
    ("linear model", Linear, of_logits),
    ("CapsNet", make_capsnet, of_capsules),
  ):
    in_memory, in_files = rates(train, make, loss)
    print(
      f"{name}: {in_memory:,.0f} images/s in memory, {in_files:,.0f} from "
      f"files, {in_files / in_memory:.2f} of it",
      flush=True,
    )


def train_on(folder: pathlib.Path, size: float) -> None:
  """Trains on `size` bytes of images, and prints the peak memory."""
  count = int(size / np.prod(_SHAPE))
  start = time.perf_counter()
  write(folder / "noise", count)
  seconds = time.perf_counter() - start
  print(f"wrote {count:,} images in {seconds:.0f} s", flush=True)
  package = __package__.rpartition(".")[0]
  start = time.perf_counter()
  subprocess.run(
    [
      sys.executable, "-m", f"{package}.train_capsnet", "--stream",
      f"--workdir={folder / 'run'}", f"--dataset={folder / 'noise'}",
      f"--num_steps={_STEPS.value}", f"--batch_size={_BATCH.value}",
      "--num_validation=1000", f"--conv_features={_FEATURES.value}",
      f"--num_types={_TYPES.value}",
    ],
    check=True,
  )  # fmt: skip
  seconds = time.perf_counter() - start
  peak = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
  print(
    f"{size / 1e9:.2f} GB of images, {_STEPS.value} updates of {_BATCH.value}: "
    f"{peak / 1e9:.2f} GB peak resident, {seconds:.0f} s in all"
  )


def main() -> None:
  with tempfile.TemporaryDirectory() as folder:
    if _GIGABYTES.value:
      train_on(pathlib.Path(folder), 1e9 * _GIGABYTES.value)
    else:
      time_both(pathlib.Path(folder))


if __name__ == "__main__":
  limits.run(main)
