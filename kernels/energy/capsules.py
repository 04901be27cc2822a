"""Energies of stochastic capsules: the capsule RBM and related layers.

A capsule k holds J hidden units h_k of an exponential family and a switch z_k
in {0, 1}; its units interact with the neighbouring layer only while z_k = 1 (Li
and Zhu, Capsule Generative Models, 2019). The neighbouring layers enter only as
a *drive*: d_kj, multiplied by z_k h_kj, and e_k, multiplied by z_k. For
the capsule RBM d_k = W_k' x and e = Omega' x; in the Helmholtz machine both
come from the capsules above, or below.

Given their drive the capsules are independent, so that the posterior, the
log-partition function and the free energy are exact and cheap (our addition:
the paper uses mean field and does not compute partition functions). Results are
computed and returned in float32 or wider.

Axes: M visible units, K capsules, J hidden units of a capsule, R and U
statistics of a visible and of a hidden unit. One example, no batch axis:
`jax.vmap` adds it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from .. import checks, numerics, sharding
from .families import BERNOULLI, Family


class Bias(NamedTuple):
  """Natural parameters of a layer of capsules that has no neighbours.

  Attributes:
    hidden: [U K J], b_kj.
    switches: [K], c_k; None where every capsule is always on, which makes the
      model a plain RBM with K x J hidden units.
  """

  hidden: Float[Array, "U K J"]
  switches: Float[Array, " K"] | None


class Drive(NamedTuple):
  """Input from the neighbouring layer, added to the natural parameters.

  Attributes:
    hidden: [K J], d_kj, added to the first parameter of h_kj while z_k = 1.
    switches: [K], e_k, added to the parameter of z_k.
  """

  hidden: Float[Array, "K J"]
  switches: Float[Array, " K"]


class Capsules(NamedTuple):
  """A state of a layer of capsules, or the expectation of one.

  The energy is linear in these numbers, so the expected energy is the energy of
  the expectations.

  Attributes:
    statistics: [U K J], t(h_kj); the first is h_kj.
    switches: [K] in [0, 1], z_k.
    active: [K J], z_k h_kj, the input to the neighbouring layer.
  """

  statistics: Float[Array, "U K J"]
  switches: Float[Array, " K"]
  active: Float[Array, "K J"]


class Parameters(NamedTuple):
  """The parameters of a capsule RBM.

  Attributes:
    visible: [R M], a.
    bias: b and c, of the capsules.
    weights: [M K J], W_k; [K M J] in the paper.
    interaction: [M K], Omega; None for a model without it.
  """

  visible: Float[Array, "R M"]
  bias: Bias
  weights: Float[Array, "M K J"]
  interaction: Float[Array, "M K"] | None


def no_drive(bias: Bias) -> Drive:
  """The drive of a layer with no layer above it, such as the top: zeros.

  Args:
    bias: the bias of the layer, of which only shape and dtype count.

  Returns:
    Zeros [K J] and [K].
  """
  checks.arrays({"bias.hidden": (bias.hidden, "U K J")})
  hidden = numerics.widen(bias.hidden[0])
  return Drive(jnp.zeros_like(hidden), jnp.zeros(len(hidden), hidden.dtype))


def drive_from_below(
  visible: Float[Array, " M"], parameters: Parameters
) -> Drive:
  """The drive of the capsules by the visible units: W_k' x and Omega' x.

  Args:
    visible: x; for Bernoulli units 0 and 1, or probabilities.
    parameters: parameters of the model.

  Returns:
    d [K J] and e [K]; e is 0 for a model without interaction.
  """
  checks.arrays({"visible": (visible, "M")} | _axes(parameters))
  hidden = _product("m,mkj->kj", visible, parameters.weights)
  return _drive(hidden, "m,mk->k", visible, parameters.interaction)


def visible_parameters(
  capsules: Capsules, parameters: Parameters
) -> Float[Array, "R M"]:
  """Natural parameters of p(x | h, z) (eq. 8).

  Args:
    capsules: h and z, or expectations of them; their statistics are not read.
    parameters: parameters of the model.

  Returns:
    a, with W (z h) + Omega z added to the first parameter of each visible unit.
  """
  checks.arrays(
    {"active": (capsules.active, "K J"), "switches": (capsules.switches, "K")}
    | _axes(parameters)
  )
  # One product of a vector and a matrix: a sum over two axes takes twice as
  # long on a CPU. The vector comes first, so that under vmap the vectors of the
  # batch become the rows of a matrix.
  weights = parameters.weights.reshape(len(parameters.weights), -1)
  shift = _product("n,mn->m", capsules.active.ravel(), weights)
  if parameters.interaction is not None:
    shift += _product("k,mk->m", capsules.switches, parameters.interaction)
  return _shifted(parameters.visible, shift)


def drive_between(
  capsules: Capsules,
  weights: Float[Array, "K J L I"],
  interaction: Float[Array, "K L"] | None,
) -> Drive:
  """The drive of a layer by the capsules of the layer above (eqs. 16, 19, 20).

  Args:
    capsules: the layer above, L capsules of I units each.
    weights: W_kl, between each capsule below and each capsule above.
    interaction: Omega; None for a model without it.

  Returns:
    The drive of the K capsules below. For the drive from below, pass `weights`
    transposed to [L I K J].
  """
  checks.arrays(
    {
      "active": (capsules.active, "L I"),
      "weights": (weights, "K J L I"),
      "interaction": (interaction, "K L"),
    }
  )
  hidden = _product("li,kjli->kj", capsules.active, weights)
  return _drive(hidden, "l,kl->k", capsules.switches, interaction)


def hidden_parameters(
  switches: Float[Array, " K"], bias: Bias, drive: Drive
) -> Float[Array, "U K J"]:
  """Natural parameters of p(h | z, drive) (eqs. 9 and 19).

  Args:
    switches: z, or the mean of z, in [0, 1].
    bias: bias of the capsules.
    drive: drive of the capsules.

  Returns:
    b, with z_k d_kj added to the first parameter of each hidden unit.
  """
  _check(bias, drive, switches=(switches, "K"))
  return _shifted(bias.hidden, switches[:, None] * drive.hidden)


def switch_logits(
  hidden: Float[Array, "K J"], bias: Bias, drive: Drive
) -> Float[Array, " K"]:
  """Log odds of z_k = 1 given h_k and the drive (eqs. 10 and 20).

  Args:
    hidden: h, or the mean of h.
    bias: bias of the capsules.
    drive: drive of the capsules.

  Returns:
    c_k + e_k + sum_j h_kj d_kj.

  Raises:
    TypeError: if `hidden` holds integers.
    ValueError: if the bias has no switches, or `hidden` another shape than the
      drive.
  """
  _check(bias, drive, hidden=(hidden, "K J"))
  met = jnp.sum(hidden * drive.hidden, axis=1)
  return _switches(bias) + drive.switches + met


def switch_log_odds(
  bias: Bias, drive: Drive, *, hidden: Family = BERNOULLI
) -> Float[Array, " K"]:
  """Log odds of z_k = 1 given the drive alone, h_k summed out.

  log p(z_k = 1) / p(z_k = 0) = c_k + e_k + sum_j B(b_kj + d_kj) - B(b_kj), with
  B the log-partition function of a hidden unit.

  Args:
    bias: bias of the capsules.
    drive: drive of the capsules.
    hidden: the family of the hidden units.

  Returns:
    Log odds, any real numbers.

  Raises:
    ValueError: if the bias has no switches, or the family another number of
      parameters than the bias.
  """
  driven = hidden.log_partition(_on(bias, drive, hidden))
  gain = driven - hidden.log_partition(numerics.widen(bias.hidden, driven))
  return _switches(bias) + drive.switches + jnp.sum(gain, axis=1)


def log_partition(
  bias: Bias, drive: Drive, *, hidden: Family = BERNOULLI
) -> Float[Array, ""]:
  """Log of the sum of exp(-energy) over all states of the capsules, exactly.

  It is log Z_l of the paper's eq. 15. With the drive from an image it is minus
  the free energy of the image, up to the visible terms.

  Args:
    bias: bias of the capsules; without switches, all capsules are on.
    drive: drive of the capsules.
    hidden: the family of the hidden units.

  Returns:
    log Z_l in nats.

  Raises:
    ValueError: if the family has another number of parameters than the bias.
  """
  if bias.switches is None:
    on = hidden.log_partition(_on(bias, drive, hidden))
    return jnp.sum(on) + jnp.sum(drive.switches)
  log_odds = switch_log_odds(bias, drive, hidden=hidden)
  off = hidden.log_partition(numerics.widen(bias.hidden, log_odds))
  return jnp.sum(off) + jnp.sum(jax.nn.softplus(log_odds))


def posterior(
  bias: Bias, drive: Drive, *, hidden: Family = BERNOULLI
) -> Capsules:
  """The exact expectations of a layer of capsules given its drive.

  Args:
    bias: bias of the capsules; without switches, all capsules are on.
    drive: drive of the capsules.
    hidden: the family of the hidden units.

  Returns:
    Means of statistics [U K J], switches [K] in [0, 1] and active units [K J].

  Raises:
    ValueError: if the family has another number of parameters than the bias.
  """
  on = hidden.moments(_on(bias, drive, hidden))
  if bias.switches is None:
    return _capsules(on, jnp.ones_like(drive.switches))
  switches = jax.nn.sigmoid(switch_log_odds(bias, drive, hidden=hidden))
  off = hidden.moments(numerics.widen(bias.hidden, on))
  share = switches[:, None]
  return Capsules(share * on + (1 - share) * off, switches, share * on[0])


def mean_field(
  switches: Float[Array, " K"],
  bias: Bias,
  drive: Drive,
  *,
  num_iterations: int,
  hidden: Family = BERNOULLI,
) -> Capsules:
  """Mean-field expectations: z from the mean h, h from the mean z, in turn.

  Args:
    switches: the initial mean of z; h is computed from it.
    bias: bias of the capsules.
    drive: drive of the capsules.
    num_iterations: updates of z and h; with 0 z stays at its initial value.
    hidden: the family of the hidden units.

  Returns:
    The expectations under q(h) q(z), a fixed point after enough iterations.

  Raises:
    TypeError: if `num_iterations` is no whole number, or is traced; or if
      `switches` holds integers.
    ValueError: if `num_iterations` is below 0, `switches` is not [K], or the
      family has another number of parameters than the bias.
  """
  checks.counts(at_least=0, num_iterations=num_iterations)

  if bias.switches is None:
    return posterior(bias, drive, hidden=hidden)

  _check(bias, drive, hidden, switches=(switches, "K"))

  def statistics(switches):
    return hidden.moments(hidden_parameters(switches, bias, drive))

  def renew(_, switches):
    return jax.nn.sigmoid(switch_logits(statistics(switches)[0], bias, drive))

  dtype = numerics.accumulation_dtype(switches, *jax.tree.leaves((bias, drive)))
  switches = sharding.vary_alike(switches.astype(dtype), bias, drive)
  switches = jax.lax.fori_loop(0, num_iterations, renew, switches)
  return _capsules(statistics(switches), switches)


def sample(
  key: Key[Array, ""], bias: Bias, drive: Drive, *, hidden: Family = BERNOULLI
) -> Capsules:
  """Samples switches and hidden units jointly from their exact posterior.

  Args:
    key: random key of the sample.
    bias: bias of the capsules; without switches, all capsules are on.
    drive: drive of the capsules.
    hidden: the family of the hidden units.

  Returns:
    One sample; its switches are 0 or 1.

  Raises:
    ValueError: if the family has another number of parameters than the bias.
  """
  if bias.switches is None:
    always = jnp.ones_like(drive.switches)
    return sample_hidden(key, always, bias, drive, hidden=hidden)
  switch_key, hidden_key = jax.random.split(key)
  log_odds = switch_log_odds(bias, drive, hidden=hidden)
  switches = BERNOULLI.sample(switch_key, log_odds[None])
  return sample_hidden(hidden_key, switches, bias, drive, hidden=hidden)


def sample_hidden(
  key: Key[Array, ""],
  switches: Float[Array, " K"],
  bias: Bias,
  drive: Drive,
  *,
  hidden: Family = BERNOULLI,
) -> Capsules:
  """Samples h given z; its units are then independent (eqs. 6 and 17).

  Args:
    key: random key of the sample.
    switches: z; 0 or 1.
    bias: bias of the capsules.
    drive: drive of the capsules.
    hidden: the family of the hidden units.

  Returns:
    One sample of h, together with the given switches.

  Raises:
    ValueError: if the family has another number of parameters than the bias.
  """
  _check(bias, drive, hidden)
  values = hidden.sample(key, hidden_parameters(switches, bias, drive))
  return state(values, switches, hidden=hidden)


def gibbs(
  key: Key[Array, ""],
  capsules: Capsules,
  bias: Bias,
  drive: Drive,
  *,
  hidden: Family = BERNOULLI,
) -> Capsules:
  """Samples z given h, then h given z: a sweep without the visible units.

  A sweep of the paper's chain also samples the visible units. The chain mixes
  more slowly than `sample`, which needs no initial capsules.

  Args:
    key: random key of the sweep.
    capsules: the state before the sweep, of which only h counts.
    bias: bias of the capsules; without switches, all capsules are on.
    drive: drive of the capsules.
    hidden: the family of the hidden units.

  Returns:
    The state after the sweep; its switches are 0 or 1.

  Raises:
    TypeError: as `switch_logits`.
    ValueError: as `switch_logits`, or if the family has another number of
      parameters than the bias.
  """
  if bias.switches is None:
    return sample(key, bias, drive, hidden=hidden)
  switch_key, hidden_key = jax.random.split(key)
  logits = switch_logits(capsules.statistics[0], bias, drive)
  switches = BERNOULLI.sample(switch_key, logits[None])
  return sample_hidden(hidden_key, switches, bias, drive, hidden=hidden)


def capsule_energy(
  capsules: Capsules, bias: Bias, drive: Drive, *, hidden: Family = BERNOULLI
) -> Float[Array, ""]:
  """The energy of capsules given their drive (eq. 16).

  For expectations of capsules it is the expected energy if log g is zero, as
  for Bernoulli and Gaussian units.

  Args:
    capsules: h and z, or expectations of them.
    bias: bias of the capsules.
    drive: drive of the capsules.
    hidden: the family of the hidden units.

  Returns:
    The energy in nats, without the terms of the neighbouring layer alone.

  Raises:
    TypeError: if the capsules hold integers.
    ValueError: if the capsules have other shapes than the bias and the drive,
      or the family another number of parameters than the bias.
  """
  _check(
    bias,
    drive,
    hidden,
    statistics=(capsules.statistics, "U K J"),
    switches=(capsules.switches, "K"),
    active=(capsules.active, "K J"),
  )
  alone = jnp.sum(numerics.widen(bias.hidden) * capsules.statistics) + jnp.sum(
    hidden.log_base(capsules.statistics[0])
  )
  if bias.switches is not None:
    alone += jnp.sum(numerics.widen(bias.switches) * capsules.switches)
  met = jnp.sum(capsules.active * drive.hidden)
  return -alone - met - jnp.sum(drive.switches * capsules.switches)


def energy(
  visible: Float[Array, " M"],
  capsules: Capsules,
  parameters: Parameters,
  *,
  families: tuple[Family, Family] = (BERNOULLI, BERNOULLI),
) -> Float[Array, ""]:
  """The energy of a capsule RBM (eq. 4).

  Args:
    visible: x.
    capsules: h and z.
    parameters: parameters of the model.
    families: families of the visible and of the hidden units.

  Returns:
    E(x, h, z); its gradients with respect to the parameters are eq. 12.

  Raises:
    TypeError: as `capsule_energy`.
    ValueError: as `capsule_energy`, or if the family of the visible units has
      another number of parameters than the model.
  """
  below, hidden = families
  drive = drive_from_below(visible, parameters)
  return _visible_energy(visible, parameters, below) + capsule_energy(
    capsules, parameters.bias, drive, hidden=hidden
  )


def free_energy(
  visible: Float[Array, " M"],
  parameters: Parameters,
  *,
  families: tuple[Family, Family] = (BERNOULLI, BERNOULLI),
) -> Float[Array, ""]:
  """-log sum_{h, z} exp(-E(x, h, z)), exactly.

  Its gradient is the first term of eq. 11 without approximation.

  Args:
    visible: x.
    parameters: parameters of the model.
    families: families of the visible and of the hidden units.

  Returns:
    F(x), with log p(x) = -F(x) - log Z.

  Raises:
    ValueError: if a family has another number of parameters than the model.
  """
  below, hidden = families
  drive = drive_from_below(visible, parameters)
  return _visible_energy(visible, parameters, below) - log_partition(
    parameters.bias, drive, hidden=hidden
  )


def state(
  hidden_values: Float[Array, "K J"],
  switches: Float[Array, " K"],
  *,
  hidden: Family = BERNOULLI,
) -> Capsules:
  """Builds capsules from values of h and z.

  Args:
    hidden_values: h.
    switches: z; 0 or 1.
    hidden: the family of the hidden units.

  Returns:
    The statistics [U K J] of h, z, and z h [K J].
  """
  checks.arrays(
    {"hidden_values": (hidden_values, "K J"), "switches": (switches, "K")}
  )
  return _capsules(
    hidden.statistics(numerics.widen(hidden_values)), numerics.widen(switches)
  )


def _axes(parameters):
  """Names and axes of the arrays of a model."""
  return {
    "visible biases": (parameters.visible, "R M"),
    "bias.hidden": (parameters.bias.hidden, "U K J"),
    "bias.switches": (parameters.bias.switches, "K"),
    "weights": (parameters.weights, "M K J"),
    "interaction": (parameters.interaction, "M K"),
  }


def _switches(bias: Bias) -> Float[Array, " K"]:
  """Returns the bias of the switches; a ValueError if there is none."""
  if bias.switches is None:
    raise ValueError(
      "bias.switches is None, so every capsule is on and no switch has log "
      "odds; give [K]."
    )
  return bias.switches


def _check(bias, drive, family=None, /, **units):
  """Checks the arrays of a layer, and the family of its hidden units.

  Args:
    bias: of the capsules.
    drive: of the capsules.
    family: that of the hidden units; None to leave it unchecked.
    **units: `NAME=(array, axes)` for arrays of values of units.
  """
  checks.floats({name: array for name, (array, _) in units.items()})
  checks.arrays(
    {
      "bias.hidden": (bias.hidden, "U K J"),
      "bias.switches": (bias.switches, "K"),
      "drive.hidden": (drive.hidden, "K J"),
      "drive.switches": (drive.switches, "K"),
      **units,
    }
  )
  if family is not None:
    _check_family("bias.hidden", bias.hidden, family)


def _check_family(name, parameters, family):
  """Checks that units have as many parameters as their family."""
  wanted = len(jax.eval_shape(family.statistics, parameters[0]))
  if len(parameters) != wanted:
    raise ValueError(
      f"{name} has {len(parameters)} parameters for each unit, and the family "
      f"given here {wanted}; pass the family of the model, as hidden= or in "
      "families=(VISIBLE, HIDDEN)."
    )


def _on(bias, drive, hidden):
  """Natural parameters of the hidden units of capsules that are on."""
  _check(bias, drive, hidden)
  return _shifted(bias.hidden, drive.hidden)


def _shifted(parameters, shift):
  """Adds to the first parameter of each unit, in the wider dtype of both."""
  return numerics.widen(parameters, shift).at[0].add(shift)


def _drive(hidden, subscripts, neighbours, interaction):
  """Builds a drive; without interaction the drive of the switches is zero."""
  if interaction is None:
    return Drive(hidden, jnp.zeros(len(hidden), hidden.dtype))
  return Drive(hidden, _product(subscripts, neighbours, interaction))


def _product(subscripts, *operands):
  return numerics.einsum(subscripts, *map(numerics.widen, operands))


def _capsules(statistics, switches):
  return Capsules(statistics, switches, switches[:, None] * statistics[0])


def _visible_energy(visible, parameters, family):
  _check_family("visible biases", parameters.visible, family)
  visible = numerics.widen(visible)
  statistics = family.statistics(visible)
  return -jnp.sum(numerics.widen(parameters.visible) * statistics) - jnp.sum(
    family.log_base(visible)
  )
