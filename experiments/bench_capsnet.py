"""Races CapsNet's training step and its costly layer against textbook forms.

  python -m experiments.bench_capsnet

The textbook form uses XLA's own convolution and the routing of Procedure 1 with
stored votes. On a CPU its step takes half a minute: `--notextbook` leaves it
out. The floor counts the operations of the direct sums and the device's matmul
rate; convolving at frequencies needs fewer, so our step can pass below it.
"""

import functools
import resource
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags
from flax import nnx

import capjax
from capjax import convolution, losses
from capjax.data import augment
from experiments.common import benchmarking, textbook, training
from kernels import numerics

_BATCHES = flags.DEFINE_list("batches", ["1", "32", "128"], "Batch sizes.")
_TEXTBOOK = flags.DEFINE_bool("textbook", True, "Time the textbook form too.")
_STEPS = flags.DEFINE_integer("steps", 5, "Training steps timed.")


class TextbookCapsNet(capjax.CapsNet):
  """The same network and parameters in the forms that are usually written."""

  def __call__(self, images: jax.Array) -> capjax.capsnet.CapsNetOutput:
    features = jax.nn.relu(_direct(self.conv, images))
    parts = _direct(self.primary.conv, features)
    parts = parts.reshape(len(images), -1, self.primary.pose_size)
    poses = textbook.dynamic_routing(
      numerics.squash(parts), self.classes.transforms[...],
      self.classes.bias[...],
    )  # fmt: skip
    lengths = numerics.safe_norm(poses)
    return capjax.capsnet.CapsNetOutput(poses, lengths, None)


def _direct(layer: capjax.layers.Conv, images: jax.Array) -> jax.Array:
  features = convolution.direct(images, layer.kernel[...], stride=layer.stride)
  return features + layer.bias[...]


def time_step(model: nnx.Module, batch: int, num_steps: int) -> float:
  """Seconds of one whole training step, in one compiled loop of many.

  Forward, loss with reconstruction, backward, Adam; shifted images gathered
  from a set on the device.
  """
  mesh = training.data_mesh(batch)
  optimizer = optax.adam(1e-3)

  def loss(model, images, labels, key):
    del key
    weight = losses.RECONSTRUCTION_WEIGHTS["paper"]
    return losses.capsnet_loss(
      model, images, labels, reconstruction_weight=weight
    )

  update = training.make_update(
    loss,
    optimizer,
    augment=functools.partial(augment.shift, max_shift=2),
    batch_size=batch,
    mesh=mesh,
  )
  rng = np.random.default_rng(0)
  examples = (num_steps + 1) * batch
  images = rng.integers(0, 256, (examples, 28, 28, 1), np.uint8)
  labels = rng.integers(0, 10, examples, np.int32)
  images, labels = training.replicate((images, labels), mesh)
  state = training.init(model, optimizer, jax.random.key(0))
  state = training.replicate(state, mesh)
  state, metrics = update(state, images, labels, 1)
  jax.block_until_ready(metrics)
  start = time.perf_counter()
  state, metrics = update(state, images, labels, num_steps)
  jax.block_until_ready(metrics)
  return (time.perf_counter() - start) / num_steps


def operations(batch: int) -> float:
  """Operations of a training step with direct sums, forward and backward."""
  conv = 20 * 20 * 9 * 9 * 256
  primary = 6 * 6 * 9 * 9 * 256 * 256
  votes = 1152 * 10 * 8 * 16
  routing = votes * (1 + 2 * 2)
  decoder = 160 * 512 + 512 * 1024 + 1024 * 784
  # The images need no gradient.
  return 2 * batch * (2 * conv + 3 * (primary + routing + decoder))


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {argv[1:]}")
  rate, _ = benchmarking.rates()
  batches = [int(batch) for batch in _BATCHES.value]
  for batch in batches:
    seconds = time_step(capjax.CapsNet(rngs=nnx.Rngs(0)), batch, _STEPS.value)
    floor = operations(batch) / rate
    print(
      f"training step, batch {batch}: ours {seconds:.3f} s, "
      f"{batch / seconds:.0f} images/s; floor of the direct sums {floor:.3f} s "
      f"({operations(batch) / 1e9:.1f} GFLOP), {seconds / floor:.2f}x; "
      f"peak resident memory so far {_peak_memory() / 1e6:.0f} MB",
      flush=True,
    )
  _bench_primary(batches, rate)
  if _TEXTBOOK.value:
    for batch in batches:
      seconds = time_step(TextbookCapsNet(rngs=nnx.Rngs(0)), batch, 1)
      print(
        f"training step, batch {batch}: textbook {seconds:.3f} s, "
        f"{batch / seconds:.1f} images/s; peak resident memory so far "
        f"{_peak_memory() / 1e6:.0f} MB",
        flush=True,
      )


def _bench_primary(batches: Sequence[int], rate: float) -> None:
  """The primary capsules' convolution: XLA's form (forward only) and ours."""
  print("primary capsules' convolution, 9x9, stride 2, 256 -> 256:")
  kernel = 0.05 * jax.random.normal(jax.random.key(0), (9, 9, 256, 256))
  for batch in batches:
    images = jax.random.normal(jax.random.key(1), (batch, 20, 20, 256))
    conv = functools.partial(convolution.conv2d, stride=2)
    direct = functools.partial(convolution.direct, stride=2)
    theirs, own = benchmarking.measure_all([direct, conv], images, kernel)
    (backward,) = benchmarking.measure_all(
      [jax.grad(lambda *x: jnp.sum(jnp.square(conv(*x))), (0, 1))],  # noqa: B023
      images, kernel,
    )  # fmt: skip
    floor = 2 * batch * 36 * kernel.size / rate
    print(
      f"  batch {batch}: forward, XLA's {1e3 * theirs.seconds:.1f} ms "
      f"{theirs.temporary_bytes / 1e6:.0f} MB, ours {1e3 * own.seconds:.1f} ms "
      f"{own.temporary_bytes / 1e6:.0f} MB, direct floor {1e3 * floor:.1f} ms; "
      f"forward and gradients, ours {1e3 * backward.seconds:.1f} ms "
      f"{backward.temporary_bytes / 1e6:.0f} MB, direct floor "
      f"{3e3 * floor:.1f} ms",
      flush=True,
    )


def _peak_memory() -> float:
  return 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
  app.run(main)
