"""Tests of evaluation and of the binaries' variants, as real processes."""

import json
import shutil

import dataset_files
import processes
import pytest

import capjax

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
  return processes.evaluation_of(workdir)[suite]["metrics"]


@pytest.fixture(scope="module")
def pair(train, tmp_path_factory):
  """A CapsNet and a baseline, trained a little on the embedded digits."""
  folder = tmp_path_factory.mktemp("runs")
  for name, flags in (
    ("capsnet", (*processes.SMALL, "--learning_rate=0.01")),
    ("baseline", processes.BASELINE),
  ):
    code, printed = train(folder / name, *flags, "--num_steps=60")
    assert code == 0, printed
  return folder / "capsnet", folder / "baseline"


@pytest.fixture(scope="module")
def evaluated(train, pair, tmp_path_factory):
  """Copies of both, evaluated by all suites of robustness."""
  folder = tmp_path_factory.mktemp("evaluated")
  copies = capsnet, baseline = [
    shutil.copytree(path, folder / path.name) for path in pair
  ]
  both = f"--suite={','.join(ROBUSTNESS)},multimnist"
  for workdir, *words in (
    (baseline, both, "--views=3"),
    (capsnet, both, "--views=3", f"--compare_with={baseline}"),
    (capsnet, "--suite=diagnostics"),
  ):
    code, printed = train(workdir, *words, "--images=20", binary="evaluate")
    assert code == 0, printed
  return copies


@pytest.mark.long
def test_a_compared_run_must_have_been_evaluated(train, pair):
  capsnet, baseline = pair
  code, printed = train(
    capsnet, "--suite=multimnist,views", f"--compare_with={baseline}",
    "--images=4",
    binary="evaluate",
  )  # fmt: skip
  assert code == 1
  assert "--suite=views" in printed and "Traceback" not in printed
  # It is said before any suite is run.
  assert not (capsnet / "evaluation.json").exists()


@pytest.mark.long
@pytest.mark.parametrize(
  ("suite", "flag"), [("ensemble", "ensemble"), ("attacks", "source")]
)
def test_other_models_must_be_there(train, pair, tmp_path, suite, flag):
  absent = tmp_path / "absent"
  code, printed = train(
    pair[0], f"--suite=multimnist,{suite}", f"--{flag}={absent}",
    binary="evaluate",
  )  # fmt: skip
  assert code == 1 and "Traceback" not in printed
  assert f"{absent} does not exist" in printed and "suite 1" not in printed


@pytest.mark.long
@pytest.mark.parametrize(
  ("name", "said"),
  [
    ("absent", "absent"),
    ("viewpoint_solids", "images of viewpoint_solids are 48x48x2"),
  ],
)
def test_other_images_must_be_like_those_of_the_run(
  train, pair, tmp_path, name, said
):
  dataset_files.write_solids(tmp_path, train=1, test=1)
  code, printed = train(
    pair[0], "--suite=multimnist,out_of_distribution", f"--other_data={name}",
    f"--data_dir={tmp_path}", binary="evaluate",
  )  # fmt: skip
  assert code == 1 and "Traceback" not in printed
  assert said in printed and "suite 1" not in printed, printed


@pytest.mark.long
@pytest.mark.parametrize(
  ("suite", "said"),
  [
    ("out_of_distribution", "needs another data set; give its name or path"),
    ("ensemble", "ensemble needs other runs; give them as --ensemble"),
  ],
)
def test_suites_say_what_they_need_before_others_run(train, pair, suite, said):
  code, printed = train(
    pair[0], f"--suite=multimnist,{suite}", binary="evaluate"
  )
  assert code == 1 and "Traceback" not in printed
  assert said in printed and "suite 1" not in printed, printed


@pytest.mark.long
def test_a_suite_that_fails_does_not_end_the_others(train, pair, tmp_path):
  run = shutil.copytree(pair[0], tmp_path / "run")
  (run / "evaluation.json").unlink(missing_ok=True)
  (run / "figures" / "calibration.png").mkdir(parents=True)
  code, printed = train(
    run, "--suite=calibration,confusion", "--images=20", binary="evaluate"
  )
  assert code == 1 and "suite calibration failed: " in printed, printed
  assert list(processes.evaluation_of(run)) == ["confusion"]


@pytest.mark.long
def test_a_record_names_the_options_that_a_suite_took(train, pair, tmp_path):
  capsnet, baseline = pair
  run = shutil.copytree(capsnet, tmp_path / "run")
  code, printed = train(
    run, "--suite=ensemble,out_of_distribution,attacks", "--images=20",
    f"--ensemble={capsnet}", f"--source={baseline}", "--other_data=digits",
    binary="evaluate",
  )  # fmt: skip
  assert code == 0, printed
  records = processes.evaluation_of(run)
  one, other = (
    {"name": path.name, "sha256": capjax.load(path).card["sha256"]}
    for path in pair
  )
  assert records["ensemble"]["options"] == {"ensemble": [one], "images": 20}
  assert records["attacks"]["options"] == {"images": 20, "source": other}
  options = records["out_of_distribution"]["options"]
  digits = capjax.data.load("digits", "test")
  assert options == {
    "images": 20,
    "other_data": {"name": "digits", "sha256": capjax.data.fingerprint(digits)},
  }
  settings = records["attacks"]["jax_config"]
  assert settings["jax_default_prng_impl"] == "threefry2x32"
  assert settings == processes.summary_of(run)["jax_config"]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["flag", "negated", "flagfile"])
def test_flags_of_the_run_are_its_own(train, pair, tmp_path, kind):
  (tmp_path / "a.cfg").write_text("--seed=1\n")
  word, name = {
    "flag": ("--seed=1", "seed"),
    "negated": ("--nodeterministic", "deterministic"),
    "flagfile": (f"--flagfile={tmp_path / 'a.cfg'}", "seed"),
  }[kind]
  code, printed = train(pair[0], word, binary="evaluate")
  assert code == 1
  assert f"--{name}: this command does not use it" in printed
  assert "takes the value of the run" in printed and "Trace" not in printed


@pytest.mark.long
@pytest.mark.parametrize(
  "word", ["--compare_with=nowhere", "--views=3", "--images=5"]
)
def test_flags_that_no_suite_takes_are_refused(train, pair, word):
  code, printed = train(pair[0], "--suite=accuracy", word, binary="evaluate")
  assert code == 1
  assert f"not use {word.partition('=')[0]}" in printed
  assert "Traceback" not in printed


@pytest.mark.long
def test_a_compared_run_must_be_of_the_same_images(train, evaluated, tmp_path):
  capsnet, baseline = evaluated
  other = shutil.copytree(baseline, tmp_path / "other")
  path = other / "evaluation.json"
  records = json.loads(path.read_text())
  records["views"]["data"]["test"] = "0" * 64
  path.write_text(json.dumps(records))
  words = "--suite=views", f"--compare_with={other}", "--images=4"
  before = (capsnet / "evaluation.json").read_bytes()
  code, printed = train(capsnet, *words, binary="evaluate")
  assert code == 1 and "is of other test images" in printed
  words = "--suite=views", f"--compare_with={baseline}", "--images=4"
  code, printed = train(capsnet, *words, binary="evaluate")
  assert code == 1 and "with --images=20, this run with --images=4" in printed
  assert (capsnet / "evaluation.json").read_bytes() == before


@pytest.mark.long
def test_every_suite_writes_numbers_and_figures(evaluated):
  capsnet, _ = evaluated
  for suite, curves in CURVES.items():
    metrics = metrics_of(capsnet, suite)
    assert 20 in (metrics.get("num_images"), metrics.get("num_rotated"))
    for x, y in curves:
      assert len(metrics[x]) == len(metrics[y]) > 5
      assert all(-1 <= value <= 1 for value in metrics[y])
  figures = {path.stem for path in (capsnet / "figures").iterdir()}
  assert figures >= {
    *ROBUSTNESS, "multimnist", "diagnostics", "attacks_sheet", "views_sheet",
    "activations",
  }  # fmt: skip


@pytest.mark.long
def test_suites_agree_where_nothing_is_changed(evaluated):
  """No rotation, no shift, eps = 0: the same images, the same answers."""
  capsnet, _ = evaluated
  views, attacks = (metrics_of(capsnet, s) for s in ("views", "attacks"))
  untouched = {
    views[f"{kind}_accuracy"][views[kind].index(value)]
    for kind, value in (("rotation", 0), ("shift", 0), ("scale", 1))
  }
  untouched |= {attacks[f"{a}_accuracy"][0] for a in ("fgsm", "bim")}
  untouched = {round(x, 6) for x in untouched}  # of single and double precision
  assert len(untouched) == 1
  diagnostics = metrics_of(capsnet, "diagnostics")
  upright = diagnostics["rotation"].index(0)
  assert diagnostics["rotated_agreement"][upright] == pytest.approx(1)
  assert round(diagnostics["rotated_accuracy"][upright], 6) in untouched


@pytest.mark.long
def test_stronger_attacks_hurt_more(evaluated):
  for workdir in evaluated:
    metrics = metrics_of(workdir, "attacks")
    assert metrics["bim_accuracy"][-1] < metrics["bim_accuracy"][0]
    assert (
      metrics["bim_targeted_success"][-1] > metrics["bim_targeted_success"][0]
    )


@pytest.mark.long
def test_both_of_two_are_harder_than_each(evaluated):
  metrics = metrics_of(evaluated[0], "multimnist")
  assert metrics["multimnist_accuracy"] <= metrics["multimnist_digits_found"]


@pytest.mark.long
def test_a_network_without_capsules_draws_nothing(train, pair):
  code, printed = train(
    pair[1], "--suite=reconstructions,swaps", binary="evaluate"
  )
  assert code == 1
  assert "reconstructions, swaps: not for the model" in printed
  # What it can take is said.
  told = printed.partition("its suites are ")[2].partition("\n")[0].split(", ")
  assert {"accuracy", "attacks", "views"} < set(told)
  of_capsules = {"diagnostics", "parse_tree", "perturbations", "swaps"}
  assert not of_capsules & set(told)
  assert "Traceback" not in printed


def test_overlapping_digits_train_and_part(train, tmp_path):
  flags = (*processes.SMALL, "--num_steps=20", "--pad=2", "--max_shift=2")
  code, printed = train(tmp_path, *flags, binary="train_multimnist")
  assert code == 0, printed
  metrics = processes.summary_of(tmp_path)["metrics"]
  assert 0 <= metrics["test_accuracy"] <= metrics["test_found"] <= 1
  assert (tmp_path / "figures" / "multimnist.png").stat().st_size > 1000
  code, printed = train(
    tmp_path / "other", *flags, "--canvas=20", binary="train_multimnist"
  )
  assert code == 1 and "--canvas" in printed


@pytest.mark.long
@pytest.mark.parametrize("routing", ["self_attention", "variational"])
def test_other_routings_train(train, tmp_path, routing):
  code, printed = train(
    tmp_path, *processes.UNDECODED, f"--routing={routing}", "--num_steps=20"
  )
  assert code == 0, printed
  scores = processes.summary_of(tmp_path)["metrics"]
  assert 0 <= scores["test_routing_entropy"] <= 1 + 1e-6
