"""The table of densities."""

import pytest
from report_cases import make_record, rows_of

from experiments.records import densities


def _bound(preset="vae", *, suite="bound", flags=None, **metrics):
  return make_record(
    preset=preset,
    suite=suite,
    metrics=metrics,
    num_images=dict.fromkeys(metrics, 200),
    flags={"learning_rate": 0.01, **(flags or {})},
  )


def _energy(seed, value):
  return make_record(
    seed,
    preset="rbm",
    suite="log_likelihood",
    metrics={
      "log_likelihood": value,
      "log_likelihood_backwards": value - 1,
      "log_likelihood_standard_error": 0.25,
      "log_partition_standard_error": 0.5,
      "temperatures": 10,
    },
    flags={"learning_rate": 0.02, "visible": "bernoulli"},
  )


def test_each_estimate_has_a_row_with_its_rate_and_its_counts():
  records = [_bound(elbo=-101.0, elbo_standard_error=0.5), _energy(0, -90.0)]
  rows = rows_of(records, densities.full)
  header = rows[0]
  assert [dict(zip(header, row, strict=True)) for row in rows[1:]] == [
    {
      "Preset": preset,
      "Dataset": "mnist",
      "Pixels": "0 or 1",
      "Estimator": estimator,
      "Nats": nats,
      "Error over images": error,
      "Error of log Z": partition,
      "Learning rate": rate,
      "Steps": "39,000",
      "Images": images,
      "Seeds": "1",
      "Commit": "0123456",
    }
    for preset, estimator, nats, error, partition, rate, images in (
      ("rbm", "annealed importance sampling", "-90.0", "0.25", "0.5",
       "0.02", "-"),
      ("rbm", "annealed importance sampling, backwards", "-91.0", "0.25", "-",
       "0.02", "-"),
      ("vae", "ELBO", "-101.0", "0.5", "-", "0.01", "200"),
    )
  ]  # fmt: skip


def test_the_compact_table_has_a_row_for_each_model():
  flags = {"pretrain_learning_rate": 0.5, "pretrain_steps": 9}
  records = [
    _bound(elbo=-101.0, importance_bound=-99.0),
    _bound("hm", elbo=-7.0, elbo_mean_field=-6.0, flags=flags),
    *(_energy(seed, -10.0 * (1 + seed)) for seed in range(3)),
    make_record(preset="other", metrics={"elbo": 1.0}),  # of training
  ]
  assert [
    [row[0], *row[3:8], row[10]] for row in rows_of(records, densities.compact)
  ] == [
    ["Preset", "ELBO", "Importance bound", "AIS", "AIS backwards",
     "Learning rate", "Seeds"],
    ["hm", "-7.0", "-", "-", "-", "0.01 (layers 0.5)", "1"],
    ["hm, from expectations below", "-6.0", "-", "-", "-",
     "0.01 (layers 0.5)", "1"],
    ["rbm", "-", "-", "-20.0 ± 10.00", "-21.0 ± 10.00", "0.02", "3"],
    ["vae", "-101.0", "-99.0", "-", "-", "0.01", "1"],
  ]  # fmt: skip


@pytest.mark.parametrize(
  "flags, want",
  [
    ({"visible": "gaussian"}, "density"),
    ({"visible": "bernoulli"}, "0 or 1"),
    ({"pixel_scale": 0.1}, "density"),
    ({"pixel_scale": None}, "0 or 1"),
    ({"visible": "bernoulli", "hidden": "gaussian"}, "0 or 1"),
  ],
)
def test_densities_of_intensities_are_told_from_those_of_bits(flags, want):
  record = _bound(elbo=-1.0, flags=flags)
  assert rows_of([record], densities.compact)[1][2] == want


def test_bounds_by_samples_are_named_as_others():
  metrics = {"bound_1": 3.0, "bound_10": 4.0, "bound_100": 5.0}
  record = _bound("generative", suite="importance", **metrics)
  assert [row[3:5] for row in rows_of([record], densities.full)[1:]] == [
    ["ELBO", "3.0"],
    ["importance bound, 100 samples", "5.0"],
  ]
  record = _bound(importance_bound=2.0, num_samples=7)
  label = rows_of([record], densities.full)[1][3]
  assert label == "importance bound, 7 samples"


def test_an_estimate_of_a_later_seed_alone_has_a_row():
  first, second = _energy(0, -90.0), _energy(1, -91.0)
  del first["metrics"]["log_likelihood_backwards"]
  rows = rows_of([first, second], densities.full)
  column = rows[0].index("Nats")
  assert sorted(row[column] for row in rows[1:]) == ["-90.0, -91.0", "-92.0"]


def test_errors_are_means_over_seeds():
  first, second, third = (_energy(seed, -90.0) for seed in range(3))
  for record, factor in ((second, 3), (third, 14)):
    for name in ("log_likelihood", "log_partition"):
      record["metrics"][f"{name}_standard_error"] *= factor
  for record, error in zip((first, second, third), (1.5, 2.5, 8), strict=True):
    record["metrics"]["log_partition_backwards_standard_error"] = error
  header, forwards, backwards = rows_of([first, second, third], densities.full)
  errors = slice(
    header.index("Error over images"), header.index("Error of log Z") + 1
  )
  # Of 1, 3 and 14 quarters, and of as many halves.
  assert forwards[errors] == ["1.5", "3"]
  assert backwards[errors] == ["1.5", "4"]
