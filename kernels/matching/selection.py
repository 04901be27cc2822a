"""Densities of child capsules given their parents (Smith et al., 2020).

The generative model between two layers: a child selects one parent, is present
or absent, and has a pose that depends on the parent's. Densities sum over the
parents that the child may select. Presences t are relaxed to (0, 1) and given
by their logits, log t - log(1 - t), in which every density here is finite. A
pose is given by its matrix minus the identity, by six numbers a:
A = I + [[a_0 a_1 a_2] [a_3 a_4 a_5] [0 0 0]].

Axes: I children, J parents. A last axis of 1 + J has the dummy parent first,
which is always present and has no pose. The paper's i is our j, and its j our
i.
"""

import math
import numbers
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import checks, numerics

Temperature = numerics.Scalar


class Capsules(NamedTuple):
  """The capsules of a layer.

  Attributes:
    logits: [I], logits of the presences t.
    poses: [I 6], the pose matrices minus the identity.
  """

  logits: Float[Array, "*batch I"]
  poses: Float[Array, "*batch I 6"]


class Relations(NamedTuple):
  """Parameters of the relations between a layer of parents and its children.

  Attributes:
    log_affinities: [I 1+J], log rho.
    presence_logits: [I 1+J], log odds of gamma, the probability that a child is
      present if its parent is.
    offsets: [I J 6], M, in the form of poses.
    scales: [I J], sigma > 0, standard deviation of each number of a pose.
  """

  log_affinities: Float[Array, "I P"]
  presence_logits: Float[Array, "I P"]
  offsets: Float[Array, "I J 6"]
  scales: Float[Array, "I J"]


class Selection(NamedTuple):
  """Children given their parents, with the selection s summed out.

  Attributes:
    log_densities: [I], log p(t_i, A_i | parents) in nats, a density with
      respect to the logit of t and the six numbers of the pose.
    routing: [I 1+J], P(s_i = j | t_i, A_i, parents).
  """

  log_densities: Float[Array, " I"]
  routing: Float[Array, "I P"]


def identity_plus(
  poses: Float[Array, "*batch 6"],
) -> Float[Array, "*batch 3 3"]:
  """Returns the pose matrices I + [[a_0 a_1 a_2] [a_3 a_4 a_5] [0 0 0]].

  Args:
    poses: a_0 to a_5 along the last axis, any finite numbers.

  Returns:
    The matrices, in the dtype of the poses.
  """
  checks.arrays({"poses": (poses, "... 6")})
  around = [(0, 0)] * (poses.ndim - 1)
  return jnp.eye(3, dtype=poses.dtype) + jnp.pad(
    _rows(poses), (*around, (0, 1), (0, 0))
  )


def expected_poses(
  parents: Float[Array, "J 6"], offsets: Float[Array, "I J 6"]
) -> Float[Array, "I P 6"]:
  """The pose that each parent expects of each child: A_j (I + M_ij), eq. 5.

  With poses as matrices minus the identity, B_j = A_j - I, it is B_j + M_ij +
  B_j M_ij. This form is accurate for small poses.

  Args:
    parents: poses of the parents.
    offsets: M.

  Returns:
    [I 1+J 6]; the first, of the dummy parent, is the identity.
  """
  checks.arrays({"parents": (parents, "J 6"), "offsets": (offsets, "I J 6")})
  given = jnp.result_type(parents, offsets)
  dtype = numerics.accumulation_dtype(parents, offsets)
  parents, offsets = parents.astype(dtype), offsets.astype(dtype)
  products = numerics.einsum(
    "jpq,ijqr->ijpr", _rows(parents)[..., :2], _rows(offsets)
  )
  poses = parents + offsets + products.reshape(offsets.shape)
  return jnp.pad(poses, ((0, 0), (1, 0), (0, 0))).astype(given)


def selection_logits(
  parents: Float[Array, " J"], log_affinities: Float[Array, "I P"]
) -> Float[Array, "I P"]:
  """Log of t_j rho_ij, whose softmax is P(s_i = j | parents), eq. 3.

  Args:
    parents: logits of the parents' presences.
    log_affinities: log rho; the first column belongs to the dummy, with t = 1.

  Returns:
    Log of unnormalised probabilities, <= `log_affinities`.
  """
  checks.arrays(
    {"parents": (parents, "J"), "log_affinities": (log_affinities, "I 1+J")},
    empty="",
    **{"1+J": 1 + len(parents)},
  )
  presences = jax.nn.log_sigmoid(parents)
  return log_affinities + jnp.pad(presences, (1, 0))


def pose_scales(
  logits: Float[Array, "*#batch"],
  scales: Float[Array, "*#batch"],
  *,
  off_scale: numerics.Scalar,
) -> Float[Array, "..."]:
  """Standard deviation of the pose of a partly present child, eqs. 5 and 6.

  sigma(t)^-2 = t sigma^-2 + (1 - t) sigma_off^-2: the Gaussian proportional to
  N_on^t N_off^(1 - t), since both have the same mean.

  Args:
    logits: logit of the child's presence t.
    scales: sigma, of a child that is present.
    off_scale: sigma_off, of a child that is absent.

  Returns:
    sigma(t) > 0, between sigma and sigma_off, of the broadcast shape.

  Raises:
    ValueError: if `off_scale` is a number of Python that is not above 0.
  """
  checks.floats({"logits": logits, "scales": scales})
  on = jax.nn.log_sigmoid(logits) - 2 * jnp.log(scales)
  is_known = isinstance(off_scale, int | float)
  log_off = math.log(off_scale) if is_known else jnp.log(off_scale)
  off = jax.nn.log_sigmoid(-logits) - 2 * log_off
  return jnp.exp(-jnp.logaddexp(on, off) / 2)


def binary_concrete(
  logits: Float[Array, "*#batch"],
  log_odds: Float[Array, "*#batch"],
  *,
  temperature: Temperature,
) -> Float[Array, "..."]:
  """Log density of a relaxed Bernoulli variable's logit, in nats.

  l = (log odds + logistic noise) / tau (Maddison et al., 2017, appendix C.3):
  log tau + d - 2 log(1 + e^d) with d = log odds - tau l. The density of t
  itself is this density divided by t (1 - t); the factor cancels in bounds on
  log p(x).

  Args:
    logits: l, any finite number.
    log_odds: log odds of the variable that is relaxed.
    temperature: tau > 0; as tau goes to 0, t becomes 0 or 1.

  Returns:
    Log densities of the broadcast shape.
  """
  checks.floats({"logits": logits, "log_odds": log_odds})
  d = log_odds - temperature * logits
  return jnp.log(temperature) + jax.nn.log_sigmoid(d) + jax.nn.log_sigmoid(-d)


def select(
  children: Capsules,
  parents: Capsules,
  relations: Relations,
  *,
  temperature: Temperature,
  off_scale: numerics.Scalar,
  dummy_scale: numerics.Scalar,
) -> Selection:
  """Sums out which parent each child belongs to (Smith et al., 2020, eq. 9).

  p(t_i, A_i | parents) = sum_j P(s_i = j) p(t_i | s_i = j) p(A_i | t_i,
  s_i = j), and its summands, normalised, are P(s_i = j | t_i, A_i, parents)
  (appendix D).

  Args:
    children: the layer below.
    parents: the layer above.
    relations: the relations between the two layers.
    temperature: temperature of the relaxed presences.
    off_scale: sigma_off, standard deviation of the pose of an absent child.
    dummy_scale: sigma_0, standard deviation, about the identity, of the pose of
      a child without parent.

  Returns:
    Densities and routing, in the dtype of the children's poses.

  Raises:
    ValueError: if a temperature or scale is not above 0.

  Differs from paper: the paper does not define the distribution of the pose of
  a child with relaxed presence; see `pose_scales`.
  """
  checks.positive(
    temperature=temperature, off_scale=off_scale, dummy_scale=dummy_scale
  )
  checks.arrays(
    {
      "offsets": (relations.offsets, "I J 6"),
      "scales": (relations.scales, "I J"),
      "children.logits": (children.logits, "I"),
      "children.poses": (children.poses, "I 6"),
      "parents.logits": (parents.logits, "J"),
      "parents.poses": (parents.poses, "J 6"),
      "log_affinities": (relations.log_affinities, "I 1+J"),
      "presence_logits": (relations.presence_logits, "I 1+J"),
    },
    empty="",
    **{"1+J": 1 + relations.offsets.shape[1]},
  )
  dtype = children.poses.dtype
  accumulation = numerics.accumulation_dtype(*children, *parents, *relations)
  children, parents, relations = jax.tree.map(
    lambda x: x.astype(accumulation), (children, parents, relations)
  )
  logits = children.logits[:, None]
  priors = selection_logits(parents.logits, relations.log_affinities)
  dummy = jnp.full((len(relations.scales), 1), dummy_scale, accumulation)
  scales = jnp.concatenate([dummy, relations.scales], axis=1)
  terms = numerics.log_softmax(priors)
  terms += binary_concrete(
    logits, relations.presence_logits, temperature=temperature
  )
  terms += gaussian(
    children.poses[:, None],
    expected_poses(parents.poses, relations.offsets),
    pose_scales(logits, scales, off_scale=off_scale)[..., None],
  )
  output = Selection(numerics.logsumexp(terms, -1), numerics.softmax(terms, -1))
  return jax.tree.map(lambda x: x.astype(dtype), output)


def gaussian(
  values: Float[Array, "*#batch D"],
  means: Float[Array, "*#batch D"],
  scales: Float[Array, "*#batch D2"] | float,
) -> Float[Array, "..."]:
  """Log density of independent Gaussians, summed over the last axis; nats.

  Args:
    values: the points; the three arrays broadcast.
    means: their means.
    scales: standard deviations, > 0; with a last axis of 1, or as one number,
      the same for all of D.

  Returns:
    Log densities in nats, of the broadcast shape without its last axis.
  """
  checks.floats({"values": values, "means": means})
  if not isinstance(scales, numbers.Real):
    checks.floats({"scales": scales})
  logs = jnp.square((values - means) / scales) + 2 * jnp.log(scales)
  return -jnp.sum(logs + math.log(2 * math.pi), axis=-1) / 2


def _rows(poses: Float[Array, "*batch 6"]) -> Float[Array, "*batch 2 3"]:
  """The first two rows of pose matrices minus the identity; the third is 0."""
  return poses.reshape(*poses.shape[:-1], 2, 3)
