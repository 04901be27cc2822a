"""Log-likelihoods of energy models by annealed importance sampling.

No log-likelihoods of capsule RBMs have been published. Capsules are summed out
exactly, so that the annealed chains run over images only.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from capjax.energy import rbm
from capjax.kernels import checks, energy, numerics
from capjax.kernels.energy import annealing, families


class LogPartition(NamedTuple):
  """An estimate of log Z.

  Attributes:
    estimate: the log of the mean weight.
    error: its standard error, by the delta method; too small where few chains
      have all the weight.
    mean_log_weight: the mean of the log weights. On average it is below log Z
      forwards and above it backwards; a single value is not a bound.
    images: [B H W C], the final states of the chains.
  """

  estimate: Float[Array, ""]
  error: Float[Array, ""]
  mean_log_weight: Float[Array, ""]
  images: Float[Array, "B ..."]


def gain(model: rbm.CapsuleRBM) -> Float[Array, ""]:
  """The largest factor by which half a sweep of Gibbs sampling enlarges units.

  Half a sweep samples one layer given the other; the factor of a whole sweep is
  the square. The gain is the largest singular value of Lx^-1/2 W Lh^-1/2, with
  W of all capsules and Lx and Lh the precisions of the units. If both layers
  are Gaussian, Z is finite only for a gain below 1 (the joint precision is then
  positive definite, whichever capsules are on); at 1 and above chains diverge.
  Learning does not avoid this limit: the likelihood of correlated pixels
  increases towards it.

  Args:
    model: with units of any family.

  Returns:
    The gain; 0 if either layer is Bernoulli, whose units are bounded.
  """
  if model.families != (families.GAUSSIAN, families.GAUSSIAN):
    return jnp.zeros(())
  parameters = model.parameters
  below = jax.lax.rsqrt(-2 * parameters.visible[1])
  above = jax.lax.rsqrt(-2 * parameters.bias.hidden[1].ravel())
  weights = parameters.weights.reshape(len(below), -1)
  return jnp.linalg.norm(below[:, None] * weights * above, ord=2)


def log_partition(
  key: Key[Array, ""],
  model: rbm.CapsuleRBM,
  base: Float[Array, "R M"],
  *,
  num_temperatures: int = 10_000,
  num_chains: int = 100,
  backwards_from: Float[Array, "B ..."] | None = None,
) -> LogPartition:
  """Estimates log Z of a capsule RBM (Salakhutdinov and Murray, 2008).

  The path leads from independent pixels to the model: at inverse temperature b
  visible biases are (1 - b) base + b a, and W and Omega are scaled by b.

  Args:
    key: random key of the chains.
    model: the capsule RBM.
    base: natural parameters of the pixels where the path starts; best those of
      the data, as `energy.units.independent_units` finds.
    num_temperatures: inverse temperatures of the path, evenly spaced in
      [0, 1].
    num_chains: chains whose weights are averaged; not used backwards.
    backwards_from: samples of the model; from each a chain walks back, for an
      estimate from above (Burda et al., 2015). The samples come from long Gibbs
      chains, and the estimate is valid only if these have mixed.

  Returns:
    The estimate and its error; infinite where `gain` shows that Z is infinite,
    which chains of finite length cannot show.

  Raises:
    TypeError: if `num_temperatures` is no whole number.
    ValueError: if there are fewer than two chains, from which no error can be
      estimated, or fewer than two temperatures, or `base` has another shape
      than the visible parameters of the model.
  """
  checks.counts(at_least=2, num_temperatures=num_temperatures)
  if (num_chains if backwards_from is None else len(backwards_from)) < 2:
    raise ValueError(
      "one chain gives no estimate of the error; give at least 2"
    )
  visible, hidden = model.families
  parameters = model.parameters
  bias = parameters.bias
  # States keep their dtype along a chain. In bfloat16 there are too few inverse
  # temperatures between 0 and 1.
  dtype = numerics.accumulation_dtype(parameters.visible)
  base = jnp.asarray(base, dtype)
  checks.same_shape(parameters.visible.shape, base=base)

  def tempered(x, temperature):
    drive = energy.drive_from_below(x, parameters)
    return jax.tree.map(lambda part: temperature * part, drive)

  def log_density(x, temperature):
    natural = base + temperature * (parameters.visible - base)
    return (
      jnp.sum(natural * visible.statistics(x))
      + jnp.sum(visible.log_base(x))
      + energy.log_partition(bias, tempered(x, temperature), hidden=hidden)
    )

  def transition(key, x, temperature):
    capsule_key, visible_key = jax.random.split(key)
    drive = tempered(x, temperature)
    capsules = energy.sample(capsule_key, bias, drive, hidden=hidden)
    met = energy.visible_parameters(capsules, parameters)
    return visible.sample(visible_key, base + temperature * (met - base))

  def chain(key, start):
    return annealing.anneal(
      key,
      start,
      jnp.linspace(0, 1, num_temperatures, dtype=dtype),
      log_density=log_density,
      transition=transition,
      backwards=backwards_from is not None,
    )

  start_key, chain_key = jax.random.split(key)
  if backwards_from is None:
    keys = jax.random.split(start_key, num_chains)
    starts = jax.vmap(visible.sample, (0, None))(keys, base)
    sign = 1
  else:
    starts = backwards_from.reshape(len(backwards_from), -1).astype(dtype)
    sign = -1
  chains = jax.vmap(chain)(jax.random.split(chain_key, len(starts)), starts)
  known = jnp.sum(visible.log_partition(base)) + energy.log_partition(
    bias, energy.no_drive(bias), hidden=hidden
  )
  weights = sign * chains.log_weight
  mean = numerics.logsumexp(weights) - jnp.log(len(starts))
  spread = jnp.std(jnp.exp(weights - mean), ddof=1)

  def where_proper(x):
    return jnp.where(gain(model) >= 1, jnp.inf, x)

  return LogPartition(
    where_proper(known + sign * mean),
    where_proper(spread / jnp.sqrt(len(starts))),
    where_proper(known + jnp.mean(chains.log_weight)),
    chains.state.reshape(-1, *model.image_shape),
  )
