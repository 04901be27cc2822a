"""Records of runs: a JSON object a line, like a run's summary.json."""

import json
import math
import pathlib
from collections.abc import Iterable

_FIELDS = {
  **dict.fromkeys(("experiment", "dataset", "command", "device"), str),
  **dict.fromkeys(("seed", "num_parameters", "num_steps"), int),
  **dict.fromkeys(("seconds", "images_per_second"), int | float),
  **dict.fromkeys(("flags", "metrics"), dict),
  **dict.fromkeys(("preset", "suite"), str | None),
}


def read(folder: str | pathlib.Path) -> list[dict]:
  """Returns the records in a folder's *.jsonl files, by file name and line.

  Args:
    folder: its files, and those of its folder `records`, have one object a
      line, each like a run's summary.json.

  Raises:
    ValueError: if the folder is missing, or a line is no such object; names the
      file, the line and the fault.
  """
  folder = pathlib.Path(folder)
  if not folder.is_dir():
    raise ValueError(f"no folder {folder}; run this in the repository's root.")
  return [
    record
    for pattern in ("*.jsonl", "records/*.jsonl")
    for path in sorted(folder.glob(pattern))
    for record in parse_lines(path.read_text("utf-8").splitlines(), path)
  ]


def parse_lines(lines: Iterable[str], path: pathlib.Path) -> list[dict]:
  """Returns the records of a file's lines.

  Args:
    lines: one object each.
    path: where they stand, for the message of an error.

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
  for name, value in record["metrics"].items():
    points = value if isinstance(value, list) else [value]
    if not all(isinstance(x, int | float) and math.isfinite(x) for x in points):
      raise ValueError(f"metric `{name}` is {value!r}, expected a number")
  return record
