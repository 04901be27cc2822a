r"""Writes the records of a finished run into a file of results/records.

  python -m experiments.record --workdir=RUN --out=results/records/NAME.jsonl

The first line is the run's summary.json. Each suite that it was evaluated by
adds one line. `make records` calls this after training and evaluation. Before
them it calls this with `--check`, which fails if the record would be refused.
"""

import json
import pathlib

from absl import flags

from .flags import errors, limits, runs
from .records import records
from .run import atomic_files, changes, directory, provenance

_OUT = flags.DEFINE_string("out", None, "The file that is written, *.jsonl.")
_CHECK = flags.DEFINE_bool(
  "check", False, "Only check that the code is committed, also that of the run."
)


def records_of(run: directory.Run) -> list[dict]:
  """The summary of a run and its evaluations, in the order of their names.

  Raises:
    ValueError: if the run is not complete, one of its own suites failed, or it
      was evaluated on other data, or has been trained to another length since.
  """
  path = run.workdir / "evaluation.json"
  evaluations = atomic_files.read_json(path) if path.exists() else {}
  summary = run.read_summary()
  if failed := summary.get("failed_suites"):
    told = "; ".join(f"{name}: {error}" for name, error in failed.items())
    raise ValueError(
      f"{run.workdir}: suites failed after training ({told}); repeat the "
      "training command, which runs them again"
    )
  for name, record in evaluations.items():
    told = changes.between(summary.get("data", {}), record.get("data", {}))
    if told:
      raise ValueError(
        f"{path}: {name} is of other data than the run ({'; '.join(told)}); "
        "evaluate it again without --allow_other_data"
      )
    if told := directory.outdated(summary, record):
      raise ValueError(
        f"{path}: {name} is outdated ({told}); evaluate the run again with "
        f"--suite={name}"
      )
  return [summary, *(evaluations[name] for name in sorted(evaluations))]


def main() -> None:
  path = pathlib.Path(_OUT.value).expanduser()
  with errors.clear_errors():
    if _CHECK.value:
      run = directory.Run(runs.WORKDIR.value)
      provenance.require_committed(run.workdir)
      return
    if path.suffix != ".jsonl":
      raise ValueError(f"--out={path} must end in .jsonl, as records do")
    lines = [
      json.dumps(record)
      for record in records_of(directory.Run(runs.WORKDIR.value))
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    # Check before writing, so that the file can always be read.
    records.parse_lines(lines, path)
    atomic_files.write_whole(path, "".join(f"{line}\n" for line in lines))
  print(
    f"{path}: {len(lines)} records; python -m experiments.report shows them"
  )


if __name__ == "__main__":
  flags.mark_flags_as_required(["workdir", "out"])
  limits.run(main, shared=["workdir"])
