"""The loss that attacks follow keeps its gradient where logits saturate."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from capjax.evaluation import attacks

_LABELS = jnp.array([0, 2, 1])


def _scores(seed=0, scale=1.0, dtype=jnp.float32):
  scores = np.random.default_rng(seed).normal(size=(3, 4))
  return jnp.asarray(scale * scores, dtype)


def test_there_is_one_label_for_each_row():
  log_odds = inspect.unwrap(attacks.log_odds_against)
  with pytest.raises(ValueError, match=r"labels is \[3 1\]; give \[3\]"):
    log_odds(_scores(), _LABELS[:, None])


def test_log_odds_are_those_of_the_softmax():
  scores = np.float64(_scores())
  shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
  own = shares[np.arange(3), _LABELS]
  got = attacks.log_odds_against(_scores(), _LABELS)
  np.testing.assert_allclose(got, np.log((1 - own) / own), rtol=1e-5)
  entropies = optax.softmax_cross_entropy_with_integer_labels(
    _scores(), _LABELS
  )
  np.testing.assert_allclose(jax.nn.softplus(got), entropies, rtol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_slopes_do_not_vanish(dtype):
  """Gradients of the cross-entropy vanish at logits of ordinary networks."""
  scores = jnp.asarray([[20.0, 1, 0, 0], [0, 2, 300, 1], [0, 0, 0, 0]], dtype)

  def slopes(loss):
    return jax.jit(jax.grad(lambda x: jnp.sum(loss(x, _LABELS))))(scores)

  entropies = slopes(optax.softmax_cross_entropy_with_integer_labels)
  assert entropies[0, 0] == entropies[1, 2] == 0
  got = slopes(attacks.log_odds_against)
  assert got.dtype == dtype
  np.testing.assert_allclose(got[np.arange(3), _LABELS], -1, rtol=1e-2)
  assert np.isfinite(np.float32(got)).all()
  others = np.float32(got).sum(axis=1) + 1
  np.testing.assert_allclose(others, 1, rtol=1e-2)


@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_attacks_do_not_depend_on_the_scale_of_logits(scale):
  """A larger scale changes no decision, and so no attack."""
  weights = jnp.asarray(np.random.default_rng(1).normal(size=(36, 4)))
  images = jax.random.uniform(jax.random.key(0), (3, 6, 6, 1))
  labels = jnp.argmax(images.reshape(3, -1) @ weights, axis=1)

  def loss(images, labels):
    logits = scale * (images.reshape(len(images), -1) @ weights)
    return attacks.log_odds_against(logits, labels)

  moved = attacks.fgsm(loss, images, labels, 0.1)
  logits = (moved.reshape(3, -1) @ weights)[np.arange(3), labels]
  before = (images.reshape(3, -1) @ weights)[np.arange(3), labels]
  assert (logits < before - 0.5).all()


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_losses_have_the_dtype_of_the_scores(dtype):
  scores, labels = jnp.ones((2, 3), dtype), jnp.array([0, 2])
  assert attacks.log_odds_against(scores, labels).dtype == dtype
  assert attacks.log_odds_against(scores[:0], labels[:0]).shape == (0,)


def test_labels_are_among_the_classes():
  scores = jnp.array([[1.0, 2.0, 3.0]])
  for label in (-1, 3):
    with pytest.raises(ValueError, match=rf"labels hold {label}; give 0..2"):
      attacks.log_odds_against(scores, jnp.array([label]))
    traced = jax.jit(attacks.log_odds_against)(scores, jnp.array([label]))
    assert np.isnan(traced).all()
  with pytest.raises(ValueError, match="num_classes is 1; give at least 2"):
    attacks.log_odds_against(scores[:, :1], jnp.array([0]))
