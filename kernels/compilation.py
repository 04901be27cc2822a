"""A setting of XLA without which results on CPUs are wrong.

From jaxlib 0.10.2 on, and in 0.12.0 still, XLA hands reductions on CPUs to a
library that confuses `log(c x)` with `log(x)` if one large sum contains both:
`jnp.sum(jnp.log(2 * p) + jnp.log(p), 1)` under `jit`, of 20,000 rows, is off by
log 2 for each term. Densities are such sums. See `docs/cpu_sums.md`.
"""

import importlib.metadata
import os
import sys
import warnings

_FLAG = "xla_cpu_experimental_ynn_fusion_type"
# Other releases may lack the flag, and an unknown flag ends the process.
_FIRST, _LAST = (0, 10, 1), (0, 12)


def keep_reductions() -> None:
  """Leaves reductions on CPUs to XLA itself, by the variable XLA_FLAGS.

  JAX reads the variable when it first computes. If it has computed already, a
  RuntimeWarning says so, and what to do. A user's own value of this flag is
  kept.
  """
  version = importlib.metadata.version("jaxlib").split(".")
  numbers = tuple(int(x) for x in version[:3] if x.isdigit())
  options = os.environ.get("XLA_FLAGS", "")
  if _FIRST <= numbers and numbers[:2] <= _LAST and _FLAG not in options:
    os.environ["XLA_FLAGS"] = f"{options} --{_FLAG}=-reduce".strip()
    if _cpu_is_in_use():
      warnings.warn(
        "JAX has computed before capjax was imported, so large sums of "
        "logarithms on this CPU can be wrong (docs/cpu_sums.md); import "
        f"capjax first, or start Python with XLA_FLAGS=--{_FLAG}=-reduce.",
        RuntimeWarning,
        stacklevel=3,
      )


def _cpu_is_in_use() -> bool:
  """Whether JAX has started to compute, and does so on the CPU."""
  # JAX has no public function that tells this without starting it.
  bridge = sys.modules.get("jax._src.xla_bridge")
  started = getattr(bridge, "backends_are_initialized", lambda: False)
  return started() and sys.modules["jax"].default_backend() == "cpu"
