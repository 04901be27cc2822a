"""Images without labels, for tasks that can learn from them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from task_rows import TASKS, untrained

from capjax import data
from experiments.evaluation import models, out_of_distribution, suites
from experiments.tasks import scae
from experiments.training import banner, cards
from experiments.training import task as tasks
from experiments.training.loop_config import LoopConfig

UNLABELLED = {
  "scae", "generative", "generative_bound", "transforming",
  "transforming_affine", "boltzmann", "boltzmann_exact", "helmholtz", "vae",
}  # fmt: skip


def without_labels(dataset):
  labels = np.zeros((len(dataset.images), 0), np.int32)
  return dataset._replace(labels=labels, num_classes=0, class_names=())


def shapes_of(task, dataset, model):
  """The measures of 4 test examples and the metrics of an update."""
  images, labels = jnp.asarray(dataset.images), jnp.asarray(dataset.labels)
  keys = jax.random.split(jax.random.key(0), 4)

  def both(model, keys):
    make = jax.vmap(task.sample_test, (0, 0, None, None))
    batch = make(keys, jnp.arange(4), images, labels)
    _, metrics = task.loss(model, *batch, keys[0], jnp.int32(1))
    return task.measure(model, *batch), metrics

  return jax.eval_shape(both, model, keys)


@pytest.mark.parametrize("name", sorted(UNLABELLED))
def test_measures_are_those_that_need_no_labels(name):
  task, dataset, model = untrained(name)
  known, trained_by = shapes_of(task, dataset, model)
  dataset = without_labels(dataset)
  tasks.require_labels(task, dataset, "images")
  model = task.describe(dataset.images.shape[1:], 0).shapes()
  model.eval()
  found, metrics = shapes_of(task, dataset, model)
  assert {x for x in known if "probe" not in x} == set(found)
  assert all(found[x] == known[x] for x in found)
  trained_by.pop("probe_loss", None)
  assert metrics == trained_by
  assert task.chosen_by is None or task.chosen_by in found


@pytest.mark.parametrize("name", TASKS)
def test_other_tasks_refuse_them(name):
  task, dataset, _ = untrained(name)
  assert task.unlabelled == (name in UNLABELLED)
  if not task.unlabelled:
    with pytest.raises(ValueError, match="images: the images have no labels"):
      tasks.require_labels(task, without_labels(dataset), "images")


def test_only_the_probes_learn_from_labels():
  """With the number of kinds given, all else has the same gradient."""
  module, spec, options = TASKS["scae"]
  task = module.make_task(
    spec.with_arguments(num_classes=10), optax.sgd(0.1), **options
  )
  _, dataset, _ = untrained("scae")
  gradients = []
  for some in (dataset, without_labels(dataset)):
    model = tasks.make_model(task, some)
    images, labels = jnp.asarray(some.images), jnp.asarray(some.labels)
    keys = jax.random.split(jax.random.key(0), 4)

    def loss(model, keys, images=images, labels=labels):
      make = jax.vmap(task.sample, (0, 0, None, None))
      batch = make(keys, jnp.arange(4), images, labels)
      return task.loss(model, *batch, keys[0], jnp.int32(1))[0]

    gradients.append(jax.jit(jax.grad(loss, allow_int=True))(model, keys))
  with_labels, without = (
    dict(jax.tree_util.tree_leaves_with_path(x)) for x in gradients
  )
  assert len(with_labels) == len(without) > 10
  for path, gradient in with_labels.items():
    if "probe" in jax.tree_util.keystr(path):
      assert not jnp.any(without[path]) and jnp.any(gradient)
    else:
      np.testing.assert_allclose(without[path], gradient, rtol=1e-5, atol=1e-6)


def test_the_number_of_kinds_is_that_of_the_spec_or_of_the_labels():
  _, spec, _ = TASKS["scae"]
  for given, num_classes, want in (
    ({}, 3, 3),
    ({}, 0, 10),
    ({"num_classes": 4}, 0, 4),
    ({"num_classes": 4}, 4, 4),
  ):
    task = scae.make_task(spec.with_arguments(**given), optax.sgd(0.1))
    described = task.describe((28, 28, 1), num_classes)
    assert described.arguments["num_classes"] == want
  with pytest.raises(ValueError, match="num_classes is 4, and the labels are"):
    task.describe((28, 28, 1), 3)


@pytest.mark.parametrize(
  ("name", "want"),
  [
    ("scae", {"explanations", "equivariance"}),
    ("generative_bound", {
      "parts", "equivariance", "swaps", "duplicates", "repair", "importance",
      "chains",
    }),
    ("transforming", {"unseen_shifts", "equivariance", "coordinates"}),
    ("boltzmann", {"samples", "fields", "log_likelihood"}),
    ("helmholtz", {"dreams", "bound"}),
    ("vae", {"bound"}),
  ],
)  # fmt: skip
def test_suites_are_those_that_need_no_labels(name, want):
  task, dataset, model = untrained(name)
  unknown = without_labels(dataset)
  trained = models.Trained(task, LoopConfig(1), model, 1, {}, unknown, {})
  assert set(suites.fitting(trained)) == want | {
    "errors",
    "out_of_distribution",
  }


def test_probes_that_did_not_learn_have_no_scores():
  _, _, model = untrained("scae")
  images = jnp.zeros((2, *model.image_shape))

  def scores(num_labels):
    keys = jax.random.split(jax.random.key(0), 2)
    return jax.eval_shape(
      functools.partial(out_of_distribution.measure, num_labels=num_labels),
      model, images, images, keys,
    )  # fmt: skip

  assert scores(1).keys() - scores(0).keys() == {"largest_probability"}


def test_the_card_and_the_banner_say_so():
  task, dataset, model = untrained("vae")
  dataset = without_labels(dataset)
  summary = {"metrics": {}, "dataset": "images"}
  card = cards.of_run(task, dataset, summary)
  assert (card["num_classes"], card["class_names"]) == (0, [])
  assert card["num_labels"] == 0
  lines = banner.lines(
    device="CPU", model=model, name="VAE", dataset="images", train=dataset,
    validation=data.select(dataset, slice(0)), test=dataset,
    config=LoopConfig(1, 4),
  )  # fmt: skip
  assert any(line.endswith("40 to test; without labels") for line in lines)
