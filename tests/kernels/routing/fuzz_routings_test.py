"""The record of what each routing gives at arguments of every magnitude."""

import fuzz_routings
import jax.numpy as jnp
import kernel_cases
import routing_rows
from kernel_arguments import Case

from capjax.layers import routers


def test_every_routing_has_its_kernels():
  assert set(routing_rows.LAYERS) == set(routers.NAMES)
  for layer in routing_rows.LAYERS.values():
    assert layer.kernels and set(layer.kernels) <= set(kernel_cases.CASES)


def test_cases_that_are_not_finite_are_counted_once():
  def root(x):  # infinite gradients at 0, no values below
    return jnp.sqrt(jnp.maximum(x, 0))

  def double(x):
    return 2 * x

  lost = fuzz_routings.count(Case(root, {"x": "I"}), seed=0, repeats=1)
  kept = fuzz_routings.count(Case(double, {"x": "I"}), seed=0, repeats=1)
  assert kept["cases"] == lost["cases"] > lost["cases_within"] > 0
  assert kept["not_finite"] == 0
  assert 0 < lost["not_finite_within"] < lost["not_finite"] <= lost["cases"]
