"""Learning rates, bounds and restarts of energy models."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from capjax.energy import rbm
from experiments.training import contrastive_divergence, train_step


def _model(**options):
  return rbm.CapsuleRBM(
    (2, 2, 1), num_capsules=2, capsule_size=2, rngs=nnx.Rngs(0), **options
  )


def test_pixels_are_counted_in_the_first_images(monkeypatch):
  images = np.arange(90, dtype=np.uint8).reshape(5, 3, 3, 2)
  for numbers, images_at_most, want in (
    (18 * 3 + 1, 100, 3), (1, 100, 1), (900, 4, 4), (900, 100, 5),
  ):  # fmt: skip
    monkeypatch.setattr(contrastive_divergence, "_MOST_NUMBERS", numbers)
    monkeypatch.setattr(contrastive_divergence, "_MOST_IMAGES", images_at_most)
    got = contrastive_divergence.first_intensities(images)
    np.testing.assert_allclose(got, images[:want] / 255, rtol=1e-6)


@pytest.mark.parametrize(
  ("step", "want"),
  [
    (0, 0.01),
    (119, 0.01),
    (120, 0.0095),
    (3600, 0.01 * 0.95**30),
    (3720, 0.01 * 0.95**30 * 0.969),
    (6120, 0.01 * 0.95**30 * 0.969**20 * 0.98838),
  ],
)
def test_learning_rate_falls_ever_more_slowly(step, want):
  """As in the authors' script for MNIST."""
  schedule = contrastive_divergence.falling_rate(
    0.01, factor=0.95, every=120, slower_at=(3600, 6000), slower_by=1.02
  )
  assert float(schedule(jnp.int32(step))) == pytest.approx(want, rel=1e-4)


def test_the_factor_grows_to_one_at_most():
  schedule = contrastive_divergence.falling_rate(
    1.0, factor=0.9, every=1, slower_at=(2,), slower_by=5.0
  )
  assert float(schedule(jnp.int32(100))) == pytest.approx(0.81)


def test_precisions_stay_positive():
  model = _model(visible="gaussian")
  optimizer = optax.chain(
    optax.sgd(1.0), contrastive_divergence.keep_proper(["visible"])
  )
  parameters = nnx.state(model, nnx.Param)
  gradient = jax.tree.map(lambda x: -jnp.ones_like(x), parameters)
  state = optimizer.init(parameters)
  updates, _ = optimizer.update(gradient, state, parameters)
  moved = optax.apply_updates(parameters, updates)
  np.testing.assert_allclose(moved["visible"][...][0], 1)
  np.testing.assert_allclose(moved["visible"][...][1], -0.005, rtol=1e-5)
  np.testing.assert_allclose(moved["hidden"][...], 1)


def test_restart_renews_chains_and_random_numbers():
  model = _model(num_chains=3)
  kept = model.fantasy.get_value()
  model.fantasy.set_value(kept._replace(age=jnp.float32(40)))
  state = train_step.init(model, optax.sgd(0.1), jax.random.key(0))
  again = contrastive_divergence.restart(state)
  assert again.model.fantasy.get_value().age == 0
  # Neither the old key nor one of those that an update splits off it.
  for old in (state.key, *jax.random.split(state.key)):
    assert not np.array_equal(
      jax.random.key_data(again.key), jax.random.key_data(old)
    )
