r"""Writes the model of a finished run in other forms.

  capjax export --workdir=runs/mnist --format=safetensors
  capjax export --source=runs/mnist --format=stablehlo --out=mnist.stablehlo
  capjax export --source=digits --format=onnx --out=digits.onnx
  capjax export --workdir=runs/mnist --pretrained=mnist

The first writes model.safetensors and model.json into the run's folder, for
`capjax.load`; training writes them too, but older code did not. The next two
write graphs that run without capjax (docs/models.md). The last adds the model
to those that are shipped: it measures the stored weights on the whole test set,
and writes the result on the card.
"""

import pathlib
import sys
import tempfile

from absl import flags

from capjax import data, exporting, pretrained, saved

from . import finished, launch
from .flags import datasets, errors, limits, runs
from .run import directory, provenance
from .training import cards

_WRITERS = {
  "stablehlo": exporting.write_stablehlo,
  "onnx": exporting.write_onnx,
}
_FORMAT = flags.DEFINE_enum(
  "format",
  "safetensors",
  ["safetensors", *_WRITERS],
  "Form in which to write the model: weights with their card, or a graph.",
)
_SOURCE = flags.DEFINE_string(
  "source",
  None,
  "Model of a graph, instead of --workdir: folder of a finished run, a file of "
  "weights, or the name of a pretrained model.",
)
_OUT = flags.DEFINE_string("out", None, "File to write a graph to.")
_GRAPH = flags.DEFINE_enum(
  "graph",
  "model",
  exporting.NAMES,
  "Graph to write: from images to all outputs, or from poses to images.",
)
_PRETRAINED = flags.DEFINE_string(
  "pretrained",
  None,
  "Name under which the model is added to the folder of pretrained models.",
)
_HALF = flags.DEFINE_bool(
  "half", False, "Store the parameters as float16; they are loaded as float32."
)
_FEW = 1000  # first test images, on which a test repeats the measure


def add_pretrained(
  trained: saved.TrainedModel, name: str, test, *, half: bool = False
) -> str:
  """Adds a model to the pretrained models; returns the path of its file.

  The card gets `measured`: what `pretrained.measure` gives for the parameters
  as they are stored, on all test images and on the first 1,000.
  """
  code = {"commit": provenance.commit(), "dirty": provenance.is_dirty()}
  # In a temporary folder: if measuring fails, the shipped models stay the same.
  with tempfile.TemporaryDirectory() as folder:
    aside = pathlib.Path(folder) / "model.safetensors"
    saved.save(trained, aside, half=half)
    stored = saved.load(aside)
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
  path = pretrained.FOLDER / f"{name}.safetensors"
  saved.save(saved.TrainedModel(stored.model, card), path, half=half)
  pretrained.write_table()
  print(f"{name}: {measured}")
  return str(path)


def write_graph(
  source: str, path: str, *, form: str, graph: str = "model"
) -> None:
  """Writes a graph of a model, and prints what it takes and returns.

  Args:
    source: folder of a finished run, file of weights, or pretrained name.
    path: the file to write.
    form: "stablehlo" or "onnx".
    graph: one of `exporting.NAMES`.

  Raises:
    ValueError: if the model has no such graph.
    ModuleNotFoundError: if the packages for this form are not installed.
  """
  trained = pretrained.load_any(source)
  written = _WRITERS[form](trained, path, graph=graph)
  print(f"{path} takes {_described(written.inputs)}")
  print(f"and returns {_described(written.outputs)}")


def _described(arrays) -> str:
  """Names with dtypes and shapes."""
  return ", ".join(
    f"{name} {x.dtype.name} [{' '.join(map(str, ('B', *x.shape)))}]"
    for name, x in arrays.items()
  )


def main() -> None:
  is_graph = _FORMAT.value in _WRITERS
  source = (_SOURCE.value if is_graph else None) or runs.WORKDIR.value
  with errors.clear_errors():
    if not is_graph and _SOURCE.value:
      raise ValueError(
        "--format=safetensors writes weights into the folder of their run; "
        "name it as --workdir, or give --format=stablehlo or --format=onnx for "
        "a graph of any --source"
      )
    if source is None:
      raise ValueError(
        "no model is given; name a run as --workdir"
        + (", or any model as --source" if is_graph else "")
      )
    limits.refuse(
      f"--format={_FORMAT.value}",
      ["pretrained", "half"] if is_graph else ["out", "graph"],
    )
    if _SOURCE.value and runs.WORKDIR.value:
      raise ValueError("--source and --workdir both name a model; give one")
    if _HALF.value and not _PRETRAINED.value:
      raise ValueError("--half is for --pretrained=NAME alone; leave it out")
    if is_graph and _OUT.value is None:
      raise ValueError(f"--format={_FORMAT.value} needs --out=FILE")
    if is_graph:
      limits.refuse(
        f"--format={_FORMAT.value}",
        ["dataset", "data_dir", "image_size", "grayscale", "stream"],
      )
      limits.require_folder("out", _OUT.value)
      try:
        write_graph(source, _OUT.value, form=_FORMAT.value, graph=_GRAPH.value)
      except ModuleNotFoundError as error:
        sys.exit(str(error))
      return
    run = directory.Run(runs.WORKDIR.value)
    summary, make_task = finished.reopen(run)
    runs.configure()
    test = datasets.load("test")
    known = summary.get("data", {}).get("test")
    if known not in (None, data.fingerprint(test)):
      raise ValueError(
        f"the test set differs from that of the run in {run.workdir}; give the "
        "folder of its data as --data_dir"
      )
    trained = launch.restore(run, make_task(), test)
    if _PRETRAINED.value:
      card = cards.of_run(trained.task, test, summary)
      model = saved.TrainedModel(trained.model, card)
      print(add_pretrained(model, _PRETRAINED.value, test, half=_HALF.value))
    else:
      card = cards.write(run, trained.task, trained.model, test, summary)
      print(f"model.safetensors {card['sha256']} is in {run.workdir}")


if __name__ == "__main__":
  used = [name for name in runs.OF_READERS if name != "cpu_devices"]
  limits.run(main, shared=used)
