"""The page of sweeps: its columns, and which runs share a row."""

from report_cases import make_record, rows_of

from experiments.records import sweeps


def test_sweeps_show_validation_before_test():
  metrics = {
    "presence_accuracy": 0.9,
    "validation_presence_accuracy": 0.8,
    "validation_objective": 7.0,
  }
  record = make_record(preset="a_sweep", metrics=metrics)
  header, _ = rows_of([record], sweeps.page)
  assert header[1:4] == [
    "validation: objective (nats)", "validation: t (%)", "t (%)",
  ]  # fmt: skip


def test_sweeps_stand_beside_each_other():
  def short(flags, seed=0, **changes):
    command = f"python -m x --workdir=DIR --flagfile=a_sweep.cfg {flags}"
    changes.setdefault("metrics", {"presence_accuracy": 0.9})
    return make_record(
      seed, command=f"{command} --seed={seed}", preset="a_sweep", **changes
    )

  records = [
    short("--max_rotation=100"),
    short("--max_rotation=20"),
    short("--max_rotation=20", 1, metrics={"presence_accuracy": 0.8}),
    short(""),
    # What an evaluation adds, beside what nobody compares.
    short("", suite="importance", metrics={"bound_1": -1.5, "num_images": 9}),
    # A row without numbers says nothing.
    short("--max_rotation=30", suite="attacks", metrics={"other": 1.0}),
  ]
  where = ["0123456", "CPU, 2 cores"]
  assert rows_of(records, sweeps.page)[:4] == [
    ["Flags", "bound, 1 sample", "t (%)", "Seeds", "Commit", "Device"],
    ["as it is", "-1.5", "90.0", "1", *where],
    ["`--max_rotation=20`", "-", "90.0, 80.0", "2", *where],
    ["`--max_rotation=100`", "-", "90.0", "1", *where],
  ]
  # Seeds of other flags or another device are rows of their own.
  newer = short("", 1)
  newer["flags"]["newer"] = 2
  others = [*records, newer, short("", 1, device="CPU, 1 core")]
  names = [row[0] for row in rows_of(others, sweeps.page)[1:6]]
  assert sorted(names) == [
    "`--max_rotation=100`", "`--max_rotation=20`",
    "as it is", "as it is `newer=2`", "as it is before `--newer`",
  ]  # fmt: skip
