"""Files of weights: named tensors with a card, in the format safetensors.

The metadata of a file holds the card as JSON. The card holds the SHA-256 of its
other entries and of the tensors, so that damage is detected.
"""

import hashlib
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

NAME = "model.safetensors"  # in a run's folder
FORMAT = 1
_CARD = "capjax"
_NEEDED = (
  "format", "class", "arguments", "image_shape", "num_classes", "class_names",
  "preprocessing", "num_labels", "sha256",
)  # fmt: skip

Tensors = dict[str, np.ndarray]
_REMEDY = "give the folder of a run, or a file that capjax.save wrote"


def write(
  path: str | os.PathLike[str], card: Mapping[str, Any], tensors: Tensors
) -> dict[str, Any]:
  """Writes a file completely or not at all; returns the card with `sha256`.

  Args:
    path: the file, in a folder that exists; "~" is expanded.
    card: what JSON can hold, without `sha256`.
    tensors: the arrays by name.

  Raises:
    OSError: if the file cannot be written.
    TypeError: if JSON cannot hold the card.
  """
  card = {**card, "sha256": _digest(card, tensors)}
  content = safetensors.numpy.save(tensors, metadata={_CARD: json.dumps(card)})
  write_whole(path, content)
  return card


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
  """Writes any file completely or not at all.

  Args:
    path: the file, in a folder that exists; "~" is expanded.
    content: all bytes of the file.

  Raises:
    OSError: if the file cannot be written.
  """
  path = pathlib.Path(path).expanduser()
  if path.is_dir():
    raise IsADirectoryError(
      f"{path} is not written: it is a folder; name a file, which may be in it."
    )
  if not path.parent.is_dir():
    raise FileNotFoundError(
      f"{path} is not written: there is no folder {path.parent}; make it, or "
      "name another."
    )
  replace(path, content)


def replace(path: pathlib.Path, content: bytes) -> None:
  """Replaces a file; after a crash, it is the old one or the new one.

  The content is written to the disk before the file is renamed. Otherwise some
  file systems would keep an empty file after a loss of power.

  Args:
    path: the file, in a folder that exists.
    content: all bytes of the file.

  Raises:
    OSError: if the file cannot be written; the old one is still there.
  """
  partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
  try:
    with partial.open("wb") as file:
      file.write(content)
      file.flush()
      os.fsync(file.fileno())
    partial.replace(path)
  except OSError:
    partial.unlink(missing_ok=True)
    raise


def find(path: str | os.PathLike[str]) -> pathlib.Path:
  """Finds the file of a model: `path` itself, or the file in a run's folder.

  Args:
    path: a file, or the folder of a run.

  Raises:
    FileNotFoundError: if there is none; the message says what to do.
  """
  path = pathlib.Path(path).expanduser()
  if path.is_dir():
    inside = path / NAME
    if inside.exists():
      return inside
    if (path / "summary.json").exists():
      remedy = (
        f"the run is older; write the file by capjax export --workdir={path} "
        "--format=safetensors"
      )
    elif (path / "provenance.json").exists():
      remedy = "the run is not finished; repeat its training command"
    else:
      remedy = "the folder holds no run; give the folder of one, or a file"
    raise FileNotFoundError(f"{inside} is missing: {remedy}.")
  if not path.exists():
    hint = ""
    if path.parent == pathlib.Path():
      hint = "; capjax.pretrained.load takes the names of shipped models"
    raise FileNotFoundError(f"{path} does not exist; {_REMEDY}{hint}.")
  return path


def read(path: pathlib.Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
  """Reads and checks the card and the tensors of a file.

  Args:
    path: the file.

  Returns:
    The card and the tensors by name.

  Raises:
    OSError: if the file cannot be read.
    ValueError: if the file is damaged, foreign, or of a newer version.
  """
  again = "copy it again, or export the run again"
  size = path.stat().st_size
  with path.open("rb") as file:
    start = file.read(8)
  length = int.from_bytes(start, "little")
  if len(start) < 8 or length > 100_000_000:
    raise ValueError(f"{path} is no safetensors file; {_REMEDY}.")
  if 8 + length > size:
    raise ValueError(f"{path} is cut off within its header; {again}.")
  try:
    with safetensors.safe_open(path, "np") as file:
      metadata = file.metadata() or {}
      if _CARD not in metadata:
        raise ValueError(
          f"{path} holds no card: capjax.save did not write it; give a file "
          "that it wrote."
        )
      tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
  except safetensors.SafetensorError as error:
    is_cut = "not fully covered" in str(error)
    fault = "cut off, or has bytes too many" if is_cut else f"damaged ({error})"
    raise ValueError(f"{path} is {fault}; {again}.") from error
  try:
    card = json.loads(metadata[_CARD])
    version = card["format"]
    missing = [name for name in _NEEDED if name not in card]
  except (ValueError, TypeError, KeyError):
    raise ValueError(f"{path} is damaged: its card is invalid; {again}.") from (
      None
    )
  if not isinstance(version, int) or version > FORMAT:
    raise ValueError(
      f"{path} has a card of format {version}, and this version of capjax "
      f"reads {FORMAT}; install a newer capjax."
    )
  if missing:
    raise ValueError(f"{path} has a card without {missing[0]}; {again}.")
  if _digest(card, tensors) != card["sha256"]:
    raise ValueError(
      f"{path} is damaged: its contents do not have the SHA-256 on its card; "
      f"{again}."
    )
  return card, tensors


def _digest(card: Mapping[str, Any], tensors) -> str:
  """The SHA-256 of a card without `sha256` and of the tensors."""
  rest = {name: x for name, x in card.items() if name != "sha256"}
  digest = hashlib.sha256(json.dumps(rest, sort_keys=True).encode())
  for name, array in sorted(tensors.items()):
    digest.update(f"\n{name} {array.dtype} {array.shape}\n".encode())
    digest.update(array.tobytes())
  return digest.hexdigest()
