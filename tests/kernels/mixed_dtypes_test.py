"""Arguments of both float32 and float64, in JAX's float64 mode."""

import cases
import em_cases
import energy_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels import energy, routing
from kernels.energy import annealing
from kernels.routing import em_convolution


@pytest.fixture(autouse=True)
def _float64():
  with jax.enable_x64(True):
    yield


def _image_and_parameters(dtype):
  """An image of float64, and the parameters of a capsule RBM."""
  x = jnp.array([1 / 3, 1 / 7, 0.9])
  return x, energy_cases.parameters(dtype=dtype)


def _expectations(x, parameters):
  """What a capsule RBM says about an image."""
  drive = energy.drive_from_below(x, parameters)
  field = energy.mean_field(
    jnp.full(energy_cases.K, 0.5, jnp.float32),
    parameters.bias,
    drive,
    num_iterations=3,
  )
  return field, energy.posterior(parameters.bias, drive)


def test_energies_keep_the_wider_dtype():
  x, parameters = _image_and_parameters(jnp.float32)
  wide = jax.tree.map(lambda x: x.astype(jnp.float64), parameters)
  got = _expectations(x, parameters)
  for left, right in zip(
    *map(jax.tree.leaves, (got, _expectations(x, wide))), strict=True
  ):
    assert left.dtype == jnp.float64
    np.testing.assert_allclose(left, right, rtol=1e-12)
  # The visible units, by wider capsules.
  capsules, want = got[1], energy.visible_parameters(got[1], wide)
  np.testing.assert_allclose(
    energy.visible_parameters(capsules, parameters), want, rtol=1e-12
  )


def test_temperatures_of_a_chain_are_as_wide_as_its_state():
  key = jax.random.key(0)
  chain = annealing.anneal(
    key,
    jnp.float32(0.5),
    [0.0, 0.3, 1.0],
    log_density=lambda x, t: -t * jnp.square(x),
    transition=lambda key, x, t: x * (1 + t),
  )
  assert chain.log_weight.dtype == chain.state.dtype == jnp.float32
  # x = 0.5 at the first weight, and 1.3 x at the second.
  want = -0.3 * 0.5**2 - 0.7 * (0.5 * 1.3) ** 2
  np.testing.assert_allclose(chain.log_weight, want, rtol=1e-6)
  np.testing.assert_allclose(chain.state, 0.5 * 1.3 * 2, rtol=1e-6)


@pytest.mark.parametrize("parents_at_once", [1, 3])
def test_a_bias_may_be_wider_than_the_votes(parents_at_once):
  keys = jax.random.split(jax.random.key(0))
  poses = jax.random.normal(keys[0], (5, 2), jnp.float32)
  transforms = jax.random.normal(keys[1], (5, 3, 2, 4), jnp.float32)
  bias = cases.bias(0, (5, 3, 4), jnp.float64)

  def route(bias):
    return routing.transform_and_route(
      poses, transforms, bias=bias, parents_at_once=parents_at_once
    )

  got, want = route(bias), route(bias.astype(jnp.float32))
  jax.tree.map(np.testing.assert_array_equal, got, want)
  assert got.poses.dtype == jnp.float32


def test_numbers_of_a_form_may_be_wider_than_the_votes():
  random = np.random.default_rng(0)
  arrays = (
    random.normal(size=(4, 4, 2, 2, 3)),
    random.uniform(0.1, 1.0, (4, 4, 2)),
    random.normal(size=(2, 2, 2, 3, 3, 2)),
    *em_cases.betas(0, 3, "paper", jnp.float32),
  )
  arrays = [jnp.asarray(x, jnp.float32) for x in arrays]
  form = em_cases.FORMS["paper"]
  wide = form._replace(
    damping=np.float64(0.1), variance_floor=np.float64(form.variance_floor)
  )

  def total(poses, form):
    output = em_convolution.em_convolution(
      poses, *arrays[1:], inverse_temperatures=(0.1, 0.2), form=form
    )
    return jnp.sum(output.poses)

  got = jax.value_and_grad(total)(arrays[0], wide)
  want = jax.value_and_grad(total)(arrays[0], form._replace(damping=0.1))
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5),
    got,
    want,
  )
  assert got[1].dtype == jnp.float32
