"""The commits of records are in the history, or said to be combined there."""

import itertools
import shutil
import subprocess

import processes
import pytest

from experiments.records import every_metric, records


def _git(*arguments):
  if not shutil.which("git"):
    return []
  ended = subprocess.run(
    ["git", *arguments],
    cwd=processes.ROOT,
    capture_output=True,
    text=True,
    check=False,
  )
  return ended.stdout.split() if ended.returncode == 0 else []


@pytest.fixture(scope="module")
def history():
  if _git("rev-parse", "--is-shallow-repository") != ["false"]:
    pytest.skip("needs the whole history of a git clone")
  found = set(_git("rev-list", "HEAD"))
  if not every_metric.COMBINED.keys() <= {commit[:7] for commit in found}:
    pytest.skip("needs the history of the repository, not a copy of its files")
  return found


def test_commits_of_records_are_found(history):
  combined = set(itertools.chain(*every_metric.COMBINED.values()))
  for record in records.read(processes.ROOT / "results"):
    for key in every_metric.COMMITS:
      commit = record.get(key)
      assert commit is None or commit in history or commit[:7] in combined, (
        f"{record['command']}: {key} is {commit}"
      )


def test_what_is_combined_is_not_in_the_history_itself(history):
  short = {commit[:7] for commit in history}
  for names in every_metric.COMBINED.values():
    assert not short.intersection(names)
