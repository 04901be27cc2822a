"""The form for a platform, where it is known and where it is not."""

import chex
import jax
import jax.numpy as jnp
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


def test_all_forms_are_traced_where_it_is_not():
  def function(x):
    return platforms.choose(x, cpu=jnp.sin, default=jnp.cos)

  want = str(jax.make_jaxpr(function)(1.0))
  assert "sin" in want and "cos" in want
  with pytest.raises(ZeroDivisionError), platforms.known("cpu"):
    raise ZeroDivisionError
  assert str(jax.make_jaxpr(function)(1.0)) == want


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
