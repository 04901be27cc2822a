"""Training of a capsule RBM by persistent contrastive divergence.

The data term is by mean field or exact (Li and Zhu, 2019, section 2.1).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Key

from capjax.energy import rbm
from capjax.kernels import checks, sharding

# At the first call, chains run this many times longer.
_BURN_IN = 10


class Learned(NamedTuple):
  """The results of `contrastive_loss` besides the loss.

  Attributes:
    errors: [B], the mean absolute error of each image's reconstruction.
    chains: the new states of the persistent chains, for
      `rbm.CapsuleRBM.set_chains`; None for a model without chains.
  """

  errors: Float[Array, " B"]
  chains: rbm.PersistentChains | None


def contrastive_loss(
  model: rbm.CapsuleRBM,
  images: Float[Array, "B ..."],
  key: Key[Array, ""],
  *,
  num_iterations: int | None,
  num_sweeps: int,
  block: bool = False,
) -> tuple[Float[Array, ""], Learned]:
  """Computes a loss whose gradient estimates that of -log p(x) (eq. 11).

  The loss is the mean energy of the data with the expectations of their
  capsules, minus the mean energy of samples of the model. Only its gradient has
  a meaning, not its value.

  Args:
    model: not changed. Persistent chains of the model continue from their last
      states (Tieleman, 2008); at the first call they start from these data and
      run ten times longer. The new states are returned: pass them to
      `set_chains` of the model that learns. For a model without persistent
      chains, chains start from the data at every call (contrastive divergence).
    images: the data.
    key: samples the chains, and the noise at the start of mean field.
    num_iterations: iterations of mean field for the data term, as in the paper;
      None for the exact posterior, which mean field approximates.
    num_sweeps: k, sweeps of Gibbs sampling.
    block: samples z and h jointly; see `rbm.CapsuleRBM.sweep`.

  Returns:
    The loss; and the errors of reconstructions and the chains.

  Raises:
    ValueError: if there are no sweeps.
  """
  checks.counts(num_sweeps=num_sweeps)
  field_key, start_key, chain_key = jax.random.split(key, 3)
  graph, values = nnx.split(model)
  frozen = nnx.merge(graph, jax.lax.stop_gradient(values))
  data = frozen.infer(images, num_iterations=num_iterations, key=field_key)
  reconstructed = frozen.reconstruct(data).reshape(images.shape)
  error = jnp.abs(reconstructed - images)

  start = frozen.sample_capsules(start_key, images)
  count: int | jax.Array = num_sweeps
  previous = None if frozen.fantasy is None else frozen.fantasy.get_value()
  if previous is not None:
    is_new = previous.age == 0
    continued = frozen.capsules(previous)
    start = jax.tree.map(
      lambda data, old: jnp.where(is_new, _repeat(data, len(old)), old),
      start,
      continued,
    )
    count = jnp.where(is_new, _BURN_IN * num_sweeps, num_sweeps)

  def sweep(index, carry):
    key = jax.random.fold_in(chain_key, index)
    return frozen.sweep(key, carry[0], block=block)

  _, sampled = jax.eval_shape(lambda: sweep(0, (start,)))
  blank = jnp.zeros(sampled.shape, sampled.dtype)
  samples, sampled_images = jax.lax.fori_loop(
    0, count, sweep, sharding.vary_alike((start, blank))
  )
  chains = None
  if previous is not None:
    age = previous.age + count
    chains = rbm.PersistentChains(
      samples.statistics[:, 0], samples.switches, age
    )
  loss = jnp.mean(model.energies(images, data))
  loss -= jnp.mean(model.energies(sampled_images, samples))
  return loss, Learned(jnp.mean(error, axis=range(1, error.ndim)), chains)


def _repeat(rows, count):
  """Repeats the rows of an array in turn, up to `count` rows."""
  return rows[jnp.arange(count) % len(rows)]
