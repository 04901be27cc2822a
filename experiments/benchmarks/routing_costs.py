"""Time and memory of several networks, in turns in one process.

`python -m experiments.measure_routings` measures one network with each routing.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from . import harness


def costs(
  forms: Mapping[str, tuple[nnx.Module, Callable[..., Any]]],
  images: jax.Array,
  labels: jax.Array,
  *,
  rounds: int,
) -> dict[str, float]:
  """Times the class activations and a gradient of several networks, in turns.

  Args:
    forms: by name, a network and its loss, `(model, images, labels, key, step)
      -> (scalar, metrics)`.
    images: [B H W C] in [0, 1].
    labels: [B].
    rounds: timed calls of each form.

  Returns:
    For each name: `NAME_forward_ms` and `NAME_gradient_ms`, the shortest time
    of a batch, where the gradient includes its forward pass; and
    `NAME_forward_megabytes` and `NAME_gradient_megabytes`, the memory allocated
    in addition to parameters, images and results.
  """
  models = {name: model for name, (model, _) in forms.items()}

  def forward(name):
    return lambda models: models[name](images).activations

  def gradient(name):
    _, loss = forms[name]

    def of_parameters(parameters, rest, graph):
      model = nnx.merge(graph, parameters, rest)
      return loss(model, images, labels, jax.random.key(0), jnp.int32(0))[0]

    def both(models):
      graph, *parts = nnx.split(models[name], nnx.Param, ...)
      return jax.value_and_grad(of_parameters)(*parts, graph)

    return both

  names = [
    (name, kind, make)
    for name in forms
    for kind, make in (("forward", forward), ("gradient", gradient))
  ]
  found = harness.measure_all(
    [make(name) for name, _, make in names],
    models,
    rounds=rounds,
    shortest=True,
  )
  metrics = {}
  for (name, kind, _), cost in zip(names, found, strict=True):
    metrics[f"{name}_{kind}_ms"] = 1e3 * cost.seconds
    metrics[f"{name}_{kind}_megabytes"] = cost.temporary_bytes / 1e6
  return metrics
