"""The small form of `make fuzz`: every kernel, compiled, within its range."""

import fuzz
import jax
import jax.numpy as jnp
import kernel_cases
import numpy as np
import pytest
from kernel_arguments import Case


def _squash_unguarded(s):
  length = jnp.sqrt(jnp.sum(jnp.square(s)))
  return s * length / (1 + jnp.square(length))


def _halved_above_one(s):
  """Another function in float32 than in float64."""
  is_wide = s.dtype == np.float64
  return s if is_wide else jnp.where(jnp.abs(s) > 1, s / 2, s)


@pytest.mark.parametrize("name", kernel_cases.CASES)
@pytest.mark.long
def test_numbers_that_float64_has_are_finite(name):
  case = kernel_cases.CASES[name]
  batch = fuzz.draw(case, seed=0)
  inside = batch.magnitudes <= case.largest
  arguments = {name: x[inside] for name, x in batch.arguments.items()}
  found = fuzz.run(case, arguments, fuzz.Form())
  if all(np.all(np.isfinite(x)) for xs in found.values() for x in xs):
    return  # float64 is asked of the others alone, since it costs as much
  counts = fuzz.compare(case, batch, fuzz.Form())["within"]
  assert not any(x.avoidable for x in counts.values()), counts


@pytest.mark.parametrize(
  ("name", "largest"),
  [
    ("attention.inverted_attention_routing", 1e17),
    ("attention.self_attention_routing of factors", 1e17),
    ("em.em_routing", 1e14),
    ("em_convolution.em_convolution", 1e4),
    ("dynamic.dynamic_routing", 1e35),
    ("dynamic.transform_and_route", 1e17),
    ("variational.variational_routing", 1e12),
  ],
)
@pytest.mark.long_after_first
def test_values_have_a_wider_range_than_gradients(name, largest):
  case = kernel_cases.CASES[name]
  assert largest > case.largest
  case = case._replace(reverse=False, largest=largest)
  counts = fuzz.compare(case, fuzz.draw(case, seed=0), fuzz.Form())["within"]
  assert counts["values"].cases and not counts["values"].avoidable


@pytest.mark.parametrize("name", kernel_cases.CASES)
def test_kernels_take_all_sizes_of_the_large_form(name):
  case = kernel_cases.CASES[name]
  for sizes in fuzz.sizes_of(case):
    drawn = kernel_cases.draw(case, np.random.default_rng(0), sizes=sizes)
    arguments = {n: np.float32(x) for n, x in drawn.items()}
    jax.eval_shape(lambda given: case.function(**given), arguments)


def test_the_edge_of_a_range_is_drawn():
  case = Case(_squash_unguarded, {"s": "D"}, largest=3e7)
  batch = fuzz.draw(case, seed=0)
  assert 3e7 in batch.magnitudes
  row = np.max(np.abs(batch.arguments["s"]), axis=1)
  assert np.max(row[batch.magnitudes == 3e7]) > 1e7


@pytest.mark.parametrize(
  ("broken", "what", "fault"),
  [
    (_squash_unguarded, "gradients", "avoidable"),
    (_halved_above_one, "values", "differ"),
  ],
)
def test_broken_kernels_are_found(broken, what, fault):
  case = Case(broken, {"s": "D"})
  counts = fuzz.compare(case, fuzz.draw(case, seed=0), fuzz.Form())["within"]
  assert getattr(counts[what], fault) > 0


# Poses reach far beyond the range that the table asks for.
@pytest.mark.parametrize("name", ["geometry.invert", "warping.warp"])
@pytest.mark.parametrize("magnitude", [1e15, 1e20, 1e30])
@pytest.mark.long_after_first
def test_huge_poses_are_finite(name, magnitude):
  case = kernel_cases.CASES[name]
  random = np.random.default_rng(0)
  rows = [kernel_cases.draw(case, random) for _ in range(20)]
  batch = fuzz.Batch(
    {name: np.stack([row[name] for row in rows]) for name in rows[0]},
    np.full(len(rows), 1.0),
  )
  batch.arguments["pose"] = magnitude * batch.arguments["pose"]
  for counts in fuzz.compare(case, batch, fuzz.Form())["within"].values():
    assert not counts.avoidable, counts
