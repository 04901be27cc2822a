"""Checkpoints: damaged, incomplete, cut off by a kill or by a full disk."""

import contextlib
import json
import operator
import os
import pathlib
import resource
import shutil
from unittest import mock

import chex
import jax
import numpy as np
import pytest
from checkpoint_cases import leaves, state_of

from experiments.training import checkpoints

_ACCURACY = operator.itemgetter("accuracy")


class Killed(BaseException):
  """In the place of SIGKILL: nothing in the code under test catches it."""


@pytest.fixture(scope="module")
def three(tmp_path_factory):
  """Checkpoints of steps 10, 20 and 30, of which two are kept."""
  folder = tmp_path_factory.mktemp("checkpoints")
  saved = checkpoints.Checkpoints(folder, _ACCURACY)
  for step in (10, 20, 30):
    saved.save(step, state_of(step))
    metrics = {"accuracy": step / 100}
    saved.save_best(step, state_of(step).model, metrics)
  return folder


@pytest.fixture
def folder(three, tmp_path):
  return shutil.copytree(three, tmp_path / "checkpoints")


def reopen(folder):
  return checkpoints.Checkpoints(folder, _ACCURACY)


def is_state(state, step) -> bool:
  pairs = zip(leaves(state), leaves(state_of(step)), strict=True)
  return all(np.array_equal(x, y) for x, y in pairs)


def flip(path: pathlib.Path, position: int) -> None:
  """Flips a bit of a file."""
  content = bytearray(path.read_bytes())
  content[position // 8 % len(content)] ^= 1 << position % 8
  path.write_bytes(content)


def empty(folder):
  shutil.rmtree(folder)
  folder.mkdir()


@pytest.mark.parametrize(
  "harm",
  [empty, lambda path: shutil.rmtree(path / "default")],
  ids=["empty", "no default"],
)
@pytest.mark.parametrize("series", ["latest", "best"])
@pytest.mark.parametrize("step", [20, 30])
def test_a_folder_without_arrays_hides_no_intact_one(
  folder, series, step, harm, caplog
):
  harm(folder / series / str(step))
  saved = reopen(folder)
  want = 50 - step  # the other one
  if series == "latest":
    assert is_state(saved.restore(state_of(0)), want)
  else:
    assert saved.best_metrics() == {"accuracy": want / 100}
    assert saved.restore_best(state_of(0).model)[0] == want
  assert f"{series}/{step} (it has no folder default)" in caplog.text
  saved.save(40, state_of(40))
  saved.save_best(40, state_of(40).model, {"accuracy": 0.4})
  assert (folder / series / f"{step}.damaged").exists()
  assert is_state(reopen(folder).restore(state_of(0)), 40)


def test_every_bit_flip_is_noticed(folder, caplog):
  rng = np.random.default_rng(0)
  newest = folder / "latest" / "30"
  names = sorted(path for path in newest.rglob("*") if path.is_file())
  for path in names:
    position = int(rng.integers(8 * path.stat().st_size))
    flip(path, position)
    caplog.clear()
    state = reopen(folder).restore(state_of(0))
    if path.name == "checksums.json":  # the arrays are whole, or not believed
      assert is_state(state, 30) or is_state(state, 20)
      assert "unverified" in caplog.text or "as it was saved" in caplog.text
    else:
      assert is_state(state, 20)
      name = path.relative_to(newest).as_posix()
      assert f"30 ({name} is not as it was saved)" in caplog.text
    flip(path, position)
  assert is_state(reopen(folder).restore(state_of(0)), 30)


@pytest.mark.parametrize("content", [None, "", "{", "[1]", "\0\0"])
def test_without_checksums_it_is_used_and_that_is_said(folder, content, caplog):
  path = folder / "latest" / "30" / "checksums.json"
  path.unlink()
  if content is not None:
    path.write_text(content)
  assert is_state(reopen(folder).restore(state_of(0)), 30)
  assert "latest/30 has no checksums: it is used unverified" in caplog.text


@pytest.mark.parametrize("verified", [True, False])
@pytest.mark.parametrize(
  "content", [b"", b"\xff\xfe", b"[]", b'{"accuracy": "x"}', b'{"accura']
)
def test_damaged_metrics_leave_the_second_best(
  folder, content, verified, caplog
):
  best = folder / "best" / "30"
  if not verified:
    (best / "checksums.json").unlink()
  (best / "metrics" / "metrics").write_bytes(content)
  saved = reopen(folder)
  assert saved.best_metrics() == {"accuracy": 0.2}
  step, _, metrics = saved.restore_best(state_of(0).model)
  assert (step, metrics) == (20, {"accuracy": 0.2})
  assert "best/30 (" in caplog.text
  # Training may find as good a model again, and save it there.
  saved.save_best(30, state_of(30).model, {"accuracy": 0.3})
  assert reopen(folder).restore_best(state_of(0).model)[0] == 30


def test_a_better_model_of_an_earlier_step_replaces_later_ones(folder):
  saved = reopen(folder)
  saved.save_best(25, state_of(25).model, {"accuracy": 0.9})
  names = {path.name for path in (folder / "best").iterdir()}
  assert names == {"20", "25"}
  assert reopen(folder).restore_best(state_of(0).model)[0] == 25


def test_what_is_wrong_with_each_is_said_where_none_can_be_read(folder):
  empty(folder / "latest" / "20")
  flip(folder / "latest" / "30" / "default" / "_METADATA", 77)
  with pytest.raises(ValueError) as caught:
    reopen(folder).restore(state_of(0))
  for words in (
    f"{folder / 'latest'} can be read", "20: it has no folder default",
    "30: default/_METADATA is not as it was saved", "in another workdir",
  ):  # fmt: skip
    assert words in str(caught.value)


def test_checkpoints_of_another_model_are_refused_and_stay(folder):
  template = state_of(0)._replace(step=jax.numpy.zeros(3, jax.numpy.int32))
  before = sorted(folder.rglob("*"))
  with pytest.raises(ValueError, match="of another model"):
    reopen(folder).restore(template)
  assert sorted(folder.rglob("*")) == before


def test_a_deletion_leaves_nothing_behind(folder):
  saved = reopen(folder)
  for step in (40, 50):
    saved.save(step, state_of(step))
  names = {path.name for path in (folder / "latest").iterdir()}
  assert names == {"40", "50"}
  recorded = json.loads((folder / "latest/50/checksums.json").read_text())
  assert all((folder / "latest/50" / name).is_file() for name in recorded)


@contextlib.contextmanager
def killed_at(count: int):
  """Ends the block at the `count`-th change of names in the file system.

  A folder that is being removed then has lost one of its files.
  """
  left = iter(range(count))

  def watch(change):
    def changed(path, *arguments, **options):
      if next(left, None) is None:
        if change is remove:
          max(x for x in path.rglob("*") if x.is_file()).unlink()
        raise Killed
      return change(path, *arguments, **options)

    return changed

  remove = shutil.rmtree
  with (
    mock.patch.object(pathlib.Path, "rename", watch(pathlib.Path.rename)),
    mock.patch.object(shutil, "rmtree", watch(remove)),
    contextlib.suppress(Killed),
  ):
    yield


@pytest.mark.parametrize("only", [False, True], ids=["two", "one"])
def test_stepping_back_can_be_killed_anywhere(folder, only):
  """Wherever it is cut off, a saved state remains from which it can resume."""
  if only:
    for series in ("latest", "best"):
      shutil.rmtree(folder / series / "30")
  key = jax.random.key(99)

  def change(state):
    return state._replace(key=key)

  changed = leaves(change(state_of(20)))
  for count in range(20):
    copy = folder.with_name(f"copy{count}")
    shutil.copytree(folder, copy)
    finished = False
    with killed_at(count):
      reopen(copy).step_back(state_of(0), change)
      finished = True
    found = reopen(copy).restore(state_of(0))
    done = int(found.step) == 20 and all(
      np.array_equal(x, y) for x, y in zip(leaves(found), changed, strict=True)
    )
    assert done or is_state(found, 20) or (not only and is_state(found, 30))
    if finished:
      break
    # The one that is found resumes, and can step back itself.
    again = reopen(copy)
    again.step_back(state_of(0), change)
    assert int(again.restore(state_of(0)).step) == 20
    assert again.restore_best(state_of(0).model)[0] == 20
    shutil.rmtree(copy)
  assert finished and done and count >= 3
  assert reopen(copy).restore_best(state_of(0).model)[0] == 20
  names = {path.name for path in (copy / "latest").iterdir()}
  assert names == {"20"}


def test_saving_can_be_killed_anywhere(folder, caplog):
  for count in range(20):
    copy = folder.with_name(f"copy{count}")
    shutil.copytree(folder, copy)
    finished = False
    with killed_at(count):
      reopen(copy).save(40, state_of(40))
      finished = True
    found = reopen(copy).restore(state_of(0))
    assert is_state(found, 40) or (not finished and is_state(found, 30))
    assert "cannot read" not in caplog.text  # none looks damaged
    again = reopen(copy)
    again.save(50, state_of(50))
    names = {path.name for path in (copy / "latest").iterdir()}
    assert len(names) == 2 and "50" in names
    if finished:
      break
  assert finished and count >= 2


def test_stepping_back_past_a_damaged_state_takes_the_other(folder):
  saved = reopen(folder)
  flip(folder / "latest" / "20" / "default" / "_METADATA", 77)
  state = saved.step_back(state_of(0), lambda state: state)
  assert is_state(state, 30)
  chex.assert_trees_all_equal(
    leaves(reopen(folder).restore(state_of(0))), leaves(state_of(30))
  )


@contextlib.contextmanager
def largest_file(size: int):
  """Refuses to write larger files, as a full disk refuses any."""
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.skipif(
  not hasattr(os, "posix_fallocate"), reason="space cannot be reserved here"
)
def test_a_full_disk_is_said_in_a_sentence_and_loses_nothing(folder, capfd):
  saved = reopen(folder)
  for call in (
    lambda: saved.save(40, state_of(40)),
    lambda: saved.save_best(40, state_of(40).model, {"accuracy": 0.9}),
    lambda: saved.step_back(state_of(0), lambda state: state),
  ):
    with largest_file(2000), pytest.raises(OSError) as caught:
      call()
    path = folder / ("best" if "best" in str(caught.value) else "latest")
    assert f"no space left to write {path}" in str(caught.value)
    assert "\n" not in str(caught.value) and "free some" in str(caught.value)
  assert not capfd.readouterr().err
  assert is_state(reopen(folder).restore(state_of(0)), 30)
  assert reopen(folder).restore_best(state_of(0).model)[0] == 30
  saved.save(40, state_of(40))
  assert is_state(reopen(folder).restore(state_of(0)), 40)
