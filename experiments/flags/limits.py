"""Limits that hold for the values of all flags, and the start of a binary.

The only flag that it adds to a binary is `--preset`.
"""

import functools
import gc
import math
import pathlib
import re
import sys
import textwrap
from collections.abc import Callable, Collection, Sequence
from typing import Any

from absl import app, flags, logging

from . import presets, usage

_PACKAGE = __name__.partition("flags.")[0]  # `experiments.`
_LARGEST_WHOLE = 2**31 - 1  # of JAX's int32
_NO_SIZES = ("seed", "steps", "every", "_at")  # suffixes of flags' names
_SMALLEST, _LARGEST = 1.2e-38, 3.4e38  # of float32


def run(
  main: Callable[[], None], shared: Collection[str] | None = None
) -> None:
  """Starts a binary: parses and checks its flags, then calls `main`.

  Words that are not flags are refused.

  Args:
    main: what the binary does; it takes no arguments.
    shared: names of the flags of other modules that the binary uses. The other
      flags of these modules are refused, and `--help` leaves them out. None if
      the binary uses all.
  """

  def without_words(words: list[str]) -> None:
    if words:
      raise app.UsageError(f"unexpected arguments: {words}")
    main()

  run_on_words(without_words, shared)


def run_on_words(
  main: Callable[[list[str]], None], shared: Collection[str] | None = None
) -> None:
  """Starts a binary that takes words besides its flags, such as file names.

  Args:
    main: takes these words.
    shared: as for `run`.
  """
  gc.freeze()  # imported objects stay; do not search them for garbage
  app.run(
    lambda argv: main(argv[1:]),
    flags_parser=functools.partial(_parse, shared=shared),
  )


def experiment_flags() -> list[flags.Flag]:
  """The flags that this project defines, without those of absl and others."""
  by_module = flags.FLAGS.flags_by_module_dict()
  return [
    flag
    for module in sorted(by_module)
    # The flags of the binary itself are listed under the name of its file.
    if module.startswith(_PACKAGE) or module == sys.argv[0]
    for flag in sorted(by_module[module], key=lambda flag: flag.name)
  ]


def numbers(flag: flags.Flag) -> list[Any]:
  """The value of a flag as a list; for a list flag, the whole numbers in it."""
  if isinstance(flag.value, list):
    return [int(word) for word in flag.value if word.isdecimal()]
  return [flag.value]


def check_flags() -> None:
  """Checks the numbers in all flags of this project.

  Raises:
    flags.IllegalFlagValueError: if a value is NaN, infinite, or outside the
      range of JAX's float32 and int32.
  """
  for flag in experiment_flags():
    for value in numbers(flag):
      fault = _fault(value)
      if fault:
        raise flags.IllegalFlagValueError(
          f"flag --{flag.name}={value}: {fault}"
        )


def require_above_zero(*given: flags.FlagHolder) -> None:
  """Makes these flags refuse numbers of 0 or less; None is allowed."""
  for flag in given:
    flags.register_validator(
      flag, lambda value: value is None or value > 0, "give a number above 0"
    )


def require_folder_of_run() -> None:
  """Makes the binary ask for --workdir where it is not given."""
  flags.register_validator(
    "workdir", bool, "give the folder of the run, as --workdir=DIR"
  )


def require_counts(
  *given: flags.FlagHolder,
  example: str,
  exactly: int | None = None,
  at_least: int = 1,
  at_most: int | None = None,
) -> None:
  """Makes list flags refuse everything but whole numbers above 0.

  None is allowed.

  Args:
    *given: the flags.
    example: a valid value, for the error message.
    exactly: the number of entries; None for `at_least` or more.
    at_least: see `exactly`.
    at_most: the largest number of entries; None for any number.
  """
  many = "" if exactly is None else f"{exactly} "

  def all_counts(words):
    if words is None:
      return True
    right = len(words) >= at_least if exactly is None else len(words) == exactly
    if at_most is not None:
      right = right and len(words) <= at_most
    return right and all(x.isdecimal() and int(x) > 0 for x in words)

  for flag in given:
    flags.register_validator(
      flag, all_counts, f"give {many}whole numbers above 0, as in {example}"
    )


def refuse(what: str, names: Sequence[str]) -> None:
  """Raises a ValueError if any of these flags, which `what` ignores, is set."""
  given = [name for name in names if not is_default(name)]
  if given:
    raise ValueError(f"{what} does not use --{', --'.join(given)}")


def require_folder(name: str, path: str) -> None:
  """Checks that the folder of an output file exists, before any computation.

  Args:
    name: the name of the flag that gives the file.
    path: its value.

  Raises:
    ValueError: if the folder does not exist.
  """
  folder = pathlib.Path(path).expanduser().parent
  if not folder.is_dir():
    raise ValueError(
      f"--{name}={path}: there is no folder {folder}; make it, or name another"
    )


def is_default(name: str) -> bool:
  """Whether a flag has its default value."""
  return flags.FLAGS[name].value == flags.FLAGS[name].default


def flags_of_size(shape: Sequence[int]) -> str:
  """The names of the flags that set the longest side of an array.

  If no flag has that value, the two largest flags that the user has changed.
  """
  sizes, raised = {}, {}
  for flag in experiment_flags():
    counts = [n for n in numbers(flag) if type(n) is int]
    if not counts or flag.name.endswith(_NO_SIZES):
      continue
    sizes[flag.name] = max(counts)
    if flag.present and flag.value != flag.default:
      raised[flag.name] = max(counts)
  names = [name for name, size in sizes.items() if size == max(shape)]
  names = names or sorted(raised, key=raised.get, reverse=True)[:2]
  return " or ".join(f"--{name}" for name in names or ["batch_size"])


def _parse(
  words: list[str], *, shared: Collection[str] | None = None
) -> list[str]:
  used = _used(words[0], shared)
  if usage.is_asked(words[1:]):
    print(usage.text(used), end="")
    sys.exit(0)
  try:
    # Code that reads the command line later must see the flagfile.
    sys.argv[:] = words = presets.expand(words)
    rest = flags.FLAGS(presets.inlined(words))
    for flag in experiment_flags():
      if flag.present and flag not in used:
        raise flags.IllegalFlagValueError(
          f"flag --{flag.name}: this command does not use it, or takes the "
          "value of the run; leave it out"
        )
    check_flags()
    if not flags.FLAGS["verbosity"].present:
      logging.set_verbosity(logging.WARNING)  # JAX and Orbax log a lot
  except flags.Error as error:
    told = re.sub(r"\('Non-boolean.*\)$", "give true or false", str(error))
    told = textwrap.indent(told, "  ")
    sys.exit(f"FATAL Flags parsing error:\n{told}\n--help lists the flags.")
  return rest


def _used(
  binary: str, shared: Collection[str] | None = None
) -> list[flags.Flag]:
  """The flags of this project that a binary uses; see `run`."""
  own = {
    flag.name for flag in flags.FLAGS.flags_by_module_dict().get(binary, ())
  }
  used = []
  for flag in experiment_flags():
    is_used = flag.name in own or shared is None or flag.name in shared
    if flag.name == presets.NAME:
      is_used = presets.has_some(binary)
    if is_used:
      used.append(flag)
  return used


def _fault(value: Any) -> str | None:
  if isinstance(value, float):
    if not math.isfinite(value):
      return "give a finite number"
    if abs(value) > _LARGEST:
      return f"give a number of at most {_LARGEST:g}"
    if 0 < abs(value) < _SMALLEST:
      return f"give 0 or a number of at least {_SMALLEST:g}"
  elif isinstance(value, int) and abs(value) > _LARGEST_WHOLE:
    return f"give a whole number of at most {_LARGEST_WHOLE}"
  return None
