"""Writes the graphs of the explorer, and the test images it offers.

  .venv-onnx/bin/python -m explorer.export
  .venv-onnx/bin/python -m explorer.export --images DIR   # of mnist/

Each graph is an ONNX file in `models`, with large arrays of weights in 16 or 8
bits; `models/models.json` has the size and SHA-256 of each, and the SHA-256 of
the weights it comes from.
"""

import argparse
import json
import pathlib
from typing import NamedTuple

import numpy as np

from capjax import data, exporting, pretrained, weights

HERE = pathlib.Path(__file__).parent
MODELS = HERE / "models"
IMAGES = HERE / "images"


class Row(NamedTuple):
  """A graph of the explorer.

  Attributes:
    model: a pretrained name.
    graph: one of `exporting.NAMES`.
    bits: of each stored weight; 8 where only a picture depends on it.
    batch_size: examples at a time, such as chains.
  """

  model: str
  graph: str
  bits: int = 16
  batch_size: int = 1

  @property
  def name(self) -> str:
    """The name of the file, without its ending."""
    return f"{self.model}-{self.graph}"


ROWS = (
  Row("mnist_quarter", "routing"),
  Row("mnist_quarter", "decoder", bits=8),
  Row("multimnist_quarter", "routing"),
  Row("multimnist_quarter", "decoder", bits=8, batch_size=2),
  # After these two, jax2onnx converts the frame around images wrongly in the
  # same process; ONNX Runtime refuses such a graph.
  Row("generative_mnist", "model"),
  Row("generative_mnist", "decoder"),
  Row("generative_mnist", "parts"),
  Row("boltzmann_mnist", "sweep", batch_size=6),
)
_LARGE = 4096  # arrays with fewer numbers stay as they are
# Images of the test set of MNIST: the first two of each class.
_SHOWN = 20


def write(row: Row, path: pathlib.Path) -> None:
  """Exports a graph and stores its large weights in few bits."""
  import onnx

  exporting.write_onnx(
    pretrained.load(row.model),
    path,
    graph=row.graph,
    batch_size=row.batch_size,
  )
  model = onnx.load(path)
  shorten(model, bits=row.bits)
  weights.write_whole(path, model.SerializeToString(deterministic=True))


def shorten(model, *, bits: int) -> None:
  """Stores large float32 weights in 16 or 8 bits, which the graph widens.

  With 8 bits each column, along the last axis, has a scale of its own.

  Args:
    model: an ONNX model, which is changed.
    bits: 16 or 8.
  """
  import onnx
  from onnx import helper, numpy_helper

  graph, widened = model.graph, []
  for tensor in list(graph.initializer):
    values = numpy_helper.to_array(tensor)
    if values.dtype != np.float32 or values.size < _LARGE:
      continue
    stored = f"{tensor.name}.stored"
    graph.initializer.remove(tensor)
    if bits == 16:
      small = values.astype(np.float16)
      node = helper.make_node(
        "Cast", [stored], [tensor.name], to=onnx.TensorProto.FLOAT
      )
    else:
      small, scales = quantised(values)
      scale_name = f"{tensor.name}.scales"
      graph.initializer.append(numpy_helper.from_array(scales, scale_name))
      node = helper.make_node(
        "DequantizeLinear",
        [stored, scale_name],
        [tensor.name],
        axis=values.ndim - 1,
      )
    graph.initializer.append(numpy_helper.from_array(small, stored))
    widened.append(node)
  nodes = [*widened, *graph.node]
  del graph.node[:]
  graph.node.extend(nodes)


def quantised(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """int8 numbers and the scale of each column, whose product is `values`."""
  largest = np.abs(values).max(axis=tuple(range(values.ndim - 1)))
  scales = np.where(largest > 0, largest / 127, 1).astype(np.float32)
  return np.rint(values / scales).astype(np.int8), scales


def write_table() -> None:
  """Writes sizes and hashes of all graphs, and of the weights behind them."""
  shipped = json.loads((pretrained.FOLDER / "sha256.json").read_text())
  table = {
    row.name: {
      "bytes": (MODELS / f"{row.name}.onnx").stat().st_size,
      "sha256": pretrained.file_digest(MODELS / f"{row.name}.onnx"),
      "weights": shipped[row.model],
    }
    for row in ROWS
  }
  (MODELS / "models.json").write_text(json.dumps(table, indent=2) + "\n")


def write_images(folder: str) -> None:
  """Writes test images of MNIST in a row, as PNG, and their labels."""
  from PIL import Image

  test = data.load("mnist", "test", data_dir=folder)
  chosen = []
  for label in range(10):
    chosen.extend(np.flatnonzero(test.labels == label)[: _SHOWN // 10])
  chosen = chosen[::2] + chosen[1::2]
  row = np.concatenate([test.images[n, :, :, 0] for n in chosen], axis=1)
  Image.fromarray(row).save(IMAGES / "mnist_test.png", optimize=True)
  images = [{"label": int(test.labels[n]), "index": int(n)} for n in chosen]
  text = json.dumps({"dataset": "MNIST, test set", "images": images}, indent=1)
  (IMAGES / "mnist_test.json").write_text(text + "\n")


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
  parser.add_argument("--images", metavar="DIR", help="write the test images")
  folder = parser.parse_args().images
  if folder:
    write_images(folder)
    return
  for row in ROWS:
    write(row, MODELS / f"{row.name}.onnx")
    print(row.name, (MODELS / f"{row.name}.onnx").stat().st_size)
  write_table()


if __name__ == "__main__":
  main()
