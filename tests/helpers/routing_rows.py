"""All routings, as rows for the tests that check all of them.

`CASES` are rows of `kernel_cases`. `PROPERTIES` has the properties of each
routing, for `all_routings_test`. `LAYERS` has what layers compute with a
routing by name. `LAST` has the last iterations of routings that iterate. The
rows of one routing are all in one file.
"""

import functools

import agreement_rows
import attention_rows
import clustering_rows
from routing_types import rotation

__all__ = ["CASES", "LAST", "LAYERS", "PROPERTIES", "rotation"]

_FILES = agreement_rows, clustering_rows, attention_rows
CASES = {name: row for file in _FILES for name, row in file.CASES.items()}


def last(name: str) -> str:
  """The name of a kernel's row with the gradient of its last iteration."""
  return f"{name} through the last iteration"


CASES |= {
  last(name): case._replace(
    function=functools.partial(case.function, gradient="last"),
    smooth=False,
  )
  for name, case in CASES.items()
  if case.iterates
}
PROPERTIES = {
  name: row for file in _FILES for name, row in file.PROPERTIES.items()
}
LAYERS = {name: row for file in _FILES for name, row in file.LAYERS.items()}
LAST = {name: row for file in _FILES for name, row in file.LAST.items()}
