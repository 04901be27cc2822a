"""Compares convolutional EM routing without stored votes with the textbook.

  python -m experiments.benchmarks.em

First times whole training steps of two networks, each in a process of its own.
Then times layers of the networks of Hinton et al. (2018), both forms in turns
in one process; if the votes and their copies would not fit in memory, only ours
runs. Each row also gives the floors: the fewest operations divided by the
matmul rate, and the fewest bytes divided by the memory rate.
"""

import functools
import math
import re

import jax
import jax.numpy as jnp
from absl import flags
from capjax.kernels.routing import em, em_convolution
from flax import nnx

from capjax import losses, matrix_capsules

from ..flags import limits
from ..training import train_step
from . import harness, rows, step_cost, textbook

_BATCHES = flags.DEFINE_list("batches", ["1", "16"], "Batch sizes.")
_LAYERS = flags.DEFINE_list(
  "layers",
  ["14:32:32:2", "14:8:16:2", "6:16:16:1"],
  "Layers as H:I:J:stride, with windows of 3x3.",
)
_MEMORY = flags.DEFINE_float(
  "memory",
  8.0,
  "Memory in GB that the textbook form may use in addition to its arguments.",
  lower_bound=0.0,
)
_STEPS = flags.DEFINE_integer(
  "steps", 5, "Training steps timed; 0 for none.", lower_bound=0
)
limits.require_counts(_BATCHES, example="1,16")
flags.register_validator(
  _LAYERS,
  lambda layers: all(
    re.fullmatch("[1-9][0-9]*(:[1-9][0-9]*){3}", layer) for layer in layers
  ),
  "give four whole numbers above 0 for each layer, as in 14:32:32:2",
)
# A small network, and the reference network: image shape, number of classes,
# batch size, features and types.
_NETWORKS = {
  "68K": ((28, 28, 1), 10, 64, 64, (8, 16, 16)),
  "310K": ((32, 32, 2), 5, 16, 32, (32, 32, 32)),
}
_TEMPERATURES = em.inverse_temperature_schedule(3)
_KERNEL, _SIDE = 3, 4


def time_step(network: str, num_steps: int) -> step_cost.StepCost:
  """Trains one of `_NETWORKS` on noise, with 3 iterations of routing."""
  shape, num_classes, batch, features, types = _NETWORKS[network]

  def loss(model, images, labels, key, step):
    del key, step
    activations = model(images).activations
    each = losses.spread_loss(activations, labels, margin=0.9)
    return jnp.mean(each), {"loss": jnp.mean(each)}

  return step_cost.time_step(
    matrix_capsules.MatrixCapsules(
      shape,
      num_classes,
      features=features,
      types=types,
      num_iterations=3,
      rngs=nnx.Rngs(0),
    ),
    loss,
    train_step.sample_labelled(lambda key, image: image),
    image_shape=shape,
    num_classes=num_classes,
    batch=batch,
    num_steps=num_steps,
  )


def ours(*arguments: jax.Array, stride: int) -> tuple[jax.Array, jax.Array]:
  """Routes a batch by our kernel."""
  route = functools.partial(
    em_convolution.em_convolution,
    inverse_temperatures=_TEMPERATURES,
    stride=stride,
  )
  output = jax.vmap(route, (0, 0, None, None, None))(*arguments)
  return output.poses, output.activations


def theirs(*arguments: jax.Array, stride: int) -> tuple[jax.Array, jax.Array]:
  """Routes a batch by the textbook form."""
  return textbook.em_convolution(
    *arguments, inverse_temperatures=_TEMPERATURES, stride=stride
  )


def num_votes(size: int, types: int, parents: int, stride: int) -> int:
  """The number of votes of an example."""
  positions = ((size - _KERNEL) // stride + 1) ** 2
  return positions * _KERNEL**2 * types * parents


def floors(
  batch: int,
  votes: int,
  numbers: int,
  rates: tuple[float, float],
  backward: bool,
) -> tuple[float, float]:
  """Lower bounds in seconds from the operations and the bytes.

  A vote is formed by a product of 4x4 matrices, and its numbers are squared
  once. For each of them, every iteration has an M-step (weighted sums of votes
  and of squares, 4 operations), and between two iterations is an E-step (a
  weighted distance, which is the same two sums with other weights). The
  backward pass costs twice as much as the forward pass. Every input is read
  once and every gradient written once.
  """
  iterations = len(_TEMPERATURES)
  for_each = 2 * _SIDE + 1 + 4 * iterations + 4 * (iterations - 1)
  operations = batch * votes * _SIDE**2 * for_each * (3 if backward else 1)
  return operations / rates[0], 4 * numbers * (1 + backward) / rates[1]


def step_floors(
  network: str, rates: tuple[float, float]
) -> tuple[float, float]:
  """Lower bounds in seconds of a training step: the sums over its EM layers.

  These are two layers with windows of 3x3 and strides 2 and 1, and the classes,
  whose window is the whole grid. The convolutions below are left out; they have
  about a tenth of the operations.
  """
  shape, num_classes, batch, _, types = _NETWORKS[network]
  size = (shape[0] - 5) // 2 + 1
  layers = []
  for lower, upper, stride in ((*types[:2], 2), (*types[1:], 1)):
    votes = num_votes(size, lower, upper, stride)
    layers.append((size, lower, votes, _KERNEL**2 * lower * upper))
    size = (size - _KERNEL) // stride + 1
  # The classes see all positions, which share their transforms.
  pairs = types[2] * num_classes
  layers.append((size, types[2], size**2 * pairs, pairs))
  found = [
    floors(
      batch,
      votes,
      batch * size**2 * lower * (_SIDE**2 + 1) + transforms * _SIDE**2,
      rates,
      backward=True,
    )
    for size, lower, votes, transforms in layers
  ]
  return sum(x for x, _ in found), sum(x for _, x in found)


def main() -> None:
  ceilings = harness.rates()
  for name, (shape, _, batch, *_) in _NETWORKS.items() if _STEPS.value else ():
    setting = f"{'x'.join(map(str, shape))}, batch {batch}"
    for devices in step_cost.cpu_divisions(batch):
      cost = step_cost.in_process(
        time_step, name, _STEPS.value, environment=devices.environment
      )
      system = f"matrix capsules of {name}, step{devices.remark}"
      flops, transfer = step_floors(name, ceilings)
      row = cost.row(system, setting)
      rows.note(row._replace(operations=flops, transfer=transfer))
      print(
        f"{system}, {setting}: {cost.describe(batch)}; floor {flops:.3f} s "
        f"(flops), {transfer:.3f} s (bytes)",
        flush=True,
      )
  print(f"H:I:J:stride {harness.COLUMNS}")
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
      harness.race(
        f"{layer:12s}",
        batch,
        tuple(functools.partial(f, stride=stride) for f in (theirs, ours)),
        arguments,
        system=f"EM routing {layer} (H:I:J:stride)",
        floors=functools.partial(floors, batch, votes, numbers, ceilings),
        memory=1e9 * _MEMORY.value,
      )


if __name__ == "__main__":
  limits.run(main)
