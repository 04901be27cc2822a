"""The form for a platform, where it is known and where it is not."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from capjax.layers import platforms


@pytest.mark.parametrize(
  "platform,form", [("cpu", jnp.sin), ("gpu", jnp.cos), ("tpu", jnp.cos)]
)
def test_one_form_is_traced_where_the_platform_is_known(platform, form):
  @platforms.known(platform)
  def function(x):
    return platforms.choose(x, cpu=jnp.sin, default=jnp.cos)

  text = str(jax.make_jaxpr(function)(1.0))
  assert "cond" not in text and "platform" not in text
  assert function(0.3) == form(0.3)


@pytest.mark.parametrize("platform", ["cpu", "gpu", "cuda", "rocm", "tpu"])
def test_gpus_may_have_a_form_of_their_own(platform):
  @platforms.known(platform)
  def function(x):
    return platforms.choose(x, cpu=jnp.sin, gpu=jnp.exp, default=jnp.cos)

  forms = {"cpu": jnp.sin, "tpu": jnp.cos}
  assert function(0.3) == forms.get(platform, jnp.exp)(0.3)


def test_a_form_for_gpus_is_compiled_for_them():
  def function(x):
    return platforms.choose(x, cpu=jnp.sin, gpu=jnp.exp, default=jnp.cos)

  traced = jax.jit(function).trace(1.0)
  for platform, name in (("cuda", "exponential"), ("tpu", "cosine")):
    lowered = traced.lower(lowering_platforms=(platform,)).as_text()
    assert f"stablehlo.{name}" in lowered and "stablehlo.sine" not in lowered


def test_all_forms_are_traced_where_it_is_not():
  def function(x):
    return platforms.choose(x, cpu=jnp.sin, default=jnp.cos)

  want = str(jax.make_jaxpr(function)(1.0))
  assert "sin" in want and "cos" in want
  with pytest.raises(ZeroDivisionError), platforms.known("cpu"):
    raise ZeroDivisionError
  assert str(jax.make_jaxpr(function)(1.0)) == want


def test_derivatives_of_all_orders_are_those_of_their_form():
  def function(x, y):
    return platforms.choose_by_gradient(
      x, y, None, without=lambda x, *_: x, differentiated=differentiated
    )

  def differentiated(x, y, _):
    return jnp.sin(x) * y

  assert jax.jit(function)(0.3, 2.0) == 0.3
  value, slopes = jax.value_and_grad(function, (0, 1))(0.3, 2.0)
  np.testing.assert_allclose(value, 2 * np.sin(0.3), rtol=1e-6)
  np.testing.assert_allclose(slopes, (2 * np.cos(0.3), np.sin(0.3)), rtol=1e-6)
  second = jax.grad(jax.grad(function))(0.3, 2.0)
  np.testing.assert_allclose(second, -2 * np.sin(0.3), rtol=1e-6)
  x = jnp.array([0.1, 0.2])
  slopes = jax.vmap(jax.grad(function), (0, None))(x, 2.0)
  np.testing.assert_allclose(slopes, 2 * np.cos(x), rtol=1e-6)


@pytest.mark.parametrize("count,devices", [(6, 1), (6, 2), (6, 3), (7, 2)])
def test_examples_of_all_devices_are_mapped_in_order(count, devices):
  x = jnp.arange(2.0 * count).reshape(count, 2)
  sizes = []

  def function(row):
    sizes.append(row["x"].shape)
    return jnp.sum(row["x"]), row["x"] + 1

  with platforms.known("cpu", devices):
    got = platforms.map_examples(function, {"x": x})
    parts = platforms.split(x)
  assert set(sizes) == {(2,)}
  chex.assert_trees_all_equal(got, (jnp.sum(x, axis=1), x + 1))
  assert len(parts) == (devices if count % devices == 0 else 1)
  chex.assert_trees_all_equal(parts.reshape(x.shape), x)
