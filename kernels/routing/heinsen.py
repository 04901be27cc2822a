"""Heinsen's routings, in which parents use or ignore each part's data.

Of the data of a part, each parent uses a share and ignores the rest; it gains
`beta_use` for what it uses and pays `beta_ignore` for what it ignores.

Axes: I parts (children) below, J objects (parents) above, C pose of a part,
D pose of an object. One example, no batch axis: `jax.vmap` adds it.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import checks, numerics
from . import linear_votes
from .linear_votes import LinearVotes
from .output import RoutingOutput

# Added to masses and variances, as in the authors' code.
_EPSILON = 1e-5


def credit(
  coefficients: Float[Array, "I J"],
  activations: Float[Array, " I"],
  beta_use: Float[Array, "I J"],
  beta_ignore: Float[Array, "I J"],
) -> Float[Array, "I J"]:
  """Net benefit of each part to each parent (Heinsen, 2022).

  With D_use = a_i R_ij and D_ignore = a_i - D_use,
    phi_ij = beta_use_ij D_use_ij - beta_ignore_ij D_ignore_ij.

  Args:
    coefficients: R_ij, shares of parts, as a routing returns them.
    activations: a_i of the parts, in [0, 1].
    beta_use: gain for each unit of data used, of any sign.
    beta_ignore: cost of each unit of data ignored, of any sign.

  Returns:
    phi_ij, of any sign.

  Raises:
    ValueError: if a known activation is outside of [0, 1].

  Differs from paper: a_i is the activation, the paper's f(a_i).
  """
  checks.arrays(
    {
      "coefficients": (coefficients, "I J"),
      "activations": (activations, "I"),
      "beta_use": (beta_use, "I J"),
      "beta_ignore": (beta_ignore, "I J"),
    }
  )
  checks.values(0.0, 1.0, activations=activations)
  present = activations[:, None]
  use = present * coefficients
  return beta_use * use - beta_ignore * (present - use)


def compose_credit(
  first: Float[Array, "I J"], second: Float[Array, "J K"]
) -> Float[Array, "I K"]:
  """Credit of the parts of one layer for the objects two layers above.

  The outputs of a layer are sums over parts weighted by `credit`, so that the
  weights of two layers compose as matrices (Heinsen, 2022).

  Args:
    first: credit of I parts for J objects.
    second: credit of these J objects, as parts, for K objects.

  Returns:
    sum_j first_ij second_jk.

  Differs from paper: the normalisation of the outputs between the layers is
  left out, since it does not change which parts contribute.
  """
  checks.arrays({"first": (first, "I J"), "second": (second, "J K")})
  return numerics.einsum("ij,jk->ik", first, second)


def heinsen_em_routing(
  votes: Float[Array, "I J D"],
  activations: Float[Array, " I"],
  beta_use: Float[Array, "I J"],
  beta_ignore: Float[Array, "I J"],
  *,
  num_iterations: int = 3,
  gradient: str = "all",
) -> RoutingOutput:
  """Routes by EM with gains of use and costs of ignoring (Heinsen, 2019).

  Each iteration has an E-step (but for the first, where R_ij = 1 / J), a D-step
  and an M-step. With u_ij the votes and f the logistic function,
    E: R_ij = softmax_j(log f(s_j) + log N(u_ij; mu_j, var_j)),
    D: use_ij = a_i R_ij,  ignore_ij = a_i - use_ij,
    M: s_j = sum_i beta_use_ij use_ij - beta_ignore_ij ignore_ij,
       mu_j = sum_i use_ij u_ij / sum_i use_ij,
       var_j = sum_i use_ij (u_ij - mu_j)^2 / sum_i use_ij.

  Args:
    votes: the predictions u_ij of part i for the pose of parent j; in float32
      of magnitude up to 1e4, the same as beta_use and beta_ignore.
    activations: a_i of the parts, in [0, 1].
    beta_use: gain for each unit of data used.
    beta_ignore: cost of each unit of data ignored.
    num_iterations: at least 1; with 1 every part is divided evenly among the
      parents.
    gradient: "all" for gradients through all iterations; "last" for those of
      the last M-step alone, with R_ij as constants.

  Returns:
    Poses mu_j, activations f(s_j), and the R_ij of the last iteration, which
    sum to 1 over parents.

  Raises:
    ValueError: if `num_iterations` is below 1, `gradient` is unknown, or a
      known activation is outside of [0, 1].

  Differs from paper: activations are probabilities, the paper's f(a_i), not
  scores, in arguments and results; the variances are not returned. 1e-5 is
  added to the sums of use_ij and to the variances, as in the authors' code.
  """
  checks.arrays(
    {
      "votes": (votes, "I J D"),
      "activations": (activations, "I"),
      "beta_use": (beta_use, "I J"),
      "beta_ignore": (beta_ignore, "I J"),
    }
  )
  checks.values(0.0, 1.0, activations=activations)
  linear_votes.require_iterations(num_iterations, gradient=gradient)
  given = votes
  dtype = numerics.accumulation_dtype(votes, activations)
  votes, activations = votes.astype(dtype), activations.astype(dtype)
  coefficients = jnp.full(votes.shape[:2], 1 / votes.shape[1], dtype)

  def update_parents(coefficients):
    use = activations[:, None] * coefficients
    scores = jnp.sum(
      credit(coefficients, activations, beta_use, beta_ignore), axis=0
    )
    mass = jnp.sum(use, axis=0)[:, None] + _EPSILON
    mean = numerics.einsum("ij,ijd->jd", use, votes) / mass
    squares = jnp.square(votes - mean)
    spread = numerics.einsum("ij,ijd->jd", use, squares) / mass
    return scores, mean, spread + _EPSILON

  def expect(scores, mean, variance):
    squares = jnp.square(votes - mean)
    distances = numerics.einsum("ijd,jd->ij", squares, 1 / variance)
    logs = -(distances + jnp.sum(jnp.log(variance), axis=1)) / 2
    return numerics.softmax(jax.nn.log_sigmoid(scores) + logs, 1)

  parents = update_parents(coefficients)
  for _ in range(num_iterations - 1):
    coefficients = expect(*parents)
    if gradient == "last":
      coefficients = jax.lax.stop_gradient(coefficients)
    parents = update_parents(coefficients)
  scores, mean, _ = parents
  return linear_votes.output(given, mean, jax.nn.sigmoid(scores), coefficients)


def heinsen_vector_routing(
  votes: Float[Array, "I J D"] | LinearVotes,
  parts: Float[Array, "I C"],
  activations: Float[Array, " I"],
  beta_use: Float[Array, "I J"],
  beta_ignore: Float[Array, "I J"],
  *,
  prediction: Float[Array, "D C"],
  prediction_scale: Float[Array, "J C"],
  prediction_bias: Float[Array, "J C"],
  score_scale: Float[Array, "I J"],
  score_bias: Float[Array, "I J"],
  readout: Float[Array, " D"],
  bias: Float[Array, "J D"] | None = None,
  num_iterations: int = 2,
  gradient: str = "all",
) -> RoutingOutput:
  """Routes to the parents that best predict the parts (Heinsen, 2022).

  The paper's algorithm with the functions of its efficient form. Each
  iteration has an E-step (but for the first, where R_ij = 1 / J), a D-step and
  an M-step. With u_ij the votes, x_i the parts, N the layer norm without
  parameters and f the logistic function,
    E: p_j = (N(y_j) prediction) prediction_scale_j + prediction_bias_j,
       R_ij = softmax_j(log f(score_scale_ij <x_i, p_j> + score_bias_ij)),
    D and M: phi = credit(R, a, beta_use, beta_ignore),
       y_j = sum_i phi_ij (u_ij + bias_j).
  Votes given as two factors are never stored: only sum_i phi_ij u_ij is needed.

  Args:
    votes: the predictions u_ij of part i for the pose of parent j; in float32
      of magnitude up to 1e6, the same as all other arguments, and up to 1e4 as
      two factors.
    parts: x_i, the poses of the parts, which the parents predict.
    activations: a_i of the parts, in [0, 1].
    beta_use: as for `credit`.
    beta_ignore: as for `credit`.
    prediction: the paper's W_G1, which all parents share.
    prediction_scale: its W_G2.
    prediction_bias: its B_G2.
    score_scale: its W_S.
    score_bias: its B_S.
    readout: the activation of a parent is f(<readout, v_j>).
    bias: its B_F2, added to all votes for a parent.
    num_iterations: at least 1; with 1 every part is divided evenly among the
      parents.
    gradient: "all" for gradients through all iterations; "last" for gradients
      through the last one alone, with y_j before it a constant. The R_ij have
      parameters of their own, so that they are not constants.

  Returns:
    Poses v_j = N(y_j), activations f(<readout, v_j>), and the R_ij of the last
    iteration, which sum to 1 over parents; `credit` computes phi_ij from them.

  Raises:
    ValueError: if `num_iterations` is below 1, `gradient` is unknown, D is 1,
      where the layer norm is always 0, or a known activation is outside of
      [0, 1].

  Differs from paper: parents have activations, from one readout like the one
  that scores parts in the paper's next layer. Parts are not divided by
  sqrt(I), which the layer norm undoes. Votes may be any linear function of the
  parts; in the efficient form all pairs of part and parent share one matrix,
  between two scales of their own.
  """
  linear_votes.check(
    votes,
    {
      "parts": (parts, "I C"),
      "activations": (activations, "I"),
      "beta_use": (beta_use, "I J"),
      "beta_ignore": (beta_ignore, "I J"),
      "prediction": (prediction, "D C"),
      "prediction_scale": (prediction_scale, "J C"),
      "prediction_bias": (prediction_bias, "J C"),
      "score_scale": (score_scale, "I J"),
      "score_bias": (score_bias, "I J"),
      "readout": (readout, "D"),
      "bias": (bias, "J D"),
    },
  )
  checks.values(0.0, 1.0, activations=activations)
  linear_votes.require_iterations(num_iterations, gradient=gradient)
  num_parts, num_parents, pose_size = votes.shape
  linear_votes.require_normalisable(pose_size)
  _, weighted_sum = linear_votes.contractions(votes)
  dtype = numerics.accumulation_dtype(*jax.tree.leaves(votes), activations)
  parts, activations = parts.astype(dtype), activations.astype(dtype)
  coefficients = jnp.full((num_parts, num_parents), 1 / num_parents, dtype)

  def update_parents(coefficients):
    weights = credit(coefficients, activations, beta_use, beta_ignore)
    total = weighted_sum(weights)
    if bias is not None:
      total += jnp.sum(weights, axis=0)[:, None] * bias
    return numerics.layer_norm(total)

  poses = update_parents(coefficients)
  for _ in range(num_iterations - 1):
    if gradient == "last":
      poses = jax.lax.stop_gradient(poses)
    predicted = numerics.einsum("jd,dc->jc", poses, prediction)
    predicted = predicted * prediction_scale + prediction_bias
    matches = numerics.einsum("ic,jc->ij", parts, predicted)
    scores = jax.nn.log_sigmoid(score_scale * matches + score_bias)
    coefficients = numerics.softmax(scores, 1)
    poses = update_parents(coefficients)
  logits = numerics.einsum("jd,d->j", poses, readout)
  return linear_votes.output(votes, poses, jax.nn.sigmoid(logits), coefficients)
