"""The inputs of a suite: a trained model, its data, and the user's options."""

import fnmatch
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from capjax import data
from capjax.data.transforms import affnist

from ..run.directory import Run
from ..training import splits, train_step
from ..training import task as tasks
from ..training.loop_config import LoopConfig

Scores = dict[str, float | list[float]]


_POOL = 1000  # first test images, of which pictures show some


class Options(NamedTuple):
  """The options of an evaluation.

  Attributes:
    views: number of affine views of each test image.
    images: number of test images to use, from the first on; None for the
      default number of each suite.
    compare_with: other runs, evaluated before, whose curves are plotted too.
    other_data: the name or path of another data set; None for the default of
      the suite.
    ensemble: the folders of other runs, whose scores are averaged with these.
    source: the folder of another run, on whose model attacks are made too.
  """

  views: int = 32
  images: int | None = None
  compare_with: Sequence[Run] = ()
  other_data: str | None = None
  ensemble: Sequence[str] = ()
  source: str | None = None


class Trained(NamedTuple):
  """A trained model, its data, and its measures of the test set.

  Attributes:
    task: the task that it was trained for.
    config: the configuration of its training; evaluations use the same batch
      size.
    model: the model of the reported checkpoint, in evaluation mode.
    step: the step at which that checkpoint was saved.
    validation: its scores on the validation set, by name; empty without one.
    test: the test set.
    measures: `{name: [N ...]}` of the test set.
    load_train: `() -> training set`, including the validation examples.
    data_dir: the folder of the data sets; None for the default.
    raw_measures: the measures of the weights at that step, where `model` has an
      average of the weights.
    load_other: `name -> test set` of another data set, converted as its own.
  """

  task: tasks.Task
  config: LoopConfig
  model: nnx.Module
  step: int
  validation: dict[str, float]
  test: data.Dataset
  measures: dict[str, np.ndarray]
  load_train: Callable[[], data.Dataset] | None = None
  data_dir: str | None = None
  raw_measures: dict[str, np.ndarray] | None = None
  load_other: Callable[[str], data.Dataset] | None = None


def means(trained: Trained) -> dict[str, float]:
  """The mean measures of the test set, and the scores on the validation set.

  Where the model has averaged weights, the measures of the raw weights have the
  same names with the prefix `raw_`.
  """
  scores = {
    f"test_{n}": x for n, x in tasks.summarise(trained.measures).items()
  }
  for name, value in trained.validation.items():
    raw = "raw_" if name.startswith("raw_") else ""
    scores[f"{raw}validation_{name.removeprefix('raw_')}"] = value
  if trained.raw_measures is not None:
    raw_scores = tasks.summarise(trained.raw_measures)
    scores |= {f"raw_test_{n}": x for n, x in raw_scores.items()}
  return {**scores, "best_step": trained.step}


def images_of(
  trained: Trained, scores: Scores, counts: Mapping[str, str | int]
) -> dict[str, int]:
  """The number of test images that each score of a suite was measured on.

  Scores on the validation set are left out.

  Args:
    trained: the trained model that the suite was given.
    scores: the scores of the suite; it names `num_images` where that is not the
      whole test set, and 0 where the suite uses no test image.
    counts: as in `suite.Suite`.
  """
  common = scores.get("num_images", len(trained.test.labels))
  found = {}
  for name in scores:
    if name.removeprefix("raw_").startswith("validation_"):
      continue
    holders = (
      counts[start]
      for start in counts
      if fnmatch.fnmatchcase(name, f"{start}*")
    )
    count = next(holders, common)
    found[name] = int(scores[count] if isinstance(count, str) else count)
  return found


def unseen(trained: Trained) -> Trained:
  """The model with only the test images that did not choose the checkpoint.

  For models that are tested on novel viewpoints, test images from familiar
  viewpoints are the validation set, and are left out here.
  """
  if trained.task.familiar is None:
    return trained
  kept = ~trained.task.familiar(trained.test.factors)
  measures = {name: x[kept] for name, x in trained.measures.items()}
  return trained._replace(
    test=data.select(trained.test, kept), measures=measures
  )


def load_split(trained: Trained) -> tuple[data.Dataset, data.Dataset]:
  """The training set without the validation examples, and those examples.

  For tasks whose `split` is None.
  """
  config = trained.config
  return splits.split_validation(
    trained.load_train(), config.num_validation, config.batch_size
  )


def restore(
  run: Run,
  task: tasks.Task,
  config: LoopConfig,
  test: data.Dataset,
  *,
  load_train: Callable[[], data.Dataset] | None = None,
  data_dir: str | None = None,
  load_other: Callable[[str], data.Dataset] | None = None,
) -> Trained:
  """The model of a run's best checkpoint, with its measures of the test set.

  Args:
    run: the run.
    task: the task that it was trained for.
    config: the configuration of its training.
    test: the test set.
    load_train: as in `Trained`.
    data_dir: as in `Trained`.
    load_other: as in `Trained`.

  Raises:
    ValueError: if the run has no checkpoint that can be read, or the task needs
      labels that the test set does not have.
  """
  tasks.require_labels(task, test, "the test set")
  step, models, scores = tasks.restore_models(run, task, test, config)
  evaluate = tasks.make_evaluate(
    task.measure, task.sample_test, config.batch_size
  )
  measures = [evaluate(model, test.images, test.labels) for model in models]
  return Trained(
    task,
    config,
    models[0],
    step,
    scores,
    test,
    measures[0],
    load_train=load_train,
    data_dir=data_dir,
    raw_measures=measures[1] if len(measures) > 1 else None,
    load_other=load_other,
  )


def distinct_labels(
  folders: Sequence[pathlib.Path], labels: Sequence[str]
) -> list[str]:
  """The labels of runs, made distinct where two are the same.

  Args:
    folders: the folders of the runs. The second run with a label gets the name
      of its folder added, then the name of the parent folder, then a number.
    labels: one for each run.
  """
  distinct = []
  for folder, label in zip(folders, labels, strict=True):
    folder = folder.resolve()
    added = [folder.name] if folder.name != label else []
    added.append(f"{folder.parent.name}/{folder.name}")
    added += map(str, range(2, len(labels) + 1))
    names = [label, *(f"{label} ({words})" for words in added)]
    distinct.append(next(name for name in names if name not in distinct))
  return distinct


def measure_layers(
  trained: Trained,
  images: np.ndarray,
  activations: Callable[..., Sequence[jax.Array]],
) -> list[np.ndarray]:
  """Measures each layer of capsules by a function, for all images.

  Args:
    trained: the model.
    images: test images, uint8 [N H W C].
    activations: `(model, prepared images)` to an array [B ...] for each layer.

  Returns:
    An array [N ...] for each layer, from the first up.
  """
  steps = trained.task.steps(images.shape[1:])

  def measure(model, images, labels):
    del labels
    return {str(n): x for n, x in enumerate(activations(model, images))}

  evaluate = tasks.make_evaluate(
    measure,
    train_step.sample_labelled(lambda _, image: steps(image)),
    trained.config.batch_size,
  )
  labels = np.zeros(len(images), np.int32)
  found = evaluate(trained.model, images, labels)
  return [found[str(n)] for n in range(len(found))]  # "10" is before "2" there


def sample_affine_view(trained: Trained) -> train_step.Sample:
  """Samples affine views like those of affNIST, on the model's canvas."""
  size = canvas(trained)[:2]

  def sample(key, index, images, labels):
    image = train_step.as_intensities(images[index])
    return affnist.affnist_like(key, image, canvas=size), labels[index]

  return sample


def input_shape(trained: Trained) -> tuple[int, ...]:
  """The shape [H W C] of the images that a model takes."""
  shape = trained.test.images.shape[1:]
  return trained.task.steps(shape).output_shape(shape)


def canvas(trained: Trained) -> tuple[int, ...]:
  """The shape [H W C] of prepared images, before they are standardised."""
  shape = trained.test.images.shape[1:]
  image = jax.ShapeDtypeStruct(shape, jnp.float32)
  return jax.eval_shape(trained.task.prepare, image).shape


def first(
  trained: Trained,
  count: int | None,
  *,
  at_least: int = 1,
  two_classes: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
  """The first test images and labels.

  Args:
    trained: the model, and its data.
    count: of images; None for all.
    at_least: images that the suite needs.
    two_classes: whether it needs two classes among these images.

  Raises:
    ValueError: if there are fewer.
  """
  images, labels = trained.test.images[:count], trained.test.labels[:count]
  few = len(labels) == len(trained.test.labels)
  remedy = "another data set" if few else "more as --images"
  if len(labels) < at_least:
    raise ValueError(
      f"{len(labels)} test images are too few for this suite, which needs "
      f"{at_least}; give {remedy}"
    )
  if two_classes and len(np.unique(labels)) < 2:
    raise ValueError(
      f"the first {len(labels)} test images are of one class, and this suite "
      "needs two, since it lays an image over one of another class; give "
      f"{remedy}"
    )
  return images, labels


def enough(
  default: int | None = None, *, at_least: int = 1, two_classes: bool = False
) -> Callable[[Run, Trained, Options], None]:
  """Returns the `Suite.require` of a suite that takes images by `first`.

  Args:
    default: the number of images where the user gives none; None for all.
    at_least: as in `first`.
    two_classes: as in `first`.
  """

  def require(run, trained, options):
    del run
    count = options.images or default
    first(trained, count, at_least=at_least, two_classes=two_classes)

  return require


def require_classes(
  dataset: data.Dataset, others: list[str], given: str
) -> None:
  """Checks that another model has the classes of a data set.

  Args:
    dataset: the data set.
    others: the names of the classes of the other model.
    given: the flag that names the other model, for the error message.

  Raises:
    ValueError: if the names or their order differ.
  """
  names = [str(x) for x in dataset.named(np.arange(dataset.num_classes))]
  if names != others:
    raise ValueError(
      f"the classes of {given} are {', '.join(others)}, those of this run "
      f"{', '.join(names)}; give a run of the same data"
    )


def mean_and_error(name: str, values: np.ndarray) -> dict[str, float]:
  """The mean of numbers [N], and its standard error where N is 2 or more."""
  found = {name: float(np.mean(values))}
  if len(values) > 1:
    error = np.std(values, ddof=1) / len(values) ** 0.5
    found[f"{name}_standard_error"] = float(error)
  return found


def make_examples(
  trained: Trained,
  sample: train_step.Sample,
  indices: np.ndarray,
  *,
  count: int | None = None,
) -> tuple[Any, Any]:
  """Makes chosen test examples, with the random keys of `make_evaluate`.

  Args:
    trained: the model, and its data.
    sample: makes an example.
    indices: of the examples; those beyond the images are left out.
    count: the number of test images, from the first on, that `sample` may read;
      give the number that was measured. None for 1,000, or for more if an index
      is larger.
  """
  if count is None:
    count = max(_POOL, int(np.max(indices, initial=0)) + 1)
  images, labels = map(jnp.asarray, first(trained, count))
  indices = indices[indices < len(labels)]
  keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(0), indices)
  return jax.jit(jax.vmap(sample, (0, 0, None, None)))(
    keys, indices, images, labels
  )
