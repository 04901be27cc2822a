"""The decoder of CapsNet; `capsnet_test` compares its images with NumPy."""

import inspect

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from capjax import decoder


def test_official_parameters_are_those_of_the_authors():
  network = decoder.Decoder(
    10, 16, (512,), (9, 9, 1), init="official", rngs=nnx.Rngs(0)
  )
  for layer in network.layers:
    kernel = np.asarray(layer.kernel[...])
    # Truncated at two standard deviations: under half a percent is above 0.199.
    assert np.max(np.abs(kernel)) <= 0.2
    assert np.max(np.abs(kernel)) > 0.199
    assert abs(np.std(kernel) - 0.08796) < 1e-3
    np.testing.assert_array_equal(layer.bias[...], np.float32(0.1))
  with pytest.raises(ValueError, match="init is 'other'; give lecun or offi"):
    decoder.Decoder(1, 2, (), (1, 1, 1), init="other", rngs=nnx.Rngs(0))


@pytest.mark.parametrize("shape", [(2, 3, 1), (2, 6), (3, 2), (2, 2, 3)])
def test_poses_of_another_size_are_refused(shape):
  network = decoder.Decoder(3, 2, (4,), (2, 2, 1), rngs=nnx.Rngs(0))
  decode = inspect.unwrap(decoder.decode)  # annotations are checked in tests
  with pytest.raises(ValueError, match=r"poses are .*\[J D\] = \[3, 2\]"):
    decode(network, jnp.ones(shape), jnp.zeros(shape[:1], int))


@pytest.mark.parametrize("shape", [(2, 1), (2, 4), (3,)])
def test_neither_classes_nor_a_mask_are_refused(shape):
  network = decoder.Decoder(3, 2, (4,), (2, 2, 1), rngs=nnx.Rngs(0))
  decode = inspect.unwrap(decoder.decode)  # annotations are checked in tests
  with pytest.raises(ValueError, match=r"image, \[2\], or a mask \[2, 3\]"):
    decode(network, jnp.ones((2, 3, 2)), jnp.zeros(shape, int))
