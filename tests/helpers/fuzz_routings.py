"""How often each routing gives numbers that are not finite, as a record.

  make measurements

Arguments are those of `fuzz`, of every magnitude up to 1e30, in float32 and
compiled. A case counts once, whether values or gradients are not finite.
Gradients through the last iteration alone are cases beside those through all.
"""

import argparse
import pathlib
import sys
import time

import compiling
import fuzz
import kernel_cases
import numpy as np
import routing_rows

from capjax.layers import routers
from experiments.records import measurements
from experiments.run import provenance
from experiments.run.invocation import Invocation


def count(case, *, seed: int, repeats: int) -> dict[str, int]:
  """Cases, and those with numbers that are not finite.

  Returns:
    `cases` of all magnitudes and `not_finite` among them; the same within the
    kernel's range.
  """
  totals = dict.fromkeys(
    ("cases", "not_finite", "cases_within", "not_finite_within"), 0
  )
  for number, sizes in enumerate(fuzz.sizes_of(case)):
    batch = fuzz.draw(case, seed + number, sizes=sizes, repeats=repeats)
    found = fuzz.run(case, batch.arguments, fuzz.Form())
    bad = np.zeros(len(batch.magnitudes), bool)
    for x in [*found["values"], *found["gradients"]]:
      bad |= np.any(~np.isfinite(x).reshape(len(bad), -1), axis=1)
    within = batch.magnitudes <= case.largest
    totals["cases"] += len(bad)
    totals["not_finite"] += int(bad.sum())
    totals["cases_within"] += int(within.sum())
    totals["not_finite_within"] += int(np.sum(bad & within))
  return totals


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--repeats", type=int, default=8)
  parser.add_argument("--out", type=pathlib.Path)
  given = parser.parse_args()
  if given.out is not None:
    provenance.require_committed()
  metrics, start = {}, time.monotonic()
  for name in routers.NAMES:
    rows = [
      row
      for kernel in routing_rows.LAYERS[name].kernels
      for row in (kernel, routing_rows.last(kernel))
    ]
    cases = [kernel_cases.CASES[x] for x in rows if x in kernel_cases.CASES]
    counts = [
      count(case, seed=given.seed, repeats=given.repeats) for case in cases
    ]
    total = {x: sum(one[x] for one in counts) for x in counts[0]}
    metrics |= {f"{name}_{x}": value for x, value in total.items()}
    metrics[f"{name}_largest"] = min(case.largest for case in cases)
    print(name, total, flush=True)
  if given.out is None:
    return 0
  seconds = time.monotonic() - start
  rate = sum(x for n, x in metrics.items() if n.endswith("_cases")) / seconds
  measurements.write(
    given.out,
    Invocation(
      "fuzz_routings",
      command="make measurements",
      dataset="arguments of every magnitude",
      seed=given.seed,
      flags={"repeats": given.repeats, "seed": given.seed},
    ),
    "fuzz",
    metrics,
    seconds=seconds,
    images_per_second=rate,
  )
  return 0


if __name__ == "__main__":
  compiling.compile_quickly()
  sys.exit(main())
