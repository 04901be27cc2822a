"""Sparsity losses of object presences (Kosiorek et al., 2019, section 2.4).

These are the only kernels of a whole batch: sparsity across examples is a
property of the batch. Axes: B examples, K objects.
"""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import checks, numerics


def prior_within(
  presence: Float[Array, "B K"], num_classes: int | numerics.Scalar
) -> Float[Array, ""]:
  """Mean squared difference of the number of objects in an image from K / C.

  (1/B) sum_b (sum_k u_bk - K / C)^2: each class should use its share of the
  objects.

  Args:
    presence: u, [B, K] in [0, 1].
    num_classes: C, the number of classes, or a guess; C / N if each image
      holds N objects.

  Returns:
    [], >= 0, to be minimised.

  Raises:
    ValueError: if `num_classes` is below 1, or a known presence is outside of
      [0, 1].
  """
  presence = _checked(presence, num_classes)
  target = presence.shape[1] / num_classes
  return jnp.mean(jnp.square(jnp.sum(presence, axis=1) - target))


def prior_between(
  presence: Float[Array, "B K"], num_classes: int | numerics.Scalar
) -> Float[Array, ""]:
  """Mean squared difference of the number of images of an object from B / C.

  (1/K) sum_k (sum_b u_bk - B / C)^2.

  Args:
    presence: u, [B, K] in [0, 1].
    num_classes: C, the number of classes, or a guess; C / N if each image
      holds N objects.

  Returns:
    [], >= 0, to be minimised.

  Raises:
    ValueError: if `num_classes` is below 1, or a known presence is outside of
      [0, 1].
  """
  presence = _checked(presence, num_classes)
  target = presence.shape[0] / num_classes
  return jnp.mean(jnp.square(jnp.sum(presence, axis=0) - target))


def posterior_within(mass: Float[Array, "B K"]) -> Float[Array, ""]:
  """The entropy of the objects that explain an image, averaged over images.

  Args:
    mass: v, [B, K] >= 0, how much of each image each object explains.

  Returns:
    [] in nats, in [0, log K], to be minimised: few objects explain an image.

  Raises:
    ValueError: if a known mass is below 0.
  """
  checks.arrays({"mass": (mass, "B K")})
  checks.values(0.0, math.inf, mass=mass)
  return jnp.mean(_entropy(mass))


def posterior_between(mass: Float[Array, "B K"]) -> Float[Array, ""]:
  """The entropy of the objects that explain all images together.

  Args:
    mass: v, [B, K] >= 0, how much of each image each object explains.

  Returns:
    [] in nats, in [0, log K], to be maximised: all objects are used.

  Raises:
    ValueError: if a known mass is below 0.
  """
  checks.arrays({"mass": (mass, "B K")})
  checks.values(0.0, math.inf, mass=mass)
  return _entropy(jnp.sum(mass, axis=0))


def _checked(presence, num_classes):
  """Presences in the dtype of their sums."""
  checks.within(1.0, math.inf, num_classes=num_classes)
  checks.arrays({"presence": (presence, "B K")})
  checks.values(0.0, 1.0, presence=presence)
  return numerics.widen(presence)


def _entropy(mass: Float[Array, "*batch K"]) -> Float[Array, "*batch"]:
  mass = numerics.widen(mass)
  shares = mass / (jnp.sum(mass, axis=-1, keepdims=True) + 1e-8)
  return -jnp.sum(shares * numerics.safe_log(shares), axis=-1)
