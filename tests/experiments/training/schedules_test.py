"""Learning rates at the ends of a run."""

import numpy as np
import pytest

from experiments.training import optimizers


@pytest.mark.parametrize("kind", ["cosine", "exponential"])
@pytest.mark.parametrize("warmup_steps", [0, 2])
def test_the_rate_ends_at_its_lower_limit(kind, warmup_steps):
  rates = optimizers.make_schedule(
    6,
    peak=1e-3,
    kind=kind,
    warmup_steps=warmup_steps,
    decay_rate=0.1,
    decay_steps=1,
    final=1e-4,
  )
  np.testing.assert_allclose(rates(6), 1e-4, rtol=1e-6)
  np.testing.assert_allclose(rates(warmup_steps), 1e-3, rtol=1e-6)
