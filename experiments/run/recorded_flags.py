"""The flags of a run, which two files of its folder record.

flags.cfg has the flags that are set, and repeats the run if used as a flagfile;
provenance.json has the value of each flag. Each file can restore the other.
"""

import pathlib
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from . import atomic_files, older_flags, provenance
from .invocation import FREE_FLAGS, Invocation, flag_name

TRAIN_AGAIN = "repeat the training command, which writes it again"
_RESTORE = "restore it, or give another workdir"
_LENGTH = "num_steps"
_SOURCE = "start_from"  # recorded without its folder, which may be moved
_CACHE = "--compilation_cache="
# The provenance of a run whose provenance.json was lost.
_UNKNOWN = {
  "commit": "unknown", "dirty": None, "versions": {}, "device": "unknown",
}  # fmt: skip


class FormerLengths(NamedTuple):
  """Former lengths of a run, in updates.

  Attributes:
    lengthened_from: lengths that a larger one replaced, oldest first.
    shortened_from: lengths that a smaller one replaced, oldest first.
  """

  lengthened_from: list[int]
  shortened_from: list[int]


def begin(workdir: pathlib.Path, invocation: Invocation) -> None:
  """Records the command of a new run."""
  _write_words(workdir, invocation.words)
  _write_provenance(workdir, provenance.record(invocation))


def resume(
  workdir: pathlib.Path,
  invocation: Invocation,
  shortest: Callable[[], int] | None = None,
  check: Callable[[], None] = lambda: None,
) -> FormerLengths:
  """Checks that a command has the flags of the run, but for its length.

  A flag that is newer than the run counts as recorded at its default, or as
  `older_flags` says. `record_length` writes another length. A missing or
  damaged file is restored from the other one, with a warning; the damaged file
  is kept under another name.

  Args:
    workdir: the run's folder.
    invocation: the command.
    shortest: gives the smallest length that the run may get, such as its number
      of updates; None if it may not be shortened.
    check: raises an error if anything else differs from the run; called where
      the length is another one.

  Returns:
    The former lengths, where this command changes the length; empty lists where
    it does not.

  Raises:
    ValueError: if a flag differs, or both files are lost, or the run has more
      updates than the command asks for.
  """
  old = _other_length(workdir, invocation, shortest)
  if old is None:
    _compare(workdir, invocation)
    return FormerLengths([], [])
  length = invocation.flags[_LENGTH]
  # All else is compared first, so that a refused command changes nothing.
  words = _words_by_name(workdir, invocation)
  _compare(workdir, _at_length(invocation, old, words))
  check()
  # Read them again: `_compare` may have restored one of the files.
  start = _provenance(workdir)
  name = "lengthened_from" if old < length else "shortened_from"
  former = {name: [*start.get(name, []), old]}
  return FormerLengths([], [])._replace(**former)


def record_length(
  workdir: pathlib.Path, invocation: Invocation, former: FormerLengths
) -> None:
  """Records the length of a command that `resume` has taken, and former ones.

  Args:
    workdir: the run's folder.
    invocation: the command.
    former: the result of `resume`.
  """
  changed = {
    name: lengths for name, lengths in former._asdict().items() if lengths
  }
  if not changed:
    return
  start = _provenance(workdir)
  words = _words_by_name(workdir, invocation)
  _write_words(workdir, {**words, _LENGTH: invocation.words[_LENGTH]})
  flags = {**start["flags"], _LENGTH: invocation.flags[_LENGTH]}
  # The other flags are those of the run, however the new command gives them.
  command = (
    invocation.command
    if invocation.is_call
    else _with_word(start.get("command"), invocation.words[_LENGTH])
  )
  record = {**start, "flags": flags, **changed}
  if command:
    record["command"] = command
  _write_provenance(workdir, record)


def _with_word(command: str | None, word: str) -> str | None:
  """A command line with another value of a flag, which comes last."""
  if command is None:
    return None
  name = word.partition("=")[0]
  words, kept = shlex.split(command), []
  for number, each in enumerate(words):
    is_value = number and words[number - 1] == name
    if each.partition("=")[0] != name and not is_value:
      kept.append(each)
  return shlex.join([*kept, word])


class Command(NamedTuple):
  """What a command needs to resume a run.

  Attributes:
    words: its flags.
    preset: the preset that the run began with; None without one.
  """

  words: list[str]
  preset: str | None


def words_of(workdir: pathlib.Path, experiment: str) -> Command | None:
  """The flags of a run, as words of a command that resumes it.

  Flags that are newer than the run are added, as `older_flags` says.

  Args:
    workdir: the run's folder.
    experiment: the binary.

  Returns:
    None if there is no run, it is of another binary, or one of its files is
    damaged.
  """
  try:
    start = read_provenance(workdir, ["experiment", "flags"])
    text = (workdir / "flags.cfg").read_text()
  except (OSError, ValueError):
    return None
  if not isinstance(start["flags"], dict):
    return None
  lines = text.splitlines()
  whole = text.endswith("\n") and all(x.startswith("--") for x in lines)
  known = start["flags"].__contains__
  named = {flag_name(line, known) for line in lines}
  set_ones = {n for n, x in start["flags"].items() if x not in (None, [], "")}
  if start["experiment"] != experiment or not whole or set_ones - named:
    return None
  words = [*of_any_machine(lines), *older_flags.words(start["flags"])]
  return Command(words, start.get("preset"))


def of_any_machine(words: Iterable[str]) -> list[str]:
  """The words of flags.cfg without the run's folder, and without its cache.

  The cache holds native code of one machine. An empty --compilation_cache is
  kept, which turns the cache off.
  """
  return [
    word
    for word in words
    if not word.startswith("--workdir=")
    and (not word.startswith(_CACHE) or word == _CACHE)
  ]


def refuse_others(workdir: pathlib.Path, invocation: Invocation) -> None:
  """Checks the flags of a command as `resume` does, and writes nothing.

  Any length is taken. Where a file is missing or damaged nothing is checked.

  Raises:
    ValueError: if another flag differs, or the run is of another binary.
  """
  try:
    start = _provenance(workdir)
    words = _words_by_name(workdir, invocation)
  except ValueError:
    return
  _require_binary(workdir, start, invocation)
  same = _at_length(invocation, start["flags"].get(_LENGTH), words)
  changed = _changed_words(words, same, start)
  if changed and same.differences(start["flags"], same.flags):
    raise _other_flags(workdir, changed, invocation)


def read_provenance(
  workdir: pathlib.Path, names: Iterable[str], remedy: str = TRAIN_AGAIN
) -> dict[str, Any]:
  """Reads provenance.json.

  Args:
    workdir: the run's folder.
    names: keys that it must have.
    remedy: for the error message, what to do if it is damaged.

  Raises:
    ValueError: if it is missing or damaged.
  """
  path = workdir / "provenance.json"
  return atomic_files.read_json(path, names=[*names], remedy=remedy)


def read_words(
  workdir: pathlib.Path, invocation: Invocation, remedy: str = TRAIN_AGAIN
) -> list[str]:
  """Reads flags.cfg: the words that set the run's flags.

  Args:
    workdir: the run's folder.
    invocation: a command of the same binary, which knows its flags.
    remedy: for the error message, what to do if the file is damaged.

  Raises:
    ValueError: if it is missing or damaged.
  """
  path = workdir / "flags.cfg"
  try:
    text = path.read_text()
  except FileNotFoundError:
    raise ValueError(f"{path} is missing; {remedy}") from None
  except ValueError as error:
    fault = atomic_files.first_line(error)
    raise ValueError(f"{path} is damaged ({fault}); {remedy}") from None
  if not text.endswith("\n"):
    raise ValueError(f"{path} is cut off; {remedy}")
  lines = text.splitlines()
  for number, line in enumerate(lines, 1):
    name = invocation.flag_name(line)
    if not line.startswith("--") or not invocation.knows(name):
      raise ValueError(
        f"{path}, line {number}: {line[:40]!r} sets no flag of this run; "
        f"{remedy}"
      )
  return lines


def _other_length(
  workdir: pathlib.Path,
  invocation: Invocation,
  shortest: Callable[[], int] | None,
) -> int | None:
  """The recorded length of a run, if a command changes it; otherwise None.

  Also None if another flag differs or a file is damaged, which `_compare`
  reports.
  """
  length = invocation.flags.get(_LENGTH)
  try:
    start = _provenance(workdir)
    _words_by_name(workdir, invocation)
  except ValueError:
    return None
  old = start["flags"].get(_LENGTH)
  if None in (old, length) or old == length:
    return None
  if invocation.differences(
    {**start["flags"], _LENGTH: length}, invocation.flags
  ):
    return None
  if length < old:
    if shortest is None:
      return None
    if length < (least := shortest()):
      raise ValueError(
        f"{workdir} holds a run with {least} updates, which cannot be undone; "
        f"give {invocation.option(_LENGTH)}={least} or more, or another folder "
        f"({invocation.option('workdir')})"
      )
  return old


def _compare(workdir: pathlib.Path, invocation: Invocation) -> None:
  """Compares a command with the flags of the run; restores a lost file."""
  start, lost, fault, changed = None, None, None, []
  try:
    start = _provenance(workdir)
  except ValueError as error:
    lost = str(error)
  if start:
    _require_binary(workdir, start, invocation)
  try:
    words = _words_by_name(workdir, invocation)
  except ValueError as error:
    fault = str(error)  # the error's frames would keep the lock
  else:
    changed = _changed_words(words, invocation, start)
  if fault and lost:
    raise ValueError(f"{fault} ({lost})")
  told = []
  if start:
    told = invocation.differences(start["flags"], invocation.flags)
  if not changed and not fault:
    if start is None or told:
      now = provenance.record(invocation)
      atomic_files.warn_and_put_aside(workdir / "provenance.json")
      kept = {**now, **(start or _UNKNOWN), "flags": now["flags"]}
      _write_provenance(workdir, kept)
  elif start and not told:
    atomic_files.warn_and_put_aside(workdir / "flags.cfg")
    _write_words(workdir, invocation.words)
  else:
    source = "provenance.json" if fault else "flags.cfg"
    raise _other_flags(workdir, changed or told, invocation, source)


def _require_binary(
  workdir: pathlib.Path, start: Mapping[str, Any], invocation: Invocation
) -> None:
  """Checks that a command is of the binary that began the run."""
  binary = start.get("experiment")
  if binary not in (None, invocation.experiment):
    raise ValueError(
      f"{workdir} holds a run of {binary}, not of {invocation.experiment}; "
      f"give another folder ({invocation.option('workdir')})"
    )


def _other_flags(
  workdir: pathlib.Path,
  changed: Iterable[str],
  invocation: Invocation,
  source: str = "flags.cfg",
) -> ValueError:
  """The error about flags that differ.

  Args:
    workdir: the run's folder.
    changed: a phrase for each flag.
    invocation: the command.
    source: the file that has the old ones.
  """
  if invocation.is_call:
    told = (re.sub(r"(^| is now )--", r"\1", phrase) for phrase in changed)
    return ValueError(
      f"{workdir} holds a run with other options: {'; '.join(told)}. Give the "
      "old ones to resume it, or another folder (workdir)"
    )
  return ValueError(
    f"{workdir} holds a run with other flags: {'; '.join(changed)}. Give the "
    f"old ones to resume it, which are in {workdir / source}, or another "
    "folder (--workdir)"
  )


def _at_length(
  invocation: Invocation, length: int | None, words: Mapping[str, str]
) -> Invocation:
  """A command with the length of a run, and its word in the run's flags.cfg."""
  kept = {**invocation.words, _LENGTH: words.get(_LENGTH, "")}
  return invocation._replace(
    flags={**invocation.flags, _LENGTH: length},
    words={name: word for name, word in kept.items() if word},
  )


def _changed_words(
  old: Mapping[str, str],
  invocation: Invocation,
  start: Mapping[str, Any] | None,
) -> list[str]:
  """The flags whose words differ, with one phrase for each."""
  older = older_flags.words(start["flags"]) if start else []
  old = {**old, **{invocation.flag_name(word): word for word in older}}
  new = invocation.words
  return [
    f"{old.get(name, name + ' unset')} is now {new.get(name, 'unset')}"
    for name in sorted((old.keys() | new.keys()) - FREE_FLAGS)
    if old.get(name) != new.get(name)
    and (name in old or name not in invocation.defaults)
    and not (name == _SOURCE and start and _is_moved(old, invocation, start))
  ]


def _is_moved(
  old: Mapping[str, str], invocation: Invocation, start: Mapping[str, Any]
) -> bool:
  """Whether --start_from has the same name, and its recorded path is gone."""
  path = old.get(_SOURCE, "").partition("=")[2]
  names = (x.get(_SOURCE) for x in (start["flags"], invocation.flags))
  return len({*names}) == 1 and bool(path) and not pathlib.Path(path).exists()


def _provenance(workdir: pathlib.Path) -> dict[str, Any]:
  return read_provenance(workdir, provenance.REQUIRED, _RESTORE)


def _words_by_name(
  workdir: pathlib.Path, invocation: Invocation
) -> dict[str, str]:
  words = read_words(workdir, invocation, _RESTORE)
  return {invocation.flag_name(word): word for word in words}


def _write_provenance(workdir: pathlib.Path, record: Mapping[str, Any]) -> None:
  atomic_files.write_json(workdir / "provenance.json", record)


def _write_words(workdir: pathlib.Path, words: Mapping[str, str]) -> None:
  text = "".join(f"{word}\n" for word in words.values())
  atomic_files.write_whole(workdir / "flags.cfg", text)
