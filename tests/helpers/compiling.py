"""How XLA compiles in tests, where that takes longer than running."""

import importlib.metadata
import os


def _flags() -> str:
  # Operations and their order stay; instructions are chosen less well.
  flags = [
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_parallel_codegen_split_count=1",
  ]
  version = importlib.metadata.version("jaxlib").split(".")
  if tuple(int(x) for x in version[:2]) < (0, 11):
    # A quarter of the time. Later releases end where they read it.
    flags.append("--xla_cpu_use_fusion_emitters=false")
  return " ".join(flags)


FLAGS = _flags()


def compile_quickly() -> None:
  """Before JAX first computes. What the caller has set stays as it is.

  One thread for k-means and t-SNE: with more, they wait for one another where
  other tests hold the cores.
  """
  os.environ.setdefault("XLA_FLAGS", FLAGS)
  os.environ.setdefault("OMP_NUM_THREADS", "1")
