"""The list of all evaluation suites, and which of them a model can take."""

import contextlib
from collections.abc import Collection, Iterator

from flax import nnx

from capjax import predictions
from capjax.data.sources import font_letters

from ..run import atomic_files
from . import (
  calibration,
  classifiers,
  confusion,
  constellations,
  crowding,
  diagnostics,
  energy_models,
  ensembles,
  equivariance,
  generative,
  generative_rotations,
  latents,
  linear_probes,
  multimnist,
  object_masks,
  out_of_distribution,
  reconstructions,
  scae,
  sceptics,
  transforming,
  viewpoints,
)
from .models import Trained

_ALL = (
  *classifiers.SUITES,
  *reconstructions.SUITES,
  *multimnist.SUITES,
  *crowding.SUITES,
  *diagnostics.SUITES,
  *sceptics.SUITES,
  *calibration.SUITES,
  *confusion.SUITES,
  *ensembles.SUITES,
  *equivariance.SUITES,
  *out_of_distribution.SUITES,
  *latents.SUITES,
  *energy_models.SUITES,
  *viewpoints.SUITES,
  *constellations.SUITES,
  *scae.SUITES,
  *object_masks.SUITES,
  *transforming.SUITES,
  *generative.SUITES,
  *linear_probes.SUITES,
  *generative_rotations.SUITES,
)
SUITES = {some.name: some for some in _ALL}


def taking(option: str) -> set[str]:
  """The names of the suites that read an option (a field of `Options`)."""
  return {name for name, some in SUITES.items() if option in some.takes}


class Failures:
  """Errors of suites, kept until the suites after them have run."""

  def __init__(self) -> None:
    self.errors: dict[str, Exception] = {}

  @contextlib.contextmanager
  def kept(self, name: str) -> Iterator[None]:
    """Keeps an error of a suite, and says that it failed."""
    try:
      yield
    except Exception as error:  # whatever it is, other suites may succeed
      self.errors[name] = error
      told = atomic_files.first_line(error)
      print(f"suite {name} failed: {told}", flush=True)

  def raise_first(self) -> None:
    """Raises the first error, if any; the command then fails."""
    if self.errors:
      name, error = next(iter(self.errors.items()))
      error.add_note(f"in suite {name}; the others have run")
      raise error


def fitting(trained: Trained) -> list[str]:
  """The names of the suites that apply to a trained model and its data.

  Wherever `out_of_distribution` applies, so does `letters`, if images have the
  shape of letters and are not letters themselves. Of these suites, only
  `accuracy` remains if images belong to several classes at once; without
  labels, only those that need none.
  """
  names = trained.task.suites(trained.model)
  are_letters = trained.test.class_names == tuple(font_letters.LETTERS)
  if trained.test.images.shape[1:] == font_letters.SHAPE and not are_letters:
    beside = out_of_distribution.out_of_distribution.name in names
    names = [*names, out_of_distribution.letters.name] if beside else names
  if trained.test.is_multi_hot:
    return [name for name in names if name == "accuracy"]
  known = trained.test.is_labelled
  return [name for name in names if known or not SUITES[name].labelled]


def of_classifier(
  model: nnx.Module,
  *,
  scored_by: str = "accuracy",
  unfit: Collection[str] = (),
) -> list[str]:
  """The names of the suites that apply to a classifier.

  Args:
    model: the classifier.
    scored_by: the suite of its scores, which depends on its test images.
    unfit: suites that do not apply to its images.
  """
  names = [
    scored_by,
    "multimnist",
    "affnist_like",
    "attacks",
    "views",
    "crowding",
    "calibration",
    "confusion",
    "ensemble",
    "equivariance",
    "out_of_distribution",
    "moved",
    "costs",
  ]
  if predictions.has_class_capsules(model):
    names += ["diagnostics", "parse_tree", "starvation", "more_routing"]
    if getattr(model, "decoder", None) is not None:
      names += ["reconstructions", "perturbations"]
  return [name for name in names if name not in unfit]
