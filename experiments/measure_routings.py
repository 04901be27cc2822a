r"""Measures time and memory of one network with each routing, in one process.

  python -m experiments.measure_routings \
    --flagfile=experiments/presets/capsnet/routings_digits.cfg \
    --out=results/measurements/routing_costs-0.jsonl

All forms are compiled first and then timed in turns, so that other load of the
machine affects all alike. The loss is that of training, of one batch of noise.
"""

import time

import jax.numpy as jnp
import numpy as np
from absl import flags
from flax import nnx

from capjax.layers import routers

from .benchmarks import routing_costs
from .flags import (
  augmentation,
  datasets,
  errors,
  limits,
  networks,
  optimizer,
  runs,
)
from .records import measurements
from .run import provenance
from .tasks import capsnet
from .training import train_step

_OUT = flags.DEFINE_string(
  "out", None, "The file of the record, *.jsonl; without it, only printed."
)
_ROUNDS = flags.DEFINE_integer(
  "rounds", 30, "Timed calls of each form.", lower_bound=1
)


def main() -> None:
  with errors.clear_errors():
    if _OUT.value:
      limits.require_folder("out", _OUT.value)
      provenance.require_committed()
    runs.configure()
    task = capsnet.make_task(
      networks.spec(),
      optimizer.make_optimizer(),
      placement=augmentation.placement(),
      reconstruction_weight=networks.reconstruction_weight(),
    )
    test = datasets.load("test")
  batch = runs.BATCH_SIZE.value
  spec = task.describe(test.images.shape[1:], test.num_classes)
  shape = spec.argument("image_shape")
  random = np.random.default_rng(runs.SEED.value)
  images = jnp.float32(random.uniform(size=(batch, *shape)))
  labels = jnp.int32(random.integers(0, test.num_classes, batch))
  forms = {
    name: (
      spec.with_arguments(routing=name).make(nnx.Rngs(runs.SEED.value)),
      task.loss,
    )
    for name in routers.NAMES
  }
  start = time.perf_counter()
  metrics = routing_costs.costs(forms, images, labels, rounds=_ROUNDS.value)
  seconds = time.perf_counter() - start
  for name in forms:
    row = (
      metrics[f"{name}_{kind}_{unit}"]
      for kind in ("forward", "gradient")
      for unit in ("ms", "megabytes")
    )
    text = "{:.2f} ms, {:.1f} MB, with gradient {:.2f} ms, {:.1f} MB"
    print(f"{name}: {text.format(*row)}")
  if _OUT.value:
    own = networks.ROUTING.value
    with errors.clear_errors():
      measurements.write(
        _OUT.value,
        runs.invocation(),
        "costs_of_a_batch",
        {**metrics, "batch_size": batch, "rounds": _ROUNDS.value},
        seconds=seconds,
        num_parameters=train_step.num_parameters(forms[own][0]),
        images_per_second=1e3 * batch / metrics[f"{own}_gradient_ms"],
      )
    print(f"wrote {_OUT.value}")


if __name__ == "__main__":
  limits.run(main)
