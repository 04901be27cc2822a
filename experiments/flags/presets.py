"""Presets by name: `--preset=NAME` stands for the flagfile of that name.

A training binary uses its quick preset if no flag says what to train, or the
flags of the run if there is one in the folder.
"""

import itertools
import pathlib
from collections.abc import Sequence

from absl import flags

from capjax.kernels import checks

from ..run import directory
from ..run.invocation import FREE_FLAGS

_FOLDER = pathlib.Path(__file__).resolve().parents[1] / "presets"
_FROM_ROOT = "experiments/presets/"  # how presets name each other
NAME = "preset"
flags.DEFINE_string(
  NAME,
  None,
  "Name of a preset of this binary, such as digits: the same as --flagfile "
  "with its file in experiments/presets.",
)


# The preset that a training binary takes where the command line says nothing of
# data, model or optimiser: the first of these that it has. They train on
# embedded data within two minutes on two cores.
_QUICK = ("digits", "{model}_quick")
# Flags that do not say what is trained.
_OPEN = frozenset(
  {
    "seed", "num_steps", "log_every", "eval_every", "checkpoint_every",
    "checkpoint_minutes", "deterministic", "precision", "verbosity",
    "figure_format", *(FREE_FLAGS - {NAME}),
  }
)  # fmt: skip


def expand(words: Sequence[str]) -> list[str]:
  """A command line that begins with `--flagfile=FILE` for each `--preset=NAME`.

  So the other flags replace those of a preset, wherever it is named.
  A command line of a training binary that says nothing of data, model or
  optimiser gets the flags of the run in its folder, or, where there is none,
  the binary's quick preset.

  Args:
    words: the command line, from the path of the binary on.

  Raises:
    flags.IllegalFlagValueError: if the binary has no preset of that name.
  """
  binary, *rest = words
  stem, folder = _stem(binary), _folder(binary)
  given = {
    word.lstrip("-").partition("=")[0] for word in rest if word[:1] == "-"
  }
  name = quick(stem)
  says_nothing = given - {"no" + x for x in _OPEN} <= _OPEN
  workdir = _workdir(rest)
  run = None
  if name and workdir and says_nothing:
    run = directory.Run(workdir).command_of(stem, name)
  if run is not None:
    print(
      f"no model or data given: the flags of the run in {workdir}", flush=True
    )
    rest = [*_with_preset(folder, run.preset, run.words), *rest]
  elif name and says_nothing:
    print(f"no model or data given: --preset={name}", flush=True)
    rest = [f"--preset={name}", *rest]
  files, others, rest = [], [], iter(rest)
  for word in rest:
    name, equals, value = word.partition("=")
    if name.lstrip("-") == NAME and name.startswith("-"):
      value = value if equals else next(rest, "")
      files.append(f"--flagfile={_file(folder, value)}")
    else:
      others.append(word)
  return [binary, *files, *others]


def _with_preset(
  folder: pathlib.Path, name: str | None, words: Sequence[str]
) -> list[str]:
  """The words of a run as its preset and the words that differ from it."""
  if name is None or not (folder / f"{name}.cfg").is_file():
    return [*words]
  lines = inlined([f"--flagfile={folder / name}.cfg"])
  of_preset = {word.partition("=")[0]: word for word in lines}
  others = [w for w in words if of_preset.get(w.partition("=")[0]) != w]
  given = {_positive(word) for word in words}
  if {_positive(word) for word in of_preset.values()} - given:
    return [*words]  # the preset has changed since, or is of another file
  return [f"--{NAME}={name}", *others]


def _positive(word: str) -> str:
  """The name of a flag, the same for --noNAME."""
  return word.partition("=")[0].lstrip("-").removeprefix("no")


def inlined(words: Sequence[str]) -> list[str]:
  """A command line with the flags of presets in place of `--flagfile=FILE`.

  Presets name each other by their paths from the root of the project, which
  absl would look for in the working folder.
  """
  found = []
  for word in words:
    path = _preset_file(word)
    found.extend([word] if path is None else inlined(_lines(path)))
  return found


def has_some(binary: str) -> bool:
  """Whether the binary of this path has presets.

  A benchmark of the same name as a model has none.
  """
  return _stem(binary).startswith("train_") and _folder(binary).is_dir()


def quick(binary: str) -> str | None:
  """The name of the quick preset of a binary such as `train_vae`, if any.

  Only names that begin with `train_` have one, not a benchmark named `vae`.
  """
  if not binary.startswith("train_"):
    return None
  model = binary.removeprefix("train_")
  names = [name.format(model=model) for name in _QUICK]
  found = (x for x in names if (_FOLDER / model / f"{x}.cfg").is_file())
  return next(found, None)


def portable(path: str) -> str:
  """A flagfile without the folder of this installation, if it is a preset."""
  given = pathlib.Path(path).resolve()
  if given.is_relative_to(_FOLDER):
    return f"{_FROM_ROOT}{given.relative_to(_FOLDER).as_posix()}"
  return path


def _workdir(words: Sequence[str]) -> str:
  """The folder that --workdir names; empty if it names none."""
  folder = ""
  for word, after in itertools.zip_longest(words, words[1:], fillvalue=""):
    name, equals, value = word.partition("=")
    if name in ("--workdir", "-workdir"):
      folder = value if equals else after
  return folder


def _preset_file(word: str) -> pathlib.Path | None:
  """The file of a preset that a word names, if it names one."""
  name, _, value = word.partition("=")
  if not name.startswith("-") or name.lstrip("-") != "flagfile":
    return None
  path = pathlib.Path(value).expanduser()
  if not path.is_file() and value.startswith(_FROM_ROOT):
    path = _FOLDER / value.removeprefix(_FROM_ROOT)
  path = path.resolve()
  return path if path.is_relative_to(_FOLDER) and path.is_file() else None


def _lines(path: pathlib.Path) -> list[str]:
  lines = map(str.strip, path.read_text().splitlines())
  return [line for line in lines if line and not line.startswith("#")]


def _file(folder: pathlib.Path, name: str) -> pathlib.Path:
  path = folder / f"{name}.cfg"
  if path.is_file():
    return path
  names = sorted(path.stem for path in folder.glob("*.cfg"))
  near = checks.did_you_mean(name, names)
  remedy = (
    f"{near}give one of {', '.join(names)}"
    if names
    else "this command has no presets"
  )
  raise flags.IllegalFlagValueError(f"flag --{NAME}={name}: {remedy}")


def _stem(binary: str) -> str:
  """The name of a binary; the path may also be `capjax train_vae`."""
  return pathlib.Path(binary).stem.split()[-1]


def _folder(binary: str) -> pathlib.Path:
  """Where the presets of a binary are, if it has any."""
  return _FOLDER / _stem(binary).removeprefix("train_")
