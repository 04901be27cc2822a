"""The measures of slot attention."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np

from experiments.tasks import slots

# One image of 2x3 pixels of two channels, and one that is black.
IMAGES = np.zeros((2, 2, 3, 2))
IMAGES[0, 0] = [[0.2, 0.4], [0, 0], [1.0, 0.8]]
IMAGES[0, 1, 0] = [0.6, 0.0]
# The first of two slots has these shares of each pixel, the second the others.
FIRST = np.array([[0.5, 0.9, 0.25], [1.0, 0.3, 0.7]])


def model(images):
  masks = np.stack([np.stack([FIRST, 1 - FIRST])] * 2)
  off = np.full(images.shape, 0.25)
  off[1] = -0.5
  return SimpleNamespace(
    reconstructions=jnp.array(images + off), masks=jnp.array(masks)
  )


def test_measures_of_known_masks():
  """The ink of a pixel is the mean of its channels."""
  got = slots.measure(model, jnp.array(IMAGES), None)
  np.testing.assert_allclose(got["loss"], [12 / 16, 12 / 4], rtol=1e-6)
  np.testing.assert_allclose(got["reconstruction_error"], [0.25, 0.5])
  # Of inks of 0.3, 0.9 and 0.3.
  first = (0.5 * 0.3 + 0.25 * 0.9 + 1.0 * 0.3) / 1.5
  want = [[first, 1 - first], [0, 0]]
  np.testing.assert_allclose(got["activations"], want, rtol=1e-6)
