"""Loading prepares images as evaluation does, for every task."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import saved_cases
from flax import nnx

import capjax
from capjax import baselines, data, saved
from capjax.data.transforms import preprocessing
from capjax.specs import Spec
from experiments.tasks import capsnet, matrix_capsules, multimnist
from experiments.training import cards
from experiments.training.augmentation import Placement

SGD = optax.sgd(0.1)
SMALL = Spec(
  capjax.CapsNet,
  dict(conv_features=2, conv_kernel=3, num_types=1, primary_kernel=3),
)
SUMMARY = {
  "dataset": "some", "data": {"test": "abc"}, "commit": "123",
  "metrics": {"test_accuracy": 0.5, "curve": [1, 2], "best_step": 3},
  "num_images": {"test_accuracy": 7, "curve": 7},
}  # fmt: skip


def matrix(dataset):
  spec = Spec(capjax.MatrixCapsules, dict(features=2, types=(1, 1, 1)))
  return matrix_capsules.make_task(spec, SGD, dataset=dataset, num_steps=1)


CASES = {
  "capsnet": (capsnet.make_task(SMALL, SGD), (8, 8, 1), (8, 8, 1)),
  "canvas": (
    capsnet.make_task(SMALL, SGD, placement=Placement(max_shift=0, canvas=12)),
    (8, 8, 1),
    (12, 12, 1),
  ),
  "multimnist": (
    multimnist.make_task(SMALL, SGD, pad=2),
    (8, 8, 1),
    (12, 12, 1),
  ),
  "matrix": (matrix("mnist"), (28, 28, 1), (28, 28, 1)),
  "stereo": (matrix("smallnorb"), (96, 96, 2), (32, 32, 2)),
}


def dataset(shape):
  images = saved_cases.images(shape, 3)
  return data.Dataset(images, np.arange(3, dtype=np.int32), 3, {})


@pytest.mark.parametrize("name", CASES)
@pytest.mark.long_after_first
def test_a_card_prepares_images_as_its_task(name):
  task, shape, wanted = CASES[name]
  some = dataset(shape)
  card = cards.of_run(task, some, SUMMARY)
  spec = task.describe(shape, 3)
  trained = saved.TrainedModel(spec.make(nnx.Rngs(0)), card)
  assert trained.preprocess(some.images).shape == (3, *wanted)
  assert tuple(spec.arguments["image_shape"]) == wanted
  found = trained.predict(some.images)
  assert found.scores.shape == (3, 3)
  assert found.classes.shape == ((3, 2) if name == "multimnist" else (3,))


@pytest.mark.parametrize("name", ["capsnet", "matrix", "stereo"])
def test_a_card_prepares_images_as_tests_do(name):
  task, shape, _ = CASES[name]
  some = dataset(shape)
  card = cards.of_run(task, some, SUMMARY)
  steps = preprocessing.from_json(card["preprocessing"])
  keys = jax.random.split(jax.random.key(0), 3)
  want, _ = jax.vmap(task.sample_test, (0, 0, None, None))(
    keys, jnp.arange(3), jnp.asarray(some.images), jnp.asarray(some.labels)
  )
  got = jax.vmap(steps)(some.images.astype(np.float32) / 255)
  np.testing.assert_allclose(got, want, atol=1e-5)
  np.testing.assert_allclose(
    jax.vmap(task.prepare)(some.images.astype(np.float32) / 255),
    jax.vmap(steps.prepare)(some.images.astype(np.float32) / 255),
    atol=1e-6,
  )


def test_a_card_takes_the_scalars_of_a_summary():
  task, shape, _ = CASES["capsnet"]
  card = cards.of_run(task, dataset(shape), SUMMARY)
  assert card["metrics"] == {"test_accuracy": 0.5, "best_step": 3}
  assert card["num_images"] == {"test_accuracy": 7}
  assert card["data"] == {"name": "some", "test": "abc"}
  assert card["commit"] == "123" and card["num_labels"] == 1
  assert card["class"] == "capjax.capsnet.CapsNet"


def test_the_baseline_of_multimnist_has_two_labels():
  task = multimnist.make_task(Spec(baselines.multimnist_baseline, {}), SGD)
  assert cards.of_run(task, dataset((28, 28, 1)), SUMMARY)["num_labels"] == 2


def test_sets_of_classes_have_any_number_of_labels():
  task, shape, _ = CASES["capsnet"]
  some = dataset(shape)
  sets = some._replace(labels=np.eye(3, dtype=np.int32))
  assert cards.of_run(task, sets, SUMMARY)["num_labels"] is None
  named = some._replace(class_names=("cat", "dog", "owl"))
  names = cards.of_run(task, named, SUMMARY)["class_names"]
  assert names == ["cat", "dog", "owl"]
