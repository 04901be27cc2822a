"""Evaluates a trained model: numbers into evaluation.json, and figures.

  python -m experiments.evaluate --workdir=DIR --suite=accuracy,perturbations

The model, its flags and its data set are those of the run in DIR.
"""

import importlib
import json
import sys
from collections.abc import Sequence

from absl import app, flags

from experiments.common import runs, suites

_SUITE = flags.DEFINE_list(
  "suite", ["accuracy"], f"Any of {', '.join(suites.SUITES)}."
)


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {argv[1:]}")
  with runs.clear_errors():
    names = list(dict.fromkeys(_SUITE.value))
    unknown = sorted(set(names) - suites.SUITES.keys())
    if unknown:
      known = ", ".join(suites.SUITES)
      raise ValueError(f"unknown suite {', '.join(unknown)}; known: {known}")
    run = runs.Run(runs.WORKDIR.value)
    summary = run.read_summary()
    binary = importlib.import_module(f"experiments.{summary['experiment']}")
    # The run's flags, and after them those of this command.
    given = {word.lstrip("-").partition("=")[0] for word in sys.argv[1:]}
    foreign = given & summary["flags"].keys()
    if foreign:
      raise ValueError(
        f"--{', --'.join(sorted(foreign))}: the run in {run.workdir} has its "
        "own; give none here"
      )
    flagfile = f"--flagfile={run.workdir / 'flags.cfg'}"
    flags.FLAGS([sys.argv[0], flagfile, *sys.argv[1:]])
    runs.configure()
    trained = binary.restore(run)
    unfit = sorted(set(names) - set(suites.suites_of(trained.model)))
    if unfit:
      raise ValueError(
        f"{', '.join(unfit)}: the model in {run.workdir} has no decoder"
      )
    for name in names:
      metrics = suites.SUITES[name](run, trained)
      record = {"suite": name, "metrics": metrics}
      run.write_evaluation(name, {**summary, **_about_now(), **record})
      print(f"{name}: {json.dumps(metrics, indent=2)}")
  print(f"evaluation.json and figures are in {run.workdir}")


def _about_now() -> dict[str, object]:
  """Of the provenance, what an evaluation does not share with its training."""
  now = runs.provenance()
  return {name: now[name] for name in ("commit", "dirty", "versions", "device")}


if __name__ == "__main__":
  flags.mark_flag_as_required("workdir")
  app.run(main)
