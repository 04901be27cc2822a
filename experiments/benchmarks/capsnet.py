"""Compares CapsNet's training step and its costliest layer with textbook forms.

  python -m experiments.benchmarks.capsnet

The textbook form uses XLA's own convolution and the routing of Procedure 1 with
stored votes. On a CPU its step takes over a minute at batch 128;
`--notextbook` leaves it out. The lower bound ("floor") divides the operations
of the direct sums by the device's matmul rate. Fast convolutions need fewer
operations, so our step can take less time.

With `--peer` a plain, vectorised CapsNet in PyTorch, compiled, is timed in the
same run (`benchmarks/peer.py`).
"""

import functools
import json
import os
import pathlib
import subprocess
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from absl import flags
from flax import nnx

import capjax
from capjax import losses
from capjax.data.transforms import augment
from capjax.kernels import numerics, routing
from capjax.layers import convolution

from ..flags import errors, limits
from ..training import allocator, train_step
from . import harness, rows, step_cost, textbook

_BATCHES = flags.DEFINE_list("batches", ["1", "8", "32", "128"], "Batch sizes.")
limits.require_counts(_BATCHES, example="1,32")
_TEXTBOOK = flags.DEFINE_bool("textbook", True, "Time the textbook form too.")
_STEPS = flags.DEFINE_integer(
  "steps", 5, "Training steps timed.", lower_bound=1
)
_PEER = flags.DEFINE_string(
  "peer",
  None,
  "Python that has PyTorch, in which a plain CapsNet is timed too, on the same "
  "CPU or GPU; `make bench-peers` makes one.",
)

# Multiplications for an image, by layer.
_CONV = 20 * 20 * 9 * 9 * 256
_PRIMARY = 6 * 6 * 9 * 9 * 256 * 256
_ROUTING = textbook.num_products((1152, 10, 8, 16), num_iterations=3)
# Sides of larger images, and batch sizes that fit into memory.
_LARGE = ((64, 16), (96, 4))
# Environment variables that make glibc keep freed memory, for the peer.
_KEEP_MEMORY = {
  "MALLOC_MMAP_MAX_": "0",
  "MALLOC_TRIM_THRESHOLD_": str(2**40),
  "MALLOC_ARENA_MAX": "1",
}


class TextbookCapsNet(capjax.CapsNet):
  """The same network with the same parameters, in the textbook form."""

  def __call__(self, images: jax.Array) -> routing.RoutingOutput:
    features = jax.nn.relu(_direct(self.conv, images))
    parts = _direct(self.primary.conv, features)
    parts = parts.reshape(len(images), -1, self.primary.pose_size)
    poses = textbook.dynamic_routing(
      numerics.squash(parts), self.classes.transforms[...],
      self.classes.bias[...],
    )  # fmt: skip
    lengths = numerics.safe_norm(poses)
    return routing.RoutingOutput(poses, lengths, None)


def _direct(layer: capjax.layers.Conv, images: jax.Array) -> jax.Array:
  features = convolution.direct(images, layer.kernel[...], stride=layer.stride)
  return layer.scale * features + layer.bias[...]


def time_step(
  form: Callable[..., nnx.Module], batch: int, num_steps: int, side: int = 28
) -> step_cost.StepCost:
  """Trains a network on shifted noise of SIDE x SIDE pixels."""

  def loss(model, images, labels, key, step):
    del key, step
    weight = losses.RECONSTRUCTION_WEIGHTS["paper"]
    return losses.capsnet_loss(
      model, images, labels, reconstruction_weight=weight
    )

  shape = (side, side, 1)
  return step_cost.time_step(
    form(shape, rngs=nnx.Rngs(0)),
    loss,
    train_step.sample_labelled(functools.partial(augment.shift, max_shift=2)),
    image_shape=shape,
    num_classes=10,
    batch=batch,
    num_steps=num_steps,
  )


def time_inference(batch: int) -> step_cost.StepCost:
  """Times the lengths of class capsules, in a process that only predicts."""
  graph, state = nnx.split(capjax.CapsNet(rngs=nnx.Rngs(0)))
  images = jax.random.uniform(jax.random.key(0), (batch, 28, 28, 1))

  def lengths(state, images):
    return nnx.merge(graph, state)(images).activations

  return step_cost.time_call(lengths, state, images)


def floors(batch: int, rates: tuple[float, float]) -> tuple[float, float]:
  """Lower bounds in seconds from operations and bytes of a training step.

  Operations: those of the direct sums, forward and twice backward (the images
  need no gradient). Bytes: Adam reads parameters, gradients and two moments and
  writes three of them; the first convolution's output is written and read, and
  so is its gradient.
  """
  decoder = 160 * 512 + 512 * 1024 + 1024 * 784
  operations = 2 * batch * (2 * _CONV + 3 * (_PRIMARY + _ROUTING + decoder))
  numbers = 7 * 8_215_728 + 4 * batch * 20 * 20 * 256
  return operations / rates[0], 4 * numbers / rates[1]


def race_peer(python: str, batch: int, num_steps: int) -> dict[str, Any]:
  """Times the CapsNet of `peer.py` in a process of its own.

  Its allocator keeps freed memory. Otherwise it would spend most of its time on
  new pages, which the system clears.

  Args:
    python: an interpreter that has PyTorch.
    batch: images of a step.
    num_steps: number of timed steps.

  Returns:
    The result of `peer.measure`.

  Raises:
    ValueError: if the interpreter cannot be started or fails.
  """
  words = [python, str(pathlib.Path(__file__).with_name("peer.py"))]
  words += [f"--batch={batch}", f"--steps={num_steps}"]
  if jax.default_backend() == "gpu":
    words.append("--device=cuda")
  if rows.precision():
    words.append("--tf32")
  try:
    done = subprocess.run(
      words,
      capture_output=True,
      text=True,
      check=True,
      env=os.environ | _KEEP_MEMORY,
    )
  except OSError as error:
    raise ValueError(
      f"--peer={python} cannot be started ({error.strerror}); `make "
      "bench-peers` makes one"
    ) from error
  except subprocess.CalledProcessError as error:
    last = (error.stderr.strip().splitlines() or ["it printed nothing"])[-1]
    raise ValueError(f"--peer={python} failed: {last}") from error
  try:
    return json.loads(done.stdout.splitlines()[-1])
  except (IndexError, ValueError) as error:
    raise ValueError(f"--peer={python} printed no JSON") from error


def main() -> None:
  ceilings = harness.rates()
  batches = [int(batch) for batch in _BATCHES.value]
  peers = {}
  if _PEER.value:
    with errors.clear_errors():
      if jax.default_backend() not in ("cpu", "gpu"):
        raise ValueError(
          "--peer is timed on CPUs and GPUs; set JAX_PLATFORMS=cpu"
        )
      peers = {n: race_peer(_PEER.value, n, _STEPS.value) for n in batches}
  print("whole training step; each form in a process of its own:")
  for batch in batches:
    flops, transfer = floors(batch, ceilings)
    ours = step_cost.in_process(time_step, capjax.CapsNet, batch, _STEPS.value)
    text = f"  batch {batch}: ours {ours.describe(batch)}"
    row = ours.row("CapsNet, step", f"batch {batch}")
    row = row._replace(operations=flops, transfer=transfer)
    if _TEXTBOOK.value:
      # On a CPU one step, which takes over a minute.
      num_steps = 1 if jax.default_backend() == "cpu" else _STEPS.value
      theirs = step_cost.in_process(
        time_step, TextbookCapsNet, batch, num_steps
      )
      row = row._replace(textbook=theirs.seconds)
      ratio = theirs.seconds / ours.seconds
      text += f"; textbook {theirs.describe(batch)}, {ratio:.1f}x slower"
    peer = peers.get(batch)
    if peer:
      row = row._replace(peer=peer["step"], peer_name=peer["name"])
      text += (
        f"; {peer['name']} {peer['step']:.3f} s, "
        f"{peer['peak_bytes'] / 1e6:.0f} MB at its peak"
      )
    rows.note(row)
    print(
      f"{text}; floor of the direct sums {flops:.3f} s (flops), "
      f"{transfer:.3f} s (bytes)",
      flush=True,
    )
  if allocator.asks_for_huge_pages():
    _bench_small_pages(batches[-1])
  for side, batch in _LARGE:
    cost = step_cost.in_process(
      time_step, capjax.CapsNet, batch, _STEPS.value, side
    )
    setting = f"{side}x{side}, batch {batch}"
    rows.note(cost.row("CapsNet, step, large images", setting))
    print(f"  {setting}: ours {cost.describe(batch)}", flush=True)
  print("inference:")
  cost = step_cost.in_process(time_inference, batches[-1])
  setting = f"batch {batches[-1]}"
  rows.note(cost.row("CapsNet, inference alone in a process", setting))
  print(f"  {setting}, in a process: {cost.describe(batches[-1])}")
  for batch in batches:
    _bench_inference(batch, ceilings[0], peers.get(batch))
  print("the primary capsules' convolution, 9x9, stride 2, 256 -> 256:")
  for batch in batches:
    _bench_primary(batch, ceilings[0])


def _bench_small_pages(batch: int) -> None:
  """Times the training step with pages of 4 kB, without GLIBC_TUNABLES."""
  small = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}
  cost = step_cost.in_process(
    time_step, capjax.CapsNet, batch, _STEPS.value, environment=small
  )
  rows.note(cost.row("CapsNet, step, small pages", f"batch {batch}"))
  print(f"  batch {batch}, small pages: ours {cost.describe(batch)}")


def _bench_inference(
  batch: int, rate: float, peer: dict[str, Any] | None
) -> None:
  """Compares lengths of class capsules by the textbook's form and by ours.

  On CPUs ours is also timed with kernels that are transformed before.
  """
  images = jax.random.uniform(jax.random.key(0), (batch, 28, 28, 1))
  model = capjax.CapsNet(rngs=nnx.Rngs(0))
  models = (model, capjax.layers.transform_kernels(model))

  def lengths(form, number, models, images):
    return form.__call__(models[number], images).activations

  forms = {"ours": functools.partial(lengths, capjax.CapsNet, 0)}
  if jax.default_backend() == "cpu":
    forms["before"] = functools.partial(lengths, capjax.CapsNet, 1)
  if _TEXTBOOK.value:
    forms["textbook"] = functools.partial(lengths, TextbookCapsNet, 0)
  costs = harness.measure_all([*forms.values()], models, images)
  times = {name: cost.seconds for name, cost in zip(forms, costs, strict=True)}
  ours, before, textbook = map(times.get, ("ours", "before", "textbook"))
  memory = costs[0].temporary_bytes
  floor = 2 * batch * (_CONV + _PRIMARY + _ROUTING) / rate
  row = rows.Row("CapsNet, inference", f"batch {batch}", ours, textbook, floor)
  if peer:
    row = row._replace(peer=peer["inference"], peer_name=peer["name"])
  rows.note(row)
  if before:
    system = "CapsNet, inference, kernels transformed before"
    rows.note(row._replace(system=system, ours=before))
  print(
    f"  batch {batch}: ours {1e3 * ours:.1f} ms, {memory / 1e6:.0f} MB "
    f"temporary; floor {1e3 * floor:.1f} ms"
    + (f"; kernels transformed before {1e3 * before:.1f} ms" if before else "")
    + (f"; textbook {1e3 * textbook:.1f} ms" if textbook else "")
    + (f"; {peer['name']} {1e3 * peer['inference']:.1f} ms" if peer else ""),
    flush=True,
  )


def _bench_primary(batch: int, rate: float) -> None:
  """Compares XLA's convolution with ours, forward and with gradients."""
  kernel = 0.05 * jax.random.normal(jax.random.key(0), (9, 9, 256, 256))
  images = jax.random.normal(jax.random.key(1), (batch, 20, 20, 256))
  forms = [
    functools.partial(form, stride=2)
    for form in (convolution.direct, convolution.conv2d)
  ]

  def with_gradients(form):
    return jax.grad(lambda *x: jnp.sum(jnp.square(form(*x))), (0, 1))

  passes = {"forward": (forms, 5, 1)}
  if _TEXTBOOK.value:
    gradients = [with_gradients(form) for form in forms]
    passes["forward and gradients"] = (gradients, 1, 3)
  for name, (functions, rounds, products) in passes.items():
    theirs, ours = harness.measure_all(functions, images, kernel, rounds=rounds)
    floor = products * 2 * batch * 36 * kernel.size / rate
    rows.note(
      rows.Row(
        "convolution 9x9, stride 2, 256 to 256",
        f"batch {batch}, {name}",
        ours.seconds,
        theirs.seconds,
        floor,
      )
    )
    print(
      f"  batch {batch}, {name}: XLA's {theirs.seconds:.3f} s "
      f"{theirs.temporary_bytes / 1e6:.0f} MB, ours {ours.seconds:.3f} s "
      f"{ours.temporary_bytes / 1e6:.0f} MB, "
      f"{theirs.seconds / ours.seconds:.1f}x faster; floor of the direct sum "
      f"{floor:.3f} s",
      flush=True,
    )


if __name__ == "__main__":
  limits.run(main)
