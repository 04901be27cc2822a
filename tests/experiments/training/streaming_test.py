"""Batches of images in files: the same as those of images in memory."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from capjax import data, layers
from experiments.training import (
  batches,
  order,
  pairs,
  placing,
  streaming,
  task,
  train_step,
)

BATCH_SIZE, NUM_EXAMPLES = 4, 14  # 3 steps an epoch
_random = np.random.default_rng(0)
IMAGES = _random.integers(0, 256, (NUM_EXAMPLES, 6, 6, 1), np.uint8)
LABELS = _random.integers(0, 3, NUM_EXAMPLES).astype(np.int32)
single = train_step.sample_labelled(
  lambda key, image: image + 0.1 * jax.random.normal(key, image.shape)
)
pair = functools.partial(pairs.sample, pad=1, max_shift=1)


def in_files(read=IMAGES.__getitem__):
  images = data.StoredImages(read, np.arange(NUM_EXAMPLES))
  return data.Dataset(images, LABELS, 3, {})


class Network(nnx.Module):
  def __init__(self):
    self.scale = nnx.Param(jnp.float32(0.5))


def loss(model, images, targets, key, step):
  del step
  noise = jax.random.normal(key, images.shape)
  total = sum(jnp.sum(x) for x in jax.tree.leaves(targets))
  value = jnp.mean((model.scale * images - noise) ** 2)
  return value, {"loss": value, "targets": total.astype(jnp.float32)}


def make(sample):
  mesh = placing.data_mesh(BATCH_SIZE)
  optimizer = optax.adam(1e-2)
  update = train_step.make_update(
    loss, optimizer, sample=sample, batch_size=BATCH_SIZE, mesh=mesh
  )
  state = train_step.init(Network(), optimizer, jax.random.key(3))
  return placing.replicate(state, mesh), update


def stream(update, sample, train, num_steps=6):
  mesh = placing.data_mesh(BATCH_SIZE)
  options = {"batch_size": BATCH_SIZE, "num_steps": num_steps, "mesh": mesh}
  return streaming.Streamed(update, sample, train, **options)


@pytest.mark.parametrize(
  "sample",
  [pytest.param(single, marks=pytest.mark.long), pair],
  ids=["single", "pair"],
)
def test_two_epochs_are_those_in_memory(sample):
  """Also where training resumes, and steps back, within them."""
  state, update = make(sample)
  steps = []  # the state and the totals after each number of steps
  totals = update.zeros(state, IMAGES, LABELS)
  for _ in range(6):
    kept = jax.tree.map(jnp.copy, state)
    steps.append((kept, jax.tree.map(np.asarray, totals)))
    state, totals = update.add(state, totals, IMAGES, LABELS, 1)
  last = state, totals

  reads = []

  def read(rows):
    reads.append(len(rows))
    return IMAGES[rows]

  train = in_files(read)
  streamed = stream(update, sample, train)
  first = jax.tree.map(jnp.copy, steps[0][0])
  zeros = streamed.zeros(first, train.images, LABELS)
  chex.assert_trees_all_equal(zeros, steps[0][1])
  state, totals = streamed.add(first, zeros, train.images, LABELS, 4)
  state, totals = streamed.add(state, totals, train.images, LABELS, 2)
  chex.assert_trees_all_equal((state, totals), last)
  # Back to step 2, by this process and by a new one; the totals go on.
  for again in (streamed, stream(update, sample, train)):
    state, totals = jax.tree.map(jnp.copy, steps[2])
    state, totals = again.add(state, totals, train.images, LABELS, 4)
    chex.assert_trees_all_equal((state, totals), last)
  assert max(reads) <= BATCH_SIZE * (1 if sample is single else 2)


@pytest.mark.parametrize("again", [True, False])
def test_a_restart_with_another_key_chooses_other_images(again):
  """In the process that has read ahead, and in a new one."""
  state, update = make(single)
  train = in_files()
  streamed = stream(update, single, train)
  if again:
    zeros = streamed.zeros(state, None, LABELS)
    state, _ = streamed.add(state, zeros, None, LABELS, 2)
  changed = state._replace(key=jax.random.key(7))
  totals = update.zeros(changed, IMAGES, LABELS)
  want = update.add(jax.tree.map(jnp.copy, changed), totals, IMAGES, LABELS, 1)
  totals = streamed.zeros(changed, train.images, LABELS)
  found = streamed.add(changed, totals, train.images, LABELS, 1)
  chex.assert_trees_all_equal(found, want)


def test_the_images_that_an_example_reads_are_found():
  def keys_of(key):
    return jax.random.split(key, NUM_EXAMPLES)

  indices = np.arange(NUM_EXAMPLES, dtype=np.int32)
  key = jax.random.key(5)
  shape = IMAGES.shape
  for sample in (single, pair):
    find = batches.find_reads(sample, shape, keys_of, LABELS)
    reads = find(indices, key)
    np.testing.assert_array_equal(reads[:, 0], indices)
  _, objects = jax.vmap(pair, (0, 0, None, None))(
    keys_of(key), indices, jnp.array(IMAGES), jnp.array(LABELS)
  )
  np.testing.assert_array_equal(LABELS[reads], objects.labels)
  assert reads.shape == (NUM_EXAMPLES, 2)
  assert np.all(LABELS[reads[:, 0]] != LABELS[reads[:, 1]])

  def of_no_image(key, index, images, labels):
    return jax.random.normal(key, images.shape[1:]), labels[index]

  find = batches.find_reads(of_no_image, shape, keys_of, LABELS)
  assert find(indices, key).shape == (NUM_EXAMPLES, 0)


def test_an_epoch_has_each_example_at_most_once():
  steps = streaming.Steps(single, in_files(), jax.random.key(3), BATCH_SIZE)
  epochs = [
    np.concatenate([steps(3 * epoch + n)[0] for n in range(3)])
    for epoch in range(3)
  ]
  for number, rows in enumerate(epochs):
    want = order.of_epoch(jax.random.key(3), number, NUM_EXAMPLES)
    assert len(set(rows.tolist())) == 12
    np.testing.assert_array_equal(rows, want[:12])
  assert epochs[0].tolist() != epochs[1].tolist()


@pytest.mark.parametrize(
  "sample",
  [pytest.param(single, marks=pytest.mark.long), pair],
  ids=["single", "pair"],
)
def test_measures_are_those_in_memory(sample):
  def measure(model, images, targets):
    total = sum(
      jnp.sum(x.reshape(len(x), -1), axis=1) for x in jax.tree.leaves(targets)
    )
    return {"images": model.scale * images, "targets": total}

  evaluate = task.make_evaluate(measure, sample, BATCH_SIZE)
  told = []
  want = evaluate(Network(), IMAGES, LABELS, views=2)
  got = evaluate(
    Network(), in_files().images, LABELS, views=2,
    between=lambda *x: told.append(x),
  )  # fmt: skip
  chex.assert_trees_all_equal(got, want)
  assert len(got["targets"]) == 2 * NUM_EXAMPLES
  assert told == [(n, 28) for n in range(4, 29, 4)]


def test_evaluate_transforms_kernels_for_many_batches():
  evaluate = streaming.make_evaluate(
    lambda model, images, labels: {
      "transformed": jnp.full(len(images), model.transformed is not None)
    },
    sample=single,
    batch_size=BATCH_SIZE,
    mesh=placing.data_mesh(BATCH_SIZE),
  )
  model = layers.Conv(64, 256, 8, stride=2, rngs=nnx.Rngs(0))
  images = in_files().images
  assert evaluate(model, images, LABELS)["transformed"].all()


def test_a_file_that_cannot_be_read_ends_training():
  def read(rows):
    raise ValueError("train.array_record: cannot be read")

  images = data.StoredImages(read, np.arange(NUM_EXAMPLES), (6, 6, 1))
  train = data.Dataset(images, LABELS, 3, {})
  state, update = make(single)
  streamed = stream(update, single, train)
  zeros = streamed.zeros(state, images, LABELS)
  with pytest.raises(ValueError, match="cannot be read"):
    streamed.add(state, zeros, images, LABELS, 1)
