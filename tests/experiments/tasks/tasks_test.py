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

import capjax
from capjax import baselines, data
from capjax.evaluation import operations
from capjax.generative import amortised
from capjax.specs import Spec
from experiments.evaluation import equivariance, out_of_distribution, suites
from experiments.tasks import (
  boltzmann,
  capsnet,
  constellation,
  generative,
  helmholtz,
  matrix_capsules,
  multimnist,
  recorded,
  scae,
  transforming,
  vae,
)
from experiments.training import task as tasks
from experiments.training import train_step
from experiments.training.augmentation import Placement

_CAPSNET = Spec(
  capjax.CapsNet,
  dict(conv_features=4, conv_kernel=3, num_types=2, primary_kernel=3,
       decoder_features=[8]),
)  # fmt: skip
_UNDECODED = _CAPSNET.with_arguments(decoder_features=[])
_BASELINE = Spec(
  baselines.CapsNetBaseline,
  dict(conv_features=[4, 4], conv_kernels=[3, 3], dense_features=[8]),
)
_SCAE = Spec(
  capjax.SCAE,
  dict(num_parts=3, num_objects=4, template_size=4, num_features=2,
       encoder_features=4),
)  # fmt: skip
_GENERATIVE = Spec(
  amortised.amortised_capsules,
  dict(num_capsules=[3, 2], conv_features=[4], width=4, template_size=5),
)
_MATRIX = Spec(
  capjax.MatrixCapsules,
  dict(features=3, types=(2, 2, 3), num_iterations=1, padding="SAME"),
)
_CNN = Spec(
  baselines.smallnorb_baseline, dict(features=(4, 4), dense_features=8)
)
_CONSTELLATION = Spec(
  capjax.ConstellationAutoencoder,
  dict(width=8, num_blocks=1, num_heads=2, hidden=8),
)
_TRANSFORMING = Spec(capjax.TransformingAutoencoder, dict(num_capsules=3))
_RBM = Spec(
  capjax.CapsuleRBM, dict(num_capsules=4, capsule_size=3, num_chains=5)
)
_MACHINE = Spec(capjax.CapsuleHM, dict(num_capsules=[4, 3], capsule_size=3))
_VAE = Spec(baselines.ConvVAE, dict(num_latents=3))
_JITTER = transforming.Movements(max_jitter=1, max_shift=1)
# The module, the model, and options.
_TASKS = {
  "capsnet": (capsnet, _CAPSNET, {}),
  "capsnet_undecoded": (
    capsnet, _UNDECODED,
    {"placement": Placement(max_shift=1), "reconstruction_weight": 0.0},
  ),
  "capsnet_cropped": (
    capsnet, _UNDECODED,
    {"placement": Placement(
      max_shift=0, crop=6, flip=True, max_brightness=0.2, standardise=True
    ), "reconstruction_weight": 0.0},
  ),
  "capsnet_baseline": (
    capsnet, _BASELINE, {"placement": Placement(canvas=10, max_rotation=9.0)},
  ),
  "multimnist": (multimnist, _CAPSNET, {"pad": 1, "max_shift": 1}),
  "multimnist_baseline": (multimnist, _BASELINE, {"pad": 1, "max_shift": 1}),
  "scae": (scae, _SCAE, {"placement": Placement(canvas=23)}),
  "generative": (generative, _GENERATIVE, {}),
  "generative_bound": (
    generative, _GENERATIVE.with_arguments(gaussian_poses=True),
    {
      "num_importance": 2,
      "temperature": optax.exponential_decay(0.5, 10, 0.5),
    },
  ),
  "matrix_capsules": (
    matrix_capsules, _MATRIX, {"dataset": "digits", "num_steps": 10},
  ),
  "matrix_capsules_margin": (
    matrix_capsules, _MATRIX,
    {"dataset": "digits", "num_steps": 10, "kind": "margin"},
  ),
  "matrix_capsules_baseline": (
    matrix_capsules, _CNN, {"dataset": "digits", "num_steps": 10},
  ),
  "constellation": (
    constellation, _CONSTELLATION,
    {"noise": 0.1, "sparsity_of": "soft", "activity": 3.0},
  ),
  "transforming": (transforming, _TRANSFORMING, {"movements": _JITTER}),
  "transforming_affine": (
    transforming, _TRANSFORMING.with_arguments(pose="affine"),
    {"movements": _JITTER},
  ),
  "boltzmann": (boltzmann, _RBM, {"num_sweeps": 2}),
  "boltzmann_exact": (
    boltzmann, _RBM,
    {"num_iterations": None, "block": True, "binary": True, "num_sweeps": 2},
  ),
  "helmholtz": (helmholtz, _MACHINE, {}),
  "vae": (vae, _VAE, {}),
}  # fmt: skip
_DATA = {"constellation": "constellations"}
_HIGHEST = (jax.lax.Precision.HIGHEST,) * 2
_DEFAULT = (jax.lax.Precision.DEFAULT,) * 2
# Those whose models draw: places in images are exact whatever is set.
_DRAWING = ("scae", "generative")
# One of each model that may compute in bfloat16.
_BFLOAT16 = (
  "capsnet", "capsnet_baseline", "scae", "generative", "matrix_capsules",
  "constellation", "transforming", "vae",
)  # fmt: skip


@pytest.mark.parametrize("name", _TASKS)
def test_a_task_is_made_again_from_its_record(name):
  module, model, options = _TASKS[name]
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
  card = _CAPSNET.with_arguments(image_shape=(8, 8, 1), num_classes=10)
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


def load(name):
  """The first training examples."""
  whole = data.load(_DATA.get(name, "digits"), "train")
  return data.select(whole, slice(40))


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


@pytest.mark.parametrize("name", _TASKS)
@pytest.mark.long_after_first
def test_tasks_need_no_flags(name):
  module, model, options = _TASKS[name]
  task = module.make_task(model, optax.adam(1e-3), **options)
  model, measures, (loss, metrics) = first_update(task, load(name))
  assert isinstance(model, nnx.Module)
  assert np.isfinite(loss) and loss.shape == () and metrics
  assert all(x.shape == () for x in metrics.values())
  assert task.chosen_by is None or task.chosen_by in measures
  assert all(len(x) == 4 for x in measures.values()), measures
  assert set(task.suites(model)) <= suites.SUITES.keys()
  assert set(task.after_training) <= suites.SUITES.keys()


@pytest.mark.parametrize("name", _TASKS)
@pytest.mark.long_after_first
def test_models_have_the_poses_and_scores_of_their_suites(name):
  """By shapes alone: of poses, and of what tells images of other data."""
  module, spec, options = _TASKS[name]
  task = module.make_task(spec, optax.adam(1e-3), **options)
  dataset = load(name)
  shape = dataset.images.shape[1:]
  model = task.describe(shape, dataset.num_classes).shapes()
  model.eval()
  names = task.suites(model)
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
    scores = jax.eval_shape(out_of_distribution.measure, model, images, images)
    assert scores and all(x.shape == (4,) for x in scores.values())
  else:
    assert name == "constellation" or name.startswith("multimnist")


@pytest.mark.parametrize("name", _TASKS)
@pytest.mark.long_after_first
def test_all_products_round_as_the_setting_of_jax_says(name):
  module, spec, options = _TASKS[name]
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
  module, spec, options = _TASKS[name]
  dataset = data.load(_DATA.get(name, "digits"), "train")
  mesh = train_step.data_mesh(32)

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
