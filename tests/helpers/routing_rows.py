"""All routings: rows of the tests that hold them all.

`CASES` are rows of `kernel_cases`; `PROPERTIES` say what holds of a routing,
for `all_routings_test`; `LAYERS` what layers compute with a routing by name.
A routing has its rows of all three in one file.
"""

import functools

import agreement_rows
import attention_rows
import clustering_rows
from routing_types import rotation

__all__ = ["CASES", "LAYERS", "PROPERTIES", "rotation"]

_FILES = agreement_rows, clustering_rows, attention_rows
CASES = {name: row for file in _FILES for name, row in file.CASES.items()}
# Gradients of these may be those of the last iteration, and not differences.
_ITERATE = (
  "dynamic.dynamic_routing",
  "dynamic.transform_and_route",
  "grid.grid_routing",
  "sinkhorn.sinkhorn_routing",
  "attention.inverted_attention_routing",
  "attention.inverted_attention_routing of factors",
  "heinsen.heinsen_em_routing",
  "heinsen.heinsen_vector_routing",
  "variational.variational_routing",
  "em.em_routing",
  "em_convolution.em_convolution",
)


def last(name: str) -> str:
  """The row of a kernel with the gradient of its last iteration."""
  return f"{name} through the last iteration"


CASES |= {
  last(name): CASES[name]._replace(
    function=functools.partial(CASES[name].function, gradient="last"),
    smooth=False,
  )
  for name in _ITERATE
}
PROPERTIES = {
  name: row for file in _FILES for name, row in file.PROPERTIES.items()
}
LAYERS = {name: row for file in _FILES for name, row in file.LAYERS.items()}
