"""Graphs as ONNX files, by jax2onnx."""

import logging
import os
import pathlib
import shlex
import tempfile

from capjax import saved, weights
from capjax.exporting import graphs, portable

# jax2onnx pins a version of Orbax that conflicts with ours: it needs an
# environment of its own. The Makefile has the same list.
REQUIREMENTS = (
  "jax2onnx==0.17.1", "onnx>=1.20.1,<2", "onnx-ir>=0.2.1,<2",
  "onnxruntime>=1.24.1,<2", "equinox>=0.13.1,<0.14", "sympy>=1.13,<2",
  "mpmath>=1.3,<2", "dm-pix>=0.4.4,<0.5",
)  # fmt: skip
MISSING = (
  "ONNX files need jax2onnx, which is not installed here; in a checkout, run "
  "`make .venv-onnx` and repeat the command with .venv-onnx/bin/python; "
  f"elsewhere, run `pip install --no-deps {shlex.join(REQUIREMENTS)}`."
)


def write_onnx(
  trained: saved.TrainedModel,
  path: str | os.PathLike[str],
  *,
  graph: str = "model",
  batch_size: int | None = None,
) -> graphs.Graph:
  """Writes a graph for ONNX Runtime, with any batch size; the axis is `B`.

  Inputs and outputs have the names of the graph. The weights are in the file.

  Args:
    trained: the model.
    path: the file, such as `model.onnx`; written whole or not at all.
    graph: one of `graphs.NAMES`; see `graphs.graph`.
    batch_size: the only batch size of the file, which then has a third of the
      operations, since it does not compute shapes; None for any.

  Returns:
    The graph, with the names and shapes of its inputs and outputs.

  Raises:
    ModuleNotFoundError: if jax2onnx is not installed; the message has the
      remedy.
    ValueError: as `graphs.graph`, or if ONNX has no form of an operation, or
      ONNX Runtime does not accept the graph.
    OSError: if the file cannot be written.
  """
  try:
    import jax2onnx
    import onnx
    import onnxruntime
  except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"{MISSING} ({error})", name=error.name) from None
  found = graphs.graph(trained, graph)
  inputs = found.batch(batch_size)
  names = list(found.outputs)

  def in_order(*arguments):
    results = found.function(*arguments)
    return [results[name] for name in names]

  onnxruntime.set_default_logger_severity(3)  # errors alone
  # Traced before jax2onnx replaces functions of JAX by its own.
  function = portable.portable(in_order, inputs)
  with tempfile.TemporaryDirectory() as folder:
    file = pathlib.Path(folder) / "graph.onnx"
    for package in ("jax2onnx", "onnx_ir"):
      logging.getLogger(package).setLevel(logging.ERROR)
    try:
      jax2onnx.to_onnx(
        function,
        inputs=inputs,
        input_names=list(found.inputs),
        output_names=names,
        return_mode="file",
        output_path=file,
      )
    except NotImplementedError as error:
      raise ValueError(
        f"this {type(trained.model).__name__} has an operation without a form "
        f"in ONNX ({error}); export it with --format=stablehlo."
      ) from error
    # Weights of more than a megabyte come in a file of their own.
    content = onnx.load(file).SerializeToString(deterministic=True)
  try:
    onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
  except Exception as error:  # its type depends on the fault
    raise ValueError(
      f"ONNX Runtime does not accept the graph of this "
      f"{type(trained.model).__name__}; export it with --format=stablehlo."
    ) from error
  weights.write_whole(path, content)
  return found
