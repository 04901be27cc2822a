"""Every task is made, and trains, in a process without parsed flags."""

import functools
import json

import cases
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from absl import flags
from flax import nnx
from task_rows import CAPSNET, TASKS, load, untrained

from capjax.evaluation import operations
from experiments.evaluation import equivariance, out_of_distribution, suites
from experiments.tasks import recorded
from experiments.training import placing, train_step
from experiments.training import task as tasks

_HIGHEST = (jax.lax.Precision.HIGHEST,) * 2
_DEFAULT = (jax.lax.Precision.DEFAULT,) * 2
# Those whose models draw: places in images are exact whatever is set.
_DRAWING = ("scae", "generative")
# One of each model that may compute in bfloat16.
_BFLOAT16 = (
  "capsnet", "capsnet_baseline", "efficient", "scae", "generative",
  "matrix_capsules", "constellation", "constellation_invariant", "slots",
  "transforming", "vae",
)  # fmt: skip


@pytest.mark.parametrize("name", TASKS)
def test_a_task_is_made_again_from_its_record(name):
  module, model, options = TASKS[name]
  task = module.make_task(model, optax.sgd(0.1), **options)
  shape, count = (8, 8, 1), 10
  record = json.loads(json.dumps(task.record()))
  again = recorded.task_of(task.describe(shape, count).as_json(), record)
  assert again.name == task.name == module.__name__.rpartition(".")[2]
  assert record["options"].items() <= again.record()["options"].items()
  lost = {n for n in task.options if n not in record["options"]}
  assert lost <= {"temperature", "pretraining"}
  assert all(again.options[x] == options[x] for x in options.keys() - lost)
  assert again.describe(shape, count).as_json() == json.loads(
    json.dumps(task.describe(shape, count).as_json())
  )


def test_a_task_that_is_no_longer_there_is_refused():
  card = CAPSNET.with_arguments(image_shape=(8, 8, 1), num_classes=10)
  for record in (
    {"task": "absent", "options": {}},
    {"task": "capsnet", "options": {"absent": 1}},
  ):
    with pytest.raises(ValueError, match="cannot be made by this version"):
      recorded.task_of(card.as_json(), record)


@pytest.fixture(autouse=True)
def _unparsed():
  """As in a notebook: to read a flag is an error."""
  parsed = flags.FLAGS.is_parsed()
  flags.FLAGS.unparse_flags()
  yield
  if parsed:
    flags.FLAGS.mark_as_parsed()


def first_update(task, dataset):
  """A new model, its measures of 4 test examples, and its loss of 4."""
  model = tasks.make_model(task, dataset)
  task.begin(model, dataset, dataset)

  @functools.partial(jax.jit, static_argnums=0)
  def examples(sample, keys):
    images, labels = jnp.asarray(dataset.images), jnp.asarray(dataset.labels)
    make = jax.vmap(sample, (0, 0, None, None))
    return make(keys, jnp.arange(len(keys)), images, labels)

  keys = jax.random.split(jax.random.key(0), 4)
  batch, tested = (examples(x, keys) for x in (task.sample, task.sample_test))

  @jax.jit
  def both(model):
    measures = task.measure(model, *tested)
    model.train()
    return measures, task.loss(model, *batch, keys[0], jnp.int32(1))

  return model, *both(model)


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.long_after_first
def test_tasks_need_no_flags(name):
  module, model, options = TASKS[name]
  task = module.make_task(model, optax.adam(1e-3), **options)
  model, measures, (loss, metrics) = first_update(task, load(name))
  assert isinstance(model, nnx.Module)
  assert np.isfinite(loss) and loss.shape == () and metrics
  assert all(x.shape == () for x in metrics.values())
  assert task.chosen_by is None or task.chosen_by in measures
  assert all(len(x) == 4 for x in measures.values()), measures
  assert set(task.suites(model)) <= suites.SUITES.keys()
  assert set(task.after_training) <= suites.SUITES.keys()


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.long_after_first
def test_parameters_have_a_dtype_of_their_own(name):
  """An update would give those of a Python number one, and compile again."""
  module, spec, options = TASKS[name]
  task, dataset = module.make_task(spec, optax.sgd(0.1), **options), load(name)
  shape = dataset.images.shape[1:]
  model = task.describe(shape, dataset.num_classes).shapes()
  leaves = jax.tree.leaves(nnx.state(model, nnx.Param))
  assert leaves and not any(x.weak_type for x in leaves)


# The outputs of models of densities for an image, by task.
_DENSITIES = {
  "boltzmann": {"free_energy"},
  "generative_bound": {"bound"},
  "helmholtz": {"bound"},
  "vae": {"bound"},
  "scae": {"image_log_prob", "part_log_prob"},
}


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.long_after_first
def test_models_have_the_poses_and_scores_of_their_suites(name):
  """By shapes alone: of poses, and of what tells images of other data."""
  task, dataset, model = untrained(name)
  names = task.suites(model)
  shape = dataset.images.shape[1:]
  shape = task.steps(shape).output_shape(shape)
  images = jnp.zeros((4, *shape))
  if "equivariance" in names:
    poses = jax.eval_shape(
      functools.partial(equivariance.poses, task), model, images
    )
    assert poses.ndim == 2 and len(poses) == 4 and poses.shape[1] > 1
  if "costs" in names:
    assert operations.count(task.scores, model, images) > 1000
  if "out_of_distribution" in names:
    keys = jax.random.split(jax.random.key(0), 4)
    scores = jax.eval_shape(
      out_of_distribution.measure, model, images, images, keys
    )
    assert scores and all(x.shape == (4,) for x in scores.values())
    densities = _DENSITIES.get(name, set())
    assert densities <= scores.keys()
  else:
    without = ("constellation", "multimnist", "slots", "scae_")
    assert name.startswith(without)


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.long_after_first
def test_all_products_round_as_the_setting_of_jax_says(name):
  module, spec, options = TASKS[name]
  task = module.make_task(spec, optax.adam(1e-3), **options)
  dataset = load(name)
  shape = dataset.images.shape[1:]

  def found():
    """The precisions of the products of a loss, its gradient and measures."""
    model = task.describe(shape, dataset.num_classes).shapes()
    keys = jax.random.split(jax.random.key(0), 4)
    make = jax.vmap(task.sample, (0, 0, None, None))
    tested = jax.vmap(task.sample_test, (0, 0, None, None))
    data = jnp.arange(4), jnp.asarray(dataset.images), dataset.labels
    batch, test_batch = (jax.eval_shape(f, keys, *data) for f in (make, tested))

    def of_both(model, batch, test_batch):
      graph, parameters, rest = nnx.split(model, nnx.Param, ...)

      def loss(parameters):
        model = nnx.merge(graph, parameters, rest, copy=True)
        return task.loss(model, *batch, keys[0], jnp.int32(1))[0]

      return jax.grad(loss)(parameters), task.measure(model, *test_batch)

    traced = jax.make_jaxpr(of_both)(model, batch, test_batch)
    return set(cases.precisions(traced))

  assert found() == {_HIGHEST}
  with jax.default_matmul_precision("default"):
    places = {_HIGHEST} if name.startswith(_DRAWING) else set()
    assert found() == {_DEFAULT} | places


@pytest.mark.parametrize("name", _BFLOAT16)
@pytest.mark.long
def test_a_short_training_in_bfloat16_ends_near_float32(name):
  module, spec, options = TASKS[name]
  dataset = load(name, None)
  mesh = placing.data_mesh(32)

  def losses_of(dtype):
    """Mean losses of the first and of the last 10 of 60 updates."""
    optimizer = optax.adam(3e-3)
    task = module.make_task(
      spec.with_arguments(dtype=dtype), optimizer, **options
    )
    model = tasks.make_model(task, dataset)
    task.begin(model, dataset, dataset)
    update = train_step.make_update(
      task.loss, optimizer, sample=task.sample, batch_size=32, mesh=mesh
    )
    state = train_step.init(model, optimizer, jax.random.key(0))
    means = []
    for count in (10, 40, 10):
      state, metrics = update(state, dataset.images, dataset.labels, count)
      means.append(float(metrics["loss"]))
    return means[0], means[-1]

  (first, want), (_, got) = losses_of("float32"), losses_of("bfloat16")
  assert got != want
  # A quarter of what was learned, or 2%, where little was.
  assert abs(got - want) <= max(abs(first - want) / 4, 0.02 * abs(want))
