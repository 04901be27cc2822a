"""Tests of the jitted training loop and of evaluation."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from capjax import data, layers
from experiments.run import directory
from experiments.training import checkpoints, loop, placing, train_step, windows
from experiments.training.loop_config import LoopConfig

NUM_EXAMPLES, BATCH_SIZE = 23, 4
EPOCH = NUM_EXAMPLES // BATCH_SIZE
IMAGES = np.arange(NUM_EXAMPLES, dtype=np.uint8).reshape(-1, 1, 1, 1)
LABELS = np.arange(NUM_EXAMPLES, dtype=np.int32)


class Line(nnx.Module):
  """y = w x + b."""

  def __init__(self):
    self.w = nnx.Param(jnp.float32(0.5))
    self.b = nnx.Param(jnp.full((), 0.0))  # weakly typed

  def __call__(self, x):
    return self.w[...] * x + self.b[...]


def loss(model, images, labels, key, step):
  del step
  noise = jax.random.normal(key)
  errors = model(255 * images[:, 0, 0, 0]) - labels + 0.1 * noise
  seen = jnp.sum(jax.nn.one_hot(labels, NUM_EXAMPLES), axis=0)
  value = jnp.mean(jnp.square(errors))
  return value, {"loss": value, "seen": seen, "noise": noise}


def make(augment=lambda key, image: image):
  mesh = placing.data_mesh(BATCH_SIZE)
  optimizer = optax.adam(1e-2)
  update = train_step.make_update(
    loss,
    optimizer,
    sample=train_step.sample_labelled(augment),
    batch_size=BATCH_SIZE,
    mesh=mesh,
  )
  state = train_step.init(Line(), optimizer, jax.random.key(3))
  return placing.replicate(state, mesh), update


def copy(tree):
  return jax.tree.map(jnp.copy, tree)


def test_an_epoch_shows_no_example_twice_and_epochs_differ():
  state, update = make()
  orders = []
  for _ in range(3):
    first, metrics = update(copy(state), IMAGES, LABELS, 1)
    orders.append(np.flatnonzero(metrics["seen"]))
    state, metrics = update(state, IMAGES, LABELS, EPOCH)
    seen = np.asarray(metrics["seen"]) * EPOCH
    assert seen.max() == pytest.approx(1)
    assert seen.sum() == pytest.approx(EPOCH * BATCH_SIZE)
  assert len({tuple(order) for order in orders}) == 3


@pytest.mark.parametrize("cut", [1, 2, EPOCH - 1])
def test_cut_updates_give_the_very_same_state(cut):
  state, update = make()
  whole, _ = update(copy(state), IMAGES, LABELS, EPOCH)
  part, _ = update(copy(state), IMAGES, LABELS, cut)
  part, _ = update(part, IMAGES, LABELS, EPOCH - cut)
  chex.assert_trees_all_equal(
    jax.tree.leaves((part.model, part.opt_state)),
    jax.tree.leaves((whole.model, whole.opt_state)),
  )
  assert int(part.step) == int(whole.step) == EPOCH


class Normed(nnx.Module):
  """A line through batch normalisation, which keeps statistics."""

  def __init__(self):
    self.line = Line()
    self.norm = nnx.BatchNorm(1, rngs=nnx.Rngs(0))

  def __call__(self, x):
    return self.norm(self.line(x)[:, None])[:, 0]


def test_statistics_move_with_the_batches_and_not_with_the_gradient():
  mesh = placing.data_mesh(BATCH_SIZE)
  optimizer = optax.sgd(0.0)
  update = train_step.make_update(
    loss,
    optimizer,
    sample=train_step.sample_labelled(lambda key, image: image),
    batch_size=BATCH_SIZE,
    mesh=mesh,
  )
  model = Normed()
  model.eval()
  state = train_step.init(model, optimizer, jax.random.key(0))
  state, metrics = update(placing.replicate(state, mesh), IMAGES, LABELS, 1)
  batch = np.flatnonzero(metrics["seen"])
  momentum = model.norm.momentum
  want = (1 - momentum) * np.mean(0.5 * batch)  # from 0, by a rate of 1 - m
  chex.assert_trees_all_close(
    state.model.norm.mean[...], jnp.array([want]), rtol=1e-5
  )
  assert state.model.norm.use_running_average  # it comes back ready to evaluate
  np.testing.assert_array_equal(state.model.norm.scale[...], 1)


def test_update_is_gradient_descent_by_the_optimizer():
  state, update = make()
  model, optimizer = Line(), optax.adam(1e-2)
  opt_state = optimizer.init(model)
  values = []
  for _ in range(EPOCH):
    _, metrics = update(copy(state), IMAGES, LABELS, 1)
    batch = np.flatnonzero(metrics["seen"])

    def squares(model, batch=batch, noise=metrics["noise"]):
      errors = model(jnp.float32(batch)) - batch + 0.1 * noise
      return jnp.mean(jnp.square(errors))

    value, gradient = jax.value_and_grad(squares)(model)
    updates, opt_state = optimizer.update(gradient, opt_state)
    model = optax.apply_updates(model, updates)
    values.append(value)
    state, metrics = update(state, IMAGES, LABELS, 1)
    chex.assert_trees_all_close(metrics["loss"], value, rtol=1e-5)
  chex.assert_trees_all_close(
    jax.tree.leaves(state.model), jax.tree.leaves(model), rtol=1e-5
  )


def test_metrics_are_means_over_the_steps():
  state, update = make()
  singles = []
  other = copy(state)
  for _ in range(EPOCH):
    other, metrics = update(other, IMAGES, LABELS, 1)
    singles.append(float(metrics["loss"]))
  _, metrics = update(state, IMAGES, LABELS, EPOCH)
  assert float(metrics["loss"]) == pytest.approx(np.mean(singles), rel=1e-5)


def test_augmentation_gets_a_new_key_for_each_example_and_step():
  def noise(key, image):
    return image + jax.random.uniform(key, image.shape)

  def spread(model, images, labels, key, step):
    del labels, key
    offsets = jnp.sort(images.ravel() * 255 % 1)
    value = jnp.sum(jax.tree.leaves(model)[0]) * 0
    return value, {"gap": jnp.min(jnp.diff(offsets)), "sum": jnp.sum(offsets)}

  mesh = placing.data_mesh(BATCH_SIZE)
  optimizer = optax.sgd(0.0)
  update = train_step.make_update(
    spread,
    optimizer,
    sample=train_step.sample_labelled(noise),
    batch_size=BATCH_SIZE,
    mesh=mesh,
  )
  state = train_step.init(Line(), optimizer, jax.random.key(0))
  sums = []
  for _ in range(EPOCH):
    state, metrics = update(state, 0 * IMAGES, LABELS, 1)
    assert float(metrics["gap"]) > 0
    sums.append(float(metrics["sum"]))
  assert len(set(sums)) == EPOCH


def test_num_steps_does_not_recompile():
  state, update = make()
  for num_steps in (1, 2, 3):
    state, _ = update(state, IMAGES, LABELS, num_steps)
    state = state._replace(step=jnp.int32(0))
  # The first call is of arrays of the host's making.
  assert update.add._cache_size() <= 2


@pytest.mark.parametrize("batch_size", [1, 4, 23, 50])
def test_evaluate_measures_each_example_once_in_order(batch_size):
  evaluate = train_step.make_evaluate(
    lambda model, images, labels: {
      "pixel": model(255 * images[:, 0, 0, 0]),
      "label": labels,
    },
    sample=train_step.sample_labelled(lambda key, image: 2 * image),
    batch_size=batch_size,
    mesh=placing.data_mesh(batch_size),
  )
  measures = evaluate(Line(), IMAGES, LABELS)
  np.testing.assert_allclose(measures["pixel"], LABELS, rtol=1e-6)
  np.testing.assert_array_equal(measures["label"], LABELS)
  assert train_step.means(measures) == {"pixel": pytest.approx(11.0)}


def test_evaluate_transforms_kernels_for_many_batches():
  evaluate = train_step.make_evaluate(
    lambda model, images, labels: {
      "transformed": jnp.full(len(images), model.transformed is not None)
    },
    sample=train_step.sample_labelled(lambda key, image: image),
    batch_size=BATCH_SIZE,
    mesh=placing.data_mesh(BATCH_SIZE),
  )
  model = layers.Conv(64, 256, 8, stride=2, rngs=nnx.Rngs(0))
  one = evaluate(model, IMAGES[:BATCH_SIZE], LABELS[:BATCH_SIZE])
  assert not one["transformed"].any()
  assert evaluate(model, IMAGES, LABELS)["transformed"].all()


def test_evaluate_tells_how_far_it_is():
  evaluate = train_step.make_evaluate(
    lambda model, images, labels: {"label": labels},
    sample=train_step.sample_labelled(lambda key, image: image),
    batch_size=1,
    mesh=placing.data_mesh(1),
  )
  told = []
  measures = evaluate(
    Line(), IMAGES, LABELS, views=2, between=lambda *x: told.append(x)
  )
  np.testing.assert_array_equal(measures["label"], np.repeat(LABELS, 2))
  assert told == [(16, 46), (32, 46), (46, 46)]


@pytest.mark.parametrize("count", [1, 16, 17, 18, 23])
def test_evaluate_measures_few_examples_in_vain(count):
  measured = []

  def measure(model, images, labels):
    del model, images
    jax.debug.callback(lambda: measured.append(1))
    return {"label": labels}

  evaluate = train_step.make_evaluate(
    measure,
    sample=train_step.sample_labelled(lambda key, image: image),
    batch_size=1,
    mesh=placing.data_mesh(1),
  )
  measures = evaluate(Line(), IMAGES[:count], LABELS[:count])
  np.testing.assert_array_equal(measures["label"], LABELS[:count])
  jax.effects_barrier()
  # Groups of at most 16 batches have one size: here at most one is in vain.
  assert 0 <= len(measured) - count <= 1


def test_keys_follow_from_an_image_alone():
  images = np.random.default_rng(0).integers(0, 256, (40, 3, 4, 1), np.uint8)
  images[1] = images[0]
  images[2] = images[0, ::-1]
  keys = jax.random.key_data(train_step.keys_of(data.as_intensities(images)))
  again = train_step.keys_of(data.as_intensities(images[20:]))
  np.testing.assert_array_equal(keys[20:], jax.random.key_data(again))
  assert len({tuple(map(int, key)) for key in keys}) == 39  # two are equal


def test_all_finite_sees_one_bad_number():
  model = Line()
  assert train_step.all_finite(model)
  model.b[...] = jnp.float32(np.nan)
  assert not train_step.all_finite(model)


def test_what_metrics_warn_of_is_said_at_each_validation(tmp_path, capsys):
  def squares(model, images, labels, key, step):
    value, _ = loss(model, images, labels, key, step)
    return value, {"loss": value}

  def measure(model, images, labels):
    return {"error": jnp.square(model(255 * images[:, 0, 0, 0]) - labels)}

  mesh = placing.data_mesh(BATCH_SIZE)
  optimizer = optax.sgd(0.0)
  sample = train_step.sample_labelled(lambda key, image: image)
  options = {"sample": sample, "batch_size": BATCH_SIZE, "mesh": mesh}
  dataset = data.Dataset(IMAGES, LABELS, NUM_EXAMPLES, {})
  loop.fit(
    directory.Run(tmp_path),
    checkpoints.Checkpoints(tmp_path / "checkpoints", None),
    train_step.init(Line(), optimizer, jax.random.key(0)),
    update=train_step.make_update(squares, optimizer, **options),
    evaluate=train_step.make_evaluate(measure, **options),
    train=dataset,
    validation=dataset,
    mesh=mesh,
    config=LoopConfig(5, BATCH_SIZE, eval_every=2, log_every=1),
    warn=lambda metrics: (
      [f"an error of {metrics['error']:.1f}"] * ("loss" in metrics)
    ),
  )
  want = np.mean(np.square(0.5 * LABELS))
  assert capsys.readouterr().err.splitlines() == [
    f"step {step}: warning: an error of {want:.1f}" for step in (2, 4, 5)
  ]


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_parameters_that_are_not_finite_are_named(bad):
  """Even where the loss, of the step before, is finite still."""
  model = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
  arguments = {"loss": 1.0}, model, lambda metrics: False
  assert windows.fault(*arguments) is None
  model.kernel[...] = model.kernel[...].at[0, 1].set(bad)
  assert "the parameters became infinite" in windows.fault(*arguments)
