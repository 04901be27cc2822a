"""Generative capsules and the network that recognises them.

Smith, Schut, Gal and van der Wilk (2020), Capsule networks: a probabilistic
perspective.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from capjax import data, losses
from capjax.generative import guides, inference
from capjax.specs import Spec

from ..evaluation import linear_probes
from ..run import directory
from ..training import augmentation, train_step
from ..training import task as tasks
from ..training.augmentation import Placement
from ..training.loop import LoopConfig
from ..training.task import Task

_CENTRED = Placement(max_shift=0)


class Start(NamedTuple):
  """A run without Gaussian poses, whose best model initialises another one.

  Attributes:
    folder: the folder of that run.
    workdir: the folder of the new run; once that has a saved state, the other
      run is not read.
    config: the configuration of the new run.
  """

  folder: str
  workdir: str
  config: LoopConfig


def make_task(
  model: Spec,
  optimizer: optax.GradientTransformation,
  *,
  placement: Placement = _CENTRED,
  temperature: Callable[[jax.Array], jax.Array] | None = None,
  num_importance: int = 1,
  start: Start | None = None,
) -> Task:
  """Training of generative capsules by a variational objective.

  Args:
    model: the model with its guide, without `image_shape`, which follows from
      the data.
    optimizer: the optimiser of the parameters.
    placement: how images are deformed, and the canvas that they are placed on
      at random; test images too, but for shifts.
    temperature: `step -> temperature` of the relaxed presences in training;
      None for that of the model.
    num_importance: number of samples of the importance-weighted bound; more
      than one needs Gaussian poses.
    start: the run whose parameters the model starts from; None for random ones.
  """

  def place(function):
    return functools.partial(function, placement=placement)

  def describe(image_shape, num_classes):
    del num_classes
    shape = augmentation.canvas_of(image_shape, placement)
    return model.with_arguments(image_shape=shape)

  task = Task(
    describe,
    functools.partial(
      loss, temperature=temperature, num_importance=num_importance
    ),
    measure,
    sample=train_step.sample_labelled(place(augmentation.augment_image)),
    sample_test=train_step.sample_labelled(place(augmentation.test_image)),
    optimizer=optimizer,
    suites=lambda model: [
      "errors",
      "spectra",
      "parts",
      "linear",
      "swaps",
      "duplicates",
      "repair",
      *(["importance", "chains"] if model.guide.has_scales else []),
    ],
    after_training=("errors", "parts", "linear"),
    chosen_by="objective",
    prepare=place(augmentation.prepare_image),
    features=features,
  )
  if start is None:
    return task
  return task._replace(begin=functools.partial(_begin_from, start, task))


def loss(
  model: guides.AmortisedCapsules,
  images: jax.Array,
  labels: jax.Array,
  key: jax.Array,
  step: jax.Array,
  *,
  temperature: Callable[[jax.Array], jax.Array] | None,
  num_importance: int,
) -> tuple[jax.Array, train_step.Metrics]:
  """The loss of a batch: the negative objective and log prior of scales.

  With `temperature` and `num_importance` bound, it is a `train_step.Loss`.

  Args:
    model: the model with its guide.
    images: [B H W C] in [0, 1].
    labels: not used.
    key: samples presences and poses.
    step: [], the number of updates so far.
    temperature: as for `make_task`.
    num_importance: as for `make_task`.
  """
  del labels
  now = temperature(step) if temperature else None
  if num_importance == 1:
    bounds = model.elbo(images, key, temperature=now)
  else:
    bounds, _ = inference.importance_bound(
      model.capsules,
      model.guide,
      images,
      key,
      num_samples=num_importance,
      temperature=now,
    )
  value = -jnp.mean(bounds) - model.capsules.log_scale_prior()
  return value, {"loss": value}


def measure(
  model: guides.AmortisedCapsules, images: jax.Array, labels: jax.Array
) -> train_step.Metrics:
  """The objective, reconstruction errors, and numbers of present capsules.

  With Gaussian poses the objective of one sample is the ELBO, and is recorded
  under that name too. With point estimates it is no bound on log p(x): see
  `guides.elbo`.

  Args:
    model: the model with its guide.
    images: [B H W C] in [0, 1].
    labels: not used.

  Returns:
    Measures [B].
  """
  del labels
  objective = model.elbo(images, jax.random.key(0))
  errors = losses.reconstruction_loss(model.reconstruct(images), images)
  present = {
    f"present_{number}": jnp.sum(presences, axis=1)
    for number, presences in enumerate(model.activities(images), start=1)
  }
  return {
    "objective": objective,
    **({"elbo": objective} if model.guide.has_scales else {}),
    "reconstruction_loss": errors,
    **present,
  }


def features(
  model: guides.AmortisedCapsules, images: jax.Array
) -> dict[str, jax.Array]:
  """Log odds of presence, and poses, of the top capsules for linear probes.

  Appendix D of Smith et al. (2020) classifies from the log odds of q(t | x).
  The layers below are computed without noise.

  Args:
    model: the model with its guide.
    images: [B H W C] in [0, 1].

  Returns:
    `{name: [B F]}`, as `linear_probes.features` names them.
  """
  posteriors, _ = model.guide(images)
  return linear_probes.features(posteriors[-1].log_odds, posteriors[-1].poses)


def _begin_from(
  start: Start,
  task: Task,
  model: guides.AmortisedCapsules,
  train: data.Dataset,
  validation: data.Dataset,
) -> None:
  """Copies the parameters of another run, without scales of poses."""
  del validation
  if _has_state(start, task):
    return

  def describe_first(image_shape, num_classes):
    spec = task.describe(image_shape, num_classes)
    return spec.with_arguments(gaussian_poses=False)

  run = directory.Run(start.folder)
  run.read_summary()  # fails if there is no run
  first = task._replace(describe=describe_first)
  _, earlier, _ = tasks.restore_model(run, first, train, start.config)
  nnx.update(model, nnx.state(earlier))


def _has_state(start: Start, task: Task) -> bool:
  """Whether the new run has a saved state; makes no folder."""
  run = directory.Run(start.workdir)
  there = (run.workdir / "checkpoints").exists()
  return there and tasks.saved_by(run, task, start.config).has_state()
