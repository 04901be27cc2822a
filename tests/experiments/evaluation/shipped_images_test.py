"""Images by shipped models, for the pictures of the pages."""

import numpy as np

from experiments.evaluation import shipped_images


def test_one_dimension_changes_at_a_time(data_dir):
  offsets = np.array([-0.25, 0.0, 0.25])
  images = shipped_images.perturbed([3, 8], offsets, data_dir)
  assert images.shape == (2, 16, 3, 28, 28, 1)
  middle = images[:, :, 1]  # without a change, equal for all dimensions
  np.testing.assert_allclose(middle, middle[:, :1] + 0 * middle, atol=1e-6)
  changes = np.abs(images - images[:, :, 1:2])
  assert np.all(np.max(changes[:, :, [0, 2]], axis=(3, 4, 5)) > 1e-3)
