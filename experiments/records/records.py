"""Records of runs: one JSON object on each line, like a run's summary.json."""

import json
import math
import pathlib
import re
from collections.abc import Iterable

from ..run import older_flags

_FIELDS = {
  **dict.fromkeys(("experiment", "dataset", "command", "device"), str),
  **dict.fromkeys(("seed", "num_parameters", "num_steps"), int),
  **dict.fromkeys(("seconds", "images_per_second"), int | float),
  **dict.fromkeys(("flags", "metrics", "versions"), dict),
  **dict.fromkeys(("preset", "suite"), str | None),
}
_OLD_PRESET = re.compile(r"(experiments/presets/)(?=[^/\s]+\.cfg)")
# Current names of the metrics of older records.
_RENAMED = {
  "elbo_error": "elbo_standard_error",
  "importance_bound_error": "importance_bound_standard_error",
  "log_likelihood_error": "log_likelihood_standard_error",
  "log_partition_error": "log_partition_standard_error",
  "log_partition_at_least": "mean_log_weight",
  "log_partition_at_most": "mean_log_weight_backwards",
  **{
    f"bound_{count}_error": f"bound_{count}_standard_error"
    for count in (1, 10, 100)
  },
}

# The same for one binary: with point estimates of poses these metrics are not
# bounds.
_RENAMED_OF = {
  "train_generative": {
    "test_elbo": "test_objective",
    "validation_elbo": "validation_objective",
    "bound_before": "objective_before",
    "bound_after": "objective_after",
    **{
      f"{name}_{old}": f"{name}_{new}"
      for name in ("adam", "lbfgs")
      for old, new in (
        ("bounds", "objectives"),
        ("bound_after", "objective_after"),
      )
    },
  },
  # Shares of pixels, which are no shares of images as those of classifiers.
  **dict.fromkeys(
    ("train_scae", "train_slots"),
    {
      f"{name}_accuracy": f"{name}_pixel_accuracy"
      for name in ("multimnist", "affnist_like")
    },
  ),
}


# Metrics whose number of images is wrong in older records: the beginning of the
# name, and the metric that holds the right number, or 0.
_COUNTS = {
  "flat_templates": 0,
  "log_partition": 0,
  "mean_log_weight": 0,
  **{
    f"{name}_several_": f"{name}_several_num_images"
    for name in ("segmentation", "one_object", "gcm", "gcm_mixture", "ransac")
  },
}


def read(folder: str | pathlib.Path) -> list[dict]:
  """Returns the records in a folder's *.jsonl files, by file name and line.

  Flags that are newer than a record are added to its flags and its command, so
  that the command gives the same numbers again; `filled` lists them.

  Args:
    folder: holds the files, at any depth; each line is an object like a run's
      summary.json.

  Raises:
    ValueError: if the folder is missing, or a line is not a record of committed
      code; names the file, the line and the fault.
  """
  folder = pathlib.Path(folder)
  if not folder.is_dir():
    raise ValueError(f"no folder {folder}; run this in the repository's root.")
  return [
    record
    for path in sorted(folder.rglob("*.jsonl"))
    for record in parse_lines(path.read_text("utf-8").splitlines(), path)
  ]


def parse_lines(lines: Iterable[str], path: pathlib.Path) -> list[dict]:
  """Returns the records of a file's lines.

  Args:
    lines: one object each.
    path: the file that holds them, for error messages.

  Raises:
    ValueError: if a line is no record; names the file, the line and the fault.
  """
  records = []
  for number, line in enumerate(lines, 1):
    try:
      records.append(_parse(line))
    except ValueError as error:
      raise ValueError(f"{path}, line {number}: {error}") from error
  return records


def _parse(line: str) -> dict:
  record = json.loads(line)
  if not isinstance(record, dict):
    raise ValueError(f"expected an object, got {line[:40]}")
  for name, kind in _FIELDS.items():
    if not isinstance(value := record.get(name), kind):
      raise ValueError(f"`{name}` is {value!r}, expected {kind}")
  _refuse_unknown_code(record)
  # Presets of older records lay in one folder.
  folder = record["experiment"].removeprefix("train_")
  record["command"] = _OLD_PRESET.sub(rf"\1{folder}/", record["command"])
  for name, value in record["metrics"].items():
    points = value if isinstance(value, list) else [value]
    if not all(isinstance(x, int | float) and math.isfinite(x) for x in points):
      raise ValueError(f"metric `{name}` is {value!r}, expected a number")
  names = _RENAMED | _RENAMED_OF.get(record["experiment"], {})
  for field in ("metrics", "num_images"):
    record[field] = {
      names.get(name, name): x for name, x in record.get(field, {}).items()
    }
  record["num_images"] = _counts(record)
  filled = older_flags.missing(record["flags"])
  if filled:
    command = " ".join([record["command"], *older_flags.words(record["flags"])])
    flags = {**record["flags"], **filled}
    record |= {"flags": flags, "command": command, "filled": filled}
  return record


def _counts(record: dict) -> dict[str, int]:
  """The number of images of each metric, corrected in older records."""
  metrics, found = record["metrics"], dict(record["num_images"])
  for name in metrics:
    for start, count in _COUNTS.items():
      if name.startswith(start):
        found[name] = int(metrics.get(count, 0))
  if record.get("suite") == "affnist_like" and not record["num_images"]:
    # On the whole test set, while the views are of its first images.
    found["clean_accuracy"] = 0
  return found


def _refuse_unknown_code(record: dict) -> None:
  """Raises a ValueError unless a record was made by committed code."""
  for resumption in record.get("resumptions", []):
    _refuse_unknown_code(resumption)
  for name in ("commit", "commit_at_end", "training_commit"):
    optional = name != "commit" and name not in record
    if not optional and not re.fullmatch("[0-9a-f]{40}", str(record.get(name))):
      raise ValueError(
        f"`{name}` is {record.get(name)!r}, expected 40 hexadecimal digits; "
        "make the record again from a commit."
      )
  for name in ("dirty", "dirty_at_end", "training_dirty"):
    if record.get(name, None if name == "dirty" else False) is not False:
      raise ValueError(
        f"`{name}` is {record.get(name)!r}, expected false: no commit holds "
        "the code of this record; make it again from a clean tree; if the run "
        "was trained by code without a commit, train in another folder."
      )
