"""Inverse temperatures of EM routing, amounts of data, coordinates of votes."""

import functools

import em_cases
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from kernels.routing import em


def check_costs_are_scaled(form, scale):
  """As IBM's code: (beta_v + ln sigma) sum_i r_ij times the ratio."""
  random = np.random.default_rng(0)
  votes = jnp.array(random.normal(size=(7, 4, 5)), jnp.float32)
  activations = jnp.array(random.uniform(0.1, 1.0, 7), jnp.float32)
  arguments = votes, activations, *em_cases.betas(form=form)
  got = jax.jit(
    functools.partial(
      em.em_routing,
      inverse_temperatures=em_cases.TEMPERATURES,
      form=em_cases.FORMS[form]._replace(cost_scale=scale),
    )
  )(*arguments)
  want = em_cases.dense_oracle(
    *arguments, em_cases.TEMPERATURES, form, cost_scale=2.5
  )
  em_cases.assert_close(got, want)


class ScheduleTest(parameterized.TestCase):
  @parameterized.parameters(*em_cases.FORMS)
  def test_costs_of_as_much_data(self, form):
    check_costs_are_scaled(form, 2.5)

  def test_costs_that_are_not_scaled_are_found(self):
    with self.assertRaises(AssertionError):
      check_costs_are_scaled("paper", 1.0)

  def test_amounts_of_data_of_a_published_network(self):
    """IBM's: 9 x 8 children of 16 types; 5 x 5 x 16 of 5 classes."""
    np.testing.assert_allclose(em.amount_of_data_scale(72, 16), 100 / 4.5)
    np.testing.assert_allclose(em.amount_of_data_scale(400, 5), 100 / 80)
    np.testing.assert_allclose(em.amount_of_data_scale(8, 4, amount=3.0), 1.5)

  @parameterized.parameters((0, 4, 1.0), (4, 0, 1.0), (4, 4, 0.0))
  def test_no_data_is_refused(self, children, parents, amount):
    with self.assertRaisesRegex(ValueError, " is 0.*; give"):
      em.amount_of_data_scale(children, parents, amount=amount)

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
