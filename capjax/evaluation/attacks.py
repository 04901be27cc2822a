"""White-box attacks: small changes of images that make a model err.

Intensities are in [0, 1] and stay there. Attacks follow the gradient of
`loss(images [B H W C], labels [B]) -> losses [B]`, a closure over any model, in
which the loss of an image must not depend on other images.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Integer, PRNGKeyArray

from capjax import losses
from capjax.kernels import checks, numerics

Loss = Callable[[Float[Array, "B H W C"], Int[Array, " B"]], Float[Array, " B"]]


def fgsm(
  loss: Loss,
  images: Float[Array, "B H W C"],
  labels: Int[Array, " B"],
  eps: ArrayLike,
  *,
  targeted: ArrayLike = False,
) -> Float[Array, "B H W C"]:
  """Moves each pixel by eps along the sign of its gradient.

  x' = clip(x + eps sign(grad_x loss(x, y)), 0, 1); towards a target t,
  x' = clip(x - eps sign(grad_x loss(x, t)), 0, 1) (Goodfellow et al., 2015,
  section 4; Kurakin et al., 2017, section 2.1).

  Args:
    loss: losses of images, see the module.
    images: in [0, 1].
    labels: the true classes; with `targeted`, the classes to predict instead.
    eps: the largest change of an intensity, at least 0; one number, or one for
      each image [B 1 1 1]. It may be traced, so that one compilation serves
      every eps.
    targeted: whether to decrease the loss instead; one for all images, or one
      for each [B 1 1 1]. It may be traced too.

  Returns:
    Images in [0, 1] in the dtype of `images`, and within eps of them up to the
    rounding of that dtype. Pixels with zero gradient are not changed.

  Raises:
    TypeError: if the images hold integers.
    ValueError: if `eps` or `targeted` has another shape, `eps` is known (not
      under jit) and not a finite number of at least 0, an intensity is known
      and outside of [0, 1], or there is no image.

  Differs from paper: nothing.
  """
  return bim(loss, images, labels, eps, num_steps=1, targeted=targeted)


def bim(
  loss: Loss,
  images: Float[Array, "B H W C"],
  labels: Int[Array, " B"],
  eps: ArrayLike,
  *,
  num_steps: int = 10,
  targeted: ArrayLike = False,
  step_size: ArrayLike | None = None,
) -> Float[Array, "B H W C"]:
  """Repeats smaller steps of `fgsm`: the basic iterative method.

  x_0 = x, x_{n+1} = clip(x_n + step_size sign(grad loss(x_n, y))), where clip
  keeps within eps of x and within [0, 1] (Kurakin et al., 2017, section 2.2).

  Args:
    loss: as for `fgsm`.
    images: in [0, 1].
    labels: as for `fgsm`.
    eps: as for `fgsm`.
    num_steps: gradients taken, at least 1.
    targeted: as for `fgsm`.
    step_size: at least 0; by default eps / num_steps, so that all steps
      together just reach eps.

  Returns:
    As `fgsm`.

  Raises:
    TypeError: as `fgsm`.
    ValueError: as `fgsm`, for `eps` and `step_size`; or if `num_steps` is below
      1.

  Differs from paper: the default step. Theirs is 1/255, taken about 255 eps
    times, so that eps could not be traced.
  """
  checks.counts(num_steps=num_steps)
  checks.images(images, np.shape(images)[1:], intensities=True)
  eps, targeted = _as_array(eps), _as_array(targeted)
  step_size = eps / num_steps if step_size is None else _as_array(step_size)
  for name, size in (("eps", eps), ("step_size", step_size)):
    if not isinstance(size, jax.core.Tracer):
      for end in (np.min(size), np.max(size)):
        checks.within(0.0, math.inf, **{name: end})
  given = {"eps": eps, "step_size": step_size, "targeted": targeted}
  for name, each in given.items():
    if np.ndim(each):  # other shapes would be broadcast over pixels
      checks.same_shape((len(images), 1, 1, 1), **{name: each})
  # Steps are taken in float32 or wider: in bfloat16 small ones would be lost.
  dtype = numerics.accumulation_dtype(images)
  eps, step, start = (jnp.asarray(x, dtype) for x in (eps, step_size, images))
  lowest, highest = jnp.maximum(start - eps, 0), jnp.minimum(start + eps, 1)
  step = jnp.where(targeted, -step, step)
  slopes = jax.grad(lambda images: jnp.sum(loss(images, labels)))

  def move(attacked, _):
    slope = slopes(attacked.astype(images.dtype)).astype(dtype)
    attacked = attacked + step * jnp.sign(slope)
    return jnp.clip(attacked, lowest, highest), None

  attacked, _ = jax.lax.scan(move, start, length=num_steps)
  return attacked.astype(images.dtype)


def _as_array(value: ArrayLike) -> ArrayLike:
  """Converts lists and tuples to arrays; leaves other values as they are."""
  return np.asarray(value) if isinstance(value, (list, tuple)) else value


def log_odds_against(
  scores: Float[Array, "B J"], labels: Int[Array, " B"]
) -> Float[Array, " B"]:
  """The log-odds that an image is not of its class, a loss to attack.

  log(1 - p_y) - log p_y = log sum_{j != y} exp(z_j) - z_y, p being the softmax
  of the scores z. It rises and falls with the cross-entropy -log p_y, so that
  the signs of its gradient are the same. In float32 the cross-entropy loses
  these signs: where z_y is higher than the other scores by 17, p_y rounds to 1,
  and the gradient of z_y to 0.

  Capsules are trained with the margin or spread loss, whose gradient is exactly
  0 where the margins are kept: an attack that follows it does not change those
  images and makes capsules look robust.

  Args:
    scores: logits, or activations of capsules, of at least 2 classes.
    labels: in 0..J-1. Where one is traced and outside, the result is NaN.

  Raises:
    TypeError: if the scores are no floats, or the labels no integers.
    ValueError: if there is one class, or a known label is not one of them.
  """
  checks.arrays({"scores": (scores, "B J")}, empty="B")
  checks.same_shape(scores.shape[:-1], labels=labels)
  checks.counts(at_least=2, num_classes=scores.shape[-1])
  marks = losses.one_hot(labels, scores.shape[-1])
  own = marks > 0
  others = numerics.logsumexp(jnp.where(own, -jnp.inf, scores), axis=-1)
  # NaN for a traced label outside of the classes, as `losses.one_hot` has it.
  none = (0 * marks).astype(scores.dtype)
  return others - jnp.sum(jnp.where(own, scores, none), axis=-1)


def random_targets(
  key: PRNGKeyArray, labels: Integer[Array, " B"], num_classes: int
) -> Integer[Array, " B"]:
  """Samples for each label another class, all equally likely.

  Args:
    key: random key.
    labels: in 0..num_classes-1.
    num_classes: at least 2.

  Returns:
    In 0..num_classes-1, each different from its label.

  Raises:
    TypeError: if the labels or the number of classes are no whole numbers.
    ValueError: if there is no other class, or a known label is not one of the
      classes.
  """
  checks.counts(at_least=2, num_classes=num_classes)
  losses.check_labels(labels, num_classes)
  labels = jnp.asarray(labels)
  steps = jax.random.randint(key, labels.shape, 1, num_classes, jnp.int32)
  targets = (labels.astype(jnp.int32) + steps) % num_classes
  return targets.astype(labels.dtype)  # the sum would overflow narrow types
