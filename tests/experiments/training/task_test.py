"""What a task trained is restored as it is used."""

import itertools
import json
import math
from types import SimpleNamespace

import numpy as np
import optax
import pytest
import saved_cases
from flax import nnx
from task_rows import CAPSNET

import capjax
from capjax import data, specs
from experiments.run import directory
from experiments.tasks import (
  capsnet,
  constellation,
  matrix_capsules,
  multimnist,
  slots,
  vae,
)
from experiments.training import task as tasks
from experiments.training.loop_config import LoopConfig


@pytest.mark.parametrize("averages", [False, True])
def test_a_restored_model_is_in_evaluation_mode(tmp_path, averages):
  spec = saved_cases.SPECS["efficient"]
  task = capsnet.make_task(spec, optax.sgd(0.1))
  images = saved_cases.images((12, 12, 1), 2)
  some = data.Dataset(images, np.zeros(2, np.int32), 3, {})
  run = directory.Run(str(tmp_path))
  record = {"flags": {"average_decay": 0.9 if averages else 0.0}}
  (tmp_path / "provenance.json").write_text(json.dumps(record))
  config = LoopConfig(num_steps=1, batch_size=2)
  model = spec.make(nnx.Rngs(0))
  model.train()
  assert not model.norms[0].use_running_average
  saved = tasks.saved_by(run, task, config)
  kept = (model, model) if averages else model
  saved.save_best(3, kept, {task.chosen_by: 0.5, "loss": 1.0})
  step, models, _ = tasks.restore_models(run, task, some, config)
  assert step == 3 and len(models) == 1 + averages
  for restored in models:
    assert restored.norms[0].use_running_average
    np.testing.assert_array_equal(
      restored.norms[0].scale[...], model.norms[0].scale[...]
    )


_SLOTS = specs.Spec(capjax.SlotAutoencoder, {})


class OwnNetwork(nnx.Module):
  """Of no module of capjax."""

  def __init__(self, rngs):
    del rngs


@pytest.mark.parametrize(
  ("make", "arguments", "words"),
  [
    (capsnet, (capjax.CapsNet, optax.sgd(0.1)),
     "model is CapsNet; give a capjax.specs.Spec of capjax.capsnet.CapsNet or"),
    (capsnet, (CAPSNET, "adam"), "optimizer is 'adam'; give an optimiser of"),
    (capsnet, (CAPSNET, 1e-3), "optimizer is 0.001; give"),
    (capsnet, (CAPSNET, optax.adam), "optimizer is adam; give"),
    (capsnet, (specs.Spec(capjax.MatrixCapsules, {}), optax.sgd(0.1)),
     "a Spec of MatrixCapsules, which this task does not train; give one of"),
    (vae, (CAPSNET, optax.sgd(0.1)), "a Spec of CapsNet, which this task"),
  ],
)  # fmt: skip
def test_models_and_optimisers_are_checked(make, arguments, words):
  with pytest.raises(TypeError, match=words):
    make.make_task(*arguments)


@pytest.mark.parametrize(
  ("make", "options", "words"),
  [
    (capsnet, {"placement": {"max_shift": 1}},
     "placement is .*; give a capjax.experiments.training.augmentation.Placem"),
    (slots, {"scene": None}, "scene is None; give a capjax.*Scene, whose fie"),
    (slots, {}, "slots.make_task: missing a required argument: 'scene'; its"),
    (capsnet, {"reconstruction_weight": "paper"}, "weight is 'paper'; give a"),
  ],
)  # fmt: skip
def test_settings_are_checked(make, options, words):
  spec = CAPSNET if make is capsnet else _SLOTS
  with pytest.raises(TypeError, match=words):
    make.make_task(spec, optax.sgd(0.1), **options)


@pytest.mark.parametrize("make", [capsnet, multimnist])
def test_a_weight_of_reconstructions_needs_a_decoder(make):
  spec = specs.Spec(capjax.CapsNet, {"decoder_features": ()})
  with pytest.raises(ValueError, match="give a weight of 0, or widths of a de"):
    make.make_task(spec, optax.sgd(0.1))
  make.make_task(spec, optax.sgd(0.1), reconstruction_weight=0)


def test_constellations_have_as_many_objects_as_patterns():
  spec = specs.Spec(capjax.ConstellationAutoencoder, {"num_objects": 4})
  with pytest.raises(ValueError, match="num_objects is 4; give 3, as many as"):
    constellation.make_task(spec, optax.sgd(0.1))


def test_two_objects_of_two_classes_are_always_found():
  some = data.Dataset(
    np.zeros((4, 8, 8, 1), np.uint8), np.int32([0, 1, 0, 1]), 2, {}
  )
  task = multimnist.make_task(CAPSNET, optax.sgd(0.1))
  with pytest.raises(ValueError, match="has 2 classes, and each image holds"):
    task.begin(None, some, some)
  task.begin(None, some._replace(num_classes=3), some)


def test_a_score_that_is_not_a_number_is_below_all_others():
  scored = SimpleNamespace(chosen_by="elbo")
  ranks = [
    tasks._score(scored, {"elbo": elbo, "loss": loss})
    for elbo, loss in ((math.nan, 1.0), (-1e30, math.nan), (-1e30, 2.0), (1, 2))
  ]
  assert all(low < high for low, high in itertools.pairwise(ranks))


def test_functions_of_capjax_make_models_too():
  spec = specs.Spec(capjax.baselines.multimnist_baseline, {})
  task = multimnist.make_task(spec, optax.sgd(0.1), pad=4, max_shift=4)
  assert task.name == "multimnist"


def test_models_of_users_are_trained():
  task = capsnet.make_task(specs.Spec(OwnNetwork, {}), optax.sgd(0.1))
  assert task.name == "capsnet" and task.model.maker is OwnNetwork


def test_matrix_capsules_train_on_data_without_a_name():
  spec = specs.Spec(capjax.MatrixCapsules, {})
  task = matrix_capsules.make_task(spec, optax.sgd(0.1), num_steps=5)
  assert task.options["dataset"] == ""
