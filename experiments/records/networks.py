"""The table of deeper networks: convolutional capsules with several routings.

Rows come from the records `networks_DATA_NAME_DEPTH-SEED`.
"""

from collections.abc import Mapping, Sequence

from capjax.layers import routers

from . import routings, tables

STEM = "networks_"
NONE = "No record of these runs yet.\n"
DATA = {"mnist": "MNIST", "fashion": "Fashion-MNIST"}
DEPTHS = (1, 2, 3)
# Labels of the rows, by name of the record.
ROWS = {name: f"`{name}`" for name in routers.NAMES} | {
  "grid": "3D convolutions of DeepCaps"
}
Named = Mapping[str, Sequence[dict]]


def table(named: Named) -> str:
  """The table in Markdown; without records, a sentence that says so.

  Args:
    named: what `pages.read` returns.
  """
  header = ["data", "routing"]
  header += [f"error (%), {_layers(depth)}" for depth in DEPTHS]
  header += [f"dead capsules (%), {_layers(depth)}" for depth in DEPTHS]
  header.append("n")
  rows = [_row(data, name, named) for data in DATA for name in ROWS]
  return tables.markdown(header, [row for row in rows if row]) or NONE


def _layers(depth: int) -> str:
  return "1 layer" if depth == 1 else f"{depth} layers"


def _row(data: str, name: str, named: Named) -> list[str] | None:
  stems = [f"{STEM}{data}_{name}_{depth}" for depth in DEPTHS]
  found = [routings.errors(named, stem) for stem in stems]
  if not any(found):
    return None
  dead = [
    tables.by_seed(named, stem, "starvation", "dead_capsules") for stem in stems
  ]
  counts = sorted({len(errors) for errors in found if errors})
  return [
    DATA[data],
    ROWS[name],
    *(tables.mean(list(x.values()), ".2f", ".2f") or "-" for x in found),
    *(
      tables.mean([100 * value for value in x.values()], ".1f", ".1f") or "-"
      for x in dead
    ),
    " to ".join(map(str, counts[:: max(1, len(counts) - 1)])),
  ]
