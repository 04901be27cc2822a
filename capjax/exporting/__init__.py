"""Trained models as graphs that run without this package.

`write_stablehlo` writes a file that `jax.export` reads in any program with JAX.
`write_onnx` writes a file that ONNX Runtime runs, also in a browser. The graphs
take any number of images at a time.
"""

from capjax.exporting.graphs import NAMES, Graph, graph
from capjax.exporting.onnx_files import write_onnx
from capjax.exporting.stablehlo import load_stablehlo, write_stablehlo

__all__ = [
  "NAMES",
  "Graph",
  "graph",
  "load_stablehlo",
  "write_onnx",
  "write_stablehlo",
]
