r"""Writes the model of a finished run in other forms.

  capjax export --workdir=runs/mnist --format=safetensors
  capjax export --source=runs/mnist --format=stablehlo --out=mnist.stablehlo
  capjax export --source=digits --format=onnx --out=digits.onnx
  capjax export --workdir=runs/mnist --pretrained=mnist
  capjax export --workdir=runs/mnist --pretrained=mnist --without_decoder

The first writes model.safetensors and model.json into the run's folder, for
`capjax.load`; training writes them too, but older code did not. The next two
write graphs that run without capjax (docs/models.md). The last two add the
model to those that are shipped: they measure the stored weights on the whole
test set, and write the result on the card.
"""

import pathlib
import sys
import tempfile

from absl import flags

from capjax import data, exporting, named_tensors, pretrained, saved, specs

from . import finished, launch
from .flags import datasets, errors, limits, runs
from .run import directory, provenance
from .training import cards, train_step

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
_WITHOUT_DECODER = flags.DEFINE_bool(
  "without_decoder",
  False,
  "Leave the decoder out of the pretrained model, which then knows classes and "
  "makes no images.",
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


def without_decoder(trained: saved.TrainedModel) -> saved.TrainedModel:
  """The same model without the decoder of its class capsules.

  Args:
    trained: a network whose constructor takes `decoder_features`.

  Returns:
    The model with the other tensors, which gives the same classes. Its card has
    the metrics of the whole model, without those of reconstructions.

  Raises:
    ValueError: if the model has no such decoder.
  """
  spec = specs.from_json(trained.card)
  tensors = named_tensors.of_model(trained.model)
  kept = {n: x for n, x in tensors.items() if not n.startswith("decoder.")}
  try:
    has_decoder = bool(spec.argument("decoder_features"))
  except KeyError:
    has_decoder = False
  if not has_decoder:
    raise ValueError(
      f"this {type(trained.model).__name__} has no decoder of class capsules; "
      "leave out --without_decoder"
    )
  spec = spec.with_arguments(decoder_features=())
  model = named_tensors.fill(spec.shapes(), kept)
  card = trained.card | spec.as_json()
  card["num_parameters"] = train_step.num_parameters(model)
  for entry in ("metrics", "num_images"):
    values = trained.card.get(entry, {}).items()
    card[entry] = {n: x for n, x in values if "reconstruction" not in n}
  return saved.TrainedModel(model, card)


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
      ["pretrained", "half", "without_decoder"]
      if is_graph
      else ["out", "graph"],
    )
    if _SOURCE.value and runs.WORKDIR.value:
      raise ValueError("--source and --workdir both name a model; give one")
    for flag in (_HALF, _WITHOUT_DECODER):
      if flag.value and not _PRETRAINED.value:
        raise ValueError(
          f"--{flag.name} is for --pretrained=NAME alone; leave it out"
        )
    if is_graph and _OUT.value is None:
      raise ValueError(f"--format={_FORMAT.value} needs --out=FILE")
    if is_graph:
      limits.refuse(
        f"--format={_FORMAT.value}",
        [
          "dataset",
          "data_dir",
          "image_size",
          "grayscale",
          "stream",
          "compilation_cache",
        ],  # fmt: skip
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
      if _WITHOUT_DECODER.value:
        model = without_decoder(model)
      print(add_pretrained(model, _PRETRAINED.value, test, half=_HALF.value))
    else:
      card = cards.write(run, trained.task, trained.model, test, summary)
      print(f"model.safetensors {card['sha256']} is in {run.workdir}")


if __name__ == "__main__":
  used = [name for name in runs.OF_READERS if name != "cpu_devices"]
  limits.run(main, shared=used)
