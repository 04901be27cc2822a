"""Graphs as StableHLO, which any program with JAX runs on any platform."""

import os
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.export  # not a part of `jax` until it is imported

from capjax import saved, weights
from capjax.exporting import graphs

PLATFORMS = ("cpu", "cuda", "tpu")


def write_stablehlo(
  trained: saved.TrainedModel,
  path: str | os.PathLike[str],
  *,
  graph: str = "model",
) -> graphs.Graph:
  """Writes a graph for CPUs, GPUs of NVIDIA and TPUs, with any batch size.

  The weights are in the file. JAX promises to read it for six months after the
  release that wrote it (`jax.export`).

  Args:
    trained: the model.
    path: the file, such as `model.stablehlo`; written whole or not at all.
    graph: one of `graphs.NAMES`; see `graphs.graph`.

  Returns:
    The graph, with the names and shapes of its inputs and outputs.

  Raises:
    ValueError: as `graphs.graph`.
    OSError: if the file cannot be written.
  """
  found = graphs.graph(trained, graph)
  exported = jax.export.export(jax.jit(found.function), platforms=PLATFORMS)(
    *found.batch()
  )
  weights.write_whole(path, bytes(exported.serialize()))
  return found


def load_stablehlo(
  path: str | os.PathLike[str],
) -> Callable[..., dict[str, Any]]:
  """Loads a function that `write_stablehlo` wrote.

  It is `jax.jit(jax.export.deserialize(bytes).call)`, so a program that has
  only JAX can do the same.

  Args:
    path: the file.

  Returns:
    A function of the inputs [B ...] in order, which returns outputs [B ...] by
    name. Each new B is compiled once.

  Raises:
    FileNotFoundError: if there is no such file.
    ValueError: if the file is no such graph.
  """
  content = bytearray(pathlib.Path(path).expanduser().read_bytes())
  try:
    exported = jax.export.deserialize(content)
  except Exception as error:  # flatbuffers raises errors of many kinds
    raise ValueError(
      f"{path} is no graph of jax.export, or is damaged; give a file that "
      "capjax export --format=stablehlo wrote."
    ) from error
  return jax.jit(exported.call)
