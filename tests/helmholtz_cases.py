"""A small Helmholtz machine, and sums over all of its states."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from scipy import special

from capjax import helmholtz

SHAPE = (2, 2, 1)
_LAYERS, _J = (2, 1), 1


def model(seed=0, scale=0.7, **options):
  model = helmholtz.CapsuleHM(
    SHAPE,
    num_capsules=_LAYERS,
    capsule_size=_J,
    rngs=nnx.Rngs(seed),
    **options,
  )
  return shaken(model, seed, scale)


def shaken(model, seed=0, scale=0.7):
  """The model with noise added to its parameters."""
  graph, parameters, rest = nnx.split(model, nnx.Param, ...)
  leaves, tree = jax.tree.flatten(parameters)
  keys = jax.random.split(jax.random.key(seed), len(leaves))
  moved = [
    x + scale * jax.random.normal(key, x.shape)
    for x, key in zip(leaves, keys, strict=True)
  ]
  return nnx.merge(graph, jax.tree.unflatten(tree, moved), rest)


def images(count=3, seed=0):
  random = np.random.default_rng(seed)
  return jnp.float32(random.integers(2, size=(count, *SHAPE)))


def every(size):
  return np.array(list(itertools.product((0.0, 1.0), repeat=size)))


def _sigmoid_log(logits, values):
  """Log p of Bernoulli values."""
  return np.sum(values * logits - np.logaddexp(0, logits))


def log_joint(model, x, lower, upper):
  """Eq. 13 of one state in float64: the layers' sums by enumeration."""
  (h1, z1), (h2, z2) = lower, upper
  a = np.float64(model.visible[...][0])
  first, second = model.generative
  w1, w2 = (np.float64(layer.weights[...]) for layer in (first, second))
  logits = a + np.einsum("mkj,k,kj->m", w1, z1, h1)
  total = _sigmoid_log(logits, x)

  def score(h, z):
    met = np.einsum("k,l,kj,kjli,li->", z, z2, h, w2, h2)
    alone = np.sum(first.hidden[...][0] * h) + first.switches[...] @ z
    return float(met + alone)

  count = _LAYERS[0]
  states = every(2 * count)
  scores = [score(s[:count, None], s[count:]) for s in states]
  total += score(h1, z1) - special.logsumexp(scores)
  total += _sigmoid_log(np.float64(second.hidden[...][0]), h2)
  return total + _sigmoid_log(np.float64(second.switches[...]), z2)


def layers(bits):
  """Both layers' (h, z) from six bits."""
  return (bits[:2, None], bits[2:4]), (bits[4:5, None], bits[5:6])


def log_likelihood(model, image):
  x = np.float64(image).ravel()
  return special.logsumexp(
    [log_joint(model, x, *layers(bits)) for bits in every(6)]
  )
