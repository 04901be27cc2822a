"""EM routing as the papers print it, in float64 NumPy."""

import jax.numpy as jnp
import numpy as np

from kernels.routing import em

FORMS = {"paper": em.PAPER, "official": em.OFFICIAL}
TEMPERATURES = (0.05, 0.3, 0.6)
STRIDE = 2
# Scales with which activations are neither 0 nor 1, in spite of the factor of
# 5000 in the official code.
BETA_A_SCALES = {"paper": 1.0, "official": 1e-3}


def oracle(
  votes,
  activations,
  beta_a,
  beta_u,
  shares,
  temperatures,
  form,
  *,
  cost_scale=1.0,
):
  """EM routing by loops over pairs of any children and parents.

  Densities are products, not sums of logarithms.

  Args:
    votes: {(child, parent): [D]} of the children that a parent sees.
    activations: {child: a_i}.
    beta_a: {parent: number}.
    beta_u: {parent: number}.
    shares: {(child, parent): r_ij} of the first iteration.
    temperatures: lambda of each iteration.
    form: "paper" or "official".
    cost_scale: the ratio by which Gritzman (2019) multiplies costs.

  Returns:
    Means, activations, shares and variances, by parent or by pair.
  """
  pairs = list(votes)
  children = sorted({i for i, _ in pairs})
  parents = sorted({j for _, j in pairs})
  size = len(votes[pairs[0]])
  mean = {j: np.zeros(size) for j in parents}
  variance, a = {}, {}
  for iteration, temperature in enumerate(temperatures):
    if iteration:
      weight = {}
      for i, j in pairs:
        density = a[j]
        for h in range(size):
          density *= np.exp(
            -((votes[i, j][h] - mean[j][h]) ** 2) / (2 * variance[j][h])
          ) / np.sqrt(2 * np.pi * variance[j][h])
        weight[i, j] = density
      total = {
        i: sum(weight[i, j] for k, j in pairs if k == i) for i in children
      }
      shares = {(i, j): weight[i, j] / total[i] for i, j in pairs}
    for j in parents:
      seen = [i for i, k in pairs if k == j]
      mass = sum(shares[i, j] * activations[i] for i in seen) + 1e-7
      new = (
        sum(shares[i, j] * activations[i] * votes[i, j] for i in seen) / mass
      )
      mean[j] = 0.9 * new + 0.1 * mean[j] if form == "official" else new
      variance[j] = 5e-4 + np.zeros(size)
      for i in seen:
        spread = (votes[i, j] - mean[j]) ** 2
        variance[j] += shares[i, j] * activations[i] * spread / mass
      if form == "official":
        win = -mass * np.sum(np.log(variance[j]))
        win -= mass * size * beta_u[j] * (np.log(2 * np.pi) + 1)
        logit = temperature * (cost_scale * win - 5000 * beta_a[j])
      else:
        cost = sum((beta_u[j] + np.log(np.sqrt(variance[j]))) * mass)
        logit = temperature * (beta_a[j] - cost_scale * cost)
      a[j] = 1 / (1 + np.exp(-logit))
  return mean, a, shares, variance


def dense_oracle(
  votes, activations, beta_a, beta_u, temperatures, form, **options
):
  """The result of `oracle` for votes [I J D], as an `em.EMOutput`."""
  arrays = (np.float64(x) for x in (votes, activations, beta_a, beta_u))
  votes, activations, beta_a, beta_u = arrays
  pairs = [(i, j) for i in range(len(votes)) for j in range(votes.shape[1])]
  mean, a, shares, variance = oracle(
    {pair: votes[pair] for pair in pairs},
    dict(enumerate(activations)),
    dict(enumerate(beta_a)),
    dict(enumerate(beta_u)),
    dict.fromkeys(pairs, 1 / votes.shape[1]),
    temperatures,
    form,
    **options,
  )
  parents = range(votes.shape[1])
  return em.EMOutput(
    np.array([mean[j] for j in parents]),
    np.array([a[j] for j in parents]),
    np.array([shares[pair] for pair in pairs]).reshape(votes.shape[:2]),
    np.array([variance[j] for j in parents]),
  )


def convolution_oracle(
  poses,
  activations,
  transforms,
  beta_a,
  beta_u,
  *,
  stride=STRIDE,
  form="paper",
  temperatures=TEMPERATURES[1:],
  fault="",
):
  """The result of `oracle` for capsules in windows, as an `em.EMOutput`.

  With a `fault`, children compete in a wrong way.
  """
  arrays = (poses, activations, transforms, beta_a, beta_u)
  poses, activations, transforms, beta_a, beta_u = map(np.float64, arrays)
  height, width, types = activations.shape
  rows, columns = (
    (n - k) // stride + 1
    for n, k in zip((height, width), transforms.shape[:2], strict=True)
  )
  place, votes, present = {}, {}, {}
  for y in range(rows):
    for x in range(columns):
      for v in range(transforms.shape[0]):
        for u in range(transforms.shape[1]):
          for i in range(types):
            child = (stride * y + v, stride * x + u, i)
            name = child
            if fault == "types_alone_compete":
              name = (*child, y, x)
            elif fault == "positions_alone_compete":
              name = None
            for j in range(transforms.shape[3]):
              pair = (name or (*child, j), (y, x, j))
              vote = poses[child] @ transforms[v, u, i, j]
              votes[pair] = vote.reshape(-1)
              place[pair] = (y, x, v, u, i, j)
              present[pair[0]] = activations[child]
  seen = {i: sum(k == i for k, _ in votes) for i in present}
  shares = {
    pair: 1 / (len(beta_a) if form == "official" else seen[pair[0]])
    for pair in votes
  }
  if fault == "even_over_types":
    shares = dict.fromkeys(votes, 1 / len(beta_a))
  parents = sorted({j for _, j in votes})
  mean, a, shares, variance = oracle(
    votes,
    present,
    {j: beta_a[j[2]] for j in parents},
    {j: beta_u[j[2]] for j in parents},
    shares,
    temperatures,
    form,
  )
  shape = (rows, columns, len(beta_a))
  matrix = (*shape, poses.shape[3], transforms.shape[5])
  r = np.zeros((rows, columns, *transforms.shape[:4]))
  for pair, where in place.items():
    r[where] = shares[pair]
  return em.EMOutput(
    np.array([mean[j] for j in parents]).reshape(matrix),
    np.array([a[j] for j in parents]).reshape(shape),
    r,
    np.array([variance[j] for j in parents]).reshape(matrix),
  )


def betas(seed=0, size=4, form="paper", dtype=jnp.float32):
  random = np.random.default_rng(seed + 50)
  beta_a = BETA_A_SCALES[form] * random.normal(size=size)
  return jnp.array(beta_a, dtype), jnp.array(random.normal(size=size), dtype)


def assert_close(got, want, atol=2e-5, rtol=1e-5):
  fields = em.EMOutput._fields
  for name, one, other in zip(fields, got, want, strict=True):
    np.testing.assert_allclose(one, other, atol=atol, rtol=rtol, err_msg=name)
