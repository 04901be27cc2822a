"""The table of what a step costs each of many accelerators, from counts.

The counts are those of the measurement `scaling`.
"""

from collections.abc import Mapping, Sequence

from . import tables

_NUM_DEVICES = (1, 8, 64, 256)
_NAMES = {
  "capsnet": "CapsNet, MNIST",
  "matrix_capsules": "matrix capsules, smallNORB",
  "scae": "SCAE, MNIST",
}
_HEADER = (
  "network", "parameters", "images of each", "GFLOP", "GB", "memory (GB)",
)  # fmt: skip
Named = Mapping[str, Sequence[dict]]


def table(named: Named) -> str:
  """The table in Markdown; without its record, empty.

  Args:
    named: what `pages.read` returns.
  """
  records = named.get("scaling", ())
  if not records:
    return ""
  metrics = records[-1]["metrics"]
  header = [*_HEADER, *(f"sent, of {n} (MB)" for n in _NUM_DEVICES)]
  rows = []
  for key, name in _NAMES.items():
    counts = {
      x.removeprefix(f"{key}_"): value
      for x, value in metrics.items()
      if x.startswith(f"{key}_")
    }
    rows.append(
      [
        name,
        f"{counts['parameters']:,}",
        str(counts["batch"]),
        f"{3 * counts['operations'] / 1e9:,.0f}",
        f"{counts['bytes'] / 1e9:.1f}",
        f"{counts['temporary_bytes'] / 1e9:.1f}",
        *(f"{sent(counts, n) / 1e6:.1f}" for n in _NUM_DEVICES),
      ]
    )
  return tables.markdown(header, rows)


def sent(counts: Mapping[str, int], num_devices: int) -> float:
  """The bytes that each device sends in a step.

  A ring sums an array among N devices by sending 2 (N - 1) / N of it (Patarasuk
  and Yuan, 2009, Bandwidth optimal all-reduce algorithms for clusters of
  workstations). Two arrays are summed: the gradients; and the batch, in which
  each device fills the rows of its own images, and the other rows are zeros.

  Args:
    counts: `gradient_bytes`, `batch` of a device and `row_bytes`.
    num_devices: N.
  """
  batch = num_devices * counts["batch"] * counts["row_bytes"]
  share = 2 * (num_devices - 1) / num_devices
  return share * (counts["gradient_bytes"] + batch)
