"""Training as pure functions: many updates in one jitted loop on the device.

The data set stays on the device as uint8. The batch of step t is a function of
the key and t alone, so a run that is cut and resumed sees the same batches.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P


class TrainState(NamedTuple):
  """Everything that training changes.

  Attributes:
    step: updates done so far.
    model: the module with its parameters.
    opt_state: of the optax optimiser.
    key: fixed; batch order and augmentation are folded out of it.
  """

  step: jax.Array
  model: nnx.Module
  opt_state: optax.OptState
  key: jax.Array


Metrics = dict[str, jax.Array]
Loss = Callable[
  [Any, jax.Array, jax.Array, jax.Array], tuple[jax.Array, Metrics]
]


def init(
  model: nnx.Module, optimizer: optax.GradientTransformation, key: jax.Array
) -> TrainState:
  """The state before the first step."""
  return TrainState(jnp.int32(0), model, optimizer.init(model), key)


def data_mesh(batch_size: int) -> Mesh:
  """All devices along one axis `data`, over which batches are split.

  Args:
    batch_size: must be a multiple of the number of devices.

  Returns:
    The mesh; with one device, the trivial one.

  Raises:
    ValueError: if the devices cannot share the batch evenly.
  """
  num_devices = jax.device_count()
  if batch_size % num_devices:
    raise ValueError(
      f"a batch of {batch_size} cannot be shared by {num_devices} devices; "
      f"give a multiple of {num_devices} as --batch_size"
    )
  return jax.make_mesh(
    (num_devices,), ("data",), axis_types=(jax.sharding.AxisType.Auto,)
  )


def replicate(tree: Any, mesh: Mesh) -> Any:
  """Puts a copy on each device of the mesh."""
  return jax.device_put(tree, NamedSharding(mesh, P()))


def make_update(
  loss: Loss,
  optimizer: optax.GradientTransformation,
  *,
  augment: Callable[[jax.Array, jax.Array], jax.Array],
  batch_size: int,
  mesh: Mesh,
) -> Callable[..., tuple[TrainState, Metrics]]:
  """Builds the jitted function that does many updates.

  Args:
    loss: `(model, images, labels, key) -> (scalar, metrics)` of a batch.
    optimizer: applied to the gradient.
    augment: `(key, image [H W C] in [0, 1]) -> image` for one example.
    batch_size: examples a step; what is left over at the end of an epoch waits
      for the next order.
    mesh: with an axis `data`.

  Returns:
    `update(state, images uint8 [N H W C], labels [N], num_steps)`, giving the
    new state and the means of the metrics over the steps, all of which must lie
    within one epoch. The state is donated. `num_steps` does not recompile.
  """
  split = NamedSharding(mesh, P("data"))

  def batch(state, images, labels, order, augment_key):
    start = state.step % (len(images) // batch_size) * batch_size
    indices = jax.lax.dynamic_slice(order, (start,), (batch_size,))
    indices = jax.lax.with_sharding_constraint(indices, split)
    keys = jax.random.split(augment_key, batch_size)
    pixels = jax.vmap(augment)(keys, as_intensities(images[indices]))
    return jax.lax.with_sharding_constraint((pixels, labels[indices]), split)

  def update(state, images, labels, num_steps):
    order_key, step_key = jax.random.split(state.key)
    epoch = state.step // (len(images) // batch_size)
    order = jax.random.permutation(
      jax.random.fold_in(order_key, epoch), len(images)
    )

    def one(state):
      augment_key, loss_key = jax.random.split(
        jax.random.fold_in(step_key, state.step)
      )
      pixels, classes = batch(state, images, labels, order, augment_key)
      gradient, metrics = jax.grad(loss, has_aux=True)(
        state.model, pixels, classes, loss_key
      )
      updates, opt_state = optimizer.update(
        gradient, state.opt_state, state.model
      )
      model = optax.apply_updates(state.model, updates)
      return TrainState(state.step + 1, model, opt_state, state.key), metrics

    def add(_, carry):
      state, totals = carry
      state, metrics = one(state)
      return state, jax.tree.map(jnp.add, totals, metrics)

    zeros = jax.tree.map(
      lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(one, state)[1]
    )
    state, totals = jax.lax.fori_loop(0, num_steps, add, (state, zeros))
    return state, jax.tree.map(lambda total: total / num_steps, totals)

  return jax.jit(update, donate_argnums=0)


def make_evaluate(
  measure: Callable[[Any, jax.Array, jax.Array], Metrics],
  *,
  prepare: Callable[[jax.Array], jax.Array],
  batch_size: int,
  mesh: Mesh,
) -> Callable[..., dict[str, np.ndarray]]:
  """Builds the function that measures every example of a data set.

  Args:
    measure: `(model, images [B H W C], labels [B]) -> {name: [B ...]}`.
    prepare: `(image [H W C] in [0, 1]) -> image` for one example.
    batch_size: examples at a time.
    mesh: with an axis `data`.

  Returns:
    `evaluate(model, images uint8 [N H W C], labels [N])`, giving the measures
    of all N examples in order, `{name: [N ...]}`.
  """
  split = NamedSharding(mesh, P("data"))

  @jax.jit
  def run(model, images, labels):
    def one(batch):
      pixels, classes = jax.lax.with_sharding_constraint(batch, split)
      return measure(model, jax.vmap(prepare)(as_intensities(pixels)), classes)

    return jax.lax.map(one, (images, labels))

  def evaluate(model, images, labels):
    missing = -len(images) % batch_size
    padded = [
      np.concatenate([x, np.repeat(x[:1], missing, axis=0)]).reshape(
        -1, batch_size, *x.shape[1:]
      )
      for x in (np.asarray(images), np.asarray(labels))
    ]
    measures = run(model, *padded)
    return {
      name: np.asarray(x).reshape(-1, *x.shape[2:])[: len(images)]
      for name, x in measures.items()
    }

  return evaluate


def as_intensities(images: jax.Array) -> jax.Array:
  """Turns uint8 intensities 0..255 into float32 in [0, 1]."""
  return images.astype(jnp.float32) / 255


@jax.jit
def all_finite(tree: Any) -> jax.Array:
  """Whether every number of a pytree is finite."""
  leaves = [jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)]
  return jnp.all(jnp.stack(leaves))


def means(measures: dict[str, np.ndarray]) -> dict[str, float]:
  """Averages the floating-point measures over examples."""
  return {
    name: float(np.mean(x))
    for name, x in measures.items()
    if np.issubdtype(x.dtype, np.floating)
  }
