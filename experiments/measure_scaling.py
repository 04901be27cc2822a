r"""Counts what a training step costs on each of several accelerators.

  python -m experiments.measure_scaling \
    --out=results/measurements/scaling-0.jsonl

The update of each model is compiled for one device and for eight imitated ones.
The counts come from XLA and from the traced loss. Networks have the sizes of
their papers. Only a small network is run, in one process and in two; during
this the machine should do nothing else.
"""

import time

import jax
import optax
from absl import flags

import capjax
from capjax.specs import Spec

from .benchmarks import hosts, scaling
from .flags import errors, limits, runs
from .records import measurements
from .run import provenance
from .tasks import capsnet, matrix_capsules, scae

_OUT = flags.DEFINE_string(
  "out", None, "The file of the record, *.jsonl; without it, only printed."
)


_CASES = {
  "capsnet": scaling.Case(
    lambda: capsnet.make_task(Spec(capjax.CapsNet, {}), optax.adam(1e-3)),
    (28, 28, 1),
    10,
    128,
  ),
  "matrix_capsules": scaling.Case(
    lambda: matrix_capsules.make_task(
      Spec(capjax.MatrixCapsules, {"implementation": "at_once"}),
      optax.adam(1e-3),
      dataset="smallnorb",
      num_steps=50_000,
    ),
    (96, 96, 2),
    5,
    64,
  ),
  "scae": scaling.Case(
    lambda: scae.make_task(
      Spec(capjax.SCAE, {"num_parts": 24, "num_objects": 24}),
      optax.rmsprop(1e-4),
    ),
    (28, 28, 1),
    10,
    128,
  ),
}


def main() -> None:
  if _OUT.value:
    with errors.clear_errors():
      limits.require_folder("out", _OUT.value)
      provenance.require_committed()
  # Before any device is used.
  jax.config.update("jax_platforms", "cpu")
  jax.config.update("jax_num_cpu_devices", scaling.DEVICES)
  start, metrics = time.perf_counter(), {}
  for name, case in _CASES.items():
    for key, value in scaling.costs(case).items():
      metrics[f"{name}_{key}"] = value
      print(f"{name} {key}: {value:,}", flush=True)
  for key, value in hosts.rates().items():
    metrics[key] = value
    print(f"{key}: {value:,.0f} images/s", flush=True)
  if not _OUT.value:
    return
  with errors.clear_errors():
    measurements.write(
      _OUT.value,
      runs.invocation()._replace(dataset="none"),
      "scaling",
      metrics,
      seconds=time.perf_counter() - start,
      num_parameters=metrics["capsnet_parameters"],
    )
  print(f"wrote {_OUT.value}")


if __name__ == "__main__":
  limits.run(main, shared=())
