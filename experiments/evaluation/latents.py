"""Suites for models with latent variables: unit activities, and bounds."""

import io
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
from etils import epy

from capjax.energy import helmholtz, units
from capjax.evaluation import clustering

from ..figures import energy_models
from ..run import atomic_files, directory
from ..training import task as tasks
from ..training import train_step
from . import models
from .models import Options, Scores, Trained
from .suite import suite

with epy.lazy_imports():  # these take seconds, and --help needs none
  from sklearn import feature_selection

_PER_CLASS = 10  # images of each class in the figure
_NUM_INFORMATIVE = 2000  # images from which information is estimated
_NUM_SAMPLES = 100  # of each image, for the bounds
_NUM_AT_ONCE = 100  # images


@suite()
def errors(run: directory.Run, trained: Trained, options: Options) -> Scores:
  """Reports the mean measures of the test set and the validation set."""
  del run, options
  return models.means(trained)


@suite(
  "compare_with",
  counts={
    "mean_information_drawn": "num_tested",
    "best_information_drawn": "num_tested",
    "mean_information": "num_informative",
    "best_information": "num_informative",
  },
  labelled=True,
  require=lambda run, trained, options: _all_kept_spectra(options),
)
def spectra(run: directory.Run, trained: Trained, options: Options) -> Scores:
  """Plots unit activities by class; measures how well they tell the class.

  The figure has ten images of each class, by layer. Where the run is compared
  with others, their activities for the same images are plotted below its own.

  Returns:
    For each layer: the test accuracy of logistic regression from activities to
    classes, fitted on training images; the mutual information in bits between
    the class and one unit's activity, as the mean over units and as that of the
    best unit, by nearest neighbours (Ross, 2014) on 2000 test images; and,
    where activities are probabilities, the mutual information between the class
    and a binary sample of the unit.
  """
  others = _all_kept_spectra(options)
  labels = trained.test.labels
  train = trained.load_train()
  learnt, tested = (
    _activities(trained, images)
    for images in (train.images, trained.test.images)
  )
  shown = [
    np.flatnonzero(labels == c)[:_PER_CLASS]
    for c in range(trained.test.num_classes)
  ]
  scores = {
    "num_tested": len(labels),
    "num_informative": min(_NUM_INFORMATIVE, len(labels)),
  }
  class_names = trained.test.named(np.arange(len(shown)))
  plotted = {}
  for number, name in enumerate(learnt):
    suffix = f"_layer_{number + 1}" if len(learnt) > 1 else ""
    plotted[suffix] = [tested[name][rows] for rows in shown]
    energy_models.spectra(
      plotted[suffix], class_names, run.figure(f"spectra{suffix}")
    )
    for key, value in _knowledge(
      learnt[name], train.labels, tested[name], labels
    ).items():
      scores[f"{key}{suffix}"] = value
  _keep_spectra(run, plotted)
  if others:
    folders = [one.workdir for one in (run, *options.compare_with)]
    names = models.distinct_labels(folders, [x.resolve().name for x in folders])
    energy_models.compared_spectra(
      {
        f"{name}{layer.replace('_', ' ')}": classes
        for name, layers in zip(names, [plotted, *others], strict=True)
        for layer, classes in layers.items()
      },
      class_names,
      run.figure("spectra_compared"),
    )
  return scores


@suite("images")
def bound(run: directory.Run, trained: Trained, options: Options) -> Scores:
  """Measures the ELBO and the importance-weighted bound of test images.

  Each pixel is sampled as 0 or 1 with its intensity as the probability of 1.
  For models with Gaussian pixels the bounds are on the log density of the
  intensities in [0, 1].

  Returns:
    The ELBO and the importance-weighted bound in nats, with 100 samples, as
    means over images, and their standard errors over images. For a Helmholtz
    machine each layer is inferred from samples of the layer below; in the
    scores that end in `_mean_field` it is inferred from their expectations, as
    in wake-sleep training.
  """
  if has_gaussian_pixels(trained.model):
    images = train_step.as_intensities(
      jnp.asarray(trained.test.images[: options.images])
    )
  else:
    images = binary_images(trained, jax.random.key(1))[: options.images]
  scores = {"num_samples": _NUM_SAMPLES, "num_images": len(images)}
  scores |= _bounds(trained.model, images, "")
  if isinstance(trained.model, helmholtz.CapsuleHM):
    iterations = trained.task.options["num_iterations"]
    scores |= _bounds(
      trained.model,
      images,
      "_mean_field",
      from_expectations=True,
      num_iterations=iterations,
    )
  return scores


SUITES = (
  errors,
  spectra,
  bound,
)


def binary_images(trained: Trained, key: jax.Array) -> jax.Array:
  """The test images with each pixel sampled as 0 or 1."""
  images = train_step.as_intensities(jnp.asarray(trained.test.images))
  return jax.random.bernoulli(key, images).astype(images.dtype)


def has_gaussian_pixels(model: object) -> bool:
  """Whether a model has Gaussian visible units."""
  if getattr(model, "pixel_scale", None) is not None:
    return True
  kinds = getattr(model, "families", None)
  return kinds is not None and kinds[0] is units.FAMILIES["gaussian"]


def information(activities: np.ndarray, labels: np.ndarray) -> np.ndarray:
  """Mutual information of binary units with the class.

  Args:
    activities: [N K], the probability that each unit is on in each example.
    labels: [N].

  Returns:
    [K], in bits.
  """
  classes, counts = np.unique(labels, return_counts=True)
  given = np.stack([np.mean(activities[labels == c], axis=0) for c in classes])
  shares = counts / counts.sum()
  return _entropy(shares @ given) - shares @ _entropy(given)


def _bounds(
  model: object, images: jax.Array, suffix: str, **options: object
) -> Scores:
  """The means over images of both bounds, with their standard errors."""
  evaluate = jax.jit(
    lambda model, key, images: model.bound(key, images, _NUM_SAMPLES, **options)
  )
  parts = [
    evaluate(
      model,
      jax.random.fold_in(jax.random.key(0), start),
      images[start : start + _NUM_AT_ONCE],
    )
    for start in range(0, len(images), _NUM_AT_ONCE)
  ]
  scores = {}
  for name, bounds in zip(
    ("elbo", "importance_bound"), zip(*parts, strict=True), strict=True
  ):
    values = np.concatenate(bounds)
    scores |= models.mean_and_error(f"{name}{suffix}", values)
  return scores


def _entropy(probability: np.ndarray) -> np.ndarray:
  on = np.clip(np.float64(probability), 1e-12, 1 - 1e-12)
  off = 1 - on
  return -(on * np.log2(on) + off * np.log2(off))


def _knowledge(learnt, learnt_labels, tested, labels) -> Scores:
  """Measures how well activities [N K] tell the class.

  The information of real-valued activities is estimated from the distances of
  neighbours of one class, and left out where no class has two images.
  """
  few = slice(None, _NUM_INFORMATIVE)
  scores = {
    "probe_accuracy": clustering.probe_accuracy(
      learnt, learnt_labels, tested, labels
    )
  }
  if len(np.unique(labels[few])) < len(labels[few]):
    bits = feature_selection.mutual_info_classif(
      tested[few], labels[few], random_state=0
    ) / np.log(2)
    scores["mean_information"] = float(np.mean(bits))
    scores["best_information"] = float(np.max(bits))
  if tested.min() >= 0 and tested.max() <= 1:
    sampled = information(tested, labels)
    scores["mean_information_drawn"] = float(np.mean(sampled))
    scores["best_information_drawn"] = float(np.max(sampled))
  return scores


def _spectra_file(run):
  return run.workdir / "figures" / "spectra.npz"


def _keep_spectra(run, plotted):
  """Keeps `{layer: activities [N K] of each class}` for other runs."""
  arrays = {
    f"{layer}/{number}": values
    for layer, classes in plotted.items()
    for number, values in enumerate(classes)
  }
  path = _spectra_file(run)
  path.parent.mkdir(exist_ok=True)
  buffer = io.BytesIO()
  np.savez(buffer, **arrays)
  atomic_files.write_whole(path, buffer.getvalue())


def _all_kept_spectra(options):
  return [_kept_spectra(other) for other in options.compare_with]


def _kept_spectra(run):
  path = _spectra_file(run)
  try:
    with np.load(path) as arrays:
      kept = {}
      for name, values in arrays.items():
        kept.setdefault(name.split("/")[0], []).append(values)
      return kept
  except (OSError, ValueError, zipfile.BadZipFile) as error:
    raise ValueError(
      f"cannot read {path} ({error}): evaluate {run.workdir} with "
      "--suite=spectra again"
    ) from error


def _activities(trained: Trained, images: np.ndarray) -> dict[str, np.ndarray]:
  """The activities [N K] of each layer, by its number."""

  def measure(model, images, labels):
    del labels
    return {str(n): x for n, x in enumerate(model.activities(images))}

  prepare = trained.task.prepare
  sample = train_step.sample_labelled(lambda key, image: prepare(image))
  evaluate = tasks.make_evaluate(measure, sample, trained.config.batch_size)
  found = evaluate(trained.model, images, np.zeros(len(images), np.int32))
  return {str(n): found[str(n)] for n in range(len(found))}
