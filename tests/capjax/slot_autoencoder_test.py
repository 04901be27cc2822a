"""The autoencoder of slots: mixtures, frames, and that it learns objects."""

import functools

import cases
import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import widths
from flax import nnx

import capjax
from capjax import slot_autoencoder
from capjax.evaluation import segmentation
from capjax.kernels import routing
from capjax.layers import slots

_SHAPE = (11, 9, 2)


@functools.cache
def _model(invariant=False, image_shape=_SHAPE, **options):
  def make():
    return capjax.SlotAutoencoder(
      image_shape, num_slots=3, slot_size=6, features=4, num_convs=2,
      invariant=invariant, **options, rngs=nnx.Rngs(0),
    )  # fmt: skip

  return jax.jit(make)()


@jax.jit
def _apply(model, images, key=None):
  return model(images, key=key)


@jax.jit
def _decode(model, contents, frames):
  return model.decode(contents, frames)


def _images(count=2):
  return jax.random.uniform(jax.random.key(0), (count, *_SHAPE))


@pytest.mark.parametrize("invariant", [False, True])
def test_images_are_mixtures(invariant):
  """Also of sizes that the decoder's grid does not divide."""
  output = _apply(_model(invariant), _images())
  assert output.parts.shape == (2, 3, *_SHAPE)
  assert output.masks.shape == (2, 3, *_SHAPE[:2])
  np.testing.assert_allclose(np.sum(output.masks, axis=1), 1, atol=1e-6)
  assert np.all((output.parts >= 0) & (output.parts <= 1))
  want = np.sum(output.masks[..., None] * output.parts, axis=1)
  np.testing.assert_allclose(output.reconstructions, want, atol=1e-6)
  assert (output.slots.frames is not None) == invariant


@pytest.mark.parametrize("invariant", [True, False])
@pytest.mark.long_after_first
def test_slots_are_decoded_alike(invariant):
  model = _model(invariant)
  found = _apply(model, _images()).slots
  order = np.array([2, 0, 1])
  images, parts, masks = _decode(model, found.contents, found.frames)
  again, other_parts, other_masks = _decode(
    model,
    found.contents[:, order],
    jax.tree.map(lambda x: x[:, order], found.frames),
  )
  np.testing.assert_allclose(again, images, atol=1e-6)
  np.testing.assert_allclose(other_parts, parts[:, order], atol=1e-6)
  np.testing.assert_allclose(other_masks, masks[:, order], atol=1e-6)


def test_a_slot_that_is_moved_renders_its_object_elsewhere():
  """By whole cells of the decoder's grid, away from the border."""
  model = _model(True, image_shape=(32, 32, 1))
  contents = jax.random.normal(jax.random.key(0), (1, 3, 6))
  step = 2 * 4 / 32  # one cell
  frames = routing.Frames(jnp.zeros((1, 3, 2)), jnp.full((1, 3, 2), 0.2))
  moved = frames._replace(positions=frames.positions.at[..., 0].add(step))
  _, before, _ = _decode(model, contents, frames)
  _, after, _ = _decode(model, contents, moved)
  np.testing.assert_allclose(
    after[:, :, 12:20, 16:20], before[:, :, 12:20, 12:16], atol=1e-5
  )
  assert np.std(before[:, :, 12:20, 12:16]) > 1e-5


def test_places_are_middles_of_cells():
  model = _model(image_shape=(8, 4, 1))
  np.testing.assert_allclose(
    model._points(2, 1, 4), [[0.0, -0.5], [0.0, 0.5]], atol=1e-6
  )
  np.testing.assert_allclose(model._points(8, 4, 1)[0], [-0.75, -0.875])


@widths.samples_of_float32
def test_members_are_features_with_their_places(monkeypatch):
  """What slots attend to, against dense layers and a ReLU in float64."""
  model = nnx.clone(_model())
  seen = []
  attend = slots.SlotAttention.__call__

  def keep(self, members, *arguments, **options):
    seen.append(members)
    return attend(self, members, *arguments, **options)

  monkeypatch.setattr(slots.SlotAttention, "__call__", keep)
  images = _images()
  model.encode(images)
  for conv in model.convs:
    images = jax.nn.relu(conv(images))

  def dense(layer, x):
    return x @ np.float64(layer.kernel[...]) + np.float64(layer.bias[...])

  rows, columns = np.mgrid[:6, :5]
  # Cells of two pixels, of which the last reaches beyond 11 x 9 pixels.
  places = np.stack([(4 * columns + 2) / 9, (4 * rows + 2) / 11], axis=-1) - 1
  x = np.float64(images) + dense(model.place, places)
  x = x.reshape(2, 30, 4)
  x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
  first, second = model.mix
  want = dense(second, np.maximum(dense(first, x), 0))
  np.testing.assert_allclose(seen[0], want, atol=1e-3)


def test_without_a_key_a_model_is_a_function():
  model, images = _model(), _images()
  once, again = _apply(model, images), _apply(model, images)
  chex.assert_trees_all_equal(once, again)
  other = _apply(model, images, jax.random.key(3))
  assert not np.allclose(other.masks, once.masks)
  # An image is explained alike in any batch.
  alone = _apply(model, images[1:])
  np.testing.assert_allclose(
    alone.reconstructions[0], once.reconstructions[1], atol=1e-5
  )


def test_loss_is_the_squared_error():
  model, images = _model(), _images()
  value, terms = jax.jit(slot_autoencoder.loss)(model, images, None)
  errors = np.asarray(_apply(model, images).reconstructions - images) ** 2
  np.testing.assert_allclose(value, errors.sum() / 2, rtol=1e-5)
  assert terms == {"loss": value}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.long_after_first
def test_black_and_white_images_have_finite_gradients(dtype):
  graph, parameters = nnx.split(_model(True, dtype=dtype))

  @jax.jit
  @jax.grad
  def gradient(parameters, images):
    model = nnx.merge(graph, parameters)
    return slot_autoencoder.loss(model, images, jax.random.key(0))[0]

  for value in (0.0, 1.0):
    found = gradient(parameters, jnp.full((1, *_SHAPE), value))
    chex.assert_tree_all_finite(found)


def _blocks(key, count):
  """Two bright squares at random places of either half, and their owners."""
  places = jax.random.randint(key, (2, count, 2), 0, 4)
  rows, columns = jnp.arange(16)[:, None], jnp.arange(16)[None]

  def square(place, left):
    inside = (rows >= place[0] + 2) & (rows < place[0] + 8)
    start = place[1] + left
    return inside & (columns >= start) & (columns < start + 4)

  first = jax.vmap(functools.partial(square, left=0))(places[0])
  second = jax.vmap(functools.partial(square, left=9))(places[1])
  images = (first | second)[..., None].astype(jnp.float32)
  return images, jnp.where(first, 0, jnp.where(second, 1, -1))


@pytest.mark.long
def test_slots_learn_objects():
  """The adjusted Rand index of two squares; of random objects it is 0."""
  model = capjax.SlotAutoencoder(
    (16, 16, 1), num_slots=3, slot_size=16, features=8, num_convs=2,
    rngs=nnx.Rngs(0),
  )  # fmt: skip
  optimizer = optax.chain(optax.clip_by_global_norm(5.0), optax.adam(3e-3))
  graph, parameters = nnx.split(model)

  @jax.jit
  def update(parameters, state, key):
    def loss(parameters):
      images, _ = _blocks(key, 32)
      return slot_autoencoder.loss(nnx.merge(graph, parameters), images, key)[0]

    value, gradient = jax.value_and_grad(loss)(parameters)
    change, state = optimizer.update(gradient, state)
    return optax.apply_updates(parameters, change), state, value

  state = optimizer.init(parameters)
  for key in cases.keys(600):
    parameters, state, value = update(parameters, state, key)
  images, owners = _blocks(jax.random.key(99), 64)
  masks = nnx.merge(graph, parameters)(images).masks
  found = np.argmax(np.asarray(masks), axis=1).reshape(64, -1)
  truth = np.asarray(owners).reshape(64, -1)
  scores = segmentation.score(found, truth, np.float32(truth >= 0))
  assert value < 20
  assert scores.rand_index > 0.1


def test_bad_arguments_are_refused():
  make = functools.partial(capjax.SlotAutoencoder, rngs=nnx.Rngs(0))
  with pytest.raises(ValueError, match="num_slots is 0; give at least 1"):
    make(num_slots=0)
  with pytest.raises(ValueError, match="num_doublings is 0; give at least 1"):
    make(num_doublings=0)
  with pytest.raises(ValueError, match="for which the model was made"):
    _model()(jnp.zeros((1, 8, 8, 1)))
