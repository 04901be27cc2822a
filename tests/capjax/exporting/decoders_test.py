"""Decoders of one example against the models that they belong to."""

import inspect

import jax.numpy as jnp
import numpy as np
import pytest
import saved_cases

from capjax.exporting import decoders, graphs


def _decode(model, *inputs):
  function, shapes = decoders.decoder(model)
  assert [x.shape for x in inputs] == [x.shape for x in shapes.values()]
  assert list(inspect.signature(function).parameters) == list(shapes)
  return function(*inputs)["images"]


def _case(name):
  model = saved_cases.trained(name).model
  images = saved_cases.images(saved_cases.image_shape(name), 2)
  return model, jnp.float32(images) / 255


@pytest.mark.parametrize("name", ["vae", "transforming", "capsnet", "scae"])
def test_codes_of_images_are_decoded_to_reconstructions(name):
  model, images = _case(name)
  if name == "vae":
    codes, want = (model.encode(images)[0],), model.reconstruct(images)
  elif name == "transforming":
    codes = model.recognise(images)[:2]
    want = model.generate(*codes)
  elif name == "scae":
    found = model(images).parts
    codes, want = found, model.decoder.render(found)
  else:
    output = model(images)
    best = jnp.argmax(output.activations, axis=1)
    alone = jnp.eye(output.activations.shape[1])[best]
    codes = (output.poses * alone[..., None],)
    want = model.decode(output.poses, best)
  for n in range(len(images)):
    got = _decode(model, *(x[n] for x in codes))
    np.testing.assert_allclose(got, want[n], atol=1e-5)


def test_the_reconstruction_beside_classes_is_of_the_best_one():
  model, images = _case("capsnet")
  found = graphs._beside_classes(model, images, 1)
  output = model(images)
  best = jnp.argmax(output.activations, axis=1)
  np.testing.assert_allclose(
    found["reconstructions"], model.decode(output.poses, best), atol=1e-6
  )
  worst = model.decode(output.poses, jnp.argmin(output.activations, axis=1))
  assert np.abs(worst - found["reconstructions"]).max() > 1e-4


def test_absent_parts_are_not_drawn():
  model, images = _case("generative")
  parts = model.guide(images)[1][0]
  present = jnp.ones(parts.logits.shape[1])
  drawn = _decode(model, parts.poses[0], present)
  assert float(jnp.max(jnp.abs(drawn))) > 1e-3
  absent = _decode(model, parts.poses[0], 0 * present)
  np.testing.assert_array_equal(absent, 0)
