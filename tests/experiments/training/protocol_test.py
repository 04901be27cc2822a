"""Which checkpoint of a run is reported, and averages of its weights."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import processes
import pytest
import straight_lines
from absl import flags
from absl.testing import flagsaver

from experiments.flags import runs  # noqa: F401 (its flags)
from experiments.training import checkpoints, train_step


@pytest.mark.parametrize(
  ("validations", "want"),
  [
    ([(0.9, 0.3), (0.9, 0.2), (0.9, 0.25)], 2),  # the lowest loss
    ([(0.9, 0.2), (0.9, 0.2), (0.8, 0.1)], 2),  # then the later step
    ([(0.9, 0.3), (0.8, 0.1), (0.7, 0.1)], 1),  # accuracy before all
    ([(0.9, None), (0.9, None), (0.9, None)], 3),  # without a loss
  ],
)
@pytest.mark.parametrize("name", ["loss", "margin_loss"])
def test_ties_go_to_the_lower_loss_then_to_the_later_step(
  tmp_path, validations, want, name
):
  saved = checkpoints.Checkpoints(tmp_path, straight_lines.score_of)
  for step, (accuracy, value) in enumerate(validations, 1):
    metrics = {"accuracy": accuracy} | ({name: value} if value else {})
    saved.save_best(step, {"w": jnp.float32(step)}, metrics)
  again = checkpoints.Checkpoints(tmp_path, straight_lines.score_of)
  assert again.best_step() == want
  step, model, _ = again.restore_best({"w": jnp.float32(0)})
  assert step == float(model["w"]) == want


def test_a_tie_with_a_later_checkpoint_keeps_that(tmp_path):
  """Training comes to a step again after the newest state was damaged."""
  saved = checkpoints.Checkpoints(tmp_path, straight_lines.score_of)
  saved.save_best(4, {"w": jnp.float32(4)}, {"accuracy": 0.5})
  saved.save_best(2, {"w": jnp.float32(2)}, {"accuracy": 0.5})
  assert saved.best_step() == 4


def test_without_validation_the_last_state_is_the_best(tmp_path):
  state, saved = straight_lines.fit(
    tmp_path / "run", 5, validation=straight_lines.EMPTY
  )
  step, model, scores = saved.restore_best(straight_lines.Line())
  assert (step, scores) == (5, {})
  chex.assert_trees_all_equal(
    jax.tree.leaves(model), jax.tree.leaves(state.model)
  )
  lines = processes.metrics_of(tmp_path / "run")
  assert {line["split"] for line in lines} == {"train"}


@pytest.mark.parametrize("decay", [0.7, 0.9999])
def test_the_average_is_that_of_numpy(decay):
  """Of weights and running statistics, in any number of calls."""
  state, update = straight_lines.make(decay)
  seen = []
  for _ in range(5):
    state, _ = update(state, straight_lines.IMAGES, straight_lines.LABELS, 1)
    model = state.model
    seen.append(
      [np.float64(x[...]) for x in (model.w, model.norm.mean, model.norm.var)]
    )
    shares = decay ** np.arange(len(seen))[::-1]
    want = [
      np.tensordot(shares / shares.sum(), np.stack(x), 1)
      for x in zip(*seen, strict=True)
    ]
    model = train_step.averaged(state)
    got = [x[...] for x in (model.w, model.norm.mean, model.norm.var)]
    for a, b in zip(got, want, strict=True):
      np.testing.assert_allclose(a, b, rtol=1e-5)
  assert np.ptp([x[0] for x in seen]) > 0.1  # or all averages are alike
  whole, update = straight_lines.make(decay)
  whole, _ = update(whole, straight_lines.IMAGES, straight_lines.LABELS, 5)
  chex.assert_trees_all_close(
    jax.tree.leaves(whole.average), jax.tree.leaves(state.average), rtol=1e-6
  )


def test_without_an_average_the_model_is_as_it_is():
  state, _ = straight_lines.make()
  assert state.average is None
  assert train_step.averaged(state) is state.model


def test_averaged_weights_are_validated_and_reported(tmp_path):
  state, saved = straight_lines.fit(
    tmp_path / "run", 4, validation=straight_lines.DATASET, decay=0.7
  )
  step, (model, raw), scores = saved.restore_best(
    (straight_lines.Line(), straight_lines.Line())
  )
  assert step == 4
  for got, want in (
    (model, train_step.averaged(state)), (raw, state.model)
  ):  # fmt: skip
    chex.assert_trees_all_equal(jax.tree.leaves(got), jax.tree.leaves(want))
  assert abs(model.w[...] - raw.w[...]) > 0.01
  for name, line in (("error", model), ("raw_error", raw)):
    errors = straight_lines.measure(
      line,
      train_step.as_intensities(straight_lines.IMAGES),
      straight_lines.LABELS,
    )["error"]
    assert scores[name] == pytest.approx(float(np.mean(errors)), rel=1e-5)


@pytest.mark.long
def test_a_run_with_averaged_weights_tells_both(train, tmp_path):
  """On one device and, sharing each batch, on two."""
  words = (*processes.UNDECODED, "--average_decay=0.9", "--num_steps=40",
           "--eval_every=20", "--learning_rate=0.01",
           "--num_validation=300")  # fmt: skip
  summaries = []
  for devices in (1, 2):
    code, printed = train(
      tmp_path / str(devices), *words,
      xla_flags=f"--xla_force_host_platform_device_count={devices}",
    )  # fmt: skip
    assert code == 0, printed
    assert "averaged weights)" in printed
    summaries.append(processes.summary_of(tmp_path / str(devices)))
  one, two = (summary["metrics"] for summary in summaries)
  for name in ("test_margin_loss", "validation_margin_loss"):
    assert abs(one[name] - one[f"raw_{name}"]) > 1e-4
    for key in (name, f"raw_{name}"):
      assert two[key] == pytest.approx(one[key], rel=1e-3)
  assert "raw_test_accuracy" in one
  code, printed = train(tmp_path / "1", "--suite=accuracy", binary="evaluate")
  assert code == 0, printed
  record = processes.evaluation_of(tmp_path / "1")["accuracy"]["metrics"]
  for name in ("test_margin_loss", "raw_test_margin_loss"):
    assert record[name] == pytest.approx(one[name], rel=1e-6)
  # Three devices do not share a batch of 64: two of them measure.
  code, printed = train(
    tmp_path / "1", "--suite=accuracy", binary="evaluate",
    xla_flags="--xla_force_host_platform_device_count=3",
  )  # fmt: skip
  assert code == 0, printed
  record = processes.evaluation_of(tmp_path / "1")["accuracy"]["metrics"]
  assert record["test_margin_loss"] == pytest.approx(
    one["test_margin_loss"], rel=1e-3
  )


@pytest.mark.parametrize("decay", ["1", "-0.1", "nan"])
def test_a_decay_is_below_one(decay):
  with flagsaver.flagsaver(), pytest.raises(flags.Error, match="below 1"):
    flags.FLAGS(["binary", f"--average_decay={decay}"])


@pytest.mark.long
def test_a_run_without_validation_says_so(train, tmp_path):
  words = (*processes.BASELINE, "--num_validation=0", "--num_steps=4",
           "--log_every=2")  # fmt: skip
  code, printed = train(tmp_path, *words)
  assert code == 0, printed
  assert "(checkpoint of step 4, the last)" in printed
  assert "validation:" not in printed and "chosen on" not in printed
  summary = processes.summary_of(tmp_path)
  assert summary["reported"] == "the last"
  assert summary["metrics"]["best_step"] == 4
  assert not any(x.startswith("validation") for x in summary["metrics"])
  lines = processes.metrics_of(tmp_path)
  assert [line["split"] for line in lines] == ["train", "train"]
  # Of all 1437 images there are 22 batches of 64.
  assert lines[-1]["epoch"] == pytest.approx(4 / 22)
  assert (tmp_path / "figures" / "learning_curves.png").exists()
  code, printed = train(tmp_path, "--suite=accuracy", binary="evaluate")
  assert code == 0, printed
  record = processes.evaluation_of(tmp_path)["accuracy"]["metrics"]
  assert record["test_accuracy"] == summary["metrics"]["test_accuracy"]


def test_an_accuracy_to_stop_at_needs_validation(train, tmp_path):
  code, printed = train(
    tmp_path, *processes.BASELINE, "--num_validation=0", "--stop_accuracy=0.9"
  )
  assert code == 1
  assert "--num_validation=0 does not use --stop_accuracy" in printed
