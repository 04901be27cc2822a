"""Stacked capsule autoencoders: noise in training, and measures."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import capjax
from capjax.scae.objects import Objects
from capjax.scae.parts import Parts
from capjax.specs import Spec
from experiments.tasks import scae
from experiments.tasks.scenes import Scene

SHAPE = (5, 6, 1)
SPEC = Spec(
  capjax.SCAE,
  dict(num_parts=2, num_objects=2, template_size=3, num_features=0,
       part_encoder="pixels", object_encoder="mlp"),
)  # fmt: skip


@functools.cache
def make_model():
  spec = SPEC.with_arguments(image_shape=SHAPE)
  return jax.jit(lambda: spec.make(nnx.Rngs(0)))()


@pytest.mark.parametrize("noise", [False, True])
def test_noise_is_that_of_the_key_if_there_is_any(noise):
  task = scae.make_task(SPEC, optax.sgd(0.1), noise=noise)
  model = make_model()
  images = jax.random.uniform(jax.random.key(0), (3, *SHAPE))
  labels = jnp.zeros((3, 0), int)
  loss = jax.jit(lambda key: task.loss(model, images, labels, key, 0)[0])
  one, same, other = (loss(jax.random.key(seed)) for seed in (1, 1, 2))
  assert one == same
  assert (one != other) == noise


PRESENCE = np.array([[0.9, 0.2, 0.4], [0.5, 0.1, 0.3]])
POSTERIOR = np.array(
  [[[0.3, 0.2, 0.6], [0.7, 0.8, 0.4]], [[0.9, 0.6, 0.7], [0.1, 0.4, 0.3]]]
)
SCORES = np.array([[2.0, 1.0, 0.0], [0.0, 1.0, 2.0]])


class Known:
  """Explains half of the darkness of images, by known parts and objects."""

  def __call__(self, images):
    empty = dict.fromkeys(Objects._fields, jnp.zeros(2))
    objects = Objects(
      **empty
      | {
        "log_prob": jnp.array([7.0, -3.0]),
        "posterior": jnp.array(POSTERIOR),
        "winners": jnp.argmax(jnp.array(POSTERIOR), axis=1),
      }
    )
    parts = Parts(None, jnp.array(PRESENCE), None)
    return SimpleNamespace(
      parts=parts,
      objects=objects,
      prior_logits=jnp.array(SCORES),
      posterior_logits=-jnp.array(SCORES),
    )

  def targets(self, images):
    return 1 - images

  @property
  def decoder(self):
    return SimpleNamespace(
      explain=lambda targets, parts: SimpleNamespace(
        log_prob=jnp.sum(parts.presence, axis=1) + 1, mean=targets / 2
      )
    )


def test_measures_of_known_parts_and_objects():
  task = scae.make_task(SPEC, optax.sgd(0.1))
  images = np.stack([np.full(SHAPE, 0.2), np.full(SHAPE, 0.6)])
  got = task.measure(Known(), jnp.array(images), jnp.array([0, 0]))
  for name, want in {
    "image_log_prob": [2.5, 1.9],
    "reconstruction_error": [0.4, 0.2],
    "part_log_prob": [7, -3],
    "present_parts": [1.5, 0.9],
    "activations": [[1 / 3, 2 / 3], [1, 0]],
    "prior_probe_accuracy": [1, 0],
    "posterior_probe_accuracy": [0, 1],
  }.items():
    np.testing.assert_allclose(got.pop(name), want, rtol=1e-6, err_msg=name)
  assert not got


def test_parts_of_a_batch_would_weigh_a_term_otherwise():
  assert scae.make_task(SPEC, optax.sgd(0.1)).of_batch == "prior_between"
  weights = capjax.scae.SCRIPT_WEIGHTS._replace(prior_between=0.0)
  task = scae.make_task(SPEC, optax.sgd(0.1), weights=weights)
  assert task.of_batch == ""


def test_two_objects_have_two_labels():
  """So that the card of the model asks for two classes of an image."""
  task = scae.make_task(SPEC, optax.sgd(0.1), scene=Scene())
  assert task.num_labels == 2
  assert scae.make_task(SPEC, optax.sgd(0.1)).num_labels == 1
