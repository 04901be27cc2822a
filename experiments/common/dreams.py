"""Suites for generative capsules: what they dream, and images in parts."""

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import infer

from capjax import generative, guides, inference, programs
from experiments.common import energy_figures, runs
from experiments.common import task as tasks
from experiments.common.task import Options, Scores, Trained

_NUM_SAMPLES, _NUM_SHOWN = 100, 10
_NUM_BOUNDED, _NUM_AT_ONCE = 500, 100  # images
_NUM_WEIGHTED = (1, 10, 100)  # samples of each image


def parts(run: runs.Run, trained: Trained, options: Options) -> Scores:
  """Draws samples of the prior, templates, and images in parts.

  Returns:
    The mean over pixels of the samples, to compare with that of test images,
    and the least and the median deviation of poses about their parents'.
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
  images, _ = tasks.draw_examples(
    trained, trained.task.draw_test, np.arange(_NUM_SHOWN)
  )
  energy_figures.decompositions(
    images, *_decompose(model, images), run.figure("decompositions")
  )
  scales = [x().scales.ravel() for x in model.capsules.relations]
  scores = {}
  if scales:
    scales = np.concatenate(scales)
    scores = {
      "least_scale": float(np.min(scales)),
      "median_scale": float(np.median(scales)),
    }
  return {
    "samples_mean": float(jnp.mean(samples)),
    "images_mean": float(np.mean(trained.test.images) / 255),
    **scores,
  }


def importance(run: runs.Run, trained: Trained, options: Options) -> Scores:
  """Bounds on the log density of test images, the more samples the tighter.

  Returns:
    By number of samples, the mean over images of the importance-weighted bound
    in nats, its standard error, and the mean effective number of samples. One
    sample gives the ELBO.
  """
  del run
  count = min(options.images or _NUM_BOUNDED, len(trained.test.labels))
  images, _ = tasks.draw_examples(
    trained, trained.task.draw_test, np.arange(count)
  )
  model = trained.model
  evaluate = jax.jit(inference.importance_bound, static_argnames="num_samples")
  scores = {"num_images": count}
  for number in _NUM_WEIGHTED:
    found = [
      evaluate(
        model.capsules,
        model.guide,
        images[start : start + _NUM_AT_ONCE],
        jax.random.fold_in(jax.random.key(0), start),
        num_samples=number,
      )
      for start in range(0, count, _NUM_AT_ONCE)
    ]
    bounds, effective = (np.concatenate(x) for x in zip(*found, strict=True))
    scores |= {
      f"bound_{number}": float(np.mean(bounds)),
      f"bound_{number}_error": float(np.std(bounds) / count**0.5),
      f"effective_samples_{number}": float(np.mean(effective)),
    }
  return scores


SUITES = {"parts": parts, "importance": importance}


def _sample(capsules: generative.GenerativeCapsules, key: jax.Array):
  """Mean images of samples of the prior."""
  draw = infer.Predictive(programs.model, num_samples=1)
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
