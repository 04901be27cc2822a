"""Data that are divided among devices, and what they cost to fetch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.training import placing


def test_one_device_holds_all_rows():
  mesh = placing.data_mesh(4)
  images = np.arange(10, dtype=np.uint8).reshape(5, 2)
  divided, kept = placing.divide((images, np.arange(5)), mesh)
  assert divided.count == kept.count == 5
  assert kept.padded.dtype == jnp.int32  # JAX has no int64
  whole, other = jax.jit(placing.whole)((divided, jnp.ones(2)))
  np.testing.assert_array_equal(whole, images)
  np.testing.assert_array_equal(other, [1, 1])


@pytest.mark.parametrize(
  ("batch_size", "count"), [(100, 5), (1, 1), (64, 4), (7, 7), (14, 7)]
)
def test_an_evaluation_takes_as_many_devices_as_share_a_batch(
  monkeypatch, batch_size, count
):
  monkeypatch.setattr(placing, "data_mesh", lambda size, devices: devices)
  devices = list(range(7))
  monkeypatch.setattr(placing.processes, "devices", lambda: devices)
  assert placing.evaluation_mesh(batch_size) == devices[:count]
  assert placing.evaluation_mesh(batch_size, devices[:1]) == [0]


def test_what_is_copied_stays_what_it_was():
  mesh = placing.data_mesh(1)
  tree = {"key": jax.random.key(3), "x": jnp.arange(3.0)}
  copied = placing.replicate(tree, mesh)
  assert copied["key"].dtype == tree["key"].dtype
  np.testing.assert_array_equal(copied["x"], tree["x"])
