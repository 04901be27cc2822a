"""Losses as plain functions of what models return."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

# Weight of the summed squared error of the reconstruction against the margin
# loss summed over classes. The paper prints 0.0005. The authors' code applies
# that to a margin loss averaged over the ten classes and halved, 1/20 of the
# paper's, so that its weight in these units is 20 times larger.
RECONSTRUCTION_WEIGHTS = {"none": 0.0, "paper": 0.0005, "official": 0.01}


def margin_loss(
  activations: Float[Array, "... J"],
  present: Float[Array, "... J"],
  *,
  upper: float = 0.9,
  lower: float = 0.1,
  absent_weight: float = 0.5,
) -> Float[Array, "..."]:
  """Asks for long vectors of present classes only (Sabour et al., 2017, Eq. 4).

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
  """
  missing = jnp.square(jax.nn.relu(upper - activations))
  excess = jnp.square(jax.nn.relu(activations - lower))
  losses = present * missing + absent_weight * (1 - present) * excess
  return jnp.sum(losses, axis=-1)


def reconstruction_loss(
  reconstructions: Float[Array, "B H W C"], images: Float[Array, "B H W C"]
) -> Float[Array, " B"]:
  """Sums squared errors over the pixels and channels of each image."""
  return jnp.sum(jnp.square(reconstructions - images), axis=(1, 2, 3))


def capsnet_loss(
  model: Callable,
  images: Float[Array, "B H W C"],
  labels: Int[Array, " B"],
  *,
  reconstruction_weight: float,
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
  """Margin loss and reconstruction loss of a `CapsNet` (section 4.1).

  Args:
    model: a `CapsNet`.
    images: in [0, 1].
    labels: the class of each image.
    reconstruction_weight: of the summed squared error against the margin loss
      summed over classes: see `RECONSTRUCTION_WEIGHTS`. With 0 the decoder is
      not run.

  Returns:
    The mean over the batch of the loss, and of its parts by name.
  """
  output = model(images)
  present = jax.nn.one_hot(labels, output.activations.shape[-1])
  margin = jnp.mean(margin_loss(output.activations, present))
  predictions = jnp.argmax(output.activations, axis=-1)
  metrics = {
    "accuracy": jnp.mean(predictions == labels),
    "margin_loss": margin,
  }
  loss = margin
  if reconstruction_weight:
    squares = reconstruction_loss(model.decode(output.poses, labels), images)
    metrics["reconstruction_loss"] = jnp.mean(squares)
    loss += reconstruction_weight * metrics["reconstruction_loss"]
  return loss, {"loss": loss, **metrics}


def classifier_loss(
  logits: Float[Array, "B J"], labels: Int[Array, " B"]
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
  """Softmax cross-entropy in nats, for the baselines.

  Args:
    logits: unnormalised log probabilities of the classes.
    labels: the class of each image.

  Returns:
    The mean over the batch of the loss, and of it and the accuracy by name.
  """
  entropies = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
  loss = jnp.mean(entropies)
  accuracy = jnp.mean(jnp.argmax(logits, axis=-1) == labels)
  return loss, {"loss": loss, "accuracy": accuracy}
