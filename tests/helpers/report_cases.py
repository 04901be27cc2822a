"""Makes a record, and reads the cells of the tables of records."""

from experiments.records import every_metric

COMMIT = "0123456789" * 4


def make_record(seed=0, error=0.3, *, metrics=None, flags=None, **changes):
  given = dict(
    model="capsnet", num_iterations=3, reconstruction="paper",
    primary_scale=None,
  )  # fmt: skip
  return {
    "experiment": "train_capsnet",
    "dataset": "mnist",
    "preset": "mnist_paper",
    "command": f"python -m experiments.train_capsnet --seed={seed}",
    "flags": {**given, "seed": seed, **(flags or {})},
    "seed": seed,
    "commit": COMMIT,
    "dirty": False,
    "versions": {"python": "3.11", "jax": "0.10"},
    "device": "CPU, 2 cores",
    "num_parameters": 8_215_728,
    "num_steps": 39_000,
    "metrics": metrics or {"test_error_percent": error},
    "seconds": 90,
    "images_per_second": 1234.5,
    **changes,
  }


def whole(records):
  """The text of all pages of every metric."""
  return "\n".join(every_metric.pages(records).values())


def rows_of(records, table=whole):
  """The cells of each line of the tables of records.

  The rules below the headers and the table of provenance are left out.
  """
  text = table(records).partition("# Provenance")[0]
  return [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in text.splitlines()
    if line.startswith("|") and "---" not in line
  ]
