"""Rows of the table of all benchmarks, as lines of a JSON file.

Each benchmark is a process of its own, and appends to the file of `--json`.
`python -m experiments.benchmarks.table FILE` makes the table.
"""

import json
import math
import pathlib
import platform
from typing import Any, NamedTuple

import jax
import jaxlib
from absl import flags

from ..run import provenance
from ..training import allocator

_JSON = flags.DEFINE_string(
  "json", None, "File to which each result is appended as a line of JSON."
)


class Row(NamedTuple):
  """The times of one computation, in our form and in the textbook form.

  Attributes:
    system: what is computed.
    setting: its sizes.
    ours: seconds of our form.
    textbook: seconds of the textbook form; None where it was not timed.
    operations: seconds that the fewest operations take at the rate of a matrix
      product; None where it is not known.
    transfer: seconds that the fewest bytes take at the rate of the memory; None
      where it is not known.
    peer: seconds of another library; None where it was not timed.
    peer_name: that library, with its version; empty without it.
    compile_seconds: seconds of tracing and compilation; None where they were
      not measured.
    peak_bytes: peak resident memory of a process that does nothing else, on an
      accelerator of the device's memory; None where there is no such process.
  """

  system: str
  setting: str
  ours: float
  textbook: float | None = None
  operations: float | None = None
  transfer: float | None = None
  peer: float | None = None
  peer_name: str = ""
  compile_seconds: float | None = None
  peak_bytes: int | None = None

  @property
  def floor(self) -> float | None:
    """The larger of the two lower bounds; None if neither is known."""
    known = [x for x in (self.operations, self.transfer) if x is not None]
    return max(known, default=None)


class Machine(NamedTuple):
  """Where a benchmark ran.

  Attributes:
    device: kind of device; of a CPU its name and the cores of the process.
    versions: of Python, jax and jaxlib.
    flops: operations per second of a matrix product.
    bandwidth: bytes per second of a sum in place.
    huge_pages: whether large arrays are in pages of 2 MB.
    precision: how products round, as `precision` gives it.
  """

  device: str
  versions: str
  flops: float
  bandwidth: float
  huge_pages: bool = False
  precision: str = ""


def precision() -> str:
  """The value of `jax.default_matmul_precision`; empty for no rounding."""
  stated = getattr(jax.config, "jax_default_matmul_precision")  # noqa: B009
  return "" if stated in (None, "highest", "float32") else str(stated)


def machine(flops: float, bandwidth: float) -> Machine:
  """The machine of this process, with the rates that were measured on it."""
  versions = (
    f"Python {platform.python_version()}, jax {jax.__version__}, "
    f"jaxlib {jaxlib.__version__}"
  )
  pages = allocator.has_huge_pages()
  return Machine(_device(), versions, flops, bandwidth, pages, precision())


def note(result: Row | Machine) -> None:
  """Appends a result to the file of --json, if there is one.

  If products are rounded, their precision is added to the setting of a row.
  """
  if flags.FLAGS.is_parsed() and _JSON.value:
    if isinstance(result, Row) and precision():
      result = result._replace(setting=f"{result.setting}, {precision()}")
    known = {
      name: None if _is_nan(x) else x for name, x in result._asdict().items()
    }
    with pathlib.Path(_JSON.value).open("a") as file:
      file.write(json.dumps({"kind": type(result).__name__, **known}) + "\n")


def read(path: str) -> tuple[list[Machine], list[Row]]:
  """The machines and the rows of a file.

  Raises:
    ValueError: if a line holds neither of them.
  """
  kinds: dict[str, type[Any]] = {"Machine": Machine, "Row": Row}
  found: dict[str, list[Any]] = {kind: [] for kind in kinds}
  lines = pathlib.Path(path).read_text().splitlines()
  for number, line in enumerate(lines, 1):
    try:
      known = json.loads(line)
      kind = known.pop("kind")
      found[kind].append(kinds[kind](**known))
    except (ValueError, KeyError, TypeError) as error:
      raise ValueError(
        f"line {number} of {path} is no result of a benchmark; delete the "
        "file and run the benchmarks again"
      ) from error
  return found["Machine"], found["Row"]


def _device() -> str:
  kind = jax.devices()[0].device_kind
  if kind != "cpu":
    return kind
  try:
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
  except OSError:  # not Linux
    lines = []
  names = [x.partition(":")[2].strip() for x in lines if "model name" in x]
  return f"{names[0] if names else 'CPU'}, {provenance.num_cores()} cores"


def _is_nan(value: Any) -> bool:
  return isinstance(value, float) and math.isnan(value)
