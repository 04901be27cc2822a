"""The form for a platform, where it is known and where it is not."""

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
