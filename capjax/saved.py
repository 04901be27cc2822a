"""Trained models in one file: weights with a card that describes them.

The file has the format safetensors. Its tensors are the whole state of the
module, by path: parameters, statistics of batch normalisation, constants, the
chains of a Boltzmann machine, and random streams as the data of their keys. Its
metadata holds the card as JSON.
"""

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from capjax import named_tensors, predictions, specs, weights
from capjax.data import dataset
from capjax.data.transforms import preprocessing
from capjax.data.transforms.preprocessing import Preprocessing
from capjax.kernels import checks
from capjax.layers import inference

# The state that training changes, and that `start_from` copies.
_TRAINED = (nnx.Param, nnx.BatchStat)
# It pays to transform kernels once for so many batches of so many images.
_MANY = 4


@dataclasses.dataclass(frozen=True)
class TrainedModel:
  """A model in evaluation mode, with all that is needed to use it.

  Calling it calls the model: `trained(trained.preprocess(images))`. Other
  methods are those of `model`, such as `trained.model.decode(poses, classes)`.
  Wrap such calls in `jax.jit` where they are repeated, with the model as an
  argument: else loops in them are compiled each time.

  Attributes:
    model: a copy of the module that was given, in evaluation mode. The copy
      does not follow later training, and shares the arrays of the module. After
      a training step that donates these arrays, the copy cannot be used. So
      make it when training has ended.
    card: what the model is, as JSON: see `make_card`; `sha256` identifies a
      model that was loaded.
  """

  model: nnx.Module
  card: dict[str, Any]

  def __post_init__(self):
    object.__setattr__(self, "model", _evaluating(self.model))

  def __repr__(self) -> str:
    """Names the class of the model, the size of images, and the classes."""
    shape = "x".join(map(str, self.card["image_shape"]))
    classes = len(self.card["class_names"]) or "no"
    return (
      f"<TrainedModel: {type(self.model).__name__} of images of {shape}, "
      f"{classes} classes; see its model and card>"
    )

  def __call__(self, *arguments: Any, **options: Any) -> Any:
    """Calls the model.

    Args:
      *arguments: as the model takes them, such as `preprocess(images)`.
      **options: likewise, by keyword.
    """
    return self.model(*arguments, **options)

  @property
  def class_names(self) -> list[str]:
    """The names of the classes, in the order of the labels."""
    return list(self.card["class_names"])

  @property
  def preprocessing(self) -> Preprocessing:
    """The steps from an image to the input of the model."""
    return preprocessing.from_json(self.card["preprocessing"])

  def preprocess(
    self, images: np.ndarray | jax.Array
  ) -> Float[Array, "N H2 W2 C"]:
    """Computes the model's input from images as data sets hold them.

    Args:
      images: uint8 [N H W C], of the size on the card; [N H W] for one channel.

    Raises:
      ValueError: if they have another dtype or shape.
    """
    images = preprocessing.stored(images, self.card["image_shape"])
    return _prepare(images, self.preprocessing)

  def predict(
    self, images: np.ndarray | jax.Array, *, batch_size: int = 128
  ) -> predictions.Prediction:
    """Predicts classes with their scores, and the other outputs of the model.

    Args:
      images: as for `preprocess`.
      batch_size: images at a time, which limits the memory.

    Returns:
      Classes and scores for models that know classes; `outputs` has the rest,
      such as presences and reconstructions: see `predictions.outputs`.

    Raises:
      ValueError: if the images have another dtype or shape, or the model does
        not take images.
    """
    predictions.scores_name(self.model)  # raises if it takes no images
    images = preprocessing.stored(images, self.card["image_shape"])
    checks.counts(batch_size=batch_size)
    size = min(batch_size, len(images))
    num_labels = self.card["num_labels"]
    model = _evaluating(self.model)
    if size >= _MANY and len(images) >= _MANY * size:
      model = inference.transform_kernels(model)
    batches = []
    for start in range(0, len(images), size):
      batch = images[start : start + size]
      # The last batch is filled up: another shape would be compiled again.
      rest = np.zeros((size - len(batch), *batch.shape[1:]), np.uint8)
      found = _outputs(
        model,
        np.concatenate([batch, rest]),
        self.preprocessing,
        num_labels,
      )
      batches.append({n: np.asarray(x)[: len(batch)] for n, x in found.items()})
    joined = {n: np.concatenate([x[n] for x in batches]) for n in batches[0]}
    return predictions.prediction(model, joined, num_labels=num_labels)


def _evaluating(model: nnx.Module) -> nnx.Module:
  """A copy in evaluation mode, with the same arrays."""
  model = nnx.clone(model)
  model.eval()
  return model


@functools.partial(jax.jit, static_argnums=1)
def _prepare(images, steps):
  return jax.vmap(steps)(images.astype(jnp.float32) / 255)


@functools.partial(jax.jit, static_argnums=(2, 3))
def _outputs(model, images, steps, num_labels):
  prepared = _prepare(images, steps)
  return predictions.outputs(model, prepared, num_labels=num_labels)


def make_card(
  spec: specs.Spec,
  *,
  image_shape: Sequence[int],
  class_names: Sequence[str],
  steps: Preprocessing | None = None,
  num_labels: int | None = 1,
  **about: Any,
) -> dict[str, Any]:
  """Makes the card of a model.

  Args:
    spec: the class of the model and the arguments of its constructor.
    image_shape: height, width and channels of the images, before any step.
    class_names: the names of the classes, in the order of the labels; none for
      a model that was trained without labels.
    steps: the steps from an image in [0, 1] to the input; None for none.
    num_labels: the number of labels of an image, 2 for overlapping digits, 0
      for a model that was trained without labels; None where an image may have
      any number.
    **about: other entries, which JSON can hold: the card of a run has the
      `data` with their fingerprints, the `metrics` with `num_images`, `commit`
      and `versions`.

  Raises:
    TypeError: if `num_labels` or a size of the images is no whole number.
    ValueError: if `num_labels` is below 0 or above the number of classes, a
      size is below 1, or the class names have no order.
  """
  dataset.require_sequence(class_names)
  checks.sequences(image_shape=image_shape)
  if num_labels is not None:
    checks.counts(at_least=0, num_labels=num_labels)
    if 0 < len(class_names) < num_labels:
      raise ValueError(
        f"num_labels is {num_labels}, of {len(class_names)} class_names; give "
        "at most as many, or None."
      )
  return {
    "format": weights.FORMAT,
    **spec.as_json(),
    "image_shape": [int(size) for size in image_shape],
    "num_classes": len(class_names),
    "class_names": [str(name) for name in class_names],
    "preprocessing": (steps or Preprocessing()).as_json(),
    "num_labels": None if num_labels is None else int(num_labels),
    **specs.plain(about),
  }


def save(
  trained: TrainedModel, path: str | os.PathLike[str], *, half: bool = False
) -> dict[str, Any]:
  """Writes a model and its card into one file, completely or not at all.

  Args:
    trained: the model with its card, for example
      `TrainedModel(model, make_card(spec, ...))`.
    path: the file, such as `model.safetensors`.
    half: stores parameters in float32 or float64 as float16, in at most half
      the bytes; `load` converts them back. Statistics, chains and integers stay
      as they are.

  Returns:
    The card with `sha256`, the hash of its other entries and the tensors.

  Raises:
    TypeError: if a model comes without its card, or the card has an argument
      that the model's class does not take.
    ValueError: if the card does not describe this model, or a parameter is
      too large for float16.
    OSError: if the file cannot be written.
  """
  if not isinstance(trained, TrainedModel):
    raise TypeError(
      f"save takes a model with its card, not a {type(trained).__name__}; give "
      "TrainedModel(model, make_card(spec, ...)) of capjax.saved"
    )
  tensors = named_tensors.of_model(trained.model)
  if half:
    tensors |= named_tensors.halves(trained.model, tensors)
  card = {name: x for name, x in trained.card.items() if name != "sha256"}
  spec = specs.from_json(card)
  fault = (
    named_tensors.misfit(spec, tensors)
    or named_tensors.other_setting(spec, trained.model)
    or _other_sizes(spec, card)
  )
  if fault:
    raise ValueError(
      f"{path} is not written: the card describes another model; {fault}."
    )
  return weights.write(path, card, tensors)


def _other_sizes(spec: specs.Spec, card: Mapping[str, Any]) -> str:
  """Says how a card contradicts its model on classes or images; else ""."""
  count = _argument(spec, "num_classes")
  names = card["class_names"]
  if card["num_labels"] == 0:
    if names:
      return f"it has {len(names)} class_names, and num_labels is 0"
  elif count not in (None, len(names)):
    return f"it has {len(names)} class_names, and the model {count} classes"
  shape = _argument(spec, "image_shape")
  if shape is not None:
    steps = preprocessing.from_json(card["preprocessing"])
    made = steps.output_shape(tuple(card["image_shape"]))
    if tuple(shape) != tuple(made):
      return (
        f"its images become {list(made)}, and the model takes {list(shape)}"
      )
  return ""


def _argument(spec, name):
  """An argument or its default; None for models that take no such argument."""
  try:
    return spec.argument(name)
  except KeyError:
    return None


def load(path: str | os.PathLike[str]) -> TrainedModel:
  """Loads a model in evaluation mode, with its card.

  Args:
    path: a file that `save` wrote, or the folder of a finished run.

  Raises:
    FileNotFoundError: if there is no such file, or the run has none.
    ValueError: if the file is damaged, foreign, or of a newer version.
  """
  path = weights.find(path)
  card, tensors = weights.read(path)
  try:
    spec = specs.from_json(card)
    shapes = spec.shapes()
    preprocessing.from_json(card["preprocessing"])
  except (TypeError, ValueError) as error:
    raise ValueError(
      f"{path} has a card that this version of capjax cannot use: {error}"
    ) from error
  fault = named_tensors.misfit(spec, tensors)
  if fault:
    raise ValueError(
      f"{path} does not fit {card['class']} of this version of capjax: "
      f"{fault}; use the version on its card, or export the run again."
    )
  return TrainedModel(named_tensors.fill(shapes, tensors), card)


def start_from(
  model: nnx.Module, trained: TrainedModel
) -> tuple[list[str], list[str]]:
  """Copies trained weights into another model, for fine-tuning.

  Parameters and statistics of batch normalisation are copied if both models
  have them by the same name and shape. Others keep their initial values, such
  as those that depend on the number of classes. Chains of Boltzmann machines
  start anew.

  Args:
    model: the model that is changed.
    trained: the model that the weights come from.

  Returns:
    The names of the tensors that were copied, and of those that were not.

  Raises:
    TypeError: if `trained` is not a `TrainedModel`.
    ValueError: if nothing fits.
  """
  copied, new = fitting(model, trained)
  given = named_tensors.named(nnx.state(trained.model, _TRAINED))
  state = nnx.state(model, _TRAINED)
  leaves, structure = jax.tree_util.tree_flatten_with_path(state)
  values = []
  for path, leaf in leaves:
    name = named_tensors.name_of(path)
    # A copy, since training may free the buffers of its model.
    values.append(
      jnp.array(given[name], leaf.dtype) if name in copied else leaf
    )
  nnx.update(model, jax.tree.unflatten(structure, values))
  return copied, new


def fitting(
  model: nnx.Module, trained: TrainedModel
) -> tuple[list[str], list[str]]:
  """Finds the weights that `start_from` would copy.

  Args:
    model: as for `start_from`; shapes instead of arrays are enough.
    trained: as for `start_from`.

  Returns:
    The names of the tensors that would be copied, and of those that would not.

  Raises:
    TypeError: if `trained` is not a `TrainedModel`.
    ValueError: if nothing fits.
  """
  if not isinstance(trained, TrainedModel):
    raise TypeError(
      f"trained is a {type(trained).__name__}; give a trained model, as load "
      "and pretrained.load return it."
    )
  given = named_tensors.named(nnx.state(trained.model, _TRAINED))
  copied: list[str] = []
  new: list[str] = []
  for name, leaf in named_tensors.named(nnx.state(model, _TRAINED)).items():
    fits = name in given and given[name].shape == leaf.shape
    (copied if fits else new).append(name)
  if not copied:
    raise ValueError(
      f"no weight of the {type(trained.model).__name__} fits the "
      f"{type(model).__name__}: none has the same name and shape."
    )
  return copied, new
