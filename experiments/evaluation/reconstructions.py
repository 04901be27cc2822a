"""Suites for the decoder of a CapsNet."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from ..figures import grids
from ..run import directory
from ..training import train_step
from .models import Options, Scores, Trained
from .suite import suite

_NUM_SHOWN = (24, 24)  # correct and wrong test images in the figure
_NUM_TWEAKED = 3  # images whose capsules are perturbed
_OFFSETS = np.arange(-5, 6) * 0.05


@suite()
def reconstructions(
  run: directory.Run, trained: Trained, options: Options
) -> Scores:
  """Plots test images next to their reconstructions; measures the error.

  Each image is reconstructed from its longest class capsule. The figure holds
  both correctly and wrongly classified images.

  Returns:
    The squared error summed over an image, averaged over the test set.
  """
  del options
  images, labels, classes, poses = _examples(trained)
  grids.reconstructions(
    images,
    np.asarray(_decode(trained)(poses, classes)),
    trained.test.named(labels),
    trained.test.named(classes),
    run.figure("reconstructions"),
  )
  errors = trained.measures["reconstruction_loss"]
  return {"test_reconstruction_loss": float(np.mean(errors))}


@suite()
def perturbations(
  run: directory.Run, trained: Trained, options: Options
) -> Scores:
  """Plots reconstructions as each dimension of a capsule changes (figure 4).

  Returns:
    The largest change of a pixel's intensity.
  """
  del options
  _, labels, classes, poses = _examples(trained)
  # The first correctly classified example of each of a few classes.
  right = np.flatnonzero(classes == labels)
  _, first = np.unique(labels[right], return_index=True)
  tweaked = right[first][:_NUM_TWEAKED]
  if not len(tweaked):
    return {"largest_change": 0.0}
  decode = _decode(trained)
  grid = np.stack(
    [perturb(decode, poses[n], labels[n], _OFFSETS) for n in tweaked]
  )
  names = trained.test.named(labels[tweaked])
  grids.perturbations(grid, _OFFSETS, names, run.figure("perturbations"))
  middle = grid[:, :, len(_OFFSETS) // 2, None]
  return {"largest_change": float(np.max(np.abs(grid - middle)))}


SUITES = (reconstructions, perturbations)


def perturb(
  decode: Callable[[jax.Array, jax.Array], jax.Array],
  poses: jax.Array,
  label: int,
  offsets: np.ndarray,
) -> np.ndarray:
  """Reconstructs one image with each dimension of its capsule changed in turn.

  Args:
    decode: `(poses [B J D], classes [B]) -> images [B H W C]`.
    poses: [J D] of one image.
    label: the capsule that is changed.
    offsets: [S], added to one dimension at a time.

  Returns:
    [D S H W C] (Sabour et al., 2017, figure 4).
  """
  num_objects, size = poses.shape
  tweaks = offsets[None, :, None] * np.eye(size)[:, None, :]
  tweaked = jnp.broadcast_to(poses, (size, len(offsets), num_objects, size))
  tweaked = tweaked.at[:, :, label].add(tweaks).reshape(-1, num_objects, size)
  images = decode(tweaked, jnp.full(len(tweaked), label))
  return np.asarray(images).reshape(size, len(offsets), *images.shape[1:])


def _decode(trained: Trained) -> Callable[[jax.Array, jax.Array], jax.Array]:
  return functools.partial(
    jax.jit(lambda model, *arguments: model.decode(*arguments)), trained.model
  )


def _examples(trained: Trained) -> tuple[np.ndarray, ...]:
  """A few test images, their labels, predicted classes and poses."""
  test = trained.test
  shown = grids.choose_examples(
    test.labels, trained.measures["prediction"], *_NUM_SHOWN
  )
  images = train_step.as_intensities(jnp.asarray(test.images[shown]))
  images = jax.vmap(trained.task.prepare)(images)
  output = jax.jit(lambda model, x: model(x))(trained.model, images)
  classes = np.argmax(output.activations, axis=-1)
  return np.asarray(images), test.labels[shown], classes, output.poses
