"""Compiles the updates of presets for a GPU, on a machine that has none.

  make gpu-compilation

On a real GPU, XLA also times several kernels for a product and takes the
fastest. Here XLA takes its first choice, so that compilation takes less time
than on a GPU.
"""

import os
import re
import time
from typing import Any, NamedTuple

# Set before JAX is imported, which then looks neither for a GPU nor for its
# libraries.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
os.environ["XLA_FLAGS"] = (
  "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false"
)

import jax
import numpy as np
import optax
from flax import nnx
from jax.experimental import topologies

from experiments.benchmarks import step_cost, systems
from experiments.training import train_step

# What XLA must know of a device, here an H100.
_H100 = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 84929347584
  cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 7 }
runtime_version { major: 13 minor: 0 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
_MNIST = (28, 28, 1)
_MAIN = {
  "CapsNet": ("capsnet", "mnist_full_cpu", _MNIST),
  "convolutional capsules": ("capsnet", "networks_mnist_cpu", _MNIST),
  "matrix capsules, 68K": ("matrix_capsules", "matrix_mnist", _MNIST),
  "matrix capsules, 310K": ("matrix_capsules", "solids_paper", (96, 96, 2)),
  "stacked capsule autoencoder": ("scae", "scae_mnist_40", _MNIST),
  "capsule RBM": ("boltzmann", "boltzmann_mnist", _MNIST),
}


class Compilation(NamedTuple):
  """The compilation of an update.

  Attributes:
    trace_seconds: of tracing and lowering.
    seconds: of XLA.
    num_kernels: fusions and calls of libraries.
    temporary_bytes: memory in addition to state and images.
  """

  trace_seconds: float
  seconds: float
  num_kernels: int
  temporary_bytes: int


def compile_update(
  binary: str, preset: str, image_shape: tuple[int, ...]
) -> Compilation:
  """Compiles the update of a preset with Adam; once in a process."""
  topology = topologies.get_topology_desc(
    platform="cuda", target_config=_H100, topology="1x1x1"
  )
  mesh = jax.sharding.Mesh(np.array(topology.devices[:1]), ("data",))
  whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
  task, batch = systems.task_of(binary, preset)
  model = task.describe(image_shape, 10).make(nnx.Rngs(0))
  model.train()
  optimizer = optax.adam(1e-3)
  update = train_step.make_update(
    task.loss, optimizer, sample=task.sample, batch_size=batch, mesh=mesh
  )
  state = train_step.init(model, optimizer, jax.random.key(0))
  images = np.zeros((10 * batch, *image_shape), np.uint8)
  labels = np.zeros(10 * batch, np.int32)
  examples: Any = state, update.zeros(state, images, labels), images, labels
  shapes = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(np.shape(x), x.dtype, sharding=whole),
    examples,
  )
  start = time.monotonic()
  traced = update.add.trace(*shapes, 1)
  lowered = traced.lower(lowering_platforms=("cuda",))
  traced_at = time.monotonic()
  compiled = lowered.compile()
  taken = time.monotonic() - traced_at
  kernels = re.findall(" (?:fusion|custom-call)\\(", compiled.as_text())
  return Compilation(
    traced_at - start,
    taken,
    len(kernels),
    compiled.memory_analysis().temp_size_in_bytes,
  )


def main() -> None:
  print(f"jax {jax.__version__}, for an H100")
  for system, arguments in (_MAIN | systems.SYSTEMS).items():
    found = step_cost.in_process(compile_update, *arguments)
    print(
      f"{system:28s} {arguments[1]:24s} traced in {found.trace_seconds:.1f} s, "
      f"compiled in {found.seconds:.1f} s, {found.num_kernels} kernels, "
      f"{found.temporary_bytes / 1e6:.0f} MB temporary",
      flush=True,
    )


if __name__ == "__main__":
  main()
