"""Inverse temperatures of EM routing, and where votes come from."""

import numpy as np
from absl.testing import absltest

from kernels import em


class ScheduleTest(absltest.TestCase):
  def test_schedule(self):
    np.testing.assert_allclose(
      em.inverse_temperature_schedule(3), [5e-4, 9.75e-4, 1.42625e-3]
    )
    np.testing.assert_allclose(
      em.inverse_temperature_schedule(1, final=2.0), [0.1]
    )

  def test_relative_coordinates_of_a_layer(self):
    """As IBM's code: (c + 1/2) / W at 3, (r + 1/2) / H at 7."""
    x, y = em.relative_coordinates(5), em.relative_coordinates(4)
    got = em.coordinate_addition(x, y)
    want = np.zeros((4, 5, 16))
    for r in range(4):
      for c in range(5):
        want[r, c, 3], want[r, c, 7] = (c + 0.5) / 5, (r + 0.5) / 4
    np.testing.assert_allclose(got, want, rtol=1e-6)

  def test_pixel_coordinates_of_a_layer(self):
    """As the authors' code: means of pixels over windows, layer by layer."""
    windows, size = ((5, 2), (3, 2), (3, 1)), 32
    want = (np.arange(size) - size // 2) / 100
    for kernel, stride in windows:
      want = np.array(
        [
          np.mean(want[at : at + kernel])
          for at in range(0, len(want) - kernel + 1, stride)
        ]
      )
    got = em.pixel_coordinates(size, windows)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    offsets = em.coordinate_addition(got, got + 1, entries=(0, 1))
    np.testing.assert_allclose(offsets[2, 1, :2], [want[1], want[2] + 1])
    np.testing.assert_array_equal(offsets[:, :, 2:], 0)

  def test_entries_beyond_the_pose_are_refused(self):
    x = em.relative_coordinates(2)
    for entries, size in (((3, 7), 7), ((-1, 0), 16)):
      with self.assertRaisesRegex(ValueError, f"pose of {size} numbers; give"):
        em.coordinate_addition(x, x, entries=entries, pose_size=size)


if __name__ == "__main__":
  absltest.main()
