"""Gradients that keep less in memory are the plain ones."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import capjax
from capjax import scae, specs
from experiments.tasks import capsnet
from experiments.tasks import scae as scae_task
from experiments.training import micro_batches, placing, train_step

BATCH_SIZE = 4
_random = np.random.default_rng(0)
IMAGES = _random.integers(0, 256, (12, 23, 23, 1), np.uint8)
LABELS = (np.arange(12) % 3).astype(np.int32)
_MODELS = {
  "capsnet": (
    capsnet.make_task,
    capjax.CapsNet,
    dict(
      conv_features=4, conv_kernel=3, num_types=2, primary_kernel=3,
      decoder_features=(8,),
    ),
  ),
  "scae": (
    functools.partial(scae_task.make_task, noise=True),
    scae.SCAE,
    dict(
      num_parts=3, num_objects=2, encoder_features=4, template_size=5,
    ),
  ),
}  # fmt: skip


def updated(name, rematerialise):
  """The variables and the metrics after two updates."""
  make, model, arguments = _MODELS[name]
  optimizer = optax.sgd(0.1)
  task = make(specs.Spec(model, arguments), optimizer)
  update = train_step.make_update(
    task.loss,
    optimizer,
    sample=task.sample,
    batch_size=BATCH_SIZE,
    mesh=placing.data_mesh(BATCH_SIZE),
    rematerialise=rematerialise,
  )
  new = task.describe(IMAGES.shape[1:], 3).make(nnx.Rngs(0))
  state = train_step.init(new, optimizer, jax.random.key(1))
  state, metrics = update(state, IMAGES, LABELS, 2)
  return nnx.state(state.model), metrics


@pytest.mark.long
@pytest.mark.parametrize("name", ["capsnet", "scae"])
def test_updates_are_the_plain_ones(name):
  got, plain = (updated(name, x) for x in (True, False))
  chex.assert_trees_all_close(got, plain, rtol=1e-4, atol=1e-6)


def chain(x):
  """Products, and functions of each number between them."""
  for _ in range(6):
    x = jnp.sin(jnp.exp(jnp.tanh(x @ (0.5 * jnp.eye(64)))))
  return jnp.sum(x)


def test_all_but_products_is_computed_again():
  x = jnp.asarray(_random.normal(size=(2048, 64)), jnp.float32)
  plain, spare = (
    jax.jit(jax.value_and_grad(f)).lower(x).compile()
    for f in (chain, micro_batches.rematerialised(chain))
  )
  chex.assert_trees_all_close(spare(x), plain(x), rtol=1e-5, atol=1e-6)
  needed = [f.memory_analysis().temp_size_in_bytes for f in (spare, plain)]
  assert needed[0] < 0.7 * needed[1]
