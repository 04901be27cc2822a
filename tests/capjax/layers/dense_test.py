"""Dense layers: those of Flax, in the precision of all products."""

import cases
import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from capjax import layers

_INPUTS = jnp.float32(np.random.default_rng(0).normal(size=(5, 3, 4)))
_EINSUM = ("bki,kio->bko", (3, 4, 2), (3, 2))
# Ours, and Flax's with the same parameters.
_PAIRS = {
  "linear": lambda **given: [
    make(4, 2, rngs=nnx.Rngs(0), **given)
    for make in (layers.Linear, nnx.Linear)
  ],
  "einsum": lambda **given: [
    make(*_EINSUM, rngs=nnx.Rngs(0), **given)
    for make in (layers.Einsum, nnx.Einsum)
  ],
}


@pytest.mark.parametrize("name", _PAIRS)
def test_equals_the_layer_of_flax(name):
  ours, theirs = _PAIRS[name](bias_init=nnx.initializers.normal())
  chex.assert_trees_all_equal(nnx.state(ours), nnx.state(theirs))
  np.testing.assert_allclose(ours(_INPUTS), theirs(_INPUTS), rtol=1e-6)
  cases.assert_products_are_not_rounded(ours, _INPUTS)


@pytest.mark.parametrize(
  "make, subscripts",
  [
    (lambda rngs: layers.Einsum(*_EINSUM[:2], rngs=rngs), _EINSUM[0]),
    (
      lambda rngs: layers.Linear(4, 2, use_bias=False, rngs=rngs),
      "...i,io->...o",
    ),
  ],
  ids=["einsum", "linear"],
)
def test_there_may_be_no_bias(make, subscripts):
  ours = make(nnx.Rngs(0))
  np.testing.assert_allclose(
    ours(_INPUTS), jnp.einsum(subscripts, _INPUTS, ours.kernel[...]), rtol=1e-6
  )


@pytest.mark.parametrize("name", _PAIRS)
def test_bfloat16_rounds_the_product_alone(name):
  layer, _ = _PAIRS[name]()
  want = layer(_INPUTS)
  layers.dense.set_dtype(layer, "bfloat16")
  got = layer(_INPUTS)
  chex.assert_type([got, *jax.tree.leaves(nnx.state(layer))], jnp.float32)
  assert 0 < np.max(np.abs(got - want)) < 0.05


def test_norms_keep_float32():
  norms = [
    nnx.LayerNorm(4, rngs=nnx.Rngs(0)),
    nnx.BatchNorm(4, rngs=nnx.Rngs(0)),
    nnx.GroupNorm(4, num_groups=2, rngs=nnx.Rngs(0)),
    nnx.InstanceNorm(4, rngs=nnx.Rngs(0)),
    nnx.RMSNorm(4, rngs=nnx.Rngs(0)),
  ]
  model = nnx.List([layers.Conv(2, 4, 3, rngs=nnx.Rngs(0)), *norms])
  before = [norm.dtype for norm in norms]
  layers.dense.set_dtype(model, "bfloat16")
  assert [norm.dtype for norm in norms] == before
  assert model[0].dtype == "bfloat16"


def test_other_dtypes_are_refused():
  layer, _ = _PAIRS["linear"]()
  for dtype in ("float16", "int8"):
    with pytest.raises(ValueError, match="give 'float32' or 'bfloat16'"):
      layers.dense.set_dtype(layer, dtype)
