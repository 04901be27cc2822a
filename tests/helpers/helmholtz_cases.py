"""A small Helmholtz machine, and sums over all of its states."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from scipy import special, stats

from capjax.energy import helmholtz

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


def gaussian(seed=0, scale=0.5):
  """A machine of Gaussian units whose precisions are at least 1."""
  shaken = model(seed, scale, visible="gaussian", hidden="gaussian")
  for layer in (*shaken.generative, *shaken.recognition):
    layer.hidden[...] = _proper(layer.hidden[...])
  shaken.visible[...] = _proper(shaken.visible[...])
  return shaken


def _proper(natural):
  return natural.at[1].set(-0.5 - jnp.abs(natural[1] + 0.5))


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


def gaussian_images(count=3):
  """Images without pixels of 0 or 1, which are their own squares."""
  return 1.7 * images(count) - 0.4


def every(size):
  return np.array(list(itertools.product((0.0, 1.0), repeat=size)))


def _sigmoid_log(logits, values):
  """Log p of Bernoulli values."""
  return np.sum(values * logits - np.logaddexp(0, logits))


def log_joint(model, x, lower, upper):
  """Log p of one state in float64 (eq. 13), by enumeration of each layer."""
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


def log_recognition(model, x, active, lower, upper):
  """Log q of one state in float64; `active` [K J] drives the upper layer."""
  first, second = model.recognition
  drives = (
    np.einsum("m,mkj->kj", x, np.float64(first.weights[...])),
    np.einsum("kj,kjli->li", active, np.float64(second.weights[...])),
  )
  total = 0.0
  for layer, drive, (h, z) in zip(
    model.recognition, drives, (lower, upper), strict=True
  ):
    bias = np.float64(layer.hidden[...][0])
    switches = np.float64(layer.switches[...])
    count = len(z)
    scores = [
      np.sum((bias + bits[count:, None] * drive) * bits[:count, None])
      + switches @ bits[count:]
      for bits in every(2 * count)
    ]
    total += np.sum((bias + z[:, None] * drive) * h) + switches @ z
    total -= special.logsumexp(scores)
  return total


def layers(bits):
  """The states (h, z) of both layers, from six bits."""
  return (bits[:2, None], bits[2:4]), (bits[4:5, None], bits[5:6])


def log_likelihood(model, image):
  x = np.float64(image).ravel()
  return special.logsumexp(
    [log_joint(model, x, *layers(bits)) for bits in every(6)]
  )


def gaussian_log_likelihood(model, image):
  """Log p(x) of a Gaussian machine, in float64.

  The upper unit takes the values of a grid, and the lower units are integrated
  out: given the switches and the upper unit, all else is linear with Gaussian
  noise.
  """
  first, second = model.generative
  pixels, lower, upper = (
    np.float64(x[...]).reshape(2, -1)
    for x in (model.visible, first.hidden, second.hidden)
  )
  noise, spread, height = (-1 / (2 * x[1]) for x in (pixels, lower, upper))
  x = np.float64(image).ravel()
  weights = np.float64(first.weights[...])[..., 0]
  coupling = np.float64(second.weights[...]).ravel()
  grid = upper[0] * height + height**0.5 * np.linspace(-9, 9, 161)[:, None]
  step = np.log(grid[1, 0] - grid[0, 0])
  total = []
  for (z2,), (h2,) in itertools.product(every(1), grid):
    above = _sigmoid_log(np.float64(second.switches[...]), z2) + step
    above += np.sum(stats.norm.logpdf(h2, upper[0] * height, height**0.5))
    drive = z2 * h2 * coupling
    gain = spread * ((lower[0] + drive) ** 2 - lower[0] ** 2) / 2
    for z1 in every(len(spread)):
      means = spread * (lower[0] + z1 * drive)
      mixed = noise[:, None] * weights * z1
      total.append(
        above
        + _sigmoid_log(np.float64(first.switches[...]) + gain, z1)
        + stats.multivariate_normal.logpdf(
          x,
          noise * pixels[0] + mixed @ means,
          np.diag(noise) + mixed * spread @ mixed.T,
        )
      )
  return special.logsumexp(total)
