"""Tests of the binary that trains slot attention."""

import processes
import pytest

SMALL = (
  "--features=4", "--slot_size=4", "--num_convs=2", "--batch_size=32",
  "--num_steps=4", "--eval_every=2", "--log_every=2", "--num_iterations=1",
)  # fmt: skip


@pytest.fixture(scope="module")
def trained(train, tmp_path_factory):
  workdir = tmp_path_factory.mktemp("runs") / "slots"
  code, printed = train(
    workdir, *SMALL, "--pad=3", "--max_shift=3", binary="train_slots"
  )
  assert code == 0, printed
  return workdir


def test_a_run_ends_with_objects(trained):
  scores = processes.summary_of(trained)["metrics"]
  for name in ("multimnist", "affnist_like"):
    assert -0.5 <= scores[f"{name}_rand_index"] <= 1
    assert (trained / "figures" / f"object_masks_{name}.png").exists()
  assert 0 < scores["test_reconstruction_error"] < 1


@pytest.mark.long
def test_invariant_slots_resume_on_a_canvas(train, tmp_path):
  words = (*SMALL, "--scene=affnist_like", "--canvas=14", "--invariant")
  for steps in (2, 4):
    code, printed = train(
      tmp_path, *words, f"--num_steps={steps}", binary="train_slots"
    )
    assert code == 0, printed
  assert processes.summary_of(tmp_path)["num_steps"] == 4


@pytest.mark.parametrize(
  ("words", "message"),
  [
    (("--canvas=20",), "--scene=multimnist does not use --canvas"),
    (("--scene=affnist_like", "--pad=2"), "does not use --pad"),
    (("--num_slots=0",), "num_slots"),
  ],
)
@pytest.mark.long_after_first
def test_flags_that_do_not_fit_are_refused(train, tmp_path, words, message):
  code, printed = train(tmp_path, *SMALL, *words, binary="train_slots")
  assert code == 1
  assert message in printed and "Traceback" not in printed
