"""Suites for generative capsules: samples, bounds and posteriors of poses."""

import jax
import jax.numpy as jnp
import numpy as np
from etils import epy

from capjax import generative
from capjax.generative import guides, inference, numpyro_programs

from ..figures import energy_models
from ..run import directory
from . import models
from .models import Options, Scores, Trained
from .suite import suite

with epy.lazy_imports():  # these take seconds, and --help needs none
  from numpyro import diagnostics, infer

_NUM_SAMPLES, _NUM_SHOWN = 100, 10
_NUM_BOUNDED, _NUM_AT_ONCE = 500, 100  # images
_NUM_COUNTED = 10_000  # images, whose mean pixel is measured
_NUM_WEIGHTED = (1, 10, 100)  # samples of each image
_NUM_CHAINED, _NUM_CHAINS = 2, 2  # images, and chains of each
_NUM_GUIDED = 100  # samples of the guide
_CHAIN = {"num_warmup": 400, "num_samples": 400, "max_tree_depth": 8}


@suite(counts={"samples_": 0, "least_scale": 0, "median_scale": 0})
def parts(run: directory.Run, trained: Trained, options: Options) -> Scores:
  """Plots samples of the prior, templates, and images split into parts.

  Returns:
    The mean pixel of the samples, to compare with that of at most 10,000 test
    images on the model's canvas. The smallest and the median standard deviation
    of the difference between a child's pose and the pose that its parent
    predicts.
  """
  del options
  model = trained.model
  samples = _sample(model.capsules, jax.random.key(0))
  energy_models.tiles(
    samples,
    run.figure("samples"),
    columns=10,
    title=f"{len(samples)} samples of the prior: mean pixels given the parts",
  )
  templates = model.capsules.templates
  columns = len(templates.alphas)
  shown = jnp.concatenate(
    [templates.colours / templates.alphas, templates.colours]
  )
  energy_models.tiles(
    shown,
    run.figure("templates"),
    columns=columns,
    title="templates of the parts: intensity, and intensity times alpha",
    row_labels=["intensity", "rendered"],
    column_labels=[str(n + 1) for n in range(columns)],
  )
  images, _ = models.make_examples(
    trained, trained.task.sample_test, np.arange(_NUM_SHOWN)
  )
  energy_models.decompositions(
    images, *_decompose(model, images), path=run.figure("decompositions")
  )
  seen, _ = models.make_examples(
    trained, trained.task.sample_test, np.arange(_NUM_COUNTED)
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
    "images_mean": float(jnp.mean(seen)),
    "num_images": len(seen),
    **scores,
  }


@suite("images")
def importance(
  run: directory.Run, trained: Trained, options: Options
) -> Scores:
  """Measures importance-weighted bounds on the log density of test images.

  Returns:
    For each number of samples: the importance-weighted bound in nats as a mean
    over images, its standard error, and the mean effective number of samples.
    With one sample the bound is the ELBO; with more it is tighter.
  """
  del run
  count = min(options.images or _NUM_BOUNDED, len(trained.test.labels))
  images, _ = models.make_examples(
    trained, trained.task.sample_test, np.arange(count)
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
      **models.mean_and_error(f"bound_{number}", bounds),
      f"effective_samples_{number}": float(np.mean(effective)),
    }
  return scores


@suite("images")
def chains(run: directory.Run, trained: Trained, options: Options) -> Scores:
  """Compares the guide's posterior of poses with poses sampled by NUTS.

  Presences are fixed at their most probable value under the guide. The chains
  of an image start from samples of the guide, and the selections are summed
  out. Plots, for each image, the guide's reconstruction and the last state of
  each chain.

  Returns:
    The mean log p(x, t, A) in nats, of samples of the guide and of the chains.
    For each layer, medians over the pose parameters of capsules that are
    present: the guide's standard deviation divided by that of the chains; the
    distance between both means in standard deviations of the chains; and the
    split R-hat of the chains, which is 1 where they agree. Moments of the guide
    are those of 100 samples of all layers, since its poses of a layer depend on
    those of the layer below, which the chains sample too.
  """
  count = min(options.images or _NUM_CHAINED, len(trained.test.labels))
  images, _ = models.make_examples(
    trained, trained.task.sample_test, np.arange(count)
  )
  capsules, guide = trained.model.capsules, trained.model.guide
  infer_layers = jax.jit(lambda guide, *arguments: guide(*arguments))
  posteriors, layers = infer_layers(guide, images)
  guide_key, chain_key = jax.random.split(jax.random.key(0))
  guided = [
    [x.poses for x in infer_layers(guide, images, key)[1]]
    for key in jax.random.split(guide_key, _NUM_GUIDED)
  ]
  keys = jax.random.split(chain_key, _NUM_CHAINS)
  starts = [_with_poses(layers, poses) for poses in guided[:_NUM_CHAINS]]
  sample = jax.jit(jax.vmap(lambda *one: _chain(capsules, *one)))
  samples = [
    sample(start, images, jax.random.split(key, count))
    for start, key in zip(starts, keys, strict=True)
  ]
  ends = [_with_poses(layers, [x[:, -1] for x in one]) for one, _ in samples]
  render, joint = jax.jit(capsules.render), jax.jit(capsules.log_joint)
  shown = [images, *(render(x[0]) for x in (layers, *ends))]
  energy_models.tiles(
    jnp.stack(shown, axis=1).reshape(-1, *images.shape[1:]),
    run.figure("chains"),
    columns=len(shown),
    title="reconstructions by the guide, and by the last state of each chain",
    row_labels=[str(n + 1) for n in range(count)],
    column_labels=[
      "image",
      "guide",
      *(f"chain {n + 1}" for n in range(len(ends))),
    ],
  )
  scores = {
    "num_images": count,
    "log_joint_guide": float(
      np.mean([joint(start, images) for start in starts])
    ),
    "log_joint_chains": float(np.mean([logs for _, logs in samples])),
  }
  of_layers = zip(
    zip(*(poses for poses, _ in samples), strict=True),
    zip(*guided, strict=True),
    posteriors,
    strict=True,
  )
  for number, (poses, ours, posterior) in enumerate(of_layers, 1):
    present = np.asarray(posterior.log_odds) > 0
    found = agreement(np.stack(poses, 1), np.stack(ours, 1), present)
    scores |= {f"{name}_layer_{number}": x for name, x in found.items()}
  return scores


def agreement(
  poses: np.ndarray, guided: np.ndarray, present: np.ndarray
) -> Scores:
  """Compares samples of the poses of a layer with samples of the guide.

  Args:
    poses: [B T S I 6] of T chains, S samples each.
    guided: [B G I 6], G samples of the guide.
    present: [B I], whether a capsule is present.

  Returns:
    Medians over the pose parameters of the capsules that are present, as in
    `chains`; empty where no capsule is present.
  """
  if not present.any():
    return {}
  chains = np.float64(poses)
  means, deviations = chains.mean(axis=(1, 2)), chains.std(axis=(1, 2))
  guided = np.float64(guided)
  away = np.abs(guided.mean(axis=1) - means) / deviations
  ratios = guided.std(axis=1) / deviations
  mixing = np.stack([diagnostics.split_gelman_rubin(x) for x in chains])
  return {
    "deviation_ratio": float(np.median(ratios[present])),
    "shift": float(np.median(away[present])),
    "mixing": float(np.median(mixing[present])),
  }


SUITES = (
  parts,
  importance,
  chains,
)


def _chain(capsules, start, image, key):
  """Samples [S I 6] of each layer of one image, and their mean log density."""
  start = jax.tree.map(lambda x: x[None], start)
  samples = inference.sample_poses(capsules, start, image, key, **_CHAIN)

  def joint(poses):
    moved = _with_poses(start, [x[None] for x in poses])
    return capsules.log_joint(moved, image[None])[0]

  return samples, jnp.mean(jax.lax.map(joint, samples))


def _with_poses(layers, poses):
  pairs = zip(layers, poses, strict=True)
  return tuple(layer._replace(poses=pose) for layer, pose in pairs)


@jax.jit
def _sample(capsules: generative.GenerativeCapsules, key: jax.Array):
  """Mean images given samples of the prior."""
  predict = infer.Predictive(numpyro_programs.model, num_samples=1)
  return predict(key, capsules, num_images=_NUM_SAMPLES)["mean_image"][0]


@jax.jit
def _decompose(model: guides.AmortisedCapsules, images: jax.Array):
  """Reconstructions, each part of an image alone, and their presences."""
  _, sampled = model.guide(images)
  layer = sampled[0]
  count = layer.logits.shape[1]

  def alone(part):
    kept = jnp.arange(count) == part
    hidden = layer._replace(logits=jnp.where(kept, layer.logits, -jnp.inf))
    return model.capsules.render(hidden)

  presences, order = jax.lax.top_k(jax.nn.sigmoid(layer.logits), count)
  each = jax.lax.map(alone, jnp.arange(count))
  each = jnp.moveaxis(each, 0, 1)
  each = jax.vmap(lambda x, order: x[order])(each, order)
  return model.capsules.render(layer), each, presences
