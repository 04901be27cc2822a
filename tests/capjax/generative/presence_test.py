"""What presence is worth to generative capsules."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from capjax import generative
from kernels.matching import selection

_SIGMA, _OFF, _SURE = 0.3, 2.0, 30.0


def _log_density(logit):
  """Of the pose of one child in the pose that its only parent expects."""
  capsules = generative.GenerativeCapsules(
    (9, 9, 1), num_capsules=(1, 1), template_size=3, off_scale=_OFF,
    dummy_affinity=1e-20, temperature=1.0, rngs=nnx.Rngs(0),
  )  # fmt: skip
  relations = capsules.relations[0]
  floor = relations.scale_floor
  relations.scales[...] = jnp.full((1, 1), np.log(np.expm1(_SIGMA - floor)))
  relations.presences[...] = jnp.zeros((1, 2))
  parents = selection.Capsules(
    jnp.full((1, 1), _SURE), jnp.full((1, 1, 6), 0.1)
  )
  expected = selection.expected_poses(parents.poses[0], relations.offsets[...])
  children = selection.Capsules(jnp.full((1, 1), logit), expected[None, :, 1])
  (selected,) = capsules.select((children, parents))
  return selected.log_densities[0, 0], capsules.absence_cost()


@pytest.mark.long
def test_absence_costs_what_is_said():
  """Also 11.6 nats at the median scale of a trained model."""
  present, costs = _log_density(_SURE)
  absent, _ = _log_density(-_SURE)
  want = 6 * np.log(_OFF / _SIGMA)
  assert present - absent == pytest.approx(want, abs=1e-3)
  np.testing.assert_allclose(costs[0], [[want]], rtol=1e-5)
  assert 6 * np.log(2 / 0.292) == pytest.approx(11.55, abs=0.01)


@pytest.mark.long
def test_the_objective_of_known_poses_grows_as_scales_fall():
  """By 6 log 10 for each child that is where its parent expects it."""
  values = []
  for floor in (1.0, 0.1):
    model = generative.GenerativeCapsules(
      (9, 9, 1), num_capsules=(3, 2), template_size=5,
      scale_floor=floor, rngs=nnx.Rngs(0),
    )  # fmt: skip
    for x in model.relations:
      x.scales[...] = jnp.full(x.scales.shape, -20.0)
    parents = selection.Capsules(
      jnp.array([[_SURE, -_SURE]]), jnp.zeros((1, 2, 6))
    )
    offsets = model.relations[0].offsets[...]
    children = selection.Capsules(jnp.full((1, 3), _SURE), offsets[None, :, 0])
    values.append(model.log_prior((children, parents))[0])
  assert values[1] - values[0] == pytest.approx(3 * 6 * np.log(10), rel=0.01)
