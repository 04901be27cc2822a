"""The text of `--help`: the flags of a binary, grouped by topic."""

import inspect
import pathlib
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable

from absl import flags

_HELP = ("--help", "-help", "-h", "--h", "-?")
# Groups of flags by name, in modules with flags of several groups. For the
# other modules see `_OF_MODULES`.
_GROUPS = {
  "Run": (
    "workdir", "preset", "seed", "start_from", "deterministic",
    "compilation_cache", "checkpoint_every", "checkpoint_minutes", "log_every",
    "wandb", "profile", "cpu_devices", "distributed", "coordinator_address",
    "num_processes", "process_id",
  ),
  "Data": (
    "dataset", "data_dir", "stream", "image_size", "grayscale",
    "num_validation",
    "viewpoints", "pad", "binary", "invert", "mirror", "results", "runs",
  ),
  "Evaluation": (
    "eval_every", "stop_accuracy", "average_decay", "suite", "views", "images",
    "compare_with", "ensemble", "other_data", "source", "allow_other_data",
  ),
  "Output": (
    "out", "format", "graph", "half", "pretrained", "json", "figure_format",
    "folder", "only", "check", "page", "pages",
  ),
  "Training": (
    "num_steps", "batch_size", "num_micro_batches", "model_parallel",
    "rematerialise",
    "weight_decay", "pretrain_steps",
    "pretrain_learning_rate", "slower_at", "slower_by", "max_error",
    "num_sweeps", "sweep", "num_chains",
  ),
}  # fmt: skip
_GROUP_OF = {name: group for group, names in _GROUPS.items() for name in names}
_OF_MODULES = {
  "arithmetic": "Training",
  "optimizer": "Training",
  "rates": "Training",
  "augmentation": "Data",
  "photometry": "Data",
  "scenes": "Data",
}
# Commands of a checkout, and the same by the command `capjax`.
_BY_NAME = {
  r"python -m experiments\.train_(\w+)": r"capjax train \1",
  r"python -m experiments\.(\w+)": r"capjax \1",
  r"--flagfile=experiments/presets/\w+/(\w+)\.cfg": r"--preset=\1",
}
_MODEL = "Model and loss"
_ORDER = ("Run", "Data", _MODEL, "Training", "Evaluation", "Output")


def is_asked(words: Iterable[str]) -> bool:
  """Whether a command line asks for help."""
  return any(word in _HELP for word in words)


def text(known: Iterable[flags.Flag]) -> str:
  """The description of the binary, and its flags in groups.

  Args:
    known: the flags of this project that the binary has.
  """
  about = inspect.cleandoc(sys.modules["__main__"].__doc__ or "")
  # `sys.argv` begins with the file of the binary, however it was started.
  if any(pathlib.Path(word).stem == "capjax" for word in sys.orig_argv[:2]):
    for form, by_name in _BY_NAME.items():
      about = re.sub(form, by_name, about)
  modules = {
    flag.name: module.rpartition(".")[2]
    for module, some in flags.FLAGS.flags_by_module_dict().items()
    for flag in some
  }
  groups: dict[str, list[flags.Flag]] = {name: [] for name in _ORDER}
  for flag in known:
    other = _OF_MODULES.get(modules.get(flag.name, ""), _MODEL)
    groups[_GROUP_OF.get(flag.name, other)].append(flag)
  parts = [about]
  for name in _ORDER:
    if groups[name]:
      some = sorted(groups[name], key=_place)
      parts.append("\n".join([f"{name}:", *map(_describe, some)]))
  parts.append("--helpfull has the flags of absl and of other packages too.")
  return "\n\n".join(parts) + "\n"


def _place(flag: flags.Flag) -> tuple[int, str]:
  """A key to sort flags in the order of `_GROUPS`, then by name."""
  names = _GROUPS.get(_GROUP_OF.get(flag.name, ""), ())
  place = names.index(flag.name) if flag.name in names else len(names)
  return place, flag.name


def _describe(flag: flags.Flag) -> str:
  """The name of a flag with its default, and its help below."""
  value = flag.default
  if isinstance(value, list):
    value = ",".join(map(str, value))
  name = f"--[no]{flag.name}" if flag.boolean else f"--{flag.name}"
  shown = "" if value in (None, "") else f"  [{value}]"
  width = min(shutil.get_terminal_size().columns, 88)
  indent = " " * 6
  about = textwrap.fill(
    flag.help or "",
    width,
    initial_indent=indent,
    subsequent_indent=indent,
  )
  return f"  {name}{shown}\n{about}"
