"""Probabilities and masses that are out of their range, in known arrays."""

import math
import re

import jax
import jax.numpy as jnp
import kernel_cases
import numpy as np
import pytest

from kernels import checks

# Arguments that are probabilities or masses, of any kernel.
_CHECKED = (
  "activations", "presence", "alphas", "front_alphas", "back_alphas", "mass",
)  # fmt: skip
# Whose masses have no upper bound.
_UNBOUNDED = (
  "variational.",
  "attention.self_routing",
  "sinkhorn.",
  "sparsity.posterior",
)
_ROWS = [
  (name, given)
  for name, case in kernel_cases.CASES.items()
  for given in case.arguments
  if given in _CHECKED
]


def _arguments(name, given, value):
  """Drawn arguments, of which one has one other value."""
  case = kernel_cases.CASES[name]
  drawn = kernel_cases.draw(case, np.random.default_rng(0))
  drawn[given].flat[-1] = value
  return {name: jnp.float32(x) for name, x in drawn.items()}


@pytest.mark.parametrize(("name", "given"), _ROWS)
def test_kernels_refuse_values_out_of_range(name, given):
  call = kernel_cases.CASES[name].function
  told = {"front_alphas": "alphas", "back_alphas": "alphas behind"}
  told = told.get(given, given)
  bounded = not name.startswith(_UNBOUNDED)
  remedy = "give numbers from 0 to 1." if bounded else "give numbers from 0."
  words = rf"^{told} has values from -0.5 to .*; {re.escape(remedy)}$"
  with pytest.raises(ValueError, match=words):
    call(**_arguments(name, given, -0.5))
  with pytest.raises(ValueError, match=f"{told} has NaN or infinite values; "):
    call(**_arguments(name, given, np.nan))
  if bounded:
    with pytest.raises(ValueError, match=f"{told} has values from .* to 1.5; "):
      call(**_arguments(name, given, 1.5))


@pytest.mark.parametrize(("name", "given"), _ROWS)
def test_values_that_are_traced_are_not_looked_at(name, given):
  call = kernel_cases.CASES[name].function
  arguments = _arguments(name, given, 1.5)
  assert jax.tree.leaves(jax.eval_shape(lambda x: call(**x), arguments))


def test_the_rows_are_those_of_the_table():
  names = {name.split(".")[0] for name, _ in _ROWS}
  assert names >= {
    "attention", "compositing", "constellations", "em", "em_convolution",
    "heinsen", "mixture", "ransac", "sinkhorn", "slots", "sparsity",
    "variational", "vote_mixture",
  }  # fmt: skip


def test_rounding_passes_and_so_does_nothing():
  checks.values(0.0, 1.0, x=np.array([-5e-4, 1 + 5e-4]), y=None)
  checks.values(0.0, math.inf, x=np.zeros((0, 2)), y=np.array([7.0]))
  with pytest.raises(ValueError, match=r"x has values from 0 to 1\.002; give"):
    checks.values(0.0, 1.0, x=np.array([0.0, 1.002]))
