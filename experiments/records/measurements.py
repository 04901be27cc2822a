"""Records of what is measured without a run: times, memory, counts."""

import json
import pathlib
from collections.abc import Mapping

from ..run import atomic_files, provenance
from ..run.invocation import Invocation
from . import records


def write(
  path: str | pathlib.Path,
  invocation: Invocation,
  suite: str,
  metrics: Mapping[str, float],
  *,
  seconds: float,
  num_parameters: int = 0,
  images_per_second: float = 0.0,
) -> None:
  """Writes a file of one record, with the provenance of this process.

  Args:
    path: a file `*.jsonl`, which is replaced; its folder exists.
    invocation: the command that measured.
    suite: the name of the measurements in tables.
    metrics: the numbers by name.
    seconds: how long measuring took.
    num_parameters: of the model measured; 0 if there are several, or none.
    images_per_second: the rate of what was measured, where it has one.

  Raises:
    ValueError: if a number is not finite or a field has the wrong type.
    OSError: if the file cannot be written; an existing file is kept.
  """
  path = pathlib.Path(path).expanduser()
  line = json.dumps(
    provenance.record(invocation)
    | {
      "num_parameters": num_parameters,
      "num_steps": 0,
      "suite": suite,
      "metrics": dict(metrics),
      "num_images": {},
      "seconds": seconds,
      "images_per_second": images_per_second,
    }
  )
  records.parse_lines([line], path)
  atomic_files.write_whole(path, f"{line}\n")
