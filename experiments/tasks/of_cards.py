"""Tasks for measuring models of which only the card is known."""

from collections.abc import Mapping
from typing import Any

import optax

from capjax import specs
from capjax.baselines import CapsNetBaseline
from capjax.capsnet import CapsNet
from capjax.data.transforms import preprocessing
from capjax.efficient_capsnet import EfficientCapsNet

from ..training.augmentation import Placement
from ..training.task import Task
from . import capsnet

_CLASSIFIERS = (CapsNet, EfficientCapsNet, CapsNetBaseline)


def task_of(card: Mapping[str, Any]) -> Task:
  """The task by which a classifier is measured; not for training.

  Args:
    card: of a model of `capsnet.make_task`; see `saved.make_card`.

  Raises:
    ValueError: if the model is of another family.
  """
  spec = specs.from_json(card)
  if spec.maker not in _CLASSIFIERS:
    names = ", ".join(x.__name__ for x in _CLASSIFIERS)
    raise ValueError(
      f"a {spec.maker.__name__} that was trained on arrays is measured in "
      f"Python, with capjax.load; evaluate is for {names}"
    )
  steps = preprocessing.from_json(card["preprocessing"])
  placement = Placement(
    canvas=steps.canvas[0] if steps.canvas else 0,
    downsample=steps.downsample or 0,
    crop=steps.crop or 0,
    standardise=steps.standardise,
  )
  weight = (
    {} if spec.argument("decoder_features") else {"reconstruction_weight": 0.0}
  )
  return capsnet.make_task(
    spec, optax.identity(), placement=placement, **weight
  )
