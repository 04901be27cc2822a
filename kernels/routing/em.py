"""EM routing: parents as Gaussians that cluster the votes of their children.

Axes: I parts (children) below, J objects (parents) above, D pose of an object
(the numbers of its matrix in a row). One example, no batch axis: `jax.vmap`
adds it.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .. import checks, numerics
from . import linear_votes

# Number of children to which the costs of a layer are scaled, as in IBM's code.
DATA_AMOUNT = 100.0


class Form(NamedTuple):
  """Constants by which published forms of EM routing differ.

  Attributes:
    beta_a_scale: factor of beta_a.
    beta_u_scale: factor of beta_u.
    log_variance_scale: factor of ln variance in the cost; 1/2 makes it ln
      sigma.
    damping: in [0, 1), the share of the previous mean in the next; the mean
      before the first is 0.
    even_over_positions: whether a child begins with an even share for each
      parent that sees it. Else it begins with an even share for each type, at
      every position; without positions that is the same.
    variance_floor: > 0, added to variances.
    mass_floor: > 0, added to the mass of each parent.
    cost_scale: > 0, factor of the cost. `amount_of_data_scale` gives the one of
      Gritzman (2019), by which one lambda fits layers of any size.
  """

  beta_a_scale: float
  beta_u_scale: float
  log_variance_scale: float
  damping: float
  even_over_positions: bool
  variance_floor: float = 5e-4
  mass_floor: float = 1e-7
  cost_scale: float = 1.0


# Hinton et al., 2018; the floors are the authors' code's, the paper has none.
PAPER = Form(
  beta_a_scale=1.0,
  beta_u_scale=1.0,
  log_variance_scale=0.5,
  damping=0.0,
  even_over_positions=True,
)
# The authors' code, whose class capsules have a mass_floor of 1e-5.
OFFICIAL = Form(
  beta_a_scale=-5000.0,
  beta_u_scale=math.log(2 * math.pi) + 1,
  log_variance_scale=1.0,
  damping=0.1,
  even_over_positions=False,
)


class EMOutput(NamedTuple):
  """The result of EM routing.

  Attributes:
    poses: [J D], means of the parents' Gaussians.
    activations: [J] in [0, 1], how strongly each parent is present.
    coefficients: [I J], the share of part i that goes to parent j, in [0, 1].
    variances: [J D], of the parents' Gaussians, at least the floor.
  """

  poses: Float[Array, "J D"]
  activations: Float[Array, " J"]
  coefficients: Float[Array, "I J"]
  variances: Float[Array, "J D"]


class Moments(NamedTuple):
  """Moments of the votes for each parent about a centre, summed over children.

  Attributes:
    mass: [... J], sum of the weights w_ij.
    first: [... D J], sum of w_ij (u_ij - centre_j).
    second: [... D J], sum of w_ij (u_ij - centre_j)^2.
  """

  mass: Float[Array, "*P J"]
  first: Float[Array, "*P D J"]
  second: Float[Array, "*P D J"]


class Gaussians(NamedTuple):
  """The parents after an M-step.

  Attributes:
    means: [... D J].
    variances: [... D J], at least the floor.
    logits: [... J], logits of the activations.
  """

  means: Float[Array, "*P D J"]
  variances: Float[Array, "*P D J"]
  logits: Float[Array, "*P J"]

  def log_weights(self) -> Float[Array, "*P J"]:
    """Computes ln(a_j / sqrt(prod_d v_jd)), with a_j the activations."""
    log_volume = jnp.sum(jnp.log(self.variances), axis=-2) / 2
    return jax.nn.log_sigmoid(self.logits) - log_volume


def inverse_temperature_schedule(
  num_iterations: int, *, final: float = 0.01
) -> tuple[float, ...]:
  """Returns lambda_t = final (1 - 0.95^(t + 1)), t = 0 .. num_iterations - 1.

  As in the authors' code (Hinton et al., 2018), whose class capsules have a
  quarter of the final value of the others. Above 0.01 activations saturate.

  Args:
    num_iterations: at least 1.
    final: the limit, >= 0.

  Raises:
    ValueError: if `num_iterations` is below 1, or `final` below 0.
  """
  checks.counts(num_iterations=num_iterations)
  checks.within(0.0, math.inf, final=final)
  return tuple(final * (1 - 0.95 ** (t + 1)) for t in range(num_iterations))


def amount_of_data_scale(
  num_children: int, num_parents: int, *, amount: float = DATA_AMOUNT
) -> float:
  """Returns amount / (I / J), a factor that makes costs of layers comparable.

  Gritzman (2019) multiplies the cost of a parent by this factor, with an amount
  of 100. At the start a capsule of a convolutional layer has the mass of a few
  children and a class capsule that of many, so that no single lambda fits both
  layers without the factor.

  Args:
    num_children: I, the children that a parent sees, of all types and
      positions.
    num_parents: J, types of parents.
    amount: the number of children to which every layer's cost is scaled.

  Raises:
    TypeError: if the first two are no whole numbers.
    ValueError: if a number is below 1, or the amount is not above 0.
  """
  checks.counts(num_children=num_children, num_parents=num_parents)
  checks.positive(amount=amount)
  return amount * num_parents / num_children


def em_routing(
  votes: Float[Array, "I J D"],
  activations: Float[Array, " I"],
  beta_a: Float[Array, " J"],
  beta_u: Float[Array, " J"],
  *,
  inverse_temperatures: Sequence[float] | Float[Array, " T"],
  form: Form = PAPER,
  gradient: str = "all",
) -> EMOutput:
  """Routes by expectation maximisation (Hinton et al., 2018, Procedure 1).

  Votes u_ij for parent j are Gaussian with mean mu_j and diagonal covariance
  v_j; shares r_ij start even. With w_ij = r_ij a_i, each iteration
  takes an M-step and, between two of them, an E-step:
    R_j = sum_i w_ij,  mu_j = sum_i w_ij u_ij / R_j,
    v_j = sum_i w_ij (u_ij - mu_j)^2 / R_j,
    cost_j = R_j sum_d (beta_u_j + ln v_jd / 2),
    a_j = sigmoid(lambda_t (beta_a_j - cost_j));
    ln r_ij = ln a_j - sum_d (ln v_jd + (u_ij - mu_j)_d^2 / v_jd) / 2 + const_i.
  That is the paper's form; `form` scales the betas and ln v_jd, and damps mu_j.

  cost_j grows with the number of parts. So layers of different size need
  different lambda_t or betas, or the `cost_scale` of `amount_of_data_scale`.

  Args:
    votes: the predictions u_ij of part i for the pose of parent j; in float32
      of magnitude up to 1e14, the same as the betas, and up to 1e4 for finite
      gradients of any votes: where votes coincide, gradients are as large as
      the floor of the variances allows.
    activations: a_i of the parts, in [0, 1].
    beta_a: the benefit of an active parent (nats).
    beta_u: the cost of a part that no parent explains (nats, per dimension of
      the pose).
    inverse_temperatures: lambda_t >= 0 for each iteration, at least one;
      `inverse_temperature_schedule` gives the authors' values.
    form: `PAPER`, `OFFICIAL` or another.
    gradient: "all" for gradients through all iterations; "last" for those of
      the last M-step alone, with r_ij and the parents before as constants.

  Returns:
    Poses mu_j, activations a_j and variances v_j after the last M-step, and the
    shares r_ij that this M-step used, which sum to 1 over parents.

  Raises:
    ValueError: if there are no inverse temperatures, `gradient` is unknown, a
      known activation is outside of [0, 1], or a known number of the form is
      out of range.

  Differs from paper: floors under R_j and v_j, without which a parent with one
  effective child has an infinite density.
  """
  checks.arrays(
    {
      "votes": (votes, "I J D"),
      "activations": (activations, "I"),
      "beta_a": (beta_a, "J"),
      "beta_u": (beta_u, "J"),
    }
  )
  checks.values(0.0, 1.0, activations=activations)
  require_iterations(inverse_temperatures, gradient=gradient)
  require_form(form)
  dtype = jnp.result_type(votes)
  accumulation = numerics.accumulation_dtype(votes, activations)
  votes, activations, beta_a, beta_u = (
    x.astype(accumulation) for x in (votes, activations, beta_a, beta_u)
  )
  votes = votes.swapaxes(1, 2)
  num_parts, pose_size, num_parents = votes.shape
  shares = jnp.full((num_parts, num_parents), 1 / num_parents, accumulation)
  parents: Gaussians | None = None
  for inverse_temperature in inverse_temperatures:
    if parents is not None:
      deviations = jnp.square(votes - parents.means) / parents.variances
      distances = jnp.sum(deviations, axis=1)
      shares = numerics.softmax(parents.log_weights() - distances / 2)
      if gradient == "last":
        shares, parents = jax.lax.stop_gradient((shares, parents))
    weights = shares * activations[:, None]
    mass = jnp.sum(weights, axis=0)
    # The result does not depend on the centre; near the mean it is exact.
    centre = numerics.einsum("ij,idj->dj", weights, votes) / (
      mass + form.mass_floor
    )
    centre = jax.lax.stop_gradient(centre)
    moments = Moments(
      mass,
      numerics.einsum("ij,idj->dj", weights, votes - centre),
      numerics.einsum("ij,idj->dj", weights, jnp.square(votes - centre)),
    )
    parents = maximise(
      moments,
      centre,
      parents,
      beta_a,
      beta_u,
      inverse_temperature=inverse_temperature,
      form=form,
    )
  assert parents is not None  # there is at least one iteration
  output = EMOutput(
    parents.means.swapaxes(0, 1),
    jax.nn.sigmoid(parents.logits),
    shares,
    parents.variances.swapaxes(0, 1),
  )
  return jax.tree.map(lambda x: x.astype(dtype), output)


def maximise(
  moments: Moments,
  centre: Float[Array, "*P D J"],
  previous: Gaussians | None,
  beta_a: Float[Array, " J"],
  beta_u: Float[Array, " J"],
  *,
  inverse_temperature: float | Float[Array, ""],
  form: Form,
) -> Gaussians:
  """The M-step, from moments of the votes (Hinton et al., 2018).

  Args:
    moments: moments about `centre`.
    centre: any point; the nearer to the means, the smaller the rounding error.
    previous: the parents of the iteration before; None in the first.
    beta_a: as for `em_routing`.
    beta_u: as for `em_routing`.
    inverse_temperature: lambda of this iteration.
    form: as for `em_routing`.

  Returns:
    The parents' Gaussians and the logits of their activations.
  """
  checks.floats({"centre": centre, "beta_a": beta_a, "beta_u": beta_u})
  mass = moments.mass + form.mass_floor
  total = jnp.expand_dims(mass, -2)
  # The mass floor acts as votes at 0; the moments are about the centre.
  means = (moments.first + jnp.expand_dims(moments.mass, -2) * centre) / total
  means *= 1 - form.damping
  if previous is not None:
    means += form.damping * previous.means
  shift = means - centre
  squares = moments.second - 2 * shift * moments.first
  squares += jnp.square(shift) * jnp.expand_dims(moments.mass, -2)
  variances = jnp.maximum(squares / total, 0) + form.variance_floor
  cost = form.beta_u_scale * means.shape[-2] * beta_u
  cost += form.log_variance_scale * jnp.sum(jnp.log(variances), axis=-2)
  cost *= form.cost_scale * mass
  inverse_temperature = jnp.asarray(inverse_temperature, mass.dtype)
  logits = inverse_temperature * (form.beta_a_scale * beta_a - cost)
  # Numbers of a form may be wider than the votes.
  parents = Gaussians(means, variances, logits)
  return jax.tree.map(lambda x: x.astype(centre.dtype), parents)


def require_iterations(
  inverse_temperatures: Sequence[float] | Float[Array, " T"],
  *,
  gradient: str = "all",
) -> None:
  """Checks the inverse temperatures and the gradient of EM routing.

  Args:
    inverse_temperatures: lambda of each iteration.
    gradient: "all" or "last".

  Raises:
    TypeError: if the inverse temperatures are one number, or no numbers.
    ValueError: if there is none, a known one is below 0 or not finite, or the
      gradient is unknown.
  """
  if not np.iterable(inverse_temperatures):
    raise TypeError(
      f"inverse_temperatures is {inverse_temperatures}; give a sequence, one "
      "number for each iteration."
    )
  if not len(inverse_temperatures):
    raise ValueError(
      "inverse_temperatures is empty; give one for each iteration, at least 1."
    )
  for number in inverse_temperatures:
    checks.within(0.0, math.inf, **{"an inverse temperature": number})
  linear_votes.require_iterations(len(inverse_temperatures), gradient=gradient)


def require_form(form: Form) -> None:
  """Checks the floors, `cost_scale` and `damping`; traced ones are skipped.

  Args:
    form: as for `em_routing`.

  Raises:
    TypeError: if one of these is no number.
    ValueError: if a floor or `cost_scale` is not above 0 or not finite, or
      `damping` is outside of [0, 1).
  """
  checks.positive(
    variance_floor=form.variance_floor,
    mass_floor=form.mass_floor,
    cost_scale=form.cost_scale,
  )
  checks.within(0.0, 1.0, damping=form.damping)
  if checks.are_known(form.damping) and form.damping == 1:
    raise ValueError("damping is 1.0; give a number from 0 to below 1.")


def coordinate_addition(
  x: Float[Array, " W"],
  y: Float[Array, " H"],
  *,
  entries: tuple[int, int] = (3, 7),
  pose_size: int = 16,
) -> Float[Array, "H W D"]:
  """Makes coordinates of children to add to votes (Hinton et al., 2018).

  If votes have coordinates, all positions of a layer can share their transforms
  to the classes.

  Args:
    x: coordinate of each column of capsules.
    y: coordinate of each row.
    entries: entries of the pose, to which x and y are added. The first two
      numbers of the right-hand column of a 4x4 matrix are 3 and 7, as in the
      paper and with `relative_coordinates` in IBM's code (Gritzman, 2019); 0
      and 1, with `pixel_coordinates`, are the authors' code.
    pose_size: D.

  Returns:
    For each position a vector with x and y at `entries` and zeros elsewhere.

  Raises:
    ValueError: if a pose has no such entries.
  """
  checks.arrays({"x": (x, "W"), "y": (y, "H")})
  if not all(0 <= entry < pose_size for entry in entries):
    raise ValueError(
      f"entries={entries} of a pose of {pose_size} numbers; give entries from "
      f"0 to {pose_size - 1}, or a larger pose_size."
    )
  offsets = jnp.zeros((len(y), len(x), pose_size), jnp.result_type(x, y))
  offsets = offsets.at[:, :, entries[0]].add(x)
  return offsets.at[:, :, entries[1]].add(y[:, None])


def relative_coordinates(size: int) -> Float[Array, " size"]:
  """Centres of capsules in a row, (c + 1/2) / size in (0, 1).

  Args:
    size: the number of capsules in the row.
  """
  return (jnp.arange(size) + 0.5) / size


def pixel_coordinates(
  size: int, windows: Sequence[tuple[int, int]]
) -> Float[Array, " N"]:
  """Centres of the capsules' receptive fields, in hundreds of pixels.

  Pixels have the coordinates -(size // 2), 1 - (size // 2), ... as in the
  authors' code.

  Args:
    size: size of the image along the axis, in pixels.
    windows: (size, stride) of each layer below, from the image up, without
      padding.

  Returns:
    N coordinates.
  """
  start, step = float(-(size // 2)), 1
  for kernel, stride in windows:
    start += step * (kernel - 1) / 2
    step *= stride
    size = (size - kernel) // stride + 1
  return (start + step * jnp.arange(size)) / 100
