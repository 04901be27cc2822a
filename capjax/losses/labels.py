"""Labels: checks, conversion to targets, and comparison with scores."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Integer

from capjax.kernels import checks


def check_labels(
  labels: Integer[Array, "..."], num_classes: int, *, name: str = "labels"
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
  """Marks the class of each example by 1, the others by 0.

  A traced label outside of the classes gives NaN.

  Args:
    labels: class of each example.
    num_classes: J.
    name: as for `check_labels`.

  Raises:
    TypeError: as `check_labels`.
    ValueError: as `check_labels`.
  """
  check_labels(labels, num_classes, name=name)
  labels = as_int32(labels)
  known = (labels >= 0) & (labels < num_classes)
  marks = jax.nn.one_hot(labels, num_classes, dtype=jnp.float32)
  return jnp.where(known[..., None], marks, jnp.nan)


def multi_hot(
  labels: Int[Array, "... K"], num_classes: int
) -> Float[Array, "... J"]:
  """Marks the classes of each example: 1 where present, 0 elsewhere.

  Args:
    labels: the K classes in each example; one given twice counts once.
    num_classes: J.

  Returns:
    T_k of `margin_loss`.

  Raises:
    TypeError: as `check_labels`.
    ValueError: as `check_labels`.
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
    True or false for each example; false if a score is NaN, or if a traced
    label is given twice or is not one of the classes.

  Raises:
    TypeError: as `check_labels`.
    ValueError: if there is not one set of labels for each row of scores, or a
      set has more labels than there are classes, or holds one twice; or as
      `check_labels`.
  """
  check_sets(scores, labels)
  check_labels(labels, scores.shape[-1])
  shape = np.shape(labels)
  if shape[-1] > scores.shape[-1]:
    raise ValueError(
      f"labels are {list(shape)}, of {scores.shape[-1]} classes; give "
      "at most as many different classes for each example."
    )
  _check_different(labels)
  labels = as_int32(labels)
  # `top_k` may hold -0.0 for less than 0.0.
  scores = jnp.where(scores == 0, 0, scores)
  predictions = jax.lax.top_k(scores, labels.shape[-1])[1]
  found = jnp.all(jnp.sort(predictions) == jnp.sort(labels), axis=-1)
  return found & ~jnp.any(jnp.isnan(scores), axis=-1)


def _check_different(labels):
  """Raises a ValueError if an example has a known label twice."""
  if isinstance(labels, jax.core.Tracer):
    return
  known = np.sort(np.asarray(labels), axis=-1)
  twice = known[..., 1:][known[..., 1:] == known[..., :-1]]
  if twice.size:
    raise ValueError(
      f"labels of an example hold {twice[0]} twice; give different classes."
    )


def check_sets(scores: Float[Array, "..."], labels: Int[Array, "..."]) -> None:
  """Checks that labels would not be broadcast over the rows of scores.

  Args:
    scores: [... J], of the classes.
    labels: [... K], a set for each row of scores.

  Raises:
    ValueError: if the other axes differ.
  """
  rows, shape = scores.shape[:-1], np.shape(labels)
  if len(shape) != scores.ndim or shape[:-1] != rows:
    wanted = ", ".join([*map(str, rows), "K"])
    raise ValueError(
      f"labels are {list(shape)}; give [{wanted}], K classes for each row of "
      "scores."
    )


def as_int32(labels: Int[Array, "..."]) -> Int[Array, "..."]:
  """Converts labels to int32, which holds all class numbers; int8 may not.

  Labels of 64 bits that do not fit become numbers that are no class.

  Args:
    labels: whole numbers of any width, signed or not.
  """
  labels = jnp.asarray(labels)
  if labels.dtype.itemsize > 4:
    labels = jnp.minimum(labels, jnp.iinfo(jnp.int32).max)
    if jnp.issubdtype(labels.dtype, jnp.signedinteger):
      labels = jnp.maximum(labels, -1)
  return labels.astype(jnp.int32)
