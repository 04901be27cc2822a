r"""Writes the model of a finished run in other forms.

  capjax export --workdir=runs/mnist --format=safetensors
  capjax export --workdir=runs/mnist --pretrained=mnist

The first writes model.safetensors and model.json into the run's folder, for
`capjax.load`; training writes them too, but older code did not. The second adds
the model to those that are shipped: it measures the stored weights on the whole
test set, and writes the result on the card.
"""

from collections.abc import Sequence

from absl import app, flags

from capjax import data, pretrained, saved

from . import finished, launch
from .flags import limits, runs
from .run import directory, provenance
from .training import cards

_FORMAT = flags.DEFINE_enum(
  "format", "safetensors", ["safetensors"], "Form in which to write the model."
)
_PRETRAINED = flags.DEFINE_string(
  "pretrained",
  None,
  "Name under which the model is added to the folder of pretrained models.",
)
_FEW = 1000  # test images of the measure that a test repeats


def add_pretrained(trained: saved.TrainedModel, name: str, test) -> str:
  """Writes a model to those that are shipped; returns the path of its file.

  The card gets `measured`: what `pretrained.measure` gives for the file that
  was written, on all test images and on the first 1,000.
  """
  path = pretrained.FOLDER / f"{name}.safetensors"
  code = {"commit": provenance.commit(), "dirty": provenance.is_dirty()}
  saved.save(trained, path)
  stored = saved.load(path)
  measured = {
    **pretrained.measure(stored, test.images, test.labels),
    "num_images": len(test.images),
    "first_images": pretrained.measure(
      stored, test.images[:_FEW], test.labels[:_FEW]
    ),
    "num_first_images": min(_FEW, len(test.images)),
    **code,
    "versions": provenance.versions(),
  }
  card = {**stored.card, "name": name, "measured": measured}
  saved.save(saved.TrainedModel(stored.model, card), path)
  pretrained.write_table()
  print(f"{name}: {measured}")
  return str(path)


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {argv[1:]}")
  with runs.clear_errors():
    run = directory.Run(runs.WORKDIR.value)
    summary, binary = finished.reopen(run)
    runs.configure()
    test = runs.load("test")
    known = summary.get("data", {}).get("test")
    if known not in (None, data.fingerprint(test)):
      raise ValueError(
        f"the test set differs from that of the run in {run.workdir}; give the "
        "folder of its data as --data_dir"
      )
    trained = launch.restore(run, binary.make_task(), test)
    if _PRETRAINED.value:
      card = cards.of_run(trained.task, test, summary)
      model = saved.TrainedModel(trained.model, card)
      print(add_pretrained(model, _PRETRAINED.value, test))
    else:
      card = cards.write(run, trained.task, trained.model, test)
      print(f"model.safetensors {card['sha256']} is in {run.workdir}")


if __name__ == "__main__":
  flags.mark_flag_as_required("workdir")
  limits.run(main)
