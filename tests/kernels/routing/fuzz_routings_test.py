"""The record of what each routing gives at arguments of every magnitude."""

import fuzz_routings
import jax.numpy as jnp
import kernel_cases
from kernel_arguments import Case

from capjax.layers import routers


def test_every_routing_has_its_kernels():
  assert set(fuzz_routings.KERNELS) == set(routers.NAMES)
  for names in fuzz_routings.KERNELS.values():
    assert set(names) <= set(kernel_cases.CASES)


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
