"""A setting of XLA without which results on CPUs are wrong.

From jaxlib 0.10.2 on, and in 0.12.0 still, XLA hands reductions on CPUs to a
library that takes `log(c x)` for `log(x)` where one large sum holds both:
`jnp.sum(jnp.log(2 * p) + jnp.log(p), 1)` under `jit`, of 20,000 rows, is off by
log 2 for each term. Densities are such sums. See jax-ml/jax#39103.
"""

import importlib.metadata
import os

_FLAG = "xla_cpu_experimental_ynn_fusion_type"
# Other releases may lack the flag, and JAX ends where one is unknown.
_FIRST, _LAST = (0, 10, 1), (0, 12)


def keep_reductions() -> None:
  """Leaves reductions on CPUs to XLA itself, by the variable XLA_FLAGS.

  It is read when JAX first computes. A user's own choice stays.
  """
  version = importlib.metadata.version("jaxlib").split(".")
  numbers = tuple(int(x) for x in version[:3] if x.isdigit())
  options = os.environ.get("XLA_FLAGS", "")
  if _FIRST <= numbers and numbers[:2] <= _LAST and _FLAG not in options:
    os.environ["XLA_FLAGS"] = f"{options} --{_FLAG}=-reduce".strip()
