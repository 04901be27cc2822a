"""The table of ablations: stacked capsule autoencoders that each lack a part.

Rows come from the records `scae_ablation_NAME-SEED`.
"""

from collections.abc import Mapping, Sequence

from . import published, tables

STEM = "scae_ablation_"
WHOLE = "full"
NONE = "No record of these runs yet.\n"
# Labels of the rows, by name of the record.
ROWS = {
  WHOLE: "whole model",
  "no_features": "no special features",
  "no_deformations": "no deformations",
  "mlp": "objects found by an MLP",
  "linear": "parts found by a dense layer of all positions",
  "conv": "parts found by means over positions",
  "pixels": "parts found by a dense layer of the pixels",
  "no_sparsity": "no sparsity",
  "no_noise": "no noise",
}
_ACCURACY = "posterior_match_accuracy"
# Heading; metric; factor; format.
_COLUMNS = (
  ("clusters of posterior (%)", _ACCURACY, 100, ".1f"),
  ("of prior (%)", "prior_match_accuracy", 100, ".1f"),
  ("probe of posterior (%)", "posterior_probe_accuracy", 100, ".1f"),
  ("of prior (%)", "prior_probe_accuracy", 100, ".1f"),
  ("log p of an image (nats)", "test_image_log_prob", 1, ".1f"),
)
Named = Mapping[str, Sequence[dict]]


def table(named: Named) -> str:
  """The table in Markdown; without records, a sentence that says so.

  Args:
    named: what `pages.read` returns.
  """
  header = ["model", "n", *(heading for heading, *_ in _COLUMNS)]
  header.insert(3, "against the whole model (points)")
  header.append("paper, clusters (%)")
  rows = [_row(name, named) for name in ROWS if _accuracies(named, name)]
  return tables.markdown(header, rows) or NONE


def _row(name: str, named: Named) -> list[str]:
  found = _accuracies(named, name)
  cells = [ROWS[name], str(len(found))]
  for _, metric, factor, form in _COLUMNS:
    values = tables.by_seed(named, STEM + name, "", metric).values()
    values = [factor * x for x in values]
    cells.append(tables.mean(values, form, form) or "-")
  apart = tables.differences(found, _accuracies(named, WHOLE))
  apart = [100 * x for x in apart]
  changed = "" if name == WHOLE else tables.mean(apart, "+.1f", ".1f")
  cells.insert(3, changed or "-")
  theirs = published.ABLATIONS.get(name)
  return [*cells, "-" if theirs is None else f"{theirs:g}"]


def _accuracies(named: Named, name: str) -> dict[int, float]:
  return tables.by_seed(named, STEM + name, "", _ACCURACY)
