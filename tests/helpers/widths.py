"""Tests that hold only where numbers are float32, as JAX has them by default.

`make test-x64` runs the others with `jax_enable_x64`.
"""

import jax
import pytest

limits_of_float32 = pytest.mark.skipif(
  jax.config.jax_enable_x64, reason="about the limits of float32"
)
# For tests whose limits depend on the random numbers, which differ in float64.
samples_of_float32 = pytest.mark.skipif(
  jax.config.jax_enable_x64, reason="its bounds were set for samples of float32"
)
