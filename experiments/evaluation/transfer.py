"""Attacks made on another model, to be tried on this one."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from capjax import data, predictions, saved
from capjax.evaluation import attacks

from . import models


def source(
  path: str, image_shape: Sequence[int], test: data.Dataset
) -> tuple[Callable[..., jax.Array], nnx.Module]:
  """The loss that attacks on another trained model increase, and the model.

  Args:
    path: the folder of its run, or its weights.
    image_shape: [H W C] of the images in [0, 1] that are attacked.
    test: the data set of these images; the model must have its classes.

  Returns:
    `(model, images [B H W C], labels [B]) -> [B]`, the log-odds against the
    labels as in `Task.attack_loss`, and the model.

  Raises:
    FileNotFoundError: if there is no such model.
    ValueError: if it is no classifier, or takes other images.
  """
  trained = saved.load(path)
  kind = predictions.scores_name(trained.model)
  if kind is None:
    raise ValueError(
      f"the model of --source={path} has no scores of classes; give a "
      "classifier"
    )
  image = jax.ShapeDtypeStruct(tuple(trained.card["image_shape"]), jnp.float32)
  shape = jax.eval_shape(trained.preprocessing.prepare, image).shape
  if shape != tuple(image_shape):
    found, wanted = ("x".join(map(str, x)) for x in (shape, image_shape))
    raise ValueError(
      f"images for the model of --source={path} are prepared as {found}, for "
      f"this one as {wanted}; give one of the same data and preprocessing"
    )
  models.require_classes(test, trained.class_names, f"--source={path}")
  normalise = jax.vmap(trained.preprocessing.normalise)

  def losses(model, images, labels):
    scores = predictions.outputs(model, normalise(images))[kind]
    if kind == "probabilities":
      scores = jnp.log(jnp.maximum(scores, 1e-30))
    return attacks.log_odds_against(scores, labels)

  return losses, trained.model
