"""Suites for generative capsules: the effect of rotations, and its repair.

Figures 3 and 5 to 7 of Smith et al. (2020).
"""

import functools
import os
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from capjax.evaluation import alignment, views
from capjax.generative import guides, inference
from capjax.kernels import geometry, rendering

from ..figures import energy_models
from ..figures import generative as part_figures
from ..run import directory
from ..training import task as tasks
from ..training import train_step
from . import models
from .models import Options, Scores, Trained
from .suite import suite

_NUM_TURNED, _NUM_SHOWN = 500, 6
ANGLES = tuple(range(0, 181, 30))  # degrees
_INK = 0.2  # intensity of a pixel that shows a part
_NEAR = 0.1  # templates with a residual below this are near duplicates
_WIDTH = 0.2  # of a stroke of the control; a side of a template is 2
_FLAT = 0.05  # standard deviation of a template's pixels; 0.03 at the start
_NUM_REPAIRED, _NUM_STEPS, _NUM_SAMPLES = 32, 100, 20
_COMPARED = 60  # degrees, at which optimisers are compared
# L-BFGS evaluates the objective several times in a step, with the same noise.
_OPTIMIZERS = {
  "adam": (optax.with_extra_args_support(optax.adam(0.03)), {}),
  "lbfgs": (optax.lbfgs(), {"fixed_noise": True}),
}


@suite("images")
def swaps(run: directory.Run, trained: Trained, options: Options) -> Scores:
  """Measures whether pixels keep their part when an image is rotated.

  Each pixel is assigned to the part that contributes most to its intensity. The
  assignment of a rotated image is rotated back; parts that kept their identity
  have the same pixels. Plots images in the colours of their parts, rotated
  further in each column.

  Returns:
    The angles in degrees; for each angle, the share of pixels assigned to the
    same part, among the pixels that parts render in both images.
  """
  images, labels = models.first(trained, options.images or _NUM_TURNED)

  def sample(key, index, images, labels, degrees):
    del key, labels
    image = trained.task.prepare(train_step.as_intensities(images[index]))
    return (image, views.rotate(image, degrees)), degrees

  evaluate = tasks.make_evaluate(_owners, sample, trained.config.batch_size)
  kept = []
  for angle in ANGLES:
    counts = evaluate(trained.model, images, labels, np.float32(angle))
    kept.append(float(counts["kept"].sum() / max(counts["inked"].sum(), 1)))
  shown = jax.vmap(trained.task.prepare)(
    train_step.as_intensities(jnp.asarray(images[:_NUM_SHOWN]))
  )
  plot_swaps(trained.model, shown, run.figure("swaps"))
  return {
    "angles": [float(angle) for angle in ANGLES],
    "same_owner": kept,
    "num_images": len(images),
  }


@suite()
def duplicates(
  run: directory.Run, trained: Trained, options: Options
) -> Scores:
  """Measures which templates are affine copies of one another (figure 6).

  Plots each template and, below it, the nearest other template after alignment.
  Flat templates are left out, since they would be near any other; at
  initialisation all are flat. An affine map has six parameters, and can align
  most strokes with one another. As a control, the same is measured for as many
  pictures of random strokes.

  Returns:
    Over the templates that are not flat: their number; the share whose nearest
    other template leaves a residual below a tenth, as `alignment.align`
    measures it, and the mean residual (0 and 1 where there are fewer than two);
    the same of the control (`strokes_`); and the share of all templates that
    are flat.
  """
  del options
  templates = patterned_templates(trained.model)
  count = len(trained.model.capsules.templates.colours)
  residuals = control = np.ones(1)
  if len(templates) > 1:
    residuals = plot_duplicates(templates, run.figure("duplicates"))
    found = _nearest(_strokes(templates.shape))
    control = np.array([one.residual for _, one in found])
  else:
    print("no figure of duplicates: fewer than two templates have a pattern")
  return {
    "patterned_templates": float(len(templates)),
    "near_duplicates": float(np.mean(residuals < _NEAR)),
    "nearest_residual": float(np.mean(residuals)),
    "strokes_near_duplicates": float(np.mean(control < _NEAR)),
    "strokes_nearest_residual": float(np.mean(control)),
    "flat_templates": 1 - len(templates) / count,
    "num_images": 0,
  }


@suite("images")
def repair(run: directory.Run, trained: Trained, options: Options) -> Scores:
  """Measures reconstructions of rotated images before and after inference.

  The inference network gives a starting point, from which Adam maximises the
  objective for each image (section 2.4, figure 3); at one angle L-BFGS does so
  too, with fixed noise. The objective bounds log p(x) only where poses are
  Gaussian.

  Returns:
    The angles in degrees; for each angle, before and after inference, the
    objective in nats with 20 samples and the mean squared error of the
    reconstructed pixels. For each optimiser: the objective before each step,
    with the noise of that step, which stays the same for L-BFGS; the seconds
    that all steps took; and the objective after the last step, with 20 new
    samples.
  """
  images, _ = models.first(trained, options.images or _NUM_REPAIRED)
  images = jax.vmap(trained.task.prepare)(
    train_step.as_intensities(jnp.asarray(images))
  )
  scores, columns = {"angles": [float(angle) for angle in ANGLES]}, []
  for angle in ANGLES:
    repaired = infer_rotated(trained.model, images, angle)
    turned, start = repaired.images, repaired.start
    for when, bound, reconstructions in zip(
      ("before", "after"),
      repaired.bounds,
      repaired.reconstructions,
      strict=True,
    ):
      error = jnp.mean(jnp.square(reconstructions - turned))
      scores.setdefault(f"objective_{when}", []).append(float(bound))
      scores.setdefault(f"error_{when}", []).append(float(error))
    columns.append(repaired)
    if angle == _COMPARED:
      for name in _OPTIMIZERS:
        way, seconds = _timed(_climb, trained.model, start, turned, name=name)
        scores[f"{name}_objectives"] = np.mean(way.bounds, axis=0).tolist()
        scores[f"{name}_seconds"] = seconds
        bound, _ = _judge(trained.model, way.posteriors, turned)
        scores[f"{name}_objective_after"] = float(bound)
  plot_repair(columns, run.figure("repair"))
  part_figures.climbs(
    {name: scores[f"{name}_objectives"] for name in _OPTIMIZERS},
    {name: scores[f"{name}_seconds"] for name in _OPTIMIZERS},
    run.figure("climbs"),
  )
  return {**scores, "num_images": len(images)}


SUITES = (
  swaps,
  duplicates,
  repair,
)


class Repaired(NamedTuple):
  """Rotated images, before and after inference for each of them.

  Attributes:
    images: [B H W C], rotated.
    start: the posterior that the inference network gives.
    bounds: the mean objective in nats, before and after inference.
    reconstructions: [B H W C], before and after it.
  """

  images: jax.Array
  start: guides.Posteriors
  bounds: tuple[jax.Array, jax.Array]
  reconstructions: tuple[jax.Array, jax.Array]


def infer_rotated(
  model: guides.AmortisedCapsules, images: jax.Array, degrees: float
) -> Repaired:
  """Rotates images [B H W C] and optimises the posterior of each by Adam."""
  turned = jax.vmap(views.rotate, (0, None))(images, degrees)
  start, _ = _see(model, turned)
  found = _climb(model, start, turned, name="adam").posteriors
  before, after = (_judge(model, x, turned) for x in (start, found))
  bounds, reconstructions = zip(before, after, strict=True)
  return Repaired(turned, start, bounds, reconstructions)


def plot_repair(
  columns: Sequence[Repaired], path: str | os.PathLike[str]
) -> None:
  """Plots the first images at each of `ANGLES`, and their reconstructions."""
  pictures = [jnp.stack([x.images, *x.reconstructions]) for x in columns]
  rows = jnp.stack(pictures, axis=2)  # of images: kind, example, angle
  rows = jnp.swapaxes(rows[:, :_NUM_SHOWN], 0, 1)
  energy_models.tiles(
    rows.reshape(-1, *rows.shape[3:]),
    path,
    columns=len(columns),
    title="rotated test images, and reconstructions before and after inference",
    row_labels=len(rows) * ["image", "before", "after"],
    column_labels=[f"{angle:g}°" for angle in ANGLES],
  )


def plot_swaps(
  model: guides.AmortisedCapsules,
  images: jax.Array,
  path: str | os.PathLike[str],
) -> None:
  """Plots images [N H W C] in the colours of their parts.

  They are rotated further in each column, up to half a turn.
  """
  turned = [jax.vmap(views.rotate, (0, None))(images, x) for x in ANGLES]
  shares = _shares(model, jnp.concatenate(turned))
  part_figures.coded(shares, ANGLES, path)


def patterned_templates(model: guides.AmortisedCapsules) -> jax.Array:
  """Returns the templates that are not flat, [I U V C]."""
  templates = jnp.asarray(model.capsules.templates.colours)
  return templates[np.std(templates, axis=(1, 2, 3)) >= _FLAT]


def _strokes(shape: Sequence[int]) -> np.ndarray:
  """Random pictures [I U V C] of one to three straight strokes each."""
  random = np.random.default_rng(0)
  points = np.moveaxis(geometry.grid(*shape[1:3]), -1, 0)  # x and y, in [-1, 1]

  def stroke():
    x, y = random.uniform(-0.5, 0.5, 2)
    angle, half = random.uniform(0, np.pi), random.uniform(0.4, 1)
    cosine, sine = np.cos(angle), np.sin(angle)
    along = (points[0] - x) * cosine + (points[1] - y) * sine
    beyond = np.maximum(np.abs(along) - half, 0)
    aside = (points[1] - y) * cosine - (points[0] - x) * sine
    return np.exp(-(beyond**2 + aside**2) / (2 * _WIDTH**2))

  pictures = [
    np.max([stroke() for _ in range(random.integers(1, 4))], axis=0)
    for _ in range(shape[0])
  ]
  return np.broadcast_to(np.float32(pictures)[..., None], shape)


def _nearest(
  pictures: jax.Array | np.ndarray,
) -> list[tuple[jax.Array | np.ndarray, alignment.Alignment]]:
  """For each picture the other one that is nearest after alignment."""
  align = jax.jit(alignment.align)

  def nearest(number):
    others = [n for n in range(len(pictures)) if n != number]
    found = [align(pictures[n], pictures[number]) for n in others]
    best = int(np.argmin([one.residual for one in found]))
    return pictures[others[best]], found[best]

  return [nearest(number) for number in range(len(pictures))]


def plot_duplicates(
  templates: jax.Array, path: str | os.PathLike[str]
) -> np.ndarray:
  """Plots each template and, below it, the nearest other one after alignment.

  Args:
    templates: [I U V C], at least 2.
    path: file to write.

  Returns:
    [I], the residual of each alignment, as `alignment.align` measures it.
  """
  near = _nearest(templates)
  size = templates.shape[1:3]
  moved = [rendering.warp(other, found.pose, size) for other, found in near]
  residuals = np.array([found.residual for _, found in near])
  energy_models.tiles(
    np.concatenate([templates, np.stack(moved)]),
    path,
    columns=len(templates),
    title="templates, and the nearest other template after alignment",
    row_labels=["template", "nearest"],
    column_labels=[f"{n}: {x:.2f}" for n, x in enumerate(residuals, 1)],
  )
  return residuals


def _owners(model: guides.AmortisedCapsules, both, degrees: jax.Array):
  """Counts pixels rendered in both images, and those with the same part."""
  before, after = (_intensities(model, images) for images in both)
  after = jax.vmap(views.rotate)(after, -degrees)
  inked = (before.sum(axis=-1) > _INK) & (after.sum(axis=-1) > _INK)
  same = jnp.argmax(before, axis=-1) == jnp.argmax(after, axis=-1)
  return {
    "inked": jnp.sum(inked, axis=(1, 2)),
    "kept": jnp.sum(inked & same, axis=(1, 2)),
  }


def _intensities(model: guides.AmortisedCapsules, images: jax.Array):
  """The contribution of each part to the pixels, [B H W I]."""
  _, sampled = model.guide(images)
  return jnp.moveaxis(model.capsules.shares(sampled[0]).mean(axis=-1), 1, -1)


_shares = jax.jit(_intensities)


@jax.jit
def _see(model: guides.AmortisedCapsules, images: jax.Array):
  return model.guide(images)


@jax.jit
def _judge(model: guides.AmortisedCapsules, posteriors, images: jax.Array):
  """The mean objective, and reconstructions without noise."""
  keys = jax.random.split(jax.random.key(1), _NUM_SAMPLES)
  bounds = jax.lax.map(
    lambda key: inference.bound(model.capsules, posteriors, images, key), keys
  )
  parts = posteriors[0].median(model.capsules.temperature)
  return jnp.mean(bounds), model.capsules.render(parts)


@functools.partial(jax.jit, static_argnames="name")
def _climb(model: guides.AmortisedCapsules, start, images, *, name: str):
  """The posterior found for each image, and the objective at each step."""
  optimizer, options = _OPTIMIZERS[name]
  return inference.free_form(
    model.capsules,
    start,
    images,
    jax.random.key(0),
    optimizer=optimizer,
    num_steps=_NUM_STEPS,
    **options,
  )


def _timed(function: Callable, *arguments, **options):
  """The result of a compiled function, and the seconds that it took."""
  jax.block_until_ready(function(*arguments, **options))
  begin = time.perf_counter()
  result = jax.block_until_ready(function(*arguments, **options))
  return result, time.perf_counter() - begin
