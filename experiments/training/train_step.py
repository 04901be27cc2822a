"""Training as pure functions: many updates in one jitted loop on the device.

The data set stays on the device as uint8. The batch of step t is a function of
the key and t alone, so a run that is stopped and resumed has the same batches.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from capjax.data import as_intensities
from capjax.layers import inference, platforms

from . import batches, micro_batches, order, placing


class TrainState(NamedTuple):
  """Everything that training changes, and its random key.

  Attributes:
    step: updates done so far.
    model: the module with its parameters.
    opt_state: of the optax optimiser.
    key: a constant, from which batch order and augmentation are derived.
    average: average of the weights so far, see `make_update`; None for none.
  """

  step: jax.Array
  model: nnx.Module
  opt_state: optax.OptState
  key: jax.Array
  average: nnx.State | None = None


# Batches that an evaluation measures before it reports its progress.
_GROUP = 16

# Variables that are averaged over steps: weights and their statistics.
_AVERAGED = (nnx.Param, nnx.BatchStat)

Metrics = dict[str, jax.Array]
Loss = Callable[
  [Any, Any, Any, jax.Array, jax.Array], tuple[jax.Array, Metrics]
]
# (key, index, images uint8 [N H W C], labels [N]) -> (inputs, targets): makes
# one example from any of the data.
Sample = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], tuple[Any, Any]]


def init(
  model: nnx.Module,
  optimizer: optax.GradientTransformation,
  key: jax.Array,
  *,
  average: bool = False,
) -> TrainState:
  """The state before the first step; with `average`, weights are averaged."""

  @jax.jit  # one program, where there would be one for each shape
  def begin(model):
    model = jax.tree.map(_strongly_typed, model)
    return model, optimizer.init(nnx.state(model, nnx.Param))

  model, opt_state = begin(model)
  first = None
  if average:  # a copy, since updates donate the buffers of both
    first = jax.tree.map(jnp.copy, nnx.state(model, _AVERAGED))
  return TrainState(jnp.int32(0), model, opt_state, key, first)


def averaged(state: TrainState) -> nnx.Module:
  """The model with the average of its weights; unchanged without an average.

  Other variables, such as the chains of a Boltzmann machine, are those of the
  newest step.
  """
  if state.average is None:
    return state.model
  graph, _, rest = nnx.split(state.model, _AVERAGED, ...)
  return nnx.merge(graph, state.average, rest, copy=True)


def _strongly_typed(x):
  """An array whose dtype is not weak.

  A weakly typed array, such as `jnp.full(3, 0.5)`, would have another type
  after the first update, and the update would be compiled two more times.
  """
  if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
    return x
  return jax.lax.convert_element_type(x, x.dtype)


def sample_labelled(
  transform: Callable[[jax.Array, jax.Array], jax.Array],
) -> Sample:
  """Makes examples of one image and its label.

  Args:
    transform: `(key, image [H W C] in [0, 1]) -> image`.

  Returns:
    A `Sample`, for `make_update` and `make_evaluate`.
  """

  def sample(key, index, images, labels):
    return transform(key, as_intensities(images[index])), labels[index]

  return sample


class Update(NamedTuple):
  """Many updates in one call; the metrics of several calls can be added up.

  The sums do not depend on how the steps are divided among calls.

  Attributes:
    add: `(state, totals, images uint8 [N H W C], labels [N], num_steps) ->
      (state, totals)`, with the metrics of the steps added to `totals`. Images
      and labels may be `placing.Divided`; images may be a `batches.Block`.
    zeros: `(state, images, labels) -> totals` before the first step.
  """

  add: Callable[..., tuple[TrainState, Metrics]]
  zeros: Callable[..., Metrics]

  def __call__(
    self, state: TrainState, images: Any, labels: Any, num_steps: int
  ) -> tuple[TrainState, Metrics]:
    """The new state, and the means of the metrics over the steps."""
    totals = self.zeros(state, images, labels)
    state, totals = self.add(state, totals, images, labels, num_steps)
    return state, jax.tree.map(lambda total: total / num_steps, totals)


def make_update(
  loss: Loss,
  optimizer: optax.GradientTransformation,
  *,
  sample: Sample,
  batch_size: int,
  mesh: Mesh,
  average_decay: float = 0.0,
  num_micro_batches: int = 1,
  rematerialise: bool = False,
) -> Update:
  """Builds the jitted function that does many updates.

  Args:
    loss: `(model, inputs, targets, key, step) -> (scalar, metrics)` of a batch;
      `step` counts the updates done before. The model is in training mode;
      its other variables, such as the statistics of batch normalisation, keep
      the values that the call leaves.
    optimizer: applied to the gradient of the parameters (`nnx.Param`).
    sample: makes one example; `index` runs over the data in a random order.
    batch_size: number of examples in a step; the examples that remain at the
      end of an epoch are skipped in that epoch.
    mesh: with an axis `data`.
    average_decay: d in [0, 1), the decay of the average in the state, if any:
      sum_i d^(t-i) w_i / sum_i d^(t-i) of the weights after steps i = 1..t. The
      sum of its shares is 1 from the first step on (as in Adam's correction of
      its means; Kingma and Ba, 2015), so that initial weights do not count. The
      running statistics of batch normalisation are averaged likewise.
    num_micro_batches: parts of the batch, one after the other, whose gradients
      and metrics are averaged, so that memory holds the activations of one
      part. The same as the whole batch where the loss is a mean over examples;
      statistics of a batch, as batch normalisation and the entropies of stacked
      capsule autoencoders take them, are those of each part. See
      `Task.of_batch`.
    rematerialise: whether the gradient computes again all but products of
      matrices and convolutions, to keep less in memory.

  Returns:
    An `Update`. The steps of one call must lie within one epoch. The state is
    donated. Another `num_steps` needs no new compilation.

  Raises:
    ValueError: if the batch cannot be cut into that many parts, each for all
      devices. At the first call also, if there are several parts, for a model
      with variables that may change only once in an update, such as the chains
      of a Boltzmann machine.
  """
  micro_batches.check(batch_size, num_micro_batches, mesh.shape["data"])
  split = NamedSharding(mesh, P("data"))

  # Traced once, for the shapes of the metrics and for the loop.
  @functools.partial(jax.jit, inline=True)
  @platforms.known(mesh.devices.flat[0].platform, mesh.shape["data"])
  def one(state, images, labels, rows):
    """One update, and its metrics."""
    keys, loss_key = order.keys_of_step(state.key, state.step, batch_size)
    inputs, targets = _examples(
      sample, keys, state.step, images, labels, rows, split
    )
    graph, parameters, rest = nnx.split(state.model, nnx.Param, ...)
    gradient_of = functools.partial(
      _gradient, loss, state.step, graph, parameters, rematerialise
    )
    if num_micro_batches == 1:
      found = gradient_of(rest, inputs, targets, loss_key)
    else:
      found = micro_batches.average(
        gradient_of, rest, inputs, targets, loss_key,
        num_parts=num_micro_batches, mesh=mesh,
      )  # fmt: skip
    (gradient, metrics), rest = found
    updates, opt_state = optimizer.update(gradient, state.opt_state, parameters)
    parameters = optax.apply_updates(parameters, updates)
    model = nnx.merge(graph, parameters, rest)
    step, average = state.step + 1, state.average
    if average is not None:
      average = optax.incremental_update(
        nnx.state(model, _AVERAGED), average, _newest_share(step, average_decay)
      )
    return TrainState(step, model, opt_state, state.key, average), metrics

  def add(state, totals, images, labels, num_steps):
    images, labels = placing.whole((images, labels))
    rows = _order_of(state, images, batch_size)

    def next_of(_, carry):
      state, totals = carry
      state, metrics = one(state, images, labels, rows)
      return state, jax.tree.map(jnp.add, totals, metrics)

    return jax.lax.fori_loop(0, num_steps, next_of, (state, totals))

  def zeros(state, images, labels):
    def first(state, images, labels):
      images, labels = placing.whole((images, labels))
      rows = _order_of(state, images, batch_size)
      return one(state, images, labels, rows)

    _, shapes = jax.eval_shape(first, state, images, labels)
    return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)

  return Update(jax.jit(add, donate_argnums=0), zeros)


def _order_of(state, images, batch_size):
  """The order of the examples in the epoch of `state`; None of a block."""
  if isinstance(images, batches.Block):
    return None
  epoch = state.step // (len(images) // batch_size)
  return order.of_epoch(state.key, epoch, len(images))


def _examples(sample, keys, step, images, labels, rows, split):
  """The inputs and targets of one step, divided among devices.

  Args:
    sample: makes one example.
    keys: one for each example.
    step: updates done before.
    images: all of them, or a `batches.Block`.
    labels: of all images.
    rows: the order of the images in this epoch; None of a block.
    split: the sharding of a batch.
  """
  if isinstance(images, batches.Block):
    examples = images.at(step).examples(sample, keys, labels)
    return jax.lax.with_sharding_constraint(examples, split)
  batch_size = len(keys)
  start = step % (len(images) // batch_size) * batch_size
  indices = jax.lax.dynamic_slice(rows, (start,), (batch_size,))
  indices = jax.lax.with_sharding_constraint(indices, split)
  examples = jax.vmap(sample, (0, 0, None, None))(keys, indices, images, labels)
  return jax.lax.with_sharding_constraint(examples, split)


def _gradient(
  loss, step, graph, parameters, rematerialise, rest, inputs, targets, key
):
  """The gradient and the metrics; the other variables afterwards."""

  def of_parameters(parameters):
    model = nnx.merge(graph, parameters, rest, copy=True)
    model.train()
    value, metrics = loss(model, inputs, targets, key, step)
    return value, (metrics, nnx.state(model, nnx.Not(nnx.Param)))

  if rematerialise:
    of_parameters = micro_batches.rematerialised(of_parameters)
  gradient, (metrics, rest) = jax.grad(of_parameters, has_aux=True)(parameters)
  return (gradient, metrics), rest


def _newest_share(step, decay):
  """(1 - d) / (1 - d^t), accurate also for a decay d close to 1."""
  if not decay:
    return 1.0
  log = math.log(decay)
  return math.expm1(log) / jnp.expm1(step * log)


def keys_of(images: jax.Array) -> jax.Array:
  """A random key for each image, which depends on the image alone.

  So a measure that samples does not depend on how images are divided into
  batches. Equal images have the same key; two other images rarely do.

  Args:
    images: [B ...] in [0, 1].

  Returns:
    Keys [B].
  """
  levels = jnp.round(255 * images).astype(jnp.uint32).reshape(len(images), -1)
  # Random odd factors; the sum is modulo 2**32.
  factors = jax.random.bits(jax.random.key(0), levels.shape[1:]) | 1
  sums = jnp.sum(levels * factors, axis=1, dtype=jnp.uint32)
  return jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(0), sums)


def make_evaluate(
  measure: Callable[[Any, Any, Any], Metrics],
  *,
  sample: Sample,
  batch_size: int,
  mesh: Mesh,
) -> Callable[..., dict[str, np.ndarray]]:
  """Builds the function that measures every example of a data set.

  Args:
    measure: `(model, inputs, targets) -> {name: [B ...]}` of a batch.
    sample: makes one example; its key is a function of the index alone, so that
      all models are measured on the same examples.
    batch_size: examples at a time.
    mesh: with an axis `data`.

  Returns:
    `evaluate(model, images uint8 [N H W C], labels [N], *arguments, views=1,
    between=None)`, giving the measures `{name: [N views ...]}` of `views`
    examples for each index, in order. `arguments` are passed to `sample`, after
    the labels. `between(done, total)` is called between groups of batches, with
    numbers of examples; an error that it raises ends the evaluation.
  """
  split = NamedSharding(mesh, P("data"))

  # Copied to each device, so that each process can read all measures.
  @functools.partial(jax.jit, out_shardings=NamedSharding(mesh, P()))
  @platforms.known(mesh.devices.flat[0].platform, mesh.shape["data"])
  def run(model, indices, numbers, *data):
    data = placing.whole(data)
    if len(indices) > 1:
      model = inference.transform_kernels(model)

    def sample_one(index, number):
      return sample(jax.random.fold_in(jax.random.key(0), number), index, *data)

    def one(block):
      block = jax.lax.with_sharding_constraint(block, split)
      examples = jax.vmap(sample_one)(*block)
      return measure(model, *jax.lax.with_sharding_constraint(examples, split))

    return jax.lax.map(one, (indices, numbers))

  def evaluate(model, images, labels, *arguments, views=1, between=None):
    total = len(images) * views
    blocks = -(-total // batch_size)
    groups = -(-blocks // _GROUP)
    group = -(-blocks // groups)  # all groups have one size: compiled once
    numbers = np.arange(groups * group * batch_size) % total
    numbers = numbers.reshape(-1, group, batch_size).astype(np.int32)
    arrays = placing.divide((images, labels), mesh)
    arrays += placing.replicate(arguments, mesh)
    parts = []
    for done, some in enumerate(numbers, 1):
      measures = run(model, some // views, some, *arrays)
      parts.append(jax.tree.map(np.asarray, measures))
      if between is not None:
        between(min(done * group * batch_size, total), total)
    return {
      name: np.concatenate([x.reshape(-1, *x.shape[2:]) for x in some])[:total]
      for name, some in ((name, [x[name] for x in parts]) for name in parts[0])
    }

  return evaluate


@jax.jit
def all_finite(tree: Any) -> jax.Array:
  """Whether every number of a pytree is finite."""
  leaves = [jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)]
  return jnp.all(jnp.stack(leaves))


def num_parameters(model: nnx.Module) -> int:
  """The number of trained parameters."""
  return sum(x.size for x in jax.tree.leaves(nnx.state(model, nnx.Param)))


def means(measures: dict[str, np.ndarray]) -> dict[str, float]:
  """The means over examples of the measures with one number an example."""
  return {
    name: float(np.mean(x))
    for name, x in measures.items()
    if np.issubdtype(x.dtype, np.floating) and x.ndim == 1
  }
