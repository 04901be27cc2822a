"""Suites for generative capsules: what they dream, and images in parts."""

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import infer

from capjax import generative, guides
from experiments.common import energy_figures, runs, training
from experiments.common import task as tasks
from experiments.common.task import Options, Scores, Trained

_NUM_SAMPLES, _NUM_SHOWN = 100, 10


def parts(run: runs.Run, trained: Trained, options: Options) -> Scores:
  """Draws samples of the prior, templates, and images in parts.

  Returns:
    The mean over pixels of the samples, to compare with that of test images.
  """
  del options
  model = trained.model
  samples = _sample(model.capsules, jax.random.key(0))
  energy_figures.tiles(samples, run.figure("samples"), columns=10)
  templates = model.capsules.templates
  columns = len(templates.alphas)
  shown = jnp.concatenate(
    [templates.colours / templates.alphas, templates.colours]
  )
  energy_figures.tiles(shown, run.figure("templates"), columns=columns)
  images, _ = tasks.first(trained, _NUM_SHOWN)
  images = training.as_intensities(jnp.asarray(images))
  energy_figures.decompositions(
    images, *_decompose(model, images), run.figure("decompositions")
  )
  return {
    "samples_mean": float(jnp.mean(samples)),
    "images_mean": float(np.mean(trained.test.images) / 255),
  }


SUITES = {"parts": parts}


def _sample(capsules: generative.GenerativeCapsules, key: jax.Array):
  """Mean images of samples of the prior."""
  draw = infer.Predictive(generative.model, num_samples=1)
  return draw(key, capsules, num_images=_NUM_SAMPLES)["mean_image"][0]


@jax.jit
def _decompose(model: guides.AmortisedCapsules, images: jax.Array):
  """Reconstructions, each part of an image alone, and their presences."""
  _, drawn = model.guide(images)
  layer = drawn[0]
  count = layer.logits.shape[1]

  def alone(part):
    kept = jnp.arange(count) == part
    hidden = layer._replace(logits=jnp.where(kept, layer.logits, -jnp.inf))
    return model.capsules.draw(hidden)

  presences, order = jax.lax.top_k(jax.nn.sigmoid(layer.logits), count)
  each = jax.lax.map(alone, jnp.arange(count))
  each = jnp.moveaxis(each, 0, 1)
  each = jax.vmap(lambda x, order: x[order])(each, order)
  return model.capsules.draw(layer), each, presences
