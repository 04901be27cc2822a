"""Tests of saving and restoring."""

import operator
import pathlib
import shutil

import chex
import jax
import pytest
from checkpoint_cases import State, leaves, state_of
from flax import nnx

from experiments.training import checkpoints

_ACCURACY = operator.itemgetter("accuracy")


def damage(folder: pathlib.Path) -> None:
  for path in folder.rglob("*"):
    if path.is_file() and path.parent.name == "d":
      path.write_bytes(path.read_bytes()[:10])


def test_nothing_saved_gives_none(tmp_path):
  saved = checkpoints.Checkpoints(tmp_path, _ACCURACY)
  assert saved.restore(state_of(0)) is None
  assert saved.restore_best(state_of(0).model) is None
  assert saved.best_metrics() is None


def test_newest_state_comes_back_exactly(tmp_path):
  saved = checkpoints.Checkpoints(tmp_path, _ACCURACY)
  for step in (1, 2, 3):
    saved.save(step, state_of(step))
  restored = checkpoints.Checkpoints(tmp_path, _ACCURACY).restore(state_of(0))
  assert isinstance(restored, State)
  assert isinstance(restored.model, nnx.Linear)
  chex.assert_trees_all_equal(leaves(restored), leaves(state_of(3)))


def test_damaged_newest_gives_the_one_before(tmp_path):
  saved = checkpoints.Checkpoints(tmp_path, _ACCURACY)
  for step in (1, 2, 3):
    saved.save(step, state_of(step))
  damage(tmp_path / "latest" / "3")
  restored = checkpoints.Checkpoints(tmp_path, _ACCURACY).restore(state_of(0))
  chex.assert_trees_all_equal(leaves(restored), leaves(state_of(2)))


def test_saving_goes_on_over_a_damaged_checkpoint(tmp_path):
  saved = checkpoints.Checkpoints(tmp_path, _ACCURACY)
  for step in (10, 20):
    saved.save(step, state_of(step))
  damage(tmp_path / "latest" / "20")
  again = checkpoints.Checkpoints(tmp_path, _ACCURACY)
  again.restore(state_of(0))
  for step in (15, 20):
    again.save(step, state_of(step))
    restored = checkpoints.Checkpoints(tmp_path, _ACCURACY).restore(state_of(0))
    chex.assert_trees_all_equal(leaves(restored), leaves(state_of(step)))


def test_a_step_behind_the_newest_is_not_dropped_in_silence(tmp_path):
  saved = checkpoints.Checkpoints(tmp_path, _ACCURACY)
  saved.save(20, state_of(20))
  with pytest.raises(ValueError, match="step 10 was not saved"):
    saved.save(10, state_of(10))


def test_all_damaged_is_an_error_and_nothing_is_lost(tmp_path):
  saved = checkpoints.Checkpoints(tmp_path, _ACCURACY)
  saved.save(1, state_of(1))
  damage(tmp_path / "latest" / "1")
  before = sorted(tmp_path.rglob("*"))
  with pytest.raises(ValueError, match="can be read.*another workdir"):
    checkpoints.Checkpoints(tmp_path, _ACCURACY).restore(state_of(0))
  assert sorted(tmp_path.rglob("*")) == before


def test_best_comes_with_its_step_and_metrics(tmp_path):
  saved = checkpoints.Checkpoints(tmp_path, _ACCURACY)
  for step, accuracy in ((10, 0.5), (20, 0.75)):
    saved.save_best(step, state_of(step).model, {"accuracy": accuracy})
  again = checkpoints.Checkpoints(tmp_path, _ACCURACY)
  assert again.best_metrics() == {"accuracy": 0.75}
  step, model, metrics = again.restore_best(state_of(0).model)
  assert (step, metrics) == (20, {"accuracy": 0.75})
  chex.assert_trees_all_equal(
    jax.tree.leaves(model), jax.tree.leaves(state_of(20).model)
  )


def test_models_after_the_end_of_a_run_are_dropped(tmp_path):
  saved = checkpoints.Checkpoints(tmp_path, _ACCURACY)
  saved.save_best(20, state_of(20).model, {"accuracy": 0.75})
  saved.drop_best_after(20)
  assert saved.best_step() == 20
  saved.drop_best_after(19)
  assert saved.best_step() is None


def test_saving_a_step_again_keeps_it(tmp_path):
  saved = checkpoints.Checkpoints(tmp_path, _ACCURACY)
  saved.save(1, state_of(1))
  saved.save(1, state_of(2))
  chex.assert_trees_all_equal(
    leaves(saved.restore(state_of(0))), leaves(state_of(1))
  )


def test_a_damaged_checkpoint_is_put_aside_and_not_deleted(tmp_path):
  for _ in range(2):  # the same step, damaged again
    saved = checkpoints.Checkpoints(tmp_path, _ACCURACY)
    for step in (10, 20):
      saved.save(step, state_of(step))
    damage(tmp_path / "latest" / "20")
    again = checkpoints.Checkpoints(tmp_path, _ACCURACY)
    again.restore(state_of(0))
    assert (tmp_path / "latest" / "20").exists()  # reading changes nothing
    again.save(11, state_of(11))
    shutil.rmtree(tmp_path / "latest" / "11")
    names = sorted(path.name for path in (tmp_path / "latest").iterdir())
    assert names == ["10", "20.damaged"]
  again = checkpoints.Checkpoints(tmp_path, _ACCURACY)
  chex.assert_trees_all_equal(
    leaves(again.restore(state_of(0))), leaves(state_of(10))
  )


def test_damaged_best_gives_the_one_before(tmp_path):
  saved = checkpoints.Checkpoints(tmp_path, _ACCURACY)
  for step, accuracy in ((10, 0.25), (20, 0.5), (30, 0.75)):
    saved.save_best(step, state_of(step).model, {"accuracy": accuracy})
  damage(tmp_path / "best" / "30")
  again = checkpoints.Checkpoints(tmp_path, _ACCURACY)
  step, model, metrics = again.restore_best(state_of(0).model)
  assert (step, metrics) == (20, {"accuracy": 0.5})
  chex.assert_trees_all_equal(
    jax.tree.leaves(model), jax.tree.leaves(state_of(20).model)
  )
  assert again.best_metrics() == {"accuracy": 0.5}
  again.save_best(30, state_of(30).model, {"accuracy": 0.75})
  assert (tmp_path / "best" / "30.damaged").exists()
  assert again.restore_best(state_of(0).model)[0] == 30


def test_stepping_back_changes_the_older_state_and_forgets_the_rest(tmp_path):
  saved = checkpoints.Checkpoints(tmp_path, None)
  for step in (1, 2, 3):
    saved.save(step, state_of(step))
    saved.save_best(step, state_of(step).model, {"loss": float(step)})
  key = jax.random.key(99)
  back = saved.step_back(state_of(0), lambda state: state._replace(key=key))
  assert int(back.step) == 2
  again = checkpoints.Checkpoints(tmp_path, None)
  want = state_of(2)._replace(key=key)
  chex.assert_trees_all_equal(leaves(again.restore(state_of(0))), leaves(want))
  assert again.restore_best(state_of(0).model)[0] == 2
  # Training resumes from there.
  again.save(3, state_of(5))
  chex.assert_trees_all_equal(
    leaves(again.restore(state_of(0))), leaves(state_of(5))
  )


def test_without_a_score_the_last_is_the_best(tmp_path):
  saved = checkpoints.Checkpoints(tmp_path, None)
  for step, loss in ((1, 0.5), (2, 0.9), (3, 0.7)):
    saved.save_best(step, state_of(step).model, {"loss": loss})
  assert saved.restore_best(state_of(0).model)[0] == 3
