"""Tests of evaluation and of the binaries' variants, as real processes."""

import json

import pytest

SMALL = (
  "--conv_features=4", "--conv_kernel=3", "--num_types=2", "--primary_kernel=3",
  "--decoder_features=8", "--batch_size=64",
)  # fmt: skip
BASELINE = (
  "--model=baseline", "--cnn_features=4,4", "--cnn_kernels=3,3",
  "--cnn_dense=8", "--batch_size=64",
)  # fmt: skip
ROBUSTNESS = ("attacks", "views", "affnist_like")
CURVES = {
  "attacks": [
    ("eps", f"{attack}_{kind}")
    for attack in ("fgsm", "bim")
    for kind in ("accuracy", "targeted_success")
  ],
  "views": [(x, f"{x}_accuracy") for x in ("rotation", "shift", "scale")],
  "diagnostics": [
    ("rotation", f"rotated_{name}")
    for name in ("kappa", "accuracy", "routing_entropy", "agreement", "chance")
  ],
}


def metrics_of(workdir, suite):
  records = json.loads((workdir / "evaluation.json").read_text())
  return records[suite]["metrics"]


def summary_of(workdir):
  return json.loads((workdir / "summary.json").read_text())


@pytest.fixture(scope="module")
def pair(train, tmp_path_factory):
  """A CapsNet and a baseline, trained a little on the embedded digits."""
  folder = tmp_path_factory.mktemp("runs")
  for name, flags in (("capsnet", SMALL), ("baseline", BASELINE)):
    code, printed = train(folder / name, *flags, "--num_steps=60")
    assert code == 0, printed
  return folder / "capsnet", folder / "baseline"


def test_a_run_beside_must_have_been_evaluated(train, pair):
  capsnet, baseline = pair
  code, printed = train(
    capsnet, "--suite=views", f"--beside={baseline}", "--images=4",
    binary="evaluate",
  )  # fmt: skip
  assert code == 1
  assert "--suite=views" in printed and "Traceback" not in printed


def test_every_suite_writes_numbers_and_figures(train, pair):
  capsnet, baseline = pair
  flags = ("--images=20", "--views=3")
  code, printed = train(
    baseline, f"--suite={','.join(ROBUSTNESS)},multimnist", *flags,
    binary="evaluate",
  )  # fmt: skip
  assert code == 0, printed
  suites = (*ROBUSTNESS, "multimnist", "diagnostics")
  code, printed = train(
    capsnet, f"--suite={','.join(suites)}", f"--beside={baseline}", *flags,
    binary="evaluate",
  )  # fmt: skip
  assert code == 1  # the baseline has no routing to diagnose
  assert "diagnostics" in printed and "Traceback" not in printed
  code, printed = train(
    capsnet, "--suite=diagnostics", *flags, binary="evaluate"
  )
  assert code == 0, printed
  for suite, curves in CURVES.items():
    metrics = metrics_of(capsnet, suite)
    assert metrics["num_images"] == 20
    for x, y in curves:
      assert len(metrics[x]) == len(metrics[y]) > 5
      assert all(-1 <= value <= 1 for value in metrics[y])
  figures = {path.stem for path in (capsnet / "figures").iterdir()}
  assert figures >= {
    *suites, "attacks_sheet", "views_sheet", "activations",
  }  # fmt: skip


def test_suites_agree_where_nothing_is_changed(pair):
  """No rotation, no shift, eps = 0: the same images, the same answers."""
  capsnet, _ = pair
  views, attacks = (metrics_of(capsnet, s) for s in ("views", "attacks"))
  untouched = {
    views[f"{kind}_accuracy"][views[kind].index(value)]
    for kind, value in (("rotation", 0), ("shift", 0), ("scale", 1))
  }
  untouched |= {attacks[f"{a}_accuracy"][0] for a in ("fgsm", "bim")}
  assert len(untouched) == 1
  diagnostics = metrics_of(capsnet, "diagnostics")
  upright = diagnostics["rotation"].index(0)
  assert diagnostics["rotated_agreement"][upright] == pytest.approx(1)
  assert diagnostics["rotated_accuracy"][upright] in untouched


def test_stronger_attacks_hurt_more(pair):
  for workdir in pair:
    metrics = metrics_of(workdir, "attacks")
    assert metrics["bim_accuracy"][-1] < metrics["bim_accuracy"][0]
    assert (
      metrics["bim_targeted_success"][-1] > metrics["bim_targeted_success"][0]
    )


def test_both_of_two_are_harder_than_each(pair):
  metrics = metrics_of(pair[0], "multimnist")
  assert metrics["multimnist_accuracy"] <= metrics["multimnist_digits_found"]


def test_a_network_without_capsules_draws_nothing(train, pair):
  code, printed = train(pair[1], "--suite=reconstructions", binary="evaluate")
  assert code == 1
  assert "reconstructions" in printed and "Traceback" not in printed


def test_training_stops_at_an_accuracy_and_stays_there(train, tmp_path):
  flags = (
    *SMALL, "--num_steps=1000", "--eval_every=20", "--stop_accuracy=0.3",
    "--learning_rate=0.003",
  )  # fmt: skip
  code, printed = train(tmp_path, *flags)
  assert code == 0, printed
  metrics = summary_of(tmp_path)["metrics"]
  assert metrics["validation_accuracy"] >= 0.3
  assert metrics["best_step"] < 1000
  lines = (tmp_path / "metrics.jsonl").read_text()
  code, printed = train(tmp_path, *flags)
  assert code == 0, printed
  assert (tmp_path / "metrics.jsonl").read_text() == lines


def test_overlapping_digits_train_and_part(train, tmp_path):
  flags = (*SMALL, "--num_steps=20", "--pad=2", "--max_shift=2")
  code, printed = train(tmp_path, *flags, binary="train_multimnist")
  assert code == 0, printed
  metrics = summary_of(tmp_path)["metrics"]
  assert 0 <= metrics["test_accuracy"] <= metrics["test_found"] <= 1
  assert (tmp_path / "figures" / "multimnist.png").stat().st_size > 1000
  code, printed = train(
    tmp_path / "other", *flags, "--canvas=20", binary="train_multimnist"
  )
  assert code == 1 and "--canvas" in printed


@pytest.mark.parametrize("routing", ["self_attention", "variational"])
def test_other_routings_train(train, tmp_path, routing):
  code, printed = train(
    tmp_path, *SMALL, f"--routing={routing}", "--num_steps=20"
  )
  assert code == 0, printed
  scores = summary_of(tmp_path)["metrics"]
  assert 0 <= scores["test_routing_entropy"] <= 1 + 1e-6
