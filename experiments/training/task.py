"""A task: a model, how it is trained and measured, and its checkpoints."""

import functools
import inspect
import json
import math
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh

from capjax import data
from capjax.data.transforms.preprocessing import Preprocessing
from capjax.evaluation import diagnostics
from capjax.specs import Spec

from ..run import directory, progress
from . import checkpoints, placing, streaming, train_step
from .loop_config import LoopConfig

# Validation losses; the first one that is measured breaks ties.
_LOSSES = ("loss", "margin_loss")


class Task(NamedTuple):
  """A model, its training, its measures and its evaluations.

  Attributes:
    describe: `(shape [H W C] of the data, num_classes) -> spec` of the model.
    loss: `(model, inputs, targets, key, step) -> (scalar, metrics)` of a batch.
    measure: `(model, inputs, targets) -> {name: [B ...]}`; for a classifier
      with `accuracy`, for class capsules with `activations` [B J].
    sample: makes a training example; see `train_step.Sample`.
    sample_test: makes a validation or test example.
    optimizer: the optimiser of the parameters.
    suites: `model -> names` of the evaluation suites that apply to it.
    after_training: the suites that run at the end of training.
    chosen_by: the validation measure whose highest value chooses the reported
      checkpoint; ties go to the lowest validation loss, then to the last step.
      None, or an empty validation set, for the last checkpoint.
    split: `(training set, test set) -> (training set, validation)`; None keeps
      the first `--num_validation` of the training set; with 0 the validation
      set is empty.
    begin: `(model, training set, validation)` initialises a new model from the
      data; if this trains, it returns the seconds spent.
    diverged: `metrics -> bool`, whether training has diverged. Then, and where
      a number is not finite, training returns to the older of the two saved
      states, changed by `restart`. Without `restart` it ends.
    restart: `state -> state`.
    warn: `metrics -> messages` about the newest metrics of training and
      validation, printed at each validation.
    familiar: `factors -> [N]`, which examples are seen from the viewpoints of
      training; None where training uses all viewpoints.
    steps: `shape [H W C] of the data -> preprocessing`, the steps from an image
      in [0, 1] to the input of the model.
    num_labels: the number of labels of an image.
    features: for a model that learns without labels, `(model, images) -> {name:
      [B F]}`, the inputs of linear probes.
    scores: for a classifier, `(model, images) -> [B J]`, the scores of the
      classes.
    attack_loss: for a classifier, `(model, images, labels) -> [B]`, what
      attacks increase, for images with one label each.
    explain: for a model of objects, `(model, images) -> (reconstructions
      [B H W C], masks [B K H W])`, the share of each object in a pixel.
    multi_hot: whether it trains on images that belong to several classes.
    unlabelled: whether it trains on images without labels, of shape [B 0].
    num_steps: the number of updates that the loss depends on; None if it
      depends on no such number.
    of_batch: a term of the loss whose size grows faster than the number of
      examples, so that parts of a batch would give it another weight; "" if
      there is none.
    name: the module whose `make_task` made it. `described` sets this and the
      two fields below.
    options: the options of `make_task`.
    model: the spec that `make_task` was given.
  """

  describe: Callable[[Sequence[int], int], Spec]
  loss: train_step.Loss
  measure: Callable[[Any, Any, Any], train_step.Metrics]
  sample: train_step.Sample
  sample_test: train_step.Sample
  optimizer: optax.GradientTransformation
  suites: Callable[[nnx.Module], list[str]]
  after_training: Sequence[str]
  chosen_by: str | None = "accuracy"
  split: (
    Callable[[data.Dataset, data.Dataset], tuple[data.Dataset, data.Dataset]]
    | None
  ) = None
  begin: Callable[[Any, data.Dataset, data.Dataset], float | None] = (
    lambda *arguments: None
  )
  diverged: Callable[[dict[str, float]], bool] = lambda metrics: False
  restart: Callable[[train_step.TrainState], train_step.TrainState] | None = (
    None
  )
  warn: Callable[[dict[str, float]], list[str]] = lambda metrics: []
  familiar: Callable[[dict[str, np.ndarray]], np.ndarray] | None = None
  steps: Callable[[Sequence[int]], Preprocessing] = lambda shape: (
    Preprocessing()
  )
  num_labels: int = 1
  features: Callable[[Any, jax.Array], dict[str, jax.Array]] | None = None
  scores: Callable[[Any, jax.Array], jax.Array] | None = None
  attack_loss: Callable[[Any, jax.Array, jax.Array], jax.Array] | None = None
  explain: Callable[[Any, jax.Array], tuple[jax.Array, jax.Array]] | None = None
  multi_hot: bool = False
  unlabelled: bool = False
  num_steps: int | None = None
  of_batch: str = ""
  name: str = ""
  options: Mapping[str, Any] = {}
  model: Spec | None = None

  def prepare(self, image: jax.Array) -> jax.Array:
    """An image [H W C] after the steps that keep it in [0, 1]."""
    return self.steps(image.shape).prepare(image)

  def record(self) -> dict[str, Any]:
    """The name and the options that JSON can hold, which `recorded` reads."""
    kept = {n: _plain(x) for n, x in self.options.items() if _is_plain(x)}
    return json.loads(json.dumps({"task": self.name, "options": kept}))


def described(
  *makers: Callable[..., nnx.Module],
) -> Callable[[Callable[..., Task]], Callable[..., Task]]:
  """A decorator of `make_task`: its tasks hold its name and its options.

  It also checks the arguments `model` and `optimizer`, and that `placement` and
  the like are of the classes that `make_task` is annotated with.

  Args:
    *makers: the classes and functions of capjax that make the models of the
      task; classes from outside capjax are not checked.
  """

  def wrap(make_task):
    signature = inspect.signature(make_task)
    name = make_task.__module__.rpartition(".")[2]

    @functools.wraps(make_task)
    def make(*arguments: Any, **options: Any) -> Task:
      try:
        given = signature.bind(*arguments, **options)
      except TypeError as error:
        known = ", ".join(signature.parameters)
        raise TypeError(
          f"{name}.make_task: {error}; its arguments are {known}, by name from "
          "the third on"
        ) from error
      given.apply_defaults()
      model = given.arguments["model"]
      _check_model(model, makers)
      _check_optimizer(given.arguments["optimizer"])
      _check_settings(typing.get_type_hints(make_task), given.arguments)
      task = make_task(*arguments, **options)
      return task._replace(name=name, options=given.kwargs, model=model)

    return make

  return wrap


def _check_model(
  model: Any, makers: tuple[Callable[..., nnx.Module], ...]
) -> None:
  names = " or ".join(f"{x.__module__}.{x.__name__}" for x in makers)
  if not isinstance(model, Spec):
    raise TypeError(
      f"model is {_short(model)}; give a capjax.specs.Spec of {names}, such as "
      f"Spec({makers[0].__name__}, {{}})"
    )
  maker = model.maker
  # A function is accepted, since it has no class to compare.
  if (
    isinstance(maker, type)
    and maker.__module__.startswith("capjax.")
    and not issubclass(maker, tuple(x for x in makers if isinstance(x, type)))
  ):
    raise TypeError(
      f"model is a Spec of {maker.__name__}, which this task does not train; "
      f"give one of {names}, or another module of capjax.experiments.tasks"
    )


def _check_optimizer(optimizer: Any) -> None:
  if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
    raise TypeError(
      f"optimizer is {_short(optimizer)}; give an optimiser of optax, such as "
      "optax.adam(1e-3)"
    )


def _check_settings(hints: Mapping[str, Any], given: Mapping[str, Any]) -> None:
  """Checks that arguments are the NamedTuples of `hints`, not dicts."""
  for name, value in given.items():
    hint = hints.get(name)
    kinds = typing.get_args(hint) or (hint,)
    wanted = [kind for kind in kinds if hasattr(kind, "_fields")]
    if wanted and not isinstance(value, kinds):
      kind = wanted[0]
      # A wheel has the modules of experiments in capjax, a checkout beside it.
      module = f"capjax.{kind.__module__.removeprefix('capjax.')}"
      raise TypeError(
        f"{name} is {_short(value)}; give a {module}.{kind.__name__}, whose "
        f"fields are {', '.join(kind._fields)}"
      )


def _short(value: Any) -> str:
  return getattr(value, "__name__", None) or repr(value)[:60]


def _is_plain(value: Any) -> bool:
  try:
    json.dumps(_plain(value))
  except TypeError:
    return False
  return True


def _plain(value: Any) -> Any:
  return value._asdict() if hasattr(value, "_asdict") else value


def require_labels(task: Task, dataset: data.Dataset, name: str) -> None:
  """Checks that a task can use a data set with its labels, or without any.

  Args:
    task: the task.
    dataset: the data set.
    name: its name, for the error message.

  Raises:
    ValueError: if the task needs labels, and there are none; or it needs one
      class for each image, and there are several.
  """
  if dataset.is_multi_hot and not task.multi_hot:
    raise ValueError(
      f"{name}: images belong to several classes at once, which this task does "
      "not take; give one label for each image, or train CapsNet with a "
      "routing other than self-routing, Efficient-CapsNet or their baseline"
    )
  if not dataset.is_labelled and not task.unlabelled:
    raise ValueError(
      f"{name}: the images have no labels, which this task needs; give labels "
      "(folders of classes), or train a model that learns without them: "
      "train_scae, train_generative, train_boltzmann, train_helmholtz, "
      "train_vae or train_transforming"
    )


def make_model(task: Task, dataset: data.Dataset, seed: int = 0) -> nnx.Module:
  """A new model for a data set, initialised by a seed, in evaluation mode.

  Raises:
    ValueError: if the arguments of the model do not fit together.
    checks.ImageShapeError: if the task has no model for images of this shape.
  """
  spec = task.describe(dataset.images.shape[1:], dataset.num_classes)
  # One program, which is compiled with little effort, since it runs once.
  make = jax.jit(
    lambda key: spec.make(nnx.Rngs(key)),
    compiler_options={"xla_backend_optimization_level": 1},
  )
  model = make(jax.random.key(seed))
  model.eval()
  return model


def model_record(task: Task, dataset: data.Dataset) -> dict[str, Any]:
  """The spec of the model for a data set, as JSON.

  Raises:
    ValueError: as `make_model`.
  """
  shape = dataset.images.shape[1:]
  return spec_record(task.describe(shape, dataset.num_classes), dataset)


def spec_record(spec: Spec, dataset: data.Dataset) -> dict[str, Any]:
  """A spec with the shape of its images and its number of classes, as JSON."""
  return {
    **spec.as_json(),
    "image_shape": list(dataset.images.shape[1:]),
    "num_classes": dataset.num_classes,
    "num_parameters": train_step.num_parameters(spec.shapes()),
  }


def make_evaluate(
  measure: Callable[[Any, Any, Any], train_step.Metrics],
  sample: train_step.Sample,
  batch_size: int,
  mesh: Mesh | None = None,
) -> Callable[..., dict[str, np.ndarray]]:
  """`train_step.make_evaluate` on several devices, which prints its progress.

  Args:
    measure: as for `train_step.make_evaluate`.
    sample: as for `train_step.make_evaluate`.
    batch_size: as for `train_step.make_evaluate`.
    mesh: the devices, which hold the model already; None for all that share a
      batch evenly.

  Returns:
    As `train_step.make_evaluate`; the images may be stored in files.
  """
  places = mesh is None
  mesh = placing.evaluation_mesh(batch_size) if mesh is None else mesh
  options = {"sample": sample, "batch_size": batch_size, "mesh": mesh}
  in_memory = train_step.make_evaluate(measure, **options)
  in_files = streaming.make_evaluate(measure, **options)

  def telling(model, images, *arguments, between=None, **options):
    stored = isinstance(images, data.StoredImages)
    evaluate = in_files if stored else in_memory
    between = between or progress.Progress()
    if places:
      model = placing.replicate(model, mesh)
    return evaluate(model, images, *arguments, between=between, **options)

  return telling


def summarise(measures: dict[str, np.ndarray]) -> dict[str, float]:
  """The means of the measures, and statistics of inactive capsules.

  `dead_parents` is the share of capsules whose activation stays below a
  threshold, which is meant for lengths of vectors. `least_peak` has no
  threshold: it is the minimum over capsules of the highest activation.
  """
  scores = train_step.means(measures)
  if "activations" in measures:
    dead = diagnostics.dead_parents(measures["activations"])
    scores["dead_parents"] = float(dead)
    peaks = diagnostics.peak_activations(measures["activations"])
    scores["least_peak"] = float(peaks.min())
  return scores


def data_record(train: data.Dataset, test: data.Dataset) -> dict[str, Any]:
  """The fingerprints of both sets, how they are computed, and the classes."""
  return {
    "fingerprint": "sha256 of dtype, shape and bytes of images and of labels",
    "train": data.fingerprint(train),
    "test": data.fingerprint(test),
    "class_names": list(train.class_names),
  }


def saved_by(
  run: directory.Run, task: Task, config: LoopConfig
) -> checkpoints.Checkpoints:
  """The checkpoints of a run."""
  score = (
    None if reports_last(task, config) else functools.partial(_score, task)
  )
  return checkpoints.Checkpoints(run.workdir / "checkpoints", score)


def reports_last(task: Task, config: LoopConfig) -> bool:
  """Whether the last checkpoint is reported, without choice on validation."""
  return task.chosen_by is None or config.num_validation == 0


def _score(task: Task, metrics: dict[str, float]) -> tuple[float, float]:
  """A key to compare checkpoints by: the measure, then minus the loss."""
  loss = next((metrics[x] for x in _LOSSES if x in metrics), 0.0)
  scores = metrics[task.chosen_by], -loss
  # No number is above NaN, which would stay the best.
  return tuple(-math.inf if math.isnan(x) else x for x in scores)


def restore_model(
  run: directory.Run, task: Task, dataset: data.Dataset, config: LoopConfig
) -> tuple[int, nnx.Module, dict[str, float]]:
  """The step, the model and the validation scores of the best checkpoint.

  A run that averages its weights gives the model with the average. Each of
  several processes gets it on its own devices.

  Args:
    run: the run.
    task: the task that it was trained for.
    dataset: a data set with the image shape of the model.
    config: the configuration of its training.

  Raises:
    ValueError: if the run has no checkpoint that can be read.
  """
  step, (model, *_), scores = restore_models(run, task, dataset, config)
  return step, model, scores


def restore_models(
  run: directory.Run, task: Task, dataset: data.Dataset, config: LoopConfig
) -> tuple[int, tuple[nnx.Module, ...], dict[str, float]]:
  """As `restore_model`; the raw model follows one with averaged weights."""
  mesh = placing.evaluation_mesh(config.batch_size, jax.local_devices())
  shapes = task.describe(dataset.images.shape[1:], dataset.num_classes).shapes()
  shapes.eval()
  template = placing.placed_shapes(shapes, mesh)
  # From the flags of that run, which need not be the run of this command.
  averages = bool(run.flags().get("average_decay"))
  restored = saved_by(run, task, config).restore_best(
    (template, template) if averages else template
  )
  if restored is None:
    raise ValueError(f"{run.workdir} has no checkpoint of a trained model yet")
  step, models, scores = restored
  return step, models if averages else (models,), scores
