"""Similarity of two pictures up to an affine map."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from capjax.kernels import checks, geometry, rendering, sharding

_DAMPING = 1e-2  # damping of the first step


class Alignment(NamedTuple):
  """The best affine map from a picture to another.

  Attributes:
    pose: [3 3], which moves the picture; frames as in `rendering.warp`.
    residual: sum of squared differences between the moved picture and the
      target, divided by the sum of squares of the target; averaged with the
      same for the target moved to the picture. 0 if each is an affine image of
      the other, near 1 if no map makes them overlap, 1/2 if one of them alone
      is black, whose own term is left out. For a picture that is almost black
      it may be far above 1.
  """

  pose: Float[Array, "3 3"]
  residual: Float[Array, ""]


def align(
  picture: Float[Array, "H W C"],
  target: Float[Array, "H W C"],
  *,
  num_turns: int = 8,
  num_steps: int = 30,
) -> Alignment:
  """Finds the affine map of least squares between a picture and a target.

  The errors of both directions are added. Otherwise any picture could be
  enlarged until a flat patch of it fills the frame. Takes Levenberg-Marquardt
  steps in the six numbers of the map, from evenly spaced rotations of the
  picture and of its mirror image; returns the best map.

  Args:
    picture: any range, on black.
    target: any range, on black.
    num_turns: rotations to start from, and as many of the mirror image.
    num_steps: steps from each start.

  Returns:
    The map.

  Raises:
    TypeError: if an image does not hold floating-point numbers, or a count is
      no whole number.
    ValueError: if the images are not [H W C], their shapes differ, a known
      number of one is not finite, there is no turn, or `num_steps` is below 0.
  """
  checks.counts(num_turns=num_turns)
  checks.counts(at_least=0, num_steps=num_steps)
  checks.floats({"picture": picture, "target": target})
  checks.arrays({"picture": (picture, "H W C"), "target": (target, "H W C")})
  checks.values(-math.inf, math.inf, picture=picture, target=target)
  size = target.shape[:2]
  squares = jnp.sum(jnp.square(jnp.stack([target, picture])), axis=(1, 2, 3))
  weights = jax.lax.rsqrt(2 * jnp.where(squares > 0, squares, jnp.inf))

  def pose_of(numbers):
    rows = numbers.reshape(2, 3)
    return jnp.concatenate([rows, jnp.array([[0.0, 0.0, 1.0]])])

  def errors(numbers):
    pose = pose_of(numbers)
    forwards = rendering.warp(picture, pose, size) - target
    backwards = rendering.warp(target, geometry.invert(pose), size) - picture
    return jnp.concatenate(
      [weights[0] * forwards.ravel(), weights[1] * backwards.ravel()]
    )

  def step(carry, _):
    numbers, residual, damping = carry
    jacobian = jax.jacfwd(errors)(numbers)
    normal = jacobian.T @ jacobian
    scale = jnp.trace(normal) / 6 + 1e-6
    move = jnp.linalg.solve(
      normal + damping * scale * jnp.eye(6), jacobian.T @ errors(numbers)
    )
    tried = numbers - move
    squares = jnp.sum(jnp.square(errors(tried)))
    better = squares < residual
    carry = (
      jnp.where(better, tried, numbers),
      jnp.where(better, squares, residual),
      damping * jnp.where(better, 0.3, 4.0),
    )
    return carry, None

  def descend(start):
    begin = start, jnp.sum(jnp.square(errors(start))), jnp.float32(_DAMPING)
    begin = sharding.vary_alike(begin)
    (numbers, residual, _), _ = jax.lax.scan(step, begin, length=num_steps)
    return numbers, residual

  angles = 2 * math.pi * jnp.arange(num_turns) / num_turns
  turns = geometry.affine_matrix(1.0, 1.0, angles, 0.0, 0.0, 0.0)
  mirror = jnp.diag(jnp.array([-1.0, 1.0, 1.0]))
  starts = jnp.concatenate([turns, geometry.compose(turns, mirror)])
  found, residuals = jax.vmap(descend)(starts[:, :2].reshape(-1, 6))
  best = jnp.argmin(residuals)
  return Alignment(pose_of(found[best]), residuals[best])
