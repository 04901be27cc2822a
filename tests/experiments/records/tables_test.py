"""Which records share a row of a table, and what its cells say."""

import pytest
from report_cases import make_record, rows_of, whole

from experiments.records import summary, tables


def test_a_row_holds_mean_and_sample_deviation_of_its_seeds():
  # Mean 0.3, squared deviations 0.01 + 0 + 0.01, over n - 1 = 2: sd 0.1.
  errors = {0: 0.2, 1: 0.3, 2: 0.4}
  records = [
    make_record(seed, error, seconds=60 * seed, images_per_second=1000 * seed)
    for seed, error in errors.items()
  ]
  header, row = rows_of(records)
  assert dict(zip(header, row, strict=True)) == {
    "Experiment": "train_capsnet",
    "Dataset": "mnist",
    "Preset": "mnist_paper",
    "Steps": "39,000",
    "Device": "CPU, 2 cores",
    "Test error (%)": "0.30 ± 0.100",
    "Images": "-",
    "Seeds": "3",
    "Commit": "0123456",
    "Published (%)": "0.25",
    "Parameters": "8.2M",
    "Minutes": "1.0",
    "Images/s": "1,000",
  }


def test_order_of_records_is_irrelevant():
  records = [
    make_record(seed, 0.1 + seed / 7, num_steps=steps, preset=preset)
    for seed in range(3)
    for steps in (900, 10_000)
    for preset in (None, "a")
  ]
  want = whole(records)
  assert whole(records[::-1]) == want
  # By preset, then by number of steps as a number; the lowest seed's command.
  rows = rows_of(records)[1:]
  assert [row[2:4] for row in rows] == [
    ["-", "900"], ["-", "10,000"], ["a", "900"], ["a", "10,000"],
  ]  # fmt: skip
  assert "--seed=0\n" in want and "--seed=1" not in want


@pytest.mark.parametrize(
  "change",
  [
    {"experiment": "train_other"},
    {"dataset": "digits"},
    {"preset": None},
    {"num_steps": 1},
    {"device": "TPU"},
    {"flags": {"num_iterations": 1}},
  ],
)
def test_other_settings_are_other_rows(change):
  rows = rows_of([make_record(0, 0.25), make_record(1, 0.75, **change)])[1:]
  assert sorted(row[5] for row in rows) == ["0.25", "0.75"]
  assert [row[7] for row in rows] == ["1", "1"]


def test_flags_tell_rows_of_one_preset_apart():
  records = [make_record(flags={"num_iterations": n}) for n in (3, 1)]
  assert [row[2] for row in rows_of(records)[1:]] == [
    "mnist_paper `num_iterations=1`",
    "mnist_paper `num_iterations=3`",
  ]


def test_values_of_the_preset_need_no_words():
  of_preset = "train_capsnet --flagfile=mnist_paper.cfg"
  records = [
    make_record(0, command=of_preset, flags={"num_iterations": 3}),
    make_record(
      1, command=f"{of_preset} --num_iterations=3", flags={"num_iterations": 3}
    ),
    make_record(
      0, command=f"{of_preset} --num_iterations=1", flags={"num_iterations": 1}
    ),
  ]
  rows = rows_of(records)[1:]
  assert [(row[2], row[7]) for row in rows] == [
    ("mnist_paper", "2"), ("mnist_paper `num_iterations=1`", "1")
  ]  # fmt: skip
  # The preset itself was changed: both are told apart.
  records.append(make_record(2, command=of_preset, flags={"num_iterations": 5}))
  assert [(row[2], row[7]) for row in rows_of(records)[1:]] == [
    ("mnist_paper `num_iterations=1`", "1"),
    ("mnist_paper `num_iterations=3`", "2"),
    ("mnist_paper `num_iterations=5`", "1"),
  ]


@pytest.mark.parametrize(
  ("name", "off"),
  [("newer", None), ("viewpoints", "all"), ("num_micro_batches", 1)],
)
def test_a_newer_flag_that_is_off_does_not_tell_a_record_apart(name, off):
  old, new = make_record(0, 0.2), make_record(1, 0.4, flags={name: off})
  (row,) = rows_of([old, new])[1:]
  assert "0.20, 0.40" in row and name not in " ".join(row)
  on = make_record(1, 0.4, flags={name: 3.0})
  names = [row[2] for row in rows_of([old, new, on])[1:]]
  assert names == sorted(f"mnist_paper `{name}={x}`" for x in ("3.0", off))


@pytest.mark.parametrize("on", [2.0, "all"])
def test_a_newer_flag_that_is_on_tells_a_record_apart(on):
  old, new = make_record(0, 0.2), make_record(1, 0.4, flags={"newer": on})
  rows = rows_of([old, new])[1:]
  assert [row[2] for row in rows] == [
    f"mnist_paper `newer={on}`",
    "mnist_paper before `--newer`",
  ]
  assert [row[5] for row in rows] == ["0.40", "0.20"]


def test_a_record_has_the_former_value_of_a_newer_flag():
  """Even if no peer has that value."""
  old = make_record(0, 0.2)
  new = make_record(1, 0.4, flags={"transforms_scale": 0.35})
  assert tables.differing(old, [old, new]) == {"transforms_scale": "0.1"}
  assert tables.differing(new, [old, new]) == {"transforms_scale": "0.35"}
  # A flag that was left unset, too.
  unset = make_record(2, 0.3, flags={"transforms_scale": None})
  rows = rows_of([old, new, unset])[1:]
  assert [(row[2], row[7]) for row in rows] == [
    ("mnist_paper `transforms_scale=0.1`", "2"),
    ("mnist_paper `transforms_scale=0.35`", "1"),
  ]


def test_one_seed_counts_once():
  records = [make_record(0, 0.2), make_record(1, 0.4)]
  tables.require_one_each(records, "x")
  with pytest.raises(ValueError, match="x: 2 records are of seed 1"):
    tables.require_one_each([*records, records[1]], "x")


def test_seeds_of_several_commits_are_marked():
  records = [
    make_record(seed, commit=letter * 40) for seed, letter in enumerate("aab")
  ]
  assert rows_of(records)[1][7:9] == ["3", "aaaaaaa (0 1), bbbbbbb (2)"]
  assert rows_of(records, summary.table)[1][6] == "3 of 2 commits"
  assert rows_of(records[:2], summary.table)[1][6] == "2"


@pytest.mark.parametrize(
  "errors, want",
  [
    ([0.25], "0.25"),
    ([0.25, 0.75], "0.25, 0.75"),
    # Deviations of 0.5 squared, over n - 1 = 2.
    ([0.0, 0.5, 1.0], "0.50 ± 0.500"),
  ],
)
def test_deviations_are_of_three_seeds_or_more(errors, want):
  records = [make_record(seed, error) for seed, error in enumerate(errors)]
  assert rows_of(records)[1][5] == want


def test_restarts_of_all_seeds_are_added():
  records = [make_record(seed, restarts=1) for seed in (0, 1)]
  assert "(2 restarts)" in whole(records)


def test_images_of_validation_are_not_those_of_the_test():
  # The older way: one number for a whole record.
  record = make_record(
    metrics={"raw_validation_accuracy": 0.5, "num_images": 9}
  )
  assert tables.images([record], "test_accuracy") == "9"
  for name in ("raw_validation_accuracy", "validation_accuracy"):
    assert tables.images([record], name) == "-"


def test_the_canvas_of_a_suite_comes_before_that_of_training():
  record = make_record(metrics={"num_rows": 32}, flags={"canvas": 40})
  assert tables.canvas(record) == "32x32"
  del record["metrics"]["num_rows"]
  assert tables.canvas(record) == "40x40"


def test_restarts_stand_beside_the_steps():
  steps = [
    rows_of([make_record(0), make_record(1, restarts=count)])[1][3]
    for count in (0, 1, 2)
  ]
  assert steps == ["39,000", "39,000 (1 restart)", "39,000 (2 restarts)"]


def test_counts_of_images_are_shown():
  def cells(table, **changes):
    changes = {"metrics": {"affnist_like_accuracy": 0.5}, **changes}
    return rows_of([make_record(suite="affnist_like", **changes)], table)[1]

  counted = {"num_images": {"affnist_like_accuracy": 32}}
  assert cells(whole, **counted)[3] == "32"
  assert cells(summary.table, **counted)[5] == "32"
  assert cells(whole)[3] == "-"
  # Of older records, for the whole suite.
  metrics = {"affnist_like_accuracy": 0.5, "num_images": 1234}
  assert cells(whole, metrics=metrics)[3] == "1,234"
  # Older training runs measured their main measure on all of the test set.
  assert rows_of([make_record()], summary.table)[1][5] == "all"
  runs = [
    make_record(n, num_images={"test_error_percent": 10**n}) for n in (2, 4)
  ]
  assert rows_of(runs)[1][6] == "100 to 10,000"


def test_flags_that_tell_a_run_from_its_preset_are_named():
  command = (
    "python -m x --flagfile=presets/capsnet/mnist_paper.cfg --seed=2 --width=3"
  )
  words = " --nodecoder --num_steps=5 --log_every=2"
  name = rows_of([make_record(command=command + words)])[1][2]
  assert name == "mnist_paper `nodecoder` `width=3`"
  assert rows_of([make_record(command=command, preset=None)])[1][2] == "-"


def test_names_of_rows_do_not_depend_on_how_flags_were_typed():
  command = "python -m x --flagfile=presets/capsnet/mnist_paper.cfg "
  flags = {"decoder": False, "rate": 1.0}
  names = [
    rows_of([make_record(command=command + words, flags=flags)])[1][2]
    for words in ("--nodecoder --rate=1", "--decoder=false --rate=1.0")
  ]
  assert names == ["mnist_paper `decoder=False` `rate=1.0`"] * 2


def test_repeated_seed_is_an_error():
  with pytest.raises(ValueError, match=r"train_capsnet.*twice in \[0, 0\]"):
    whole([make_record(0), make_record(0)])


def test_bars_do_not_break_the_table():
  assert r"| a\|b |" in whole([make_record(device="a|b")])


def test_data_are_named_and_never_mixed():
  def of(seed, letter):
    return make_record(seed, data={"train": letter * 64, "test": "b" * 64})

  assert "| aaaaaaa bbbbbbb |" in whole([of(0, "a"), of(1, "a")])
  # An older record does not say.
  assert "| aaaaaaa bbbbbbb |" in whole([make_record(0), of(1, "a")])
  with pytest.raises(ValueError, match="seeds 0, 1 of mnist_paper.*data"):
    whole([of(0, "a"), of(1, "c")])


def stopped(seed, accuracy):
  return make_record(
    seed,
    flags={"stop_accuracy": accuracy},
    command=f"python -m experiments.train_capsnet --seed={seed}"
    f" --stop_accuracy={accuracy}",
  )


def test_seeds_that_stop_at_their_own_accuracy_share_a_row():
  given = [stopped(0, 0.94), stopped(1, 0.95), make_record(2)]
  found = sorted(
    [record["seed"] for record in setting.records]
    for setting in tables.settings(given)
  )
  assert found == [[0, 1], [2]]


def test_curves_are_means_over_seeds():
  named = {
    "routings_digits_em": [
      make_record(seed, suite="starvation", metrics={"layer_mean": [seed, 1.0]})
      for seed in range(3)
    ]
  }
  found = tables.curve(named, "routings_digits_em", "starvation", "layer_mean")
  assert found == [1.0, 1.0]
  assert tables.curve(named, "none", "starvation", "layer_mean") == []
