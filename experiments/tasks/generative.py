"""Generative capsules and the network that recognises them.

Smith, Schut, Gal and van der Wilk (2020), Capsule networks: a probabilistic
perspective.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from capjax import losses
from capjax.generative import amortised, guides, inference
from capjax.specs import Spec

from ..evaluation import linear_probes
from ..training import augmentation, train_step
from ..training.augmentation import Placement
from ..training.task import Task, described

_CENTRED = Placement(max_shift=0)


@described(amortised.amortised_capsules)
def make_task(
  model: Spec,
  optimizer: optax.GradientTransformation,
  *,
  placement: Placement = _CENTRED,
  temperature: Callable[[jax.Array], jax.Array] | None = None,
  num_importance: int = 1,
) -> Task:
  """Training of generative capsules by a variational objective.

  Args:
    model: the model with its guide, without `image_shape`, which follows from
      the data.
    optimizer: the optimiser of the parameters.
    placement: how images are deformed, and the canvas that they are placed on
      at random; test images too, but they are not shifted.
    temperature: `step -> temperature` of the relaxed presences in training;
      None for that of the model.
    num_importance: number of samples of the importance-weighted bound; more
      than one needs Gaussian poses.
  """

  def place(function):
    return functools.partial(function, placement=placement)

  def describe(image_shape, num_classes):
    del num_classes
    shape = augmentation.canvas_of(image_shape, placement)
    return model.with_arguments(image_shape=shape)

  return Task(
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
      "equivariance",
      "out_of_distribution",
      "swaps",
      "duplicates",
      "repair",
      *(["importance", "chains"] if model.guide.has_scales else []),
    ],
    after_training=("errors", "parts", "linear"),
    chosen_by="objective",
    steps=lambda shape: augmentation.steps(placement),
    features=features,
    unlabelled=True,
  )


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
    bounds = model.elbo(key, images, temperature=now)
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
  elbo = jax.vmap(lambda key, image: model.elbo(key, image[None])[0])
  objective = elbo(train_step.keys_of(images), images)
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
