"""Images by trained models and of rendered toys, for the documentation."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from capjax import data, pretrained
from capjax.data.viewpoint_solids import raytracing, solids, toys
from capjax.kernels import geometry

from . import energy_models, reconstructions


@functools.cache
def rbm_images() -> tuple[np.ndarray, np.ndarray]:
  """Mean images of samples, and of each capsule alone, of the capsule RBM."""
  model = pretrained.load("boltzmann_mnist").model
  start_key, sample_key, fields_key = jax.random.split(jax.random.key(0), 3)
  start = jax.random.uniform(start_key, (100, *model.image_shape))
  capsules, _ = energy_models.dream(model, sample_key, start)
  fields = energy_models.projective_fields(model, fields_key)
  return np.asarray(model.reconstruct(capsules)), np.asarray(fields)


def perturbed(
  classes: Sequence[int], offsets: np.ndarray, data_dir: str | None
) -> np.ndarray:
  """Reconstructions [K D S 28 28 1] of digits with one dimension changed.

  Args:
    classes: the digits.
    offsets: [S], added to a dimension of the pose of the digit's capsule.
    data_dir: the folder that holds mnist/.
  """
  model = pretrained.load("mnist_quarter").model
  test = data.load("mnist", "test", data_dir)
  rows = [int(np.flatnonzero(test.labels == c)[1]) for c in classes]
  poses = model(data.as_intensities(test.images[rows])).poses
  return np.stack(
    [
      reconstructions.perturb(model.decode, pose, label, offsets)
      for pose, label in zip(poses, classes, strict=True)
    ]
  )


def posed(data_dir: str | None) -> np.ndarray:
  """A digit as its capsules render it, each row with another change of poses.

  Args:
    data_dir: the folder that holds mnist/.

  Returns:
    [5 5 28 28 1]: rotations by up to 23 degrees, shears, sizes, and shifts by
    up to 4 pixels along x and y.
  """
  model = pretrained.load("transforming_mnist_affine").model
  test = data.load("mnist", "test", data_dir)
  (row,) = np.flatnonzero(test.labels == 4)[1:2]
  image = data.as_intensities(test.images[[row]])
  steps = np.linspace(-1, 1, 5)
  same = dict(scale_x=1.0, scale_y=1.0, theta=0.0, shear=0.0, tx=0.0, ty=0.0)
  changes = [
    *(dict(theta=0.4 * x) for x in steps),
    *(dict(shear=0.5 * x) for x in steps),
    *(dict(scale_x=1 + 0.3 * x, scale_y=1 + 0.3 * x) for x in steps),
    *(dict(tx=4 * x) for x in steps),
    *(dict(ty=4 * x) for x in steps),
  ]
  transforms = jnp.stack(
    [geometry.affine_matrix(**(same | change)) for change in changes]
  )
  images = model(jnp.repeat(image, len(changes), axis=0), transforms)
  return np.asarray(images).reshape(5, 5, *image.shape[1:])


def viewpoints(rows: int, columns: int) -> np.ndarray:
  """Left-eye images of a toy: elevations in rows, azimuths in columns."""
  figure = toys.figure(1, 2, seed=0)
  heights = jnp.radians(jnp.linspace(30.0, 70.0, rows))

  @jax.jit
  def seen(azimuth):
    return raytracing.render(
      raytracing.turn(figure, azimuth), solids.lights(), heights, size=48
    )

  turns = jnp.radians(jnp.arange(columns) * 40.0)
  # [columns, rows, lightings, H, W, eyes]
  views = np.stack([seen(azimuth) for azimuth in turns])
  return views[:, :, 0, :, :, :1].swapaxes(0, 1)
