"""Two layers of capsules, their density in NumPy, and faulty forms of it."""

import jax
import jax.numpy as jnp
import numpy as np

from kernels.matching import selection

OPTIONS = {"temperature": 0.6, "off_scale": 2.0, "dummy_scale": 3.0}


def layers(seed, num_children=4, num_parents=3, dtype=jnp.float32):
  """Two layers, whose children are near the poses that a parent expects."""
  keys = jax.random.split(jax.random.key(seed), 8)
  shape = (num_children, num_parents)

  def draw(n, *shape):
    return jax.random.normal(keys[n], shape, dtype)

  parents = selection.Capsules(
    draw(0, num_parents), 0.5 * draw(1, num_parents, 6)
  )
  relations = selection.Relations(
    draw(2, num_children, num_parents + 1),
    draw(3, num_children, num_parents + 1),
    0.5 * draw(4, *shape, 6),
    0.3 * jnp.exp(0.3 * draw(5, *shape)),
  )
  expected = selection.expected_poses(parents.poses, relations.offsets)
  nearest = jnp.arange(num_children) % num_parents + 1
  poses = expected[jnp.arange(num_children), nearest]
  children = selection.Capsules(
    2 * draw(6, num_children), poses + 0.2 * draw(7, num_children, 6)
  )
  return children, parents, relations


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


def _matrix(pose):
  matrix = np.eye(3)
  for n in range(6):
    matrix[n // 3, n % 3] += pose[n]
  return matrix


def normal(x, mean, scale):
  return np.exp(-(((x - mean) / scale) ** 2) / 2) / (scale * np.sqrt(2 * np.pi))


def summands(
  children, parents, relations, *, temperature, off_scale, dummy_scale
):
  """P(s = j) p(t | s) p(A | t, s) of eqs. 3 to 6, [I J + 1], in float64."""
  children, parents, relations = jax.tree.map(
    np.float64, (children, parents, relations)
  )
  num_children, num_parents = relations.scales.shape
  terms = np.zeros((num_children, num_parents + 1))
  for i in range(num_children):
    weights = [
      np.exp(relations.log_affinities[i, j])
      * (1.0 if j == 0 else sigmoid(parents.logits[j - 1]))
      for j in range(num_parents + 1)
    ]
    t = sigmoid(children.logits[i])
    for j in range(num_parents + 1):
      odds = np.exp(relations.presence_logits[i, j])
      # Maddison et al.: density of t, times dt / dl.
      density = temperature * odds * t ** (-temperature - 1)
      density *= (1 - t) ** (-temperature - 1)
      density /= (odds * t**-temperature + (1 - t) ** -temperature) ** 2
      density *= t * (1 - t)
      if j == 0:
        mean, scale = np.zeros(6), dummy_scale
      else:
        mean = _matrix(parents.poses[j - 1]) @ _matrix(
          relations.offsets[i, j - 1]
        )
        mean = (mean - np.eye(3))[:2].reshape(6)
        scale = relations.scales[i, j - 1]
      scale = (t / scale**2 + (1 - t) / off_scale**2) ** -0.5
      terms[i, j] = weights[j] / sum(weights) * density
      for n in range(6):
        terms[i, j] *= normal(children.poses[i, n], mean[n], scale)
  return terms


def textbook(
  children, parents, relations, *, temperature, off_scale, dummy_scale,
  fault=None,
):  # fmt: skip
  """The result of `selection.select` in jnp, or with one of several faults."""
  presences = jax.nn.sigmoid(parents.logits)
  there = jnp.concatenate([jnp.ones(1), presences])
  if fault == "parents_always_there":
    there = jnp.ones_like(there)
  weights = there * jnp.exp(relations.log_affinities)
  if fault == "no_dummy":
    weights = weights.at[:, 0].set(0.0)
  if fault == "over_children":
    weights = weights / jnp.sum(weights, axis=0)
  elif fault != "unnormalised":
    weights = weights / jnp.sum(weights, axis=1, keepdims=True)
  t = jax.nn.sigmoid(children.logits)[:, None]
  log_odds = relations.presence_logits
  if fault == "presence_of_any":
    log_odds = jnp.zeros_like(log_odds)
  d = log_odds - temperature * children.logits[:, None]
  logs = jnp.log(temperature) + d - 2 * jnp.logaddexp(0.0, d)
  if fault == "density_of_t":
    logs -= jnp.log(t * (1 - t))
  if fault == "no_temperature":
    logs -= jnp.log(temperature)
  offsets, poses = relations.offsets, parents.poses
  pair = selection.identity_plus(poses), selection.identity_plus(offsets)
  if fault == "offset_first":
    pair = pair[::-1]
  means = (pair[0] @ pair[1] - jnp.eye(3))[..., :2, :].reshape(offsets.shape)
  if fault == "offset_added":
    means = poses + offsets
  means = jnp.concatenate([jnp.zeros_like(means[:, :1]), means], axis=1)
  scales = jnp.concatenate(
    [jnp.full((len(t), 1), dummy_scale), relations.scales], axis=1
  )
  squares = jnp.sum((children.poses[:, None] - means) ** 2, axis=-1)
  precisions = t / scales**2 + (1 - t) / off_scale**2
  if fault == "always_on":
    precisions = 1 / scales**2
  logs += 3 * jnp.log(precisions / (2 * jnp.pi)) - squares * precisions / 2
  if fault == "not_normalised":  # N_on^t N_off^(1 - t) as it is
    on, off = -jnp.log(scales), -jnp.log(off_scale)
    logs += 6 * (t * on + (1 - t) * off) - 3 * jnp.log(precisions)
  terms = weights * jnp.exp(logs)
  if fault == "best_parent":
    densities = jnp.max(terms, axis=1)
  else:
    densities = jnp.sum(terms, axis=1)
  routing = terms / jnp.sum(terms, axis=1, keepdims=True)
  if fault == "routing_is_the_prior":
    routing = weights
  return selection.Selection(jnp.log(densities), routing)
