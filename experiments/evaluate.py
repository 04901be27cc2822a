r"""Evaluates a trained model; writes evaluation.json and figures.

  python -m experiments.evaluate --workdir=DIR --suite=accuracy,perturbations
  python -m experiments.evaluate --workdir=DIR --suite=views --compare_with=RUN

The model, its flags and its data set are those of the run in DIR. RUN is the
folder of another run, already evaluated by the same suite, whose curves are
plotted too.
"""

import contextlib
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import flags

from capjax import data, weights
from capjax.kernels import checks

from . import finished, launch
from .evaluation import models, printed, suites
from .evaluation.suite import Suite
from .flags import datasets, errors, limits, runs
from .run import changes, directory, provenance
from .training import allocator, task

_COMPARING = {name for name, some in suites.SUITES.items() if some.compares}
_COMPARED = ", ".join(sorted(suites.taking("compare_with")))
_OF_VIEWS = " and ".join(sorted(suites.taking("views")))
_SUITE = flags.DEFINE_list(
  "suite",
  ["accuracy"],
  f"Names of the suites to run, any of {', '.join(suites.SUITES)}.",
)
_VIEWS = flags.DEFINE_integer(
  "views",
  32,
  f"Number of affine views of each test image in {_OF_VIEWS}.",
  lower_bound=1,
  upper_bound=10_000,
)
_IMAGES = flags.DEFINE_integer(
  "images",
  None,
  "Number of test images, from the first on, in suites that can use a part of "
  "the test set; each suite has its own default.",
  lower_bound=1,
)
_COMPARE_WITH = flags.DEFINE_list(
  "compare_with",
  [],
  "Folders of other runs to plot in the same figure, for the suites "
  f"{_COMPARED}; they must have been evaluated by the suite before.",
)
_OTHER_DATA = flags.DEFINE_string(
  "other_data",
  None,
  "Name or path of another data set, for the suite out_of_distribution; by "
  "default Fashion-MNIST for MNIST, and the reverse.",
)
_ENSEMBLE = flags.DEFINE_list(
  "ensemble",
  [],
  "Folders of other runs of the same data, for the suite ensemble, which "
  "averages their scores with those of this run.",
)
_SOURCE = flags.DEFINE_string(
  "source",
  None,
  "Folder of another run of the same data, on whose model the suite attacks "
  "makes attacks too, to try them on this one.",
)
_ALLOW_OTHER_DATA = flags.DEFINE_bool(
  "allow_other_data",
  False,
  "Allow a test set or training set that differs from that of the run, and "
  "other runs (--compare_with) that were evaluated on other test images; the "
  "record holds the fingerprint of the data used.",
)


def main() -> None:
  with errors.clear_errors():
    names = list(dict.fromkeys(_SUITE.value))
    _check_suites(names)
    run = runs.open_run(runs.WORKDIR.value)
    summary, trained, now = _restore(run)
    _check_fit(names, run, trained)
    options = _options(names, now)
    for name in names:
      with _naming(name):
        suites.SUITES[name].check(run, trained, options)
    _evaluate(names, run, trained, options, {**summary, "data": now})


@contextlib.contextmanager
def _naming(suite: str) -> Iterator[None]:
  """Adds the name of a suite to an error about its arguments."""
  try:
    yield
  except ValueError as error:
    raise ValueError(f"--suite={suite}: {error}") from error


def _check_suites(names: Sequence[str]) -> None:
  """Checks that the suites exist, and use all options that are given.

  Raises:
    ValueError: if a suite is unknown, or no suite uses an option.
  """
  every = ", ".join(suites.SUITES)
  if not names:
    raise ValueError(f"--suite is empty; give some of {every}")
  unknown = sorted(set(names) - suites.SUITES.keys())
  if unknown:
    words = ", ".join(map(repr, unknown))
    remedy = checks.did_you_mean(unknown[0], suites.SUITES)
    raise ValueError(f"unknown suite {words}; {remedy}known: {every}")
  for flag in models.Options._fields:
    takers = suites.taking(flag)
    if flags.FLAGS[flag].present and not takers & set(names):
      raise ValueError(
        f"--suite={','.join(names)} does not use --{flag}; these suites do: "
        f"{', '.join(sorted(takers))}"
      )


def _restore(
  run: directory.Run,
) -> tuple[dict[str, Any], models.Trained, dict[str, Any]]:
  """Restores the model of a run, with its flags and its data.

  Returns:
    The run's summary, the model, and the fingerprints of the data.

  Raises:
    ValueError: if the data are not those of the run.
  """
  summary, make_task = finished.reopen(run)
  runs.configure()
  launch.divide_cpu()
  test = datasets.load("test")
  now = task.data_record(datasets.load("train"), test)
  changed = changes.between(summary.get("data", now), now)
  if changed and not _ALLOW_OTHER_DATA.value:
    raise ValueError(
      f"the data differ from those of the run in {run.workdir} "
      f"({'; '.join(changed)}); give the same data, by their folder as "
      "--data_dir (of a run on arrays as --dataset), or --allow_other_data"
    )
  return summary, launch.restore(run, make_task(), test), now


def _check_fit(
  names: Sequence[str], run: directory.Run, trained: models.Trained
) -> None:
  """Checks that the suites are for this model, and there are enough images.

  Raises:
    ValueError: if not.
  """
  fit = suites.fitting(trained)
  unfit = sorted(set(names) - set(fit))
  if unfit:
    raise ValueError(
      f"{', '.join(unfit)}: not for the model in {run.workdir} and its "
      f"images; its suites are {', '.join(sorted(fit))}"
    )
  count = len(trained.test.labels)
  if (_IMAGES.value or 0) > count:
    raise ValueError(
      f"--images={_IMAGES.value}: the test set has {count}; give fewer"
    )


def _options(names: Sequence[str], now: Mapping[str, Any]) -> models.Options:
  """The options of the suites, after a check of the other runs and models.

  Args:
    names: of the suites.
    now: the fingerprints of the data.

  Raises:
    ValueError: if another run was not evaluated by a suite that compares runs,
      or on other test images or another number of them.
    FileNotFoundError: if a model is missing.
  """
  others = [directory.Run(workdir) for workdir in _COMPARE_WITH.value]
  for name in sorted(set(names) & suites.taking("compare_with")):
    for other in others:
      # `spectra` compares files that training writes too.
      record = other.read_evaluation(name) if name in _COMPARING else {}
      about = record or other.noted("data")
      its = about.get("data", now)["test"]
      if its != now["test"] and not _ALLOW_OTHER_DATA.value:
        raise ValueError(
          f"--compare_with: {name} of {other.workdir} is of other test images; "
          "evaluate that run on the same images, or give --allow_other_data"
        )
      images = record.get("options", {}).get("images")
      takes = name in suites.taking("images") and "options" in record
      if takes and images != _IMAGES.value and not _ALLOW_OTHER_DATA.value:
        raise ValueError(
          f"--compare_with: {name} of {other.workdir} was evaluated "
          f"{_words_of(images)}, this run {_words_of(_IMAGES.value)}; evaluate "
          "both alike, or give --allow_other_data"
        )
  for path in filter(None, (*_ENSEMBLE.value, _SOURCE.value)):
    weights.find(path)
  return models.Options(
    views=_VIEWS.value,
    images=_IMAGES.value,
    compare_with=others,
    other_data=_OTHER_DATA.value,
    ensemble=_ENSEMBLE.value,
    source=_SOURCE.value,
  )


def _words_of(images: int | None) -> str:
  """How a command gave --images, as words of a message."""
  return f"with --images={images}" if images else "without --images"


def _evaluate(
  names: Sequence[str],
  run: directory.Run,
  trained: models.Trained,
  options: models.Options,
  about: Mapping[str, Any],
) -> None:
  """Runs the suites; prints and writes their scores.

  Args:
    names: of the suites.
    run: the folder that gets the scores and figures.
    trained: the model.
    options: of the suites.
    about: further entries of each record.

  Raises:
    Exception: the first of the suites' errors, after all suites have run.
  """
  failures = suites.Failures()
  for number, name in enumerate(names, 1):
    if len(names) > 1:
      print(f"suite {number} of {len(names)}: {name}", flush=True)
    allocator.trim()  # A suite before this one has just freed memory.
    suite = suites.SUITES[name]
    with failures.kept(name):
      metrics = suite(run, trained, options)
      record = {
        "suite": name,
        "options": _recorded(suite, run, options, trained),
        "metrics": metrics,
        "num_images": models.images_of(trained, metrics, suite.counts),
      }
      # Printed before it is written, so that a full disk does not lose it.
      print(printed.table(name, metrics, record["num_images"]), flush=True)
      run.write_evaluation(name, {**about, **_about_now(about), **record})
  if len(failures.errors) < len(names):
    written = [run.workdir / "evaluation.json", *run.figures]
    print(f"wrote {', '.join(map(str, written))}")
  failures.raise_first()


def _recorded(
  suite: Suite,
  run: directory.Run,
  options: models.Options,
  trained: models.Trained,
) -> dict[str, object]:
  """The options of a suite, with hashes of the models and data that they name.

  Only the last part of a path is kept. Options without a value are left out.
  """

  def model(path):
    card, _ = weights.read(weights.find(path))
    return {"name": pathlib.Path(path).name, "sha256": card["sha256"]}

  def dataset(name):
    images = trained.load_other(name)
    short, _ = data.split_path(name, datasets.DATA_DIR.value)
    return {"name": short, "sha256": data.fingerprint(images)}

  forms = {
    "compare_with": lambda others: [x.workdir.name for x in others],
    "ensemble": lambda paths: list(map(model, paths)),
    "source": model,
  }
  recorded = {
    name: forms.get(name, lambda x: x)(value)
    for name in sorted(suite.takes - {"other_data"})
    if (value := getattr(options, name))
  }
  if suite.other_data:
    recorded["other_data"] = dataset(suite.other_data(run, options))
  return recorded


def _about_now(summary: dict[str, object]) -> dict[str, object]:
  """The provenance of this evaluation, and the commit of the training."""
  now = provenance.record(runs.invocation())
  return {
    **{
      name: now[name]
      for name in ("commit", "dirty", "versions", "device", "jax_config")
    },
    **{f"training_{name}": summary[name] for name in ("commit", "dirty")},
  }


if __name__ == "__main__":
  limits.require_folder_of_run()
  limits.run(main, shared=[*runs.OF_READERS, "figure_format"])
