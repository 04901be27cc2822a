"""The flags of every training binary arrive in its task and its model."""

import json

import processes
import pytest
from flag_rows import RATES, ROWS

_BINARIES = sorted(
  path.stem for path in (processes.ROOT / "experiments").glob("train_*.py")
)


def part_of(whole, names):
  return {name: whole.get(name) for name in names}


@pytest.mark.parametrize("binary", _BINARIES)
def test_every_flag_arrives(binary):
  rows = ROWS[binary]
  code, printed = processes.Running(
    "telling", binary, *(f"{row.line} {RATES}" for row in rows), package=""
  ).wait()
  assert code == 0, printed
  told = json.loads(printed)
  for got, row in zip(told, rows, strict=True):
    assert got["task"] == binary.removeprefix("train_")
    assert got["class"].rpartition(".")[2] == row.maker
    for name in ("arguments", "options"):
      wanted = getattr(row, name)
      assert part_of(got[name], wanted) == wanted, row.line
    assert tuple(got["rates"]) == row.rates
    assert tuple(got["kept_proper"]) == row.kept_proper
  # Every flag, argument and option is in a row.
  if binary != "train_multimnist":  # whose networks are those of train_capsnet
    assert not set.intersection(*(set(x["at_default"]) for x in told))
  for name in ("arguments", "options"):
    assert {key for row in rows for key in getattr(row, name)} == {
      key for got in told for key in got[name]
    }
