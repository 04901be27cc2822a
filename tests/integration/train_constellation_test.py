"""Tests of the binary that trains on constellations, and of its suites."""

import jax
import jax.numpy as jnp
import numpy as np
import processes
import pytest

from capjax.data.sources import constellations
from capjax.evaluation import segmentation
from experiments.evaluation import constellations as segmentations

TINY = ("--width=8", "--blocks=1", "--heads=2", "--hidden=8")
STEPS = (
  "--num_steps=4", "--eval_every=2", "--log_every=2", "--batch_size=8",
  "--num_validation=200",
)  # fmt: skip


@pytest.fixture(scope="module")
def trained(train, tmp_path_factory):
  workdir = tmp_path_factory.mktemp("runs") / "constellation"
  code, printed = train(
    workdir, *TINY, *STEPS, "--noise=0.1", "--max_gradient=1",
    binary="train_constellation",
  )  # fmt: skip
  assert code == 0, printed
  return workdir


def test_a_run_ends_with_segments(trained):
  scores = processes.summary_of(trained)["metrics"]
  # The share of points as the loop has it and as the host has it.
  assert scores["segmentation_accuracy"] == pytest.approx(
    scores["test_accuracy"], abs=1e-5
  )
  assert scores["segmentation_num_images"] > 1700
  for name in ("segmentation", "learning_curves"):
    assert (trained / "figures" / f"{name}.png").exists()


@pytest.mark.long
def test_known_patterns_are_found_in_the_same_images(train, trained):
  code, printed = train(
    trained, "--suite=gcm,ransac", "--images=8", binary="evaluate"
  )
  assert code == 0, printed
  found = processes.evaluation_of(trained)
  scores = found["gcm"]["metrics"] | found["ransac"]["metrics"]
  for name in ("gcm", "gcm_mixture", "ransac"):
    assert scores[f"{name}_num_images"] == 8
    # Most is right, also at this noise.
    assert 0.8 < scores[f"{name}_accuracy"] <= 1
    assert 0 < scores[f"{name}_rand_index"] <= 1
    assert -0.5 <= scores[f"{name}_several_rand_index"] <= 1
  for name in ("gcm", "ransac"):
    assert (trained / "figures" / f"{name}.png").exists()


@pytest.mark.parametrize(
  ("words", "message"),
  [
    (("--dataset=digits",), "trains on constellations only"),
    (("--noise=-1",), "noise"),
    (("--num_validation=20000",), "cannot keep"),
    (("--stop_accuracy=0.5",), "not use --stop_accuracy"),
    (("--prior_between=2",), "does not use --prior_between"),
  ],
)
@pytest.mark.long_after_first
def test_flags_that_do_not_fit_are_refused(train, tmp_path, words, message):
  code, printed = train(
    tmp_path, *TINY, *STEPS, *words, binary="train_constellation"
  )
  assert code == 1
  assert message in printed and "Traceback" not in printed


def test_accuracy_is_that_of_the_evaluation():
  numbers = jnp.arange(40)
  drawn = jax.jit(jax.vmap(constellations.numbered))(numbers)
  some = np.asarray(drawn.presence).any(axis=1)
  drawn = jax.tree.map(lambda x: x[some], drawn)
  found = np.random.default_rng(0).integers(0, 3, drawn.objects.shape)
  got = segmentations.accuracy(jnp.asarray(found), drawn, 3)
  for n, value in enumerate(got):
    one = (np.asarray(x)[n : n + 1] for x in (drawn.objects, drawn.presence))
    want = segmentation.score(found[n : n + 1], *one)
    assert value == pytest.approx(want.accuracy)
