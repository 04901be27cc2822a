"""Losses as plain functions of the outputs of models."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from capjax.kernels import checks, numerics

# Weight of the summed squared error of the reconstruction against the margin
# loss summed over classes. The paper prints 0.0005. The authors' code applies
# that to a margin loss averaged over the ten classes and halved, 1/20 of the
# paper's, so that its weight in these units is 20 times larger.
RECONSTRUCTION_WEIGHTS = {"none": 0.0, "paper": 0.0005, "official": 0.01}


_LEAST_ACTIVATION = 1e-7


def check_labels(
  labels: Int[Array, "..."], num_classes: int, *, name: str = "labels"
) -> None:
  """Checks labels whose values are known; under jit they are not.

  The losses here call this check. Where labels are traced, the loss of an
  example with a label outside of the classes is NaN, so that it is noticed.

  Args:
    labels: class of each example.
    num_classes: J.
    name: of the labels, for messages.

  Raises:
    TypeError: if the labels are not whole numbers.
    ValueError: if a label is outside of 0 .. J - 1.
  """
  checks.counts(num_classes=num_classes)
  dtype = labels.dtype if hasattr(labels, "dtype") else np.asarray(labels).dtype
  if not jnp.issubdtype(dtype, jnp.integer):
    raise TypeError(
      f"{name} hold {dtype}; give whole numbers of classes, such as "
      f"jnp.int32({name})."
    )
  if isinstance(labels, jax.core.Tracer):
    return
  known = np.asarray(labels)  # works while other arguments are traced
  wrong = known[(known < 0) | (known >= num_classes)]
  if wrong.size:
    raise ValueError(f"{name} hold {wrong[0]}; give 0..{num_classes - 1}.")


def one_hot(
  labels: Int[Array, "..."], num_classes: int, *, name: str = "labels"
) -> Float[Array, "... J"]:
  """1 for the class and 0 for others; NaN for a label outside of the classes.

  Args:
    labels: class of each example.
    num_classes: J.
    name: as for `check_labels`.

  Raises:
    TypeError: as `check_labels`.
    ValueError: as `check_labels`.
  """
  check_labels(labels, num_classes, name=name)
  labels = _as_int32(labels)
  known = (labels >= 0) & (labels < num_classes)
  marks = jax.nn.one_hot(labels, num_classes)
  return jnp.where(known[..., None], marks, jnp.nan)


def _as_int32(labels):
  """Labels in a dtype that holds the numbers of all classes; 8 bits may not."""
  return jnp.asarray(labels).astype(jnp.int32)


class Bound(NamedTuple):
  """Lower bounds on log-likelihoods.

  Attributes:
    elbo: the mean over samples of log p(x, h) - log q(h | x).
    importance: the log of the mean of their exponentials, which is tighter
      (Burda, Grosse, Salakhutdinov, 2016).
  """

  elbo: Float[Array, "..."]
  importance: Float[Array, "..."]


def likelihood_bound(log_weights: Float[Array, "... S"]) -> Bound:
  """Bounds log p(x) of each image by S samples of a recognition model.

  Args:
    log_weights: log p(x, h) - log q(h | x).

  Raises:
    ValueError: if there is no sample.
  """
  num_samples = log_weights.shape[-1]
  if num_samples < 1:
    raise ValueError(f"log_weights has {num_samples} samples; give at least 1.")
  total = numerics.logsumexp(log_weights, axis=-1)
  return Bound(jnp.mean(log_weights, axis=-1), total - math.log(num_samples))


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
    The loss of each example, summed over classes.

  Raises:
    TypeError: if an argument does not hold floats, for example labels.
    ValueError: if the shapes differ.
  """
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
  missing = jnp.square(jax.nn.relu(upper - activations))
  excess = jnp.square(jax.nn.relu(activations - lower))
  losses = present * missing + absent_weight * (1 - present) * excess
  return jnp.sum(losses, axis=-1)


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
    The loss of each example, summed over classes; the authors' code takes the
    mean over them.
  """
  checks.arrays({"activations": (activations, "... J")})
  checks.same_shape(activations.shape[:-1], labels=labels)
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
  if timescale <= 0:
    raise ValueError(f"timescale is {timescale}; give a number above 0.")
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
    The loss of each example.

  Raises:
    TypeError: as `cross_entropy`.
    ValueError: as `cross_entropy`.
  """
  return cross_entropy(jnp.log(activations + _LEAST_ACTIVATION), labels)


def cross_entropy(
  logits: Float[Array, "... J"], labels: Int[Array, "..."]
) -> Float[Array, "..."]:
  """Softmax cross-entropy in nats.

  Args:
    logits: unnormalised log probabilities of the classes.
    labels: the class of each example.

  Returns:
    For each example, in float32 or wider.

  Raises:
    TypeError: if the logits are no floats, or as `check_labels`.
    ValueError: if the shapes differ, or as `check_labels`.
  """
  checks.arrays({"logits": (logits, "... J")})
  checks.same_shape(logits.shape[:-1], labels=labels)
  check_labels(labels, logits.shape[-1])
  labels = _as_int32(labels)
  logits = logits.astype(numerics.accumulation_dtype(logits))
  entropies = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
  known = (labels >= 0) & (labels < logits.shape[-1])
  return jnp.where(known, entropies, jnp.nan)


def reconstruction_loss(
  reconstructions: Float[Array, "B H W C"], images: Float[Array, "B H W C"]
) -> Float[Array, " B"]:
  """Sums squared errors over the pixels and channels of each image.

  Args:
    reconstructions: the predicted intensities.
    images: the targets, of the same shape.

  Returns:
    One sum for each image, >= 0.

  Raises:
    TypeError: if the images do not hold floats.
    ValueError: if the shapes differ.
  """
  checks.arrays({"images": (images, "B H W C")})
  checks.same_shape(images.shape, reconstructions=reconstructions)
  return jnp.sum(jnp.square(reconstructions - images), axis=(1, 2, 3))


def multi_hot(
  labels: Int[Array, "... K"], num_classes: int
) -> Float[Array, "... J"]:
  """Marks the classes of each example: 1 where present, 0 elsewhere.

  Args:
    labels: the K classes in each example; one given twice counts once.
    num_classes: J.

  Returns:
    T_k of `margin_loss`.
  """
  return jnp.max(one_hot(labels, num_classes), axis=-2)


def exact_set(
  scores: Float[Array, "... J"], labels: Int[Array, "... K"]
) -> Bool[Array, "..."]:
  """Whether the K highest scores are those of the K true classes, all of them.

  The accuracy on MultiMNIST (Sabour et al., 2017, section 6). The share of the
  digits that are found, which some papers report instead, is higher.

  Args:
    scores: activations or logits of the classes; of equal ones the first counts
      as the highest.
    labels: the classes in each example, all different, in any order; K <= J.

  Returns:
    True or false for each example.

  Raises:
    ValueError: if there is not one set of labels for each row of scores, or a
      set has more labels than there are classes.
  """
  _check_sets(scores, labels)
  if labels.shape[-1] > scores.shape[-1]:
    raise ValueError(
      f"labels are {list(labels.shape)}, of {scores.shape[-1]} classes; give "
      "at most as many different classes for each example."
    )
  # `top_k` may hold -0.0 for less than 0.0.
  scores = jnp.where(scores == 0, 0, scores)
  predictions = jax.lax.top_k(scores, labels.shape[-1])[1]
  return jnp.all(jnp.sort(predictions) == jnp.sort(labels), axis=-1)


def _check_sets(scores, labels) -> None:
  """Refuses labels that would be broadcast over the rows of scores."""
  rows = scores.shape[:-1]
  if labels.ndim != scores.ndim or labels.shape[:-1] != rows:
    wanted = ", ".join([*map(str, rows), "K"])
    raise ValueError(
      f"labels are {list(labels.shape)}; give [{wanted}], K classes for each "
      "row of scores."
    )


def overlap_reconstruction_loss(
  model: nnx.Module,
  poses: Float[Array, "B J D"],
  labels: Int[Array, "B K"],
  parts: Float[Array, "B K H W C"],
) -> Float[Array, " B"]:
  """Squared errors of objects, each decoded alone (Sabour et al., section 6).

  Args:
    model: a `CapsNet` with decoder.
    poses: poses of its class capsules.
    labels: the capsules to decode, one at a time.
    parts: the object that each capsule should reconstruct, alone.

  Returns:
    Squared errors, summed over the pixels, channels and objects of each image.
  """

  def squares(classes, objects):
    return reconstruction_loss(model.decode(poses, classes), objects)

  return jnp.sum(jax.vmap(squares, 1)(labels, parts), axis=0)


def overlap_loss(
  model: nnx.Module,
  images: Float[Array, "B H W C"],
  labels: Int[Array, "B K"],
  parts: Float[Array, "B K H W C"],
  *,
  reconstruction_weight: float,
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
  """Losses of a `CapsNet` on images of K objects (Sabour et al., section 6).

  The margin loss requires all classes of the image. The capsule of each class
  is decoded separately and compared with its own object, not with the image.

  Args:
    model: a `CapsNet`.
    images: in [0, 1].
    labels: the classes in each image, all different.
    parts: each object alone, in the order of `labels`.
    reconstruction_weight: weight of the squared errors summed over pixels and
      objects against the margin loss summed over classes: see
      `RECONSTRUCTION_WEIGHTS`. With 0 the decoder is not run.

  Returns:
    The mean over the batch of the loss, and of its terms by name; `accuracy` is
    that of `exact_set`.
  """
  output = model(images)
  checks.same_shape((len(images), *labels.shape[1:]), labels=labels)
  present = multi_hot(labels, output.activations.shape[-1])
  margin = jnp.mean(margin_loss(output.activations, present))
  metrics = {
    "accuracy": jnp.mean(exact_set(output.activations, labels)),
    "margin_loss": margin,
  }
  loss = margin
  if reconstruction_weight:
    squares = overlap_reconstruction_loss(model, output.poses, labels, parts)
    metrics["reconstruction_loss"] = jnp.mean(squares)
    loss += reconstruction_weight * metrics["reconstruction_loss"]
  return loss, {"loss": loss, **metrics}


def capsnet_loss(
  model: nnx.Module,
  images: Float[Array, "B H W C"],
  labels: Int[Array, " B"],
  *,
  reconstruction_weight: float,
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
  """Margin loss and reconstruction loss of a `CapsNet` (section 4.1).

  It equals `overlap_loss` with one object in each image, the image itself.

  Args:
    model: a `CapsNet`.
    images: in [0, 1].
    labels: the class of each image.
    reconstruction_weight: as for `overlap_loss`.

  Returns:
    The mean over the batch of the loss, and of its terms by name.

  Raises:
    TypeError: if the images are no floats, or the labels no whole numbers.
    ValueError: as `overlap_loss`.
  """
  checks.floats({"images": images})
  labels = jnp.asarray(labels)
  checks.same_shape(images.shape[:1], labels=labels)
  return overlap_loss(
    model,
    images,
    labels[:, None],
    images[:, None],
    reconstruction_weight=reconstruction_weight,
  )


def classifier_loss(
  logits: Float[Array, "B J"], labels: Int[Array, " B"]
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
  """Softmax cross-entropy in nats, for the baselines.

  Args:
    logits: unnormalised log probabilities of the classes.
    labels: the class of each image.

  Returns:
    The mean over the batch of the loss, and of loss and accuracy by name.
  """
  checks.arrays({"logits": (logits, "B J")})
  entropies = cross_entropy(logits, labels)
  return _mean_with_accuracy(entropies, logits, labels[:, None])


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

  Differs from the authors' code: there, targets are half of ours (1/2 where a
  class is present), and the loss is averaged over classes.
  """
  checks.arrays({"logits": (logits, "B J")})
  _check_sets(logits, labels)
  present = multi_hot(labels, logits.shape[-1])
  entropies = optax.sigmoid_binary_cross_entropy(logits, present)
  return _mean_with_accuracy(jnp.sum(entropies, axis=-1), logits, labels)


def _mean_with_accuracy(losses, scores, labels):
  loss = jnp.mean(losses)
  return loss, {"loss": loss, "accuracy": jnp.mean(exact_set(scores, labels))}
