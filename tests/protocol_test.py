"""Which checkpoint of a run is reported, with validation and without."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import processes
import pytest
from absl import flags
from absl.testing import flagsaver
from flax import nnx

from capjax import data
from experiments.common import checkpoints, loop, runs, task, training

IMAGES = np.arange(20, dtype=np.uint8).reshape(-1, 1, 1, 1)
LABELS = np.arange(20, dtype=np.int32)
DATASET = data.Dataset(IMAGES, LABELS, 20, {})
EMPTY = loop.rows(DATASET, slice(0, 0))
BATCH_SIZE = 4


class Line(nnx.Module):
  """y = w x."""

  def __init__(self):
    self.w = nnx.Param(jnp.float32(0.5))

  def __call__(self, images):
    return 255 * self.w[...] * images[:, 0, 0, 0]


def loss(model, images, labels, key, step):
  del step
  errors = model(images) - labels + 0.1 * jax.random.normal(key)
  value = jnp.mean(jnp.square(errors))
  return value, {"loss": value}


def measure(model, images, labels):
  error = jnp.abs(model(images) - labels)
  return {"error": error, "accuracy": jnp.ones_like(error)}


def fit(workdir, num_steps, *, validation, score=None, words=()):
  """Trains a line; gives its state and its checkpoints."""
  workdir.mkdir(exist_ok=True)
  mesh = training.data_mesh(BATCH_SIZE)
  optimizer = optax.adam(1e-2)
  draw = training.draw_labelled(lambda key, image: image)
  options = {"draw": draw, "batch_size": BATCH_SIZE, "mesh": mesh}
  saved = checkpoints.Checkpoints(workdir / "checkpoints", score)
  state = training.init(Line(), optimizer, jax.random.key(0))
  words = (f"--batch_size={BATCH_SIZE}", "--eval_every=2", *words)
  with flagsaver.flagsaver():
    flags.FLAGS(["binary", *words])
    loop.fit(
      runs.Run(workdir),
      saved,
      state,
      update=training.make_update(loss, optimizer, **options),
      evaluate=training.make_evaluate(measure, **options),
      train=DATASET,
      validation=validation,
      mesh=mesh,
      num_steps=num_steps,
    )
  return saved.restore((state, 0.0))[0], saved


def score_of(metrics, chosen_by="accuracy"):
  """As a task whose models are chosen by a measure scores them."""
  some = task.Task(*[None] * 8, chosen_by=chosen_by)
  return task._score(some, metrics)


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
  saved = checkpoints.Checkpoints(tmp_path, score_of)
  for step, (accuracy, value) in enumerate(validations, 1):
    metrics = {"accuracy": accuracy} | ({name: value} if value else {})
    saved.save_best(step, {"w": jnp.float32(step)}, metrics)
  again = checkpoints.Checkpoints(tmp_path, score_of)
  assert again.best_step() == want
  step, model, _ = again.restore_best({"w": jnp.float32(0)})
  assert step == float(model["w"]) == want


def test_a_tie_with_a_later_checkpoint_keeps_that(tmp_path):
  """Training comes to a step again after the newest state was damaged."""
  saved = checkpoints.Checkpoints(tmp_path, score_of)
  saved.save_best(4, {"w": jnp.float32(4)}, {"accuracy": 0.5})
  saved.save_best(2, {"w": jnp.float32(2)}, {"accuracy": 0.5})
  assert saved.best_step() == 4


def test_without_validation_the_last_state_is_the_best(tmp_path):
  state, saved = fit(tmp_path / "run", 5, validation=EMPTY)
  step, model, scores = saved.restore_best(Line())
  assert (step, scores) == (5, {})
  chex.assert_trees_all_equal(
    jax.tree.leaves(model), jax.tree.leaves(state.model)
  )
  lines = processes.metrics_of(tmp_path / "run")
  assert {line["split"] for line in lines} == {"train"}


def test_without_validation_a_run_resumes_to_the_same_numbers(tmp_path):
  for num_steps in (3, 7):
    state, _ = fit(tmp_path / "cut", num_steps, validation=EMPTY)
  want, _ = fit(tmp_path / "whole", 7, validation=EMPTY)
  assert int(state.step) == 7
  chex.assert_trees_all_equal(
    jax.tree.leaves((state.model, state.opt_state)),
    jax.tree.leaves((want.model, want.opt_state)),
  )


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
  assert "--num_validation=0 has no use for --stop_accuracy" in printed
