"""The capsule RBM, or a plain RBM, trained by contrastive divergence.

Li and Zhu (2019), Capsule generative models, sections 2.1 and 3.1.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from capjax import data
from capjax.energy import contrastive, rbm, units
from capjax.specs import Spec

from ..evaluation import latents
from ..training import contrastive_divergence, train_step
from ..training.task import Task, described

# Iterations of mean field in the measures of a model that is trained without
# mean field; the presets that use it have the same number.
_MEASURED = 20


@described(rbm.CapsuleRBM)
def make_task(
  model: Spec,
  optimizer: optax.GradientTransformation,
  *,
  num_iterations: int | None = 10,
  num_sweeps: int = 20,
  block: bool = False,
  binary: bool = False,
  max_error: float = 0.5,
) -> Task:
  """Training of an RBM on images.

  Args:
    model: the RBM, without `image_shape`, which follows from the data.
    optimizer: the optimiser of the parameters.
    num_iterations: iterations of mean field that estimate the expectations
      under the data; None for the exact posterior.
    num_sweeps: sweeps of Gibbs sampling in each update, k in the paper.
    block: whether a sweep samples switches together with the hidden units,
      instead of given the old hidden units, as in the paper.
    binary: whether each pixel is sampled as 0 or 1, with its intensity as the
      probability of 1.
    max_error: largest mean reconstruction error of a pixel; above it training
      has diverged.
  """

  def describe(image_shape, num_classes):
    del num_classes
    return model.with_arguments(image_shape=tuple(image_shape))

  return Task(
    describe,
    functools.partial(
      loss, num_iterations=num_iterations, num_sweeps=num_sweeps, block=block
    ),
    functools.partial(measure, num_iterations=num_iterations),
    optimizer=optimizer,
    suites=lambda model: [
      "errors",
      "samples",
      "spectra",
      "fields",
      "out_of_distribution",
      *([] if latents.has_gaussian_pixels(model) else ["log_likelihood"]),
    ],
    after_training=("errors", "samples", "spectra", "fields"),
    begin=functools.partial(_begin, model.argument("visible")),
    diverged=functools.partial(diverged, max_error=max_error),
    **shared(binary),
  )


def shared(binary: bool) -> dict[str, Any]:
  """The fields of `Task` that all energy models share.

  Args:
    binary: as for `make_task`.
  """
  make_example = functools.partial(sample, binary=binary)
  return {
    "sample": make_example,
    "sample_test": make_example,
    "chosen_by": None,
    "restart": contrastive_divergence.restart,
    "unlabelled": True,
  }


def loss(
  model: rbm.CapsuleRBM,
  images: jax.Array,
  labels: jax.Array,
  key: jax.Array,
  step: jax.Array,
  *,
  num_iterations: int | None,
  num_sweeps: int,
  block: bool,
) -> tuple[jax.Array, train_step.Metrics]:
  """The loss of a batch, whose gradient is that of contrastive divergence.

  With the options bound, it is a `train_step.Loss`. The chains of the model are
  replaced by the new ones.

  Args:
    model: the RBM.
    images: [B ...], the visible units.
    labels: not used.
    key: samples the chains.
    step: not used.
    num_iterations: as for `make_task`.
    num_sweeps: as for `make_task`.
    block: as for `make_task`.
  """
  del labels, step
  value, learned = contrastive.contrastive_loss(
    model,
    images,
    key,
    num_iterations=num_iterations,
    num_sweeps=num_sweeps,
    block=block,
  )
  # The update owns this copy of the model; its chains go into the next state.
  model.set_chains(learned.chains)
  return value, {"reconstruction_error": jnp.mean(learned.errors)}


def measure(
  model: rbm.CapsuleRBM,
  images: jax.Array,
  labels: jax.Array,
  *,
  num_iterations: int | None,
) -> train_step.Metrics:
  """Reconstruction errors, free energies, and shares of active capsules.

  Args:
    model: the RBM.
    images: [B ...], the visible units.
    labels: not used.
    num_iterations: as for `make_task`.

  Returns:
    Measures [B].
  """
  del labels
  capsules = model.infer(images, num_iterations=num_iterations)
  return {
    **reconstruction_errors(
      images,
      lambda count: model.reconstruct(
        model.infer(images, num_iterations=count)
      ),
      num_iterations=num_iterations,
    ),
    "free_energy": model.free_energy(images),
    "active_capsules": jnp.mean(capsules.switches, axis=1),
  }


def reconstruction_errors(
  images: jax.Array,
  reconstruct: Callable[[int | None], jax.Array],
  *,
  num_iterations: int | None,
) -> train_step.Metrics:
  """The mean absolute errors [B] of reconstructions, for both inferences.

  The two errors are not comparable: reconstructions by mean field have larger
  errors.

  Args:
    images: [B ...].
    reconstruct: `iterations -> images`, the reconstructions by mean field; with
      None, by the exact posterior.
    num_iterations: iterations of mean field in training; None for the exact
      posterior.

  Returns:
    `reconstruction_error_mean_field` and `reconstruction_error_exact`; and as
    `reconstruction_error` the one whose inference the training uses.
  """
  counts = {"mean_field": num_iterations or _MEASURED, "exact": None}
  errors = {}
  for name, count in counts.items():
    off = jnp.abs(reconstruct(count).reshape(images.shape) - images)
    errors[name] = jnp.mean(off, axis=range(1, images.ndim))
  trained = "mean_field" if num_iterations else "exact"
  return {
    "reconstruction_error": errors[trained],
    **{f"reconstruction_error_{name}": x for name, x in errors.items()},
  }


def sample(
  key: jax.Array,
  index: jax.Array,
  images: jax.Array,
  labels: jax.Array,
  *,
  binary: bool,
) -> tuple[jax.Array, jax.Array]:
  """Makes one example: intensities, or pixels sampled as 0 or 1.

  With `binary` bound, it is a `train_step.Sample`.
  """
  image = train_step.as_intensities(images[index])
  if binary:
    image = jax.random.bernoulli(key, image).astype(image.dtype)
  return image, labels[index]


def diverged(metrics: dict[str, float], *, max_error: float) -> bool:
  """Whether training has diverged: the reconstruction error is too large."""
  return metrics["reconstruction_error"] > max_error


def set_pixel_biases(model: Any, family: str, train: data.Dataset) -> None:
  """Sets the biases of the pixels from the statistics of the training set.

  Of a large set, or one of large images, only the first images are used.

  Args:
    model: the RBM, or another model whose `visible` are such biases.
    family: the family of the pixels, one of `units.FAMILIES`.
    train: the training set.
  """
  images = contrastive_divergence.first_intensities(train.images)
  model.visible[...] = units.independent_units(family, images)


def _begin(
  family: str,
  model: rbm.CapsuleRBM,
  train: data.Dataset,
  validation: data.Dataset,
) -> None:
  del validation
  set_pixel_biases(model, family, train)
