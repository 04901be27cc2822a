"""Presets by name: `--preset=NAME` stands for the flagfile of that name."""

import pathlib
from collections.abc import Sequence

from absl import flags

_FOLDER = pathlib.Path(__file__).parents[1] / "presets"
_FLAG = flags.DEFINE_string(
  "preset",
  None,
  "Name of a preset of this binary, such as digits: the same as --flagfile "
  "with its file in experiments/presets.",
)


def expand(words: Sequence[str]) -> list[str]:
  """A command line with `--flagfile=FILE` for each `--preset=NAME`.

  Args:
    words: the command line, from the path of the binary on.

  Raises:
    flags.IllegalFlagValueError: if the binary has no preset of that name.
  """
  binary, *rest = words
  folder = _FOLDER / pathlib.Path(binary).stem.removeprefix("train_")
  expanded, rest = [binary], iter(rest)
  for word in rest:
    name, equals, value = word.partition("=")
    if name.lstrip("-") == _FLAG.name and name.startswith("-"):
      value = value if equals else next(rest, "")
      word = f"--flagfile={_file(folder, value)}"
    expanded.append(word)
  return expanded


def portable(path: str) -> str:
  """A flagfile without the folder of this installation, if it is a preset."""
  given = pathlib.Path(path).resolve()
  if given.is_relative_to(_FOLDER):
    return f"experiments/presets/{given.relative_to(_FOLDER).as_posix()}"
  return path


def _file(folder: pathlib.Path, name: str) -> pathlib.Path:
  path = folder / f"{name}.cfg"
  if path.is_file():
    return path
  names = ", ".join(sorted(path.stem for path in folder.glob("*.cfg")))
  raise flags.IllegalFlagValueError(
    f"flag --preset={name}: give one of {names or 'another binary: none here'}"
  )
