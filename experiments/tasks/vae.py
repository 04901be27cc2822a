"""The variational auto-encoder that capsule RBMs are compared with.

Li and Zhu (2019), Capsule generative models, section 3.1; the loss is that of
Kingma and Welling (2014), Auto-encoding variational Bayes.
"""

import jax
import jax.numpy as jnp
import optax

from capjax import baselines
from capjax.specs import Spec

from ..training import train_step
from ..training.task import Task, described


@described(baselines.ConvVAE)
def make_task(model: Spec, optimizer: optax.GradientTransformation) -> Task:
  """Training by the evidence lower bound, on images as they are.

  Args:
    model: the auto-encoder, without `image_shape`, which follows from the data.
    optimizer: the optimiser of the parameters.
  """

  def describe(image_shape, num_classes):
    del num_classes
    return model.with_arguments(image_shape=tuple(image_shape))

  sample = train_step.sample_labelled(lambda key, image: image)
  return Task(
    describe,
    loss,
    measure,
    sample=sample,
    sample_test=sample,
    optimizer=optimizer,
    suites=lambda model: [
      "errors",
      "spectra",
      "bound",
      "out_of_distribution",
    ],
    after_training=("errors", "spectra"),
    chosen_by="elbo",
    unlabelled=True,
  )


def loss(
  model: baselines.ConvVAE,
  images: jax.Array,
  labels: jax.Array,
  key: jax.Array,
  step: jax.Array,
) -> tuple[jax.Array, train_step.Metrics]:
  """The negative ELBO of a batch, with one sample for each image.

  Args:
    model: the auto-encoder.
    images: [B H W C] in [0, 1].
    labels: not used.
    key: samples the latent variables.
    step: not used.
  """
  del labels, step
  value = -jnp.mean(model.log_weights(key, images))
  return value, {"loss": value}


def measure(
  model: baselines.ConvVAE, images: jax.Array, labels: jax.Array
) -> train_step.Metrics:
  """Reconstruction errors, and the ELBO with one sample for each image.

  Args:
    model: the auto-encoder.
    images: [B H W C] in [0, 1].
    labels: not used.

  Returns:
    `reconstruction_error` and `elbo` [B], in nats.
  """
  del labels
  errors = jnp.abs(model.reconstruct(images) - images)
  elbo = jax.vmap(lambda key, image: model.log_weights(key, image[None])[0])
  return {
    "reconstruction_error": jnp.mean(errors, axis=(1, 2, 3)),
    "elbo": elbo(train_step.keys_of(images), images),
  }
