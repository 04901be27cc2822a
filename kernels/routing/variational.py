"""Routing by variational Bayes: votes are samples of a mixture of Gaussians.

Axes: I parts (children) below, J objects (parents) above, D pose of an object.
One example, no batch axis: `jax.vmap` adds it.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import digamma
from jaxtyping import Array, Float

from .. import checks, numerics
from . import linear_votes
from .output import RoutingOutput


class _Posterior(NamedTuple):
  """Expectations under the variational posterior of the parents' parameters.

  Attributes:
    mean: [J D], E mu_j, the mean of the votes.
    log_share: [J], E ln pi_j.
    log_precision: [J], E ln |Lambda_j|.
    distances: [I J], E (u_ij - mu_j)' Lambda_j (u_ij - mu_j).
  """

  mean: Float[Array, "J D"]
  log_share: Float[Array, " J"]
  log_precision: Float[Array, " J"]
  distances: Float[Array, "I J"]


def variational_routing(
  votes: Float[Array, "I J D"],
  activations: Float[Array, " I"],
  *,
  num_iterations: int = 3,
  beta: Float[Array, " J"] | None = None,
  gain: Float[Array, " J"] | None = None,
  alpha_0: numerics.Scalar = 1.0,
  kappa_0: numerics.Scalar = 1.0,
  nu_0: numerics.Scalar | None = None,
  psi_0: numerics.Scalar = 1.0,
  gradient: str = "all",
) -> RoutingOutput:
  """Routes by variational Bayes (Ribeiro et al., 2020, Algorithm 1).

  Votes u_ij for parent j are Gaussian with mean mu_j and precision Lambda_j;
  shares pi ~ Dirichlet(alpha_0), mu_j ~ N(0, (kappa_0 Lambda_j)^-1), Lambda_j ~
  Wishart(psi_0 I, nu_0). Each iteration updates the posterior of these, then
  the responsibilities r_ij, which start even. With w_ij = r_ij a_i and R_j =
  sum_i w_ij,
    alpha_j = alpha_0 + R_j,  kappa_j = kappa_0 + R_j,  nu_j = nu_0 + R_j,
    m_j = sum_i w_ij u_ij / kappa_j,
    1 / psi_j = 1 / psi_0 + sum_i w_ij (u_ij - m_j)^2 + kappa_0 m_j^2,
    E ln pi_j = digamma(alpha_j) - digamma(sum_j alpha_j),
    E ln |Lambda_j| = sum_d (digamma((nu_j - d) / 2) + ln 2 + ln psi_jd) with
      d = 0 .. D - 1,
    ln r_ij = E ln pi_j + E ln |Lambda_j| / 2
      - (D / kappa_j + nu_j sum_d psi_jd (u_ij - m_j)^2) / 2 + const_i,
    H_j = D / 2 (1 + ln 2 pi) - E ln |Lambda_j| / 2,
    a_j = sigmoid(beta_j - gain_j e^(E ln pi_j) H_j).
  Psi_j is kept diagonal, with the Wishart's expectations, as in the authors'
  code. Its sum of squares about m_j is the paper's S_j + kappa_0 R_j / kappa_j
  mu_j^2 with mu_j = sum_i w_ij u_ij / R_j, without the division by R_j.

  The unit of the votes matters: if H_j is above zero, as with few parts or
  scattered votes, a parent's activation decreases as its share increases.

  Args:
    votes: the predictions u_ij of part i for the pose of parent j; in float32
      of magnitude up to 1e12, the same as beta and gain, and up to 1e8 for
      finite gradients.
    activations: a_i of the parts, >= 0.
    num_iterations: at least 1; with 1 every part is divided evenly among the
      parents.
    beta: the paper's beta_a - beta_u, zero by default; nats.
    gain: one by default.
    alpha_0: > 0, weight of the prior of each parent's share, in parts.
    kappa_0: > 0, weight of the prior mean of 0, in votes.
    nu_0: > D - 1, weight of the prior precision, in votes; D + 1 by default.
    psi_0: > 0, on the diagonal of the prior's scale matrix.
    gradient: "all" for gradients through all iterations; "last" for those of
      the last update of the posterior alone, with r_ij as constants.

  Returns:
    Poses m_j, activations a_j, and the r_ij of the last update of the
    posterior, which sum to 1 over parents.

  Raises:
    ValueError: if `num_iterations` is below 1, `gradient` is unknown, or a
      parameter of the prior, or a known activation, is out of its range.

  Differs from paper: the batch norm before the sigmoid needs a batch; `beta`
  and `gain` stand for it, and the batch norm of the poses is left to the
  network. beta_a and beta_u enter as their difference alone, so they are one.
  The authors' newest code leaves E ln pi_j out of the numerator of r_ij, whose
  sum is then not 1; we do not.
  """
  checks.arrays(
    {
      "votes": (votes, "I J D"),
      "activations": (activations, "I"),
      "beta": (beta, "J"),
      "gain": (gain, "J"),
    }
  )
  checks.values(0.0, math.inf, activations=activations)
  dtype = jnp.result_type(votes)
  accumulation = numerics.accumulation_dtype(votes, activations)
  votes, activations = (
    votes.astype(accumulation),
    activations.astype(accumulation),
  )
  num_parts, num_parents, pose_size = votes.shape
  nu_0 = pose_size + 1 if nu_0 is None else nu_0
  linear_votes.require_iterations(num_iterations, gradient=gradient)
  checks.positive(alpha_0=alpha_0, kappa_0=kappa_0, psi_0=psi_0)
  checks.positive(above=pose_size - 1, nu_0=nu_0)

  def update_parents(responsibilities):
    weights = responsibilities * activations[:, None]
    mass = jnp.sum(weights, axis=0)
    alpha, kappa, nu = alpha_0 + mass, kappa_0 + mass, nu_0 + mass
    mean = numerics.einsum("ij,ijd->jd", weights, votes) / kappa[:, None]
    squares = jnp.square(votes - mean)
    spread = numerics.einsum("ij,ijd->jd", weights, squares)
    inverse_psi = 1 / psi_0 + spread + kappa_0 * jnp.square(mean)
    freedom = nu[:, None] - jnp.arange(pose_size, dtype=nu.dtype)
    log_precision = digamma(freedom / 2) + math.log(2) - jnp.log(inverse_psi)
    distances = numerics.einsum(
      "ijd,jd->ij", squares, nu[:, None] / inverse_psi
    )
    return _Posterior(
      mean,
      digamma(alpha) - digamma(jnp.sum(alpha)),
      jnp.sum(log_precision, axis=-1),
      pose_size / kappa + distances,
    )

  def update_responsibilities(responsibilities):
    posterior = update_parents(responsibilities)
    logits = posterior.log_precision - posterior.distances
    return numerics.softmax(posterior.log_share + logits / 2, axis=1)

  responsibilities = jnp.full(
    (num_parts, num_parents), 1 / num_parents, accumulation
  )
  for _ in range(num_iterations - 1):
    responsibilities = update_responsibilities(responsibilities)
    if gradient == "last":
      responsibilities = jax.lax.stop_gradient(responsibilities)
  posterior = update_parents(responsibilities)
  entropy = pose_size / 2 * (1 + math.log(2 * math.pi))
  entropy -= posterior.log_precision / 2
  logits = -jnp.exp(posterior.log_share) * entropy
  if gain is not None:
    logits *= gain
  if beta is not None:
    logits += beta
  output = RoutingOutput(
    posterior.mean, jax.nn.sigmoid(logits), responsibilities
  )
  return jax.tree.map(lambda x: x.astype(dtype), output)
