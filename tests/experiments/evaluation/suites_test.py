"""The suites that a model can take, and the labels of compared runs."""

from types import SimpleNamespace

import golden_cases
import jax
import numpy as np
import optax
import processes
import pytest
from flax import nnx

import capjax
from capjax import baselines, data
from capjax.specs import Spec
from experiments.evaluation import (
  classifiers,
  latents,
  models,
  suite,
  suites,
)
from experiments.run import atomic_files, directory
from experiments.tasks import capsnet as capsnet_task
from experiments.training import augmentation

ANY = {
  "accuracy",
  "multimnist",
  "affnist_like",
  "attacks",
  "calibration",
  "confusion",
  "views",
  "crowding",
  "ensemble",
  "equivariance",
  "out_of_distribution",
  "moved",
  "costs",
}
ROUTED = {"diagnostics", "parse_tree", "starvation", "more_routing"}
DRAWN = {"reconstructions", "perturbations"}
SIZES = {
  "conv_features": 2, "conv_kernel": 3, "num_types": 1, "primary_kernel": 3
}  # fmt: skip


def capsnet(**options):
  return capjax.CapsNet((8, 8, 1), 3, **SIZES, **options, rngs=nnx.Rngs(0))


@pytest.mark.parametrize(
  ("make", "want"),
  [
    (lambda: capsnet(decoder_features=(4,)), ANY | ROUTED | DRAWN),
    (lambda: capsnet(decoder_features=()), ANY | ROUTED),
    (
      lambda: baselines.CapsNetBaseline(
        (8, 8, 1), 3, conv_features=(2, 2), conv_kernels=3, rngs=nnx.Rngs(0)
      ),
      ANY,
    ),
  ],
)  # fmt: skip
def test_classifiers_take_these_suites_and_no_others(make, want):
  taken = suites.of_classifier(jax.eval_shape(make))
  assert set(taken) == want and len(taken) == len(want)


@pytest.mark.parametrize(
  "shape,classes,named,want",
  [
    (
      (28, 28, 1),
      "01",
      ["out_of_distribution"],
      ["out_of_distribution", "letters"],
    ),
    ((28, 28, 1), "01", ["accuracy"], ["accuracy"]),
    ((28, 28, 3), "01", ["out_of_distribution"], ["out_of_distribution"]),
    (
      (28, 28, 1),
      "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
      ["out_of_distribution"],
      ["out_of_distribution"],
    ),
  ],
)
def test_letters_apply_to_images_of_their_shape(shape, classes, named, want):
  test = data.Dataset(
    np.zeros((2, *shape), np.uint8),
    np.zeros(2, np.int32),
    len(classes),
    {},
    class_names=tuple(classes),
  )
  task = SimpleNamespace(suites=lambda model: named)
  trained = SimpleNamespace(task=task, model=None, test=test)
  assert suites.fitting(trained) == want
  assert suites.fitting(trained) == want  # the list of the task stays


def test_a_suite_is_given_the_options_that_it_takes_and_no_others():
  seen = []

  @suite.suite("images", compares=True)
  def some(run, trained, options):
    """Measures nothing."""
    seen.append(options)
    return {}

  asked = models.Options(views=3, images=5, compare_with=("other",))
  assert some(None, None, asked) == {}
  assert seen == [models.Options(images=5, compare_with=("other",))]
  assert (some.name, some.summary) == ("some", "Measures nothing.")


def test_options_that_suites_take_are_known():
  for some in suites.SUITES.values():
    assert some.takes <= set(models.Options._fields), some.name
  for option in models.Options._fields:
    assert suites.taking(option)


def test_the_documentation_names_every_suite():
  text = (processes.ROOT / "docs" / "evaluation.md").read_text()
  assert {x for x in suites.SUITES if f"`{x}`" not in text} == set()


def folders(tmp_path, *names):
  """Runs of one model in folders of these names."""
  made = []
  for name in names:
    run = directory.Run(tmp_path / name)
    run.workdir.mkdir(parents=True)
    atomic_files.write_json(
      run.workdir / "provenance.json", {"flags": {"model": "capsnet"}}
    )
    run.write_evaluation("views", {"metrics": {"of": name}})
    made.append(run)
  return made


NAMES = ("new/a", "old/a", "b", "c/old/a")


def test_no_run_hides_another_of_the_same_model(tmp_path):
  own, *others = folders(tmp_path, *NAMES)
  options = models.Options(compare_with=others)
  lines = classifiers.compared(own, options, "views", {"of": "new/a"})
  assert {label: line["of"] for label, line in lines.items()} == {
    "capsnet": "new/a",
    "capsnet (a)": "old/a",
    "capsnet (b)": "b",
    "capsnet (old/a)": "c/old/a",
  }
  twice = classifiers.compared(
    own,
    options._replace(compare_with=[own, own, own]),
    "views",
    {"of": "new/a"},
  )
  assert len(twice) == 4 and "capsnet (2)" in twice


_LABELS = np.arange(2, dtype=np.int32)


def test_no_spectra_hide_others_of_folders_of_the_same_name(
  monkeypatch, tmp_path
):
  own, *others = folders(tmp_path, *NAMES)
  drawn = {}
  figures = latents.energy_models
  monkeypatch.setattr(figures, "spectra", lambda *_: None)
  monkeypatch.setattr(
    figures, "compared_spectra", lambda x, *_: drawn.update(x)
  )
  monkeypatch.setattr(latents, "_knowledge", lambda *_: {})
  images = data.Dataset(np.zeros((2, 1, 1, 1), np.uint8), _LABELS, 2, {})
  for number, run in enumerate([*others, own]):
    activities = {"0": np.full((2, 1), number)}
    monkeypatch.setattr(latents, "_activities", lambda *_, x=activities: x)
    options = models.Options(compare_with=others if run is own else ())
    some = SimpleNamespace(test=images, load_train=lambda: images)
    latents.spectra(run, some, options)
  assert {name: int(classes[0][0, 0]) for name, classes in drawn.items()} == {
    "a": 3, "a (old/a)": 0, "b": 1, "a (2)": 2
  }  # fmt: skip


def test_spectra_of_several_layers_are_the_figures_of_a_run(
  monkeypatch, tmp_path
):
  """Those that `evaluate` says it wrote exist, and no other run changes."""
  own, other = folders(tmp_path, "own", "other")
  monkeypatch.setattr(latents, "_knowledge", lambda *_: {})
  activities = {str(n): np.eye(2) for n in range(2)}
  monkeypatch.setattr(latents, "_activities", lambda *_: activities)
  images = data.Dataset(np.zeros((2, 1, 1, 1), np.uint8), _LABELS, 2, {})
  some = SimpleNamespace(test=images, load_train=lambda: images)
  with pytest.raises(ValueError, match="cannot read"):
    latents.spectra(own, some, models.Options(compare_with=[other]))
  assert not (other.workdir / "figures").exists()
  latents.spectra(own, some, models.Options())
  names = {"spectra_layer_1.png", "spectra_layer_2.png"}
  assert {path.name for path in own.figures} == names
  assert all(path.exists() for path in own.figures)


def test_scores_tell_how_many_images_they_are_of():
  trained = SimpleNamespace(test=SimpleNamespace(labels=np.zeros(30)))
  scores = {
    "accuracy": 0.5, "rotated_kappa": [1.0], "num_rotated": 7,
    "validation_accuracy": 0.5, "raw_validation_accuracy": 0.5,
    "samples_mean": 0.1,
  }  # fmt: skip
  counts = {"rotated_": "num_rotated", "samples_": 0}
  assert models.images_of(trained, scores, counts) == {
    "accuracy": 30, "rotated_kappa": 7, "num_rotated": 30, "samples_mean": 0
  }  # fmt: skip
  some = models.images_of(trained, {**scores, "num_images": 5}, counts)
  assert some["accuracy"] == 5 and some["rotated_kappa"] == 7


@pytest.mark.parametrize(
  ("placement", "left_out"),
  [
    ({}, set()),
    ({"standardise": True}, {"multimnist"}),
    ({"crop": 6, "max_shift": 0}, {"multimnist", "affnist_like"}),
  ],
)
def test_suites_fit_how_images_are_prepared(placement, left_out):
  task = capsnet_task.make_task(
    Spec(baselines.CapsNetBaseline, {}),
    optax.sgd(0.1),
    placement=augmentation.Placement(**placement),
  )
  assert set(task.suites(nnx.Module())) == ANY - left_out


def test_novel_viewpoints_are_scored_where_familiar_ones_choose():
  model = Spec(baselines.CapsNetBaseline, {})
  task = capsnet_task.make_task(
    model, optax.sgd(0.1), viewpoints="azimuth", reconstruction_weight=0
  )
  found = task.suites(nnx.Module())
  assert "viewpoints" in found and "accuracy" not in found
  numbers = np.arange(36, dtype=np.int32)
  images = np.zeros((36, 2, 2, 2), np.uint8)
  factors = {"label_azimuth": numbers % 18}
  whole = data.Dataset(images, numbers, 36, factors)
  trained = golden_cases.classifier(
    whole, nnx.Module(), familiar=task.familiar
  )._replace(measures={"accuracy": numbers})
  novel = models.unseen(trained)
  train, validation = task.split(whole, whole)
  assert set(novel.test.labels) == set(numbers) - set(validation.labels)
  np.testing.assert_array_equal(novel.measures["accuracy"], novel.test.labels)
  assert len(train.labels) == 12
  other = golden_cases.classifier(whole, nnx.Module())
  assert models.unseen(other) is other
