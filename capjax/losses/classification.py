"""Losses on activations and logits of classes."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from capjax.kernels import checks, numerics
from capjax.losses.labels import (
  as_int32,
  check_labels,
  check_sets,
  exact_set,
  multi_hot,
  one_hot,
)

_LEAST_ACTIVATION = 1e-7


def margin_loss(
  activations: Float[Array, "... J"],
  present: Float[Array, "... J"],
  *,
  upper: float = 0.9,
  lower: float = 0.1,
  absent_weight: float = 0.5,
) -> Float[Array, "..."]:
  """The margin loss on lengths of class capsules (Sabour et al., 2017, Eq. 4).

  sum_k T_k max(0, m+ - |v_k|)^2 + lambda (1 - T_k) max(0, |v_k| - m-)^2.

  Args:
    activations: lengths |v_k| in [0, 1].
    present: T_k, 1 where class k is in the image and 0 elsewhere; several
      classes may be present.
    upper: m+, the length that a present class must reach.
    lower: m-, the length that an absent class may keep.
    absent_weight: lambda.

  Returns:
    The loss of each example, summed over classes, in float32 or wider.

  Raises:
    TypeError: if an argument does not hold floats, for example labels, or a
      setting is not one number.
    ValueError: if the shapes differ, a margin is not in [0, 1], `lower` is
      above `upper`, `absent_weight` is below 0 or not finite, or a known number
      of `present` is not in [0, 1].
  """
  checks.within(0.0, 1.0, upper=upper, lower=lower)
  checks.within(0.0, math.inf, absent_weight=absent_weight)
  _check_order(lower, upper)
  checks.arrays({"activations": (activations, "... J")})
  dtype = getattr(present, "dtype", jnp.float32)
  if present is not None and not jnp.issubdtype(dtype, jnp.floating):
    same = np.shape(present) == activations.shape
    classes = f"jax.nn.one_hot(labels, {activations.shape[-1]})"
    remedy = "present.astype(jnp.float32)" if same else classes
    raise TypeError(
      f"present holds {dtype}; give a float for each class, as {remedy}."
    )
  checks.arrays({"present": (present, "... J")})
  checks.same_shape(activations.shape, present=present)
  checks.values(0.0, 1.0, present=present)
  activations, present = numerics.widen(activations), numerics.widen(present)
  missing = jnp.square(jax.nn.relu(upper - activations))
  excess = jnp.square(jax.nn.relu(activations - lower))
  losses = present * missing + absent_weight * (1 - present) * excess
  return jnp.sum(losses, axis=-1)


def _check_order(lower, upper):
  if any(isinstance(x, jax.core.Tracer) for x in (lower, upper)):
    return
  # In float32, where equal margins of different dtypes compare as equal.
  if np.asarray(lower, np.float32) > np.asarray(upper, np.float32):
    raise ValueError(
      f"lower is {lower} and upper {upper}; give margins in this order."
    )


def spread_loss(
  activations: Float[Array, "... J"],
  labels: Int[Array, "..."],
  *,
  margin: float | Float[Array, ""],
) -> Float[Array, "..."]:
  """Penalises classes within a margin of the activation of the true class.

  sum_{i != t} max(0, m - (a_t - a_i))^2 (Hinton et al., 2018, eq. 3).

  Args:
    activations: a in [0, 1] of the classes.
    labels: t.
    margin: m, in the paper from 0.2 at the start of training to 0.9; see
      `spread_margin`.

  Returns:
    The loss of each example, summed over classes, in float32 or wider; the
    authors' code takes the mean over them.

  Raises:
    TypeError: if the activations do not hold floats, or as `check_labels`.
    ValueError: if the margin is outside of [0, 1], shapes differ, or as
      `check_labels`.
  """
  checks.within(0.0, 1.0, margin=margin)
  checks.arrays({"activations": (activations, "... J")})
  checks.same_shape(activations.shape[:-1], labels=labels)
  activations = numerics.widen(activations)
  present = one_hot(labels, activations.shape[-1])
  others = 1 - present
  true = jnp.sum(present * activations, axis=-1, keepdims=True)
  shortfall = jax.nn.relu(margin - (true - activations))
  return jnp.sum(others * jnp.square(shortfall), axis=-1)


def spread_margin(
  step: int | Int[Array, ""], *, timescale: float = 50_000.0
) -> Float[Array, ""]:
  """The margin of the spread loss at a step of training.

  0.2 + 0.79 sigmoid(min(10, step / timescale - 4)), which the authors gave in
  the paper's public review for a timescale of 50,000.

  Args:
    step: updates done so far.
    timescale: > 0, in steps; the margin is halfway after 4 timescales.

  Raises:
    ValueError: if the timescale is not above 0.

  Differs from paper: there, the margin rises along a line from 0.2 to 0.9.
  """
  checks.positive(timescale=timescale)
  progress = jnp.minimum(10.0, step / timescale - 4)
  return 0.2 + 0.79 * jax.nn.sigmoid(progress)


def share_loss(
  activations: Float[Array, "... J"], labels: Int[Array, "..."]
) -> Float[Array, "..."]:
  """Cross-entropy of activations that are normalised to sum to 1, in nats.

  -log(a_t / sum_j a_j): the paper's cross-entropy, which it does not define for
  activations (Hinton et al., 2018, table 1). Finite where all are 0.

  Args:
    activations: a of the classes, in [0, 1].
    labels: t, in 0 .. J - 1.

  Returns:
    The loss of each example, in float32 or wider.

  Raises:
    TypeError: as `cross_entropy`.
    ValueError: as `cross_entropy`.
  """
  checks.arrays({"activations": (activations, "... J")})
  return cross_entropy(
    jnp.log(numerics.widen(activations) + _LEAST_ACTIVATION), labels
  )


def cross_entropy(
  logits: Float[Array, "... J"], labels: Int[Array, "..."]
) -> Float[Array, "..."]:
  """Softmax cross-entropy in nats.

  Args:
    logits: unnormalised log probabilities of the classes.
    labels: the class of each example.

  Returns:
    The cross-entropy of each example, in float32 or wider.

  Raises:
    TypeError: if the logits are no floats, or as `check_labels`.
    ValueError: if the shapes differ, or as `check_labels`.
  """
  checks.arrays({"logits": (logits, "... J")})
  checks.same_shape(logits.shape[:-1], labels=labels)
  check_labels(labels, logits.shape[-1])
  labels = as_int32(labels)
  logits = numerics.widen(logits)
  entropies = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
  known = (labels >= 0) & (labels < logits.shape[-1])
  return jnp.where(known, entropies, jnp.nan)


def classifier_loss(
  logits: Float[Array, "B J"], labels: Int[Array, " B"]
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
  """Softmax cross-entropy in nats, for the baselines.

  Args:
    logits: unnormalised log probabilities of the classes.
    labels: the class of each image.

  Returns:
    The mean over the batch of the loss, and of loss and accuracy by name.

  Raises:
    TypeError: as `cross_entropy`.
    ValueError: if the logits are not [B J] or the labels not [B], or a known
      label is outside of the classes.
  """
  checks.arrays({"logits": (logits, "B J")})
  entropies = cross_entropy(logits, labels)
  return _mean_with_accuracy(entropies, logits, as_int32(labels)[:, None])


def multilabel_loss(
  logits: Float[Array, "B J"], labels: Int[Array, "B K"]
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
  """Sigmoid cross-entropies in nats, for the baseline on overlapping objects.

  Args:
    logits: log odds that each class is present.
    labels: the classes in each image, all different.

  Returns:
    The mean over the batch of the sum over classes, and of this loss and the
    accuracy (`exact_set`) by name.

  Raises:
    TypeError: if the logits hold no floats, or the labels no whole numbers.
    ValueError: if the logits are not [B J], or the labels not [B K] with K <=
      J; or if a known label is outside of the classes, or an image has it
      twice.

  Differs from the authors' code: there, targets are half of ours (1/2 where a
  class is present), and the loss is averaged over classes.
  """
  checks.arrays({"logits": (logits, "B J")})
  check_sets(logits, labels)
  present = multi_hot(labels, logits.shape[-1])
  entropies = optax.sigmoid_binary_cross_entropy(
    numerics.widen(logits), present
  )
  return _mean_with_accuracy(jnp.sum(entropies, axis=-1), logits, labels)


def _mean_with_accuracy(losses, scores, labels):
  loss = jnp.mean(losses)
  return loss, {"loss": loss, "accuracy": jnp.mean(exact_set(scores, labels))}
