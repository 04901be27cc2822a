"""Units of energy models: families by name, first parameters, and images.

Axes: B batch, N data, M visible units, R natural parameters of a unit.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from capjax.kernels import checks
from capjax.kernels.energy import families

FAMILIES = {
  "bernoulli": families.BERNOULLI,
  "gaussian": families.GAUSSIAN,
}
# Means of Bernoulli units are kept this far from 0 and 1 at the start.
_MARGIN = 0.01
_MAX_PRECISION = 10.0
_MIN_VARIANCE = 1e-4


def family(name: str) -> families.Family:
  """One of `FAMILIES`.

  Args:
    name: "bernoulli" or "gaussian".

  Raises:
    ValueError: if the name is unknown.
  """
  if name not in tuple(FAMILIES):
    raise ValueError(f"unknown family {name!r}; known: {', '.join(FAMILIES)}.")
  return FAMILIES[name]


def standard(name: str, shape: Sequence[int]) -> Float[Array, "R ..."]:
  """Natural parameters of log odds 0, or of mean 0 and precision 1.

  Args:
    name: as for `family`.
    shape: of the units.

  Returns:
    [R, *shape]; R is 1 for Bernoulli units, 2 for Gaussian ones.

  Raises:
    ValueError: if the name is unknown.
  """
  family(name)  # fails if it is unknown
  zeros = jnp.zeros(shape, jnp.float32)
  if name == "gaussian":
    return jnp.stack([zeros, zeros - 0.5])
  return zeros[None]


def independent_units(
  name: str, images: Float[Array, "N ..."]
) -> Float[Array, "R M"]:
  """Natural parameters of independent visible units, fitted to these data.

  Bernoulli units take the log odds of the mean of each pixel, Gaussian units
  its mean and precision (at most 10).

  Args:
    name: as for `family`.
    images: in [0, 1] for Bernoulli units; any values for Gaussian ones.

  Raises:
    TypeError: if the images hold integers.
    ValueError: if there is no image, the name is unknown or, where values are
      known (not under jit), they are not finite or, for Bernoulli units,
      outside of [0, 1].

  Differs from the authors' scripts: they set Bernoulli biases to the mean
  itself, not its log odds.
  """
  bernoulli = family(name) is families.BERNOULLI
  checks.images(images, images.shape[1:], intensities=bernoulli)
  mean = jnp.mean(images, axis=0).ravel()
  if bernoulli:
    mean = jnp.clip(mean, _MARGIN, 1 - _MARGIN)
    return jnp.log(mean / (1 - mean))[None]
  variance = jnp.var(images, axis=0).ravel()
  precision = jnp.minimum(1 / (variance + _MIN_VARIANCE), _MAX_PRECISION)
  return jnp.stack([mean * precision, -precision / 2])


def visible(
  images: Float[Array, "B ..."],
  image_shape: tuple[int, ...],
  kind: families.Family,
) -> Float[Array, "B M"]:
  """Checks images, and returns them as visible units.

  Args:
    images: of `image_shape`, or of another shape with as many numbers.
    image_shape: shape of an image of the model.
    kind: the family of the visible units.

  Returns:
    The pixels of each image, row by row.

  Raises:
    TypeError: if the images hold integers.
    ValueError: if there is no image, the images have another shape, or, where
      values are known (not under jit), they are not finite or, for Bernoulli
      units, outside of [0, 1].
  """
  is_bernoulli = kind is families.BERNOULLI
  checks.images(images, image_shape, flat=True, intensities=is_bernoulli)
  return images.reshape(len(images), -1)


def mean_images(
  natural: Float[Array, "B R M"],
  image_shape: tuple[int, ...],
  kind: families.Family,
) -> Float[Array, "B ..."]:
  """The means of visible units, as images.

  Args:
    natural: natural parameters of the units.
    image_shape: shape of an image of the model.
    kind: the family of the visible units.

  Returns:
    Any real numbers for Gaussian units; in [0, 1] for Bernoulli ones.
  """
  means = jax.vmap(kind.moments)(natural)[:, 0]
  return means.reshape(-1, *image_shape)
