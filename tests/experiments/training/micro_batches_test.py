"""Batches in parts: the same numbers in less memory."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import processes
import pytest
from flax import nnx

from capjax.energy import rbm
from experiments.training import micro_batches, placing, train_step

BATCH_SIZE, NUM_EXAMPLES = 12, 30
_random = np.random.default_rng(0)
IMAGES = _random.integers(256, size=(NUM_EXAMPLES, 4, 4, 1), dtype=np.uint8)
LABELS = _random.integers(3, size=NUM_EXAMPLES, dtype=np.int32)


class Network(nnx.Module):
  def __init__(self, width=8):
    rngs = nnx.Rngs(0)
    self.first = nnx.Linear(16, width, rngs=rngs)
    self.second = nnx.Linear(width, 3, rngs=rngs)

  def __call__(self, images):
    x = images.reshape(len(images), -1)
    for _ in range(3):
      x = jnp.tanh(self.first(x[:, :16]))
    return self.second(x)


def loss(model, images, labels, key, step):
  del key, step
  errors = optax.softmax_cross_entropy_with_integer_labels(
    model(images), labels
  )
  value = jnp.mean(errors)
  return value, {"loss": value}


def unlabelled_loss(model, images, labels, key, step):
  assert labels.shape == (len(images), 0)
  value = jnp.mean(jnp.square(model(images)))
  return value, {"loss": value}


def make(width=8, batch_size=BATCH_SIZE, loss=loss, **options):
  mesh = placing.data_mesh(batch_size)
  optimizer = optax.sgd(0.1)  # whose steps grow with gradients, if summed
  update = train_step.make_update(
    loss,
    optimizer,
    sample=train_step.sample_labelled(lambda key, image: image),
    batch_size=batch_size,
    mesh=mesh,
    **options,
  )
  model = Network(max(width, 16))
  state = train_step.init(model, optimizer, jax.random.key(3))
  return placing.replicate(state, mesh), update


@pytest.mark.parametrize("parts", [3, BATCH_SIZE])
@pytest.mark.parametrize(
  ("loss", "labels"),
  [(loss, LABELS), (unlabelled_loss, LABELS[:, None][:, :0])],
)
def test_updates_are_those_of_the_whole_batch(parts, loss, labels):
  results = []
  for count in (1, parts):
    state, update = make(num_micro_batches=count, loss=loss)
    state, metrics = update(state, IMAGES, labels, 2)
    results.append((nnx.state(state.model), metrics))
  chex.assert_trees_all_close(*results, rtol=1e-4, atol=1e-6)


def test_an_update_needs_less_memory():
  images = np.zeros((512, 4, 4, 1), np.uint8)
  labels = np.zeros(512, np.int32)

  def temporary(parts):
    state, update = make(width=512, batch_size=512, num_micro_batches=parts)
    totals = update.zeros(state, images, labels)
    lowered = update.add.lower(state, totals, images, labels, 1)
    return lowered.compile().memory_analysis().temp_size_in_bytes

  assert temporary(8) < 0.5 * temporary(1)


def test_each_part_has_random_numbers_of_its_own():
  def draw(rest, images, labels, key):
    del images, labels
    return jnp.square(jax.random.normal(key)), rest

  mean, _ = micro_batches.average(
    draw,
    nnx.State({}),
    np.zeros((200, 1)),
    np.zeros(200),
    jax.random.key(0),
    num_parts=200,
    mesh=placing.data_mesh(1),
  )
  assert abs(mean - 1) < 0.2  # the variance; the error of 200 numbers is 0.1


@pytest.mark.parametrize("parts", [0, 5])
def test_parts_that_do_not_fit_are_refused(parts):
  with pytest.raises(ValueError, match=f"num_micro_batches is {parts}; give a"):
    make(num_micro_batches=parts)


def test_chains_are_refused():
  model = rbm.CapsuleRBM(
    (4, 4, 1), num_capsules=2, capsule_size=2, num_chains=4, rngs=nnx.Rngs(0)
  )

  def energy(model, images, labels, key, step):
    value = sum(
      jnp.sum(x) for x in jax.tree.leaves(nnx.state(model, nnx.Param))
    )
    return value, {"loss": value}

  optimizer = optax.sgd(0.1)
  update = train_step.make_update(
    energy,
    optimizer,
    sample=train_step.sample_labelled(lambda key, image: image),
    batch_size=BATCH_SIZE,
    mesh=placing.data_mesh(BATCH_SIZE),
    num_micro_batches=2,
  )
  state = train_step.init(model, optimizer, jax.random.key(0))
  with pytest.raises(ValueError, match="must be 1 for a model with Fantasy"):
    update(state, IMAGES, LABELS, 1)


@pytest.mark.long
def test_runs_in_parts_have_the_same_metrics(train, tmp_path):
  found = []
  for parts in (1, 4):
    name = f"{parts}_parts"
    code, printed = train(
      tmp_path / name, *processes.SMALL, "--num_steps=20", "--log_every=10",
      f"--num_micro_batches={parts}",
    )  # fmt: skip
    assert code == 0, printed
    lines = processes.metrics_of(tmp_path / name)
    found.append([x["loss"] for x in lines if x["split"] == "train"])
  assert len(found[0]) == 2
  np.testing.assert_allclose(*found, rtol=1e-4)
