"""Flags of XLA for tests, where compilation takes longer than execution."""

import importlib.metadata
import os


def _flags() -> str:
  # Operations and their order stay the same; machine code is less optimised.
  flags = [
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_parallel_codegen_split_count=1",
  ]
  version = importlib.metadata.version("jaxlib").split(".")
  if tuple(int(x) for x in version[:2]) < (0, 11):
    # This saves a quarter of the time. Later releases refuse the flag.
    flags.append("--xla_cpu_use_fusion_emitters=false")
  return " ".join(flags)


FLAGS = _flags()


def compile_quickly() -> None:
  """Sets variables for quick compilation; call it before JAX first computes.

  Variables that are already set are kept. k-means and t-SNE get one thread:
  several threads would wait for each other while other tests use the cores.
  """
  os.environ.setdefault("XLA_FLAGS", FLAGS)
  os.environ.setdefault("OMP_NUM_THREADS", "1")
