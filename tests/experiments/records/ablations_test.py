"""The table of ablations, from no records, one seed of some, and three."""

import pytest
from report_cases import make_record, rows_of

from experiments.records import ablations

_WHOLE = [0.5, 0.6, 0.7]


def seeds(accuracies):
  return [
    make_record(
      seed,
      metrics={
        "posterior_match_accuracy": accuracy,
        "prior_match_accuracy": accuracy / 2,
        "posterior_probe_accuracy": 0.9,
        "test_image_log_prob": -750.0 - seed,
      },
    )
    for seed, accuracy in enumerate(accuracies)
  ]


def rows(named):
  header, *found = rows_of(named, ablations.table)
  assert {len(row) for row in found} == {len(header)}
  return header, found


def test_without_records_it_says_so():
  assert ablations.table({}) == ablations.NONE
  assert ablations.table({"scae_mnist_cpu": seeds([0.5])}) == ablations.NONE


def test_one_seed_is_its_value():
  header, (whole, mlp) = rows(
    {
      "scae_ablation_mlp": seeds([0.25]),
      "scae_ablation_full": seeds(_WHOLE[:1]),
    }
  )
  assert header[:4] == [
    "model", "n", "clusters of posterior (%)",
    "against the whole model (points)",
  ]  # fmt: skip
  assert whole == [
    "whole model", "1", "50.0", "-", "25.0", "90.0", "-", "-750.0", "98.7"
  ]  # fmt: skip
  assert mlp[:5] == ["objects found by an MLP", "1", "25.0", "-25.0", "12.5"]
  assert mlp[-1] == "-"


def test_three_seeds_are_mean_and_deviation():
  named = {
    "scae_ablation_full": seeds(_WHOLE),
    "scae_ablation_conv": seeds([0.5, 0.7, 0.6]),
  }
  _, (whole, conv) = rows(named)
  assert whole[1:5] == ["3", "60.0 ± 10.0", "-", "30.0 ± 5.0"]
  assert whole[-2] == "-751.0 ± 1.0"
  # Seed by seed: 0, 10 and -10.
  assert conv[3] == "+0.0 ± 10.0"


@pytest.mark.parametrize("count", [1, 3])
def test_an_ablation_without_the_whole_model_has_no_difference(count):
  _, (row,) = rows({"scae_ablation_linear": seeds(_WHOLE[:count])})
  assert row[1] == str(count) and row[3] == "-"
