"""Times sums over images and positions, which are the gradients of biases.

  python -m experiments.benchmarks.row_sums

The textbook form is XLA's own sum; ours is a product with ones. If XLA_FLAGS
contains --xla_cpu_experimental_ynn_fusion_type=reduce, XLA's sum is that of a
library, which is faster but can be wrong (docs/cpu_sums.md).
"""

import jax
import jax.numpy as jnp

from capjax.kernels import broadcasting

from ..flags import limits
from . import harness, rows

# Images, height, width and channels, as the convolutions of CapsNet and of
# smaller networks give them.
SHAPES = ((128, 20, 20, 256), (128, 19, 19, 128), (128, 9, 9, 128))


def textbook(x: jax.Array) -> jax.Array:
  """The sum over all axes but the last, by `jnp.sum`."""
  return jnp.sum(x, axis=(0, 1, 2))


def ours(x: jax.Array) -> jax.Array:
  """The same sum, as a product of matrices."""
  return broadcasting.sum_rows(x.reshape(-1, x.shape[-1]))


def main() -> None:
  operations, transfer = harness.rates()
  for shape in SHAPES:
    x = jax.random.normal(jax.random.key(0), shape)
    theirs, own = harness.measure_all((textbook, ours), x, rounds=25)
    setting = " x ".join(map(str, shape))
    rows.note(
      rows.Row(
        "sum over images and positions",
        setting,
        own.seconds,
        theirs.seconds,
        x.size / operations,
        x.nbytes / transfer,
      )
    )
    print(
      f"{setting:20s} XLA {1e3 * theirs.seconds:.2f} ms, as a product "
      f"{1e3 * own.seconds:.2f} ms",
      flush=True,
    )


if __name__ == "__main__":
  limits.run(main)
