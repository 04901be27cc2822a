"""Trained models that come with the package: small, offline, by name.

The card of each model says which data set it was trained on. Its entry
`measured` has the results of `measure` for the stored weights, on the whole
test set and on its first 1,000 images.
"""

import hashlib
import json
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from capjax import data, losses, predictions, saved, scae
from capjax.data.sources import constellations
from capjax.data.transforms import overlap
from capjax.evaluation import segmentation
from capjax.kernels import checks

FOLDER = pathlib.Path(__file__).parent
_TABLE = "sha256.json"


def names() -> list[str]:
  """The names of the models that `load` takes."""
  return sorted(_table())


def load(name: str) -> saved.TrainedModel:
  """Loads a model in evaluation mode, with its card.

  Args:
    name: one of `names()`.

  Raises:
    ValueError: if the name is unknown, or the file is not the one that was
      shipped.
    FileNotFoundError: if the file is missing.
  """
  table = _table()
  if name not in table:
    raise ValueError(
      f"no pretrained model is called {name!r}; "
      f"{checks.did_you_mean(name, table)}give one of "
      f"{', '.join(sorted(table))}."
    )
  path = FOLDER / f"{name}.safetensors"
  if not path.exists():
    raise FileNotFoundError(f"{path} is missing; install capjax again.")
  if file_digest(path) != table[name]:
    raise ValueError(
      f"{path} does not have the SHA-256 in {_TABLE}; install capjax again."
    )
  return saved.load(path)


def load_any(path_or_name: str | os.PathLike[str]) -> saved.TrainedModel:
  """Loads a pretrained model by name, or any other as `capjax.load` does.

  A name in `names()` always means the pretrained model. If a file has the same
  name, give the file as `./NAME`.

  Args:
    path_or_name: one of `names()`, a file of weights, or the folder of a run.

  Raises:
    FileNotFoundError: if there is no such model.
    ValueError: as `load` and `capjax.load`.
  """
  text = os.fspath(path_or_name)
  if text in names():
    return load(text)
  try:
    return saved.load(text)
  except FileNotFoundError:
    if pathlib.Path(text).expanduser().exists() or os.path.dirname(text):
      raise
    raise FileNotFoundError(
      f"{text} does not exist; give the folder of a run, a file that "
      f"capjax.save wrote, or one of {', '.join(names())}."
    ) from None


def measure(
  trained: saved.TrainedModel,
  images: np.ndarray | jax.Array,
  labels: np.ndarray | jax.Array,
) -> dict[str, float]:
  """The main metric of a model on images, from its predictions.

  Args:
    trained: the model.
    images: uint8 [N H W C]; not used for a model of constellations.
    labels: [N]; or [N 2], in any order, where images have two labels; or [N J]
      of 0 and 1, where they have any number. For a model of constellations the
      numbers of noiseless ones, as `data.sources.constellations.load` has them.

  Returns:
    `accuracy` for models that know classes: with several labels, the share of
    images where all are right. If a model has two labels for each image and
    [N] labels are given, each image is laid over one of another class (Sabour
    et al., 2017, section 6). For a model of constellations
    `segmentation_accuracy`, as `evaluation.segmentation.score` has it. For
    other models `reconstruction_error`, the mean absolute difference of
    intensities in [0, 1] between images and reconstructions.

  Raises:
    ValueError: if the model has neither classes nor reconstructions, such as an
      SCAE trained without labels, or the labels have another shape.
  """
  if isinstance(trained.model, scae.ConstellationAutoencoder):
    return {"segmentation_accuracy": _accuracy_of_points(trained, labels)}
  if trained.card["num_labels"] == 2 and np.ndim(labels) == 1:
    return {"accuracy": _accuracy_of_pairs(trained, images, labels)}
  found = trained.predict(images)
  if found.classes is not None:
    classes, labels = found.classes, np.asarray(labels)
    if labels.shape != classes.shape:
      raise ValueError(
        f"labels are {list(labels.shape)}; give {list(classes.shape)}, as the "
        "classes that this model predicts."
      )
    if trained.card["num_labels"] == 2:  # predicted in the order of the scores
      classes, labels = np.sort(classes), np.sort(labels)
    right = (classes == labels).reshape(len(labels), -1).all(axis=1)
    return {"accuracy": float(np.mean(right))}
  if "reconstructions" not in found.outputs:
    raise ValueError(
      f"a {type(trained.model).__name__} that was trained without labels has "
      "neither classes nor reconstructions to measure; evaluate its run instead"
    )
  inputs = np.asarray(trained.preprocess(images))
  errors = np.abs(found.outputs["reconstructions"] - inputs)
  return {"reconstruction_error": float(np.mean(errors, dtype=np.float64))}


def _accuracy_of_points(trained, numbers) -> float:
  """The share of points assigned to the right object, averaged over images."""
  numbers = np.asarray(numbers)
  if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
    raise ValueError(
      f"labels are {numbers.dtype} {list(numbers.shape)}; give whole numbers "
      "[N] of constellations."
    )
  sampled = jax.jit(jax.vmap(constellations.numbered))(jnp.asarray(numbers))
  output = jax.jit(lambda model, *given: model(*given))(
    trained.model, sampled.points, sampled.presence
  )
  images = map(np.asarray, (output.winners, sampled.objects, sampled.presence))
  shares = [
    np.mean(segmentation.match(found[present > 0], truth[present > 0])
            == truth[present > 0])
    for found, truth, present in zip(*images, strict=True)
    if present.any()
  ]  # fmt: skip
  return float(np.mean(shares))


def _accuracy_of_pairs(trained, images, labels) -> float:
  """The share of overlays in which both classes are right.

  Each image is moved by at most the width of the frame around it, whatever
  shifts the model was trained with.
  """
  images, labels = jnp.asarray(images), jnp.asarray(labels)
  classes = overlap.group_by_class(labels)
  pad = (trained.model.image_shape[0] - images.shape[1]) // 2

  def sample(index):
    key = jax.random.fold_in(jax.random.key(0), index)
    partner_key, place_key = jax.random.split(key)
    partner = overlap.choose_partner(partner_key, labels[index], classes)
    both = jnp.stack([index, partner])
    overlaid = overlap.overlay(place_key, *images[both], pad=pad, max_shift=pad)
    return data.as_intensities(overlaid.image), labels[both]

  kind = predictions.scores_name(trained.model)

  def right(model, indices):
    overlaid, both = jax.vmap(sample)(indices)
    scores = predictions.outputs(model, overlaid, num_labels=2)[kind]
    return losses.exact_set(scores, both)

  batches = np.array_split(np.arange(len(images)), -(-len(images) // 500))
  found = [jax.jit(right)(trained.model, indices) for indices in batches]
  return float(np.mean(np.concatenate(found)))


def file_digest(path: str | os.PathLike[str]) -> str:
  """The SHA-256 of a file, in hexadecimal.

  Args:
    path: of any file.

  Raises:
    OSError: if the file cannot be read.
  """
  return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


def write_table() -> None:
  """Writes the SHA-256 of every file of the folder; for maintainers."""
  paths = sorted(FOLDER.glob("*.safetensors"))
  table = {path.stem: file_digest(path) for path in paths}
  (FOLDER / _TABLE).write_text(json.dumps(table, indent=2) + "\n")


def _table() -> dict[str, str]:
  return json.loads((FOLDER / _TABLE).read_text())
