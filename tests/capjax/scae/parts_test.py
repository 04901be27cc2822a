"""What the encoder of parts refuses."""

import jax.numpy as jnp
import pytest
from flax import nnx

from capjax.kernels import checks
from capjax.scae import parts as part_capsules


def test_an_encoder_refuses_what_it_was_not_made_for():
  with pytest.raises(ValueError, match="num_parts is 0; give"):
    part_capsules.PartEncoder((28, 28, 1), 0, rngs=nnx.Rngs(0))
  encoder = part_capsules.PartEncoder((28, 28, 1), 2, width=4, rngs=nnx.Rngs(0))
  with pytest.raises(checks.ImageShapeError, match="give .B 28 28 1."):
    encoder(jnp.zeros((1, 30, 28, 1)))
