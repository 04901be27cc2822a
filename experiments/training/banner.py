"""Lines that describe a run, printed before it begins."""

import os
from collections.abc import Mapping
from typing import Any

import jax
from flax import nnx

from capjax import data

from .loop_config import LoopConfig

_PARTS = 8  # of a model that are named


def lines(
  *,
  device: str,
  model: Any,
  name: str,
  dataset: str,
  train: data.Dataset,
  validation: data.Dataset,
  test: data.Dataset,
  config: LoopConfig,
) -> list[str]:
  """The lines on device, model, data and steps.

  Args:
    device: the kind and number of devices.
    model: the model, or its shapes.
    name: the name of the model.
    dataset: the name of the data set.
    train: the examples to train on.
    validation: the examples for validation; may be empty.
    test: the test set.
    config: the configuration of training.
  """
  counts = parameters(model)
  parts = sorted(counts.items(), key=lambda item: -item[1])
  words = [f"{part} {count:,}" for part, count in parts[:_PARTS]]
  rest = sum(count for _, count in parts[_PARTS:])
  words += [f"{len(parts) - _PARTS} others {rest:,}"] if rest else []
  height, width, channels = train.images.shape[1:]
  kind = f"images of {height}x{width}x{channels}"
  if height * width * channels == 1:
    kind = "examples"  # Constellations, which are sampled by their number.
  classes = f"{train.num_classes} classes"
  labels = classes if train.is_labelled else "without labels"
  epoch = len(train.images) // config.batch_size
  return [
    f"device: {device}{_determinism()}",
    f"model: {name} of {sum(counts.values()):,} parameters: {', '.join(words)}",
    f"data: {dataset}, {len(train.images):,} {kind} to train on, "
    f"{len(validation.images):,} for validation, {len(test.images):,} to test; "
    f"{labels}",
    f"training: {config.num_steps:,} steps of {config.batch_size}, {epoch:,} "
    "steps an epoch",
  ]


def _determinism() -> str:
  """A remark on deterministic operations, if a GPU uses them; else empty."""
  asked = "--xla_gpu_deterministic_ops=true" in os.environ.get("XLA_FLAGS", "")
  if jax.default_backend() != "gpu" or not asked:
    return ""
  return (
    ", deterministic operations; some models are several times faster with "
    "--nodeterministic"
  )


def parameters(model: Any) -> Mapping[str, int]:
  """The number of parameters of each layer, by attribute of the model.

  A list of layers counts as one layer for each of its entries.
  """
  counts: dict[str, int] = {}
  state = nnx.state(model, nnx.Param)
  for path, x in jax.tree_util.tree_leaves_with_path(state):
    keys = [_key(entry) for entry in path]
    of_list = len(keys) > 1 and keys[1].isdecimal()
    name = ".".join(keys[: 2 if of_list else 1])
    counts[name] = counts.get(name, 0) + x.size
  return counts


def _key(entry: Any) -> str:
  """The name of one step of a path in a pytree."""
  for attribute in ("key", "name", "idx"):
    if hasattr(entry, attribute):
      return str(getattr(entry, attribute))
  return str(entry)
