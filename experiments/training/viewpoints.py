"""Training on some viewpoints of toys, to be tested on the others.

Hinton, Sabour, Frosst (2018), Matrix capsules with EM routing, section 5.1.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from capjax import data
from capjax.data.sources import smallnorb

_FAMILIAR = {
  "azimuth": smallnorb.familiar_azimuths,
  "elevation": smallnorb.familiar_elevations,
}
VIEWPOINTS = ("all", *_FAMILIAR)


def held_out(viewpoints: str) -> dict[str, Callable[..., Any]]:
  """The fields of a `Task` that keep novel viewpoints out of training.

  Validation uses test images from the viewpoints of training, as in the paper,
  so that networks can be compared at the same accuracy on them.

  Args:
    viewpoints: to train on, one of `VIEWPOINTS`.

  Returns:
    `split` and `familiar`; nothing for `all`.
  """
  if viewpoints == "all":
    return {}
  known = functools.partial(familiar, viewpoints=viewpoints)

  def split(train, test):
    kept = (data.select(x, known(x.factors)) for x in (train, test))
    return tuple(kept)

  return {"split": split, "familiar": known}


def scored_by(viewpoints: str) -> str:
  """The name of the suite that measures a classifier's errors on the test set.

  Where test images from familiar viewpoints are the validation set, only those
  from novel ones are a test, and `accuracy` would mix both.
  """
  return "accuracy" if viewpoints == "all" else "viewpoints"


def familiar(factors: dict[str, np.ndarray], *, viewpoints: str) -> np.ndarray:
  """Which examples [N] are seen from the viewpoints of training.

  Args:
    factors: `{name: [N]}`, the viewpoints of the examples.
    viewpoints: `azimuth` or `elevation`.

  Raises:
    ValueError: if there are no factors.
  """
  if not factors:
    raise ValueError(
      f"viewpoints={viewpoints} (--viewpoints): this data set does not tell "
      "viewpoints; use viewpoint_solids, or smallnorb from its own files or "
      "TensorFlow Datasets"
    )
  return _FAMILIAR[viewpoints](factors)
