"""Flags that all runs share: folder, data, seed, length and checkpoints."""

import functools
import os
import pathlib
import shlex
import sys
from typing import Any

import jax
from absl import flags

from capjax import data, pretrained

from ..run import directory, metrics
from ..run import invocation as commands
from ..run.invocation import FREE_FLAGS, PROCESS_FLAGS, Invocation
from ..training.loop_config import LoopConfig
from . import arithmetic, datasets, limits, presets

WORKDIR = flags.DEFINE_string(
  "workdir",
  None,
  "Folder of the run; training writes to it and resumes from it.",
)
SEED = flags.DEFINE_integer(
  "seed",
  0,
  "Seed of the initial parameters, the batch order and the augmentation.",
  lower_bound=0,
)
NUM_STEPS = flags.DEFINE_integer(
  "num_steps", 1000, "Total number of updates.", lower_bound=1
)
BATCH_SIZE = flags.DEFINE_integer(
  "batch_size", 128, "Number of examples in an update.", lower_bound=1
)
NUM_VALIDATION = flags.DEFINE_integer(
  "num_validation",
  None,
  "Number of training examples, from the first on, that are kept for "
  "validation, by which the checkpoint is chosen; by default a sixth "
  "(10,000 for MNIST). 0 trains on all examples and reports the last "
  "checkpoint.",
  lower_bound=0,
)
LOG_EVERY = flags.DEFINE_integer(
  "log_every", 20, "Number of steps between lines of metrics.", lower_bound=1
)
EVAL_EVERY = flags.DEFINE_integer(
  "eval_every", None, "Steps between validations; by default an epoch.",
  lower_bound=1,
)  # fmt: skip
CHECKPOINT_EVERY = flags.DEFINE_integer(
  "checkpoint_every",
  None,
  "Number of steps between saved states, in addition to those at validations.",
  lower_bound=1,
)
CHECKPOINT_MINUTES = flags.DEFINE_float(
  "checkpoint_minutes",
  10.0,
  "Minutes after which a state is also saved; 0 for never. Not used where "
  "training can restart from saved states, since its results would then "
  "depend on the time.",
  lower_bound=0.0,
)
STOP_ACCURACY = flags.DEFINE_float(
  "stop_accuracy",
  None,
  "Validation accuracy at which training stops, so that models can be "
  "compared at the same accuracy.",
  lower_bound=0.0,
  upper_bound=1.0,
)
AVERAGE_DECAY = flags.DEFINE_float(
  "average_decay",
  0.0,
  "Decay of an exponential moving average of the weights over steps; 0 for "
  "no average. The averaged weights are then validated, reported and "
  "evaluated; the raw weights are scored too, as raw.",
)
flags.register_validator(
  AVERAGE_DECAY,
  lambda decay: 0 <= decay < 1,
  message="give 0 for no average, or a decay below 1 such as 0.999",
)
NUM_MICRO_BATCHES = flags.DEFINE_integer(
  "num_micro_batches",
  1,
  "Number of parts of a batch that an update processes one after the other, to "
  "save memory; their gradients are averaged. --batch_size is the whole batch.",
  lower_bound=1,
)
MODEL_PARALLEL = flags.DEFINE_integer(
  "model_parallel",
  1,
  "Number of devices in a group. The devices of a group divide the transforms "
  "of a large CapsNet, and what the optimiser keeps for them; the groups "
  "divide the batch. A divisor of the number of devices.",
  lower_bound=1,
)
REMATERIALISE = flags.DEFINE_bool(
  "rematerialise",
  False,
  "Save memory: keep only products of matrices and convolutions for the "
  "gradient, and compute all else again. The gradient is the same.",
)
START_FROM = flags.DEFINE_string(
  "start_from",
  None,
  "Folder of a finished run, file of weights, or name of a pretrained model, "
  "whose weights a new run starts from where names and shapes agree. Other "
  "weights, such as those of other classes, start anew.",
)
flags.register_validator(
  START_FROM, lambda name: name != "", "name a run, a file or a model"
)
DETERMINISTIC = flags.DEFINE_bool(
  "deterministic",
  True,
  "Use deterministic operations, so that a seed gives the same numbers on "
  "GPUs too. There --nodeterministic is faster for models whose gradients are "
  "added to scattered places, which few models of this package have.",
)
_CACHE = "~/.cache/capjax/xla"
COMPILATION_CACHE = flags.DEFINE_string(
  "compilation_cache",
  None,
  "Folder where compiled programs are kept between runs; empty for none. By "
  "default that of the environment variable JAX_COMPILATION_CACHE_DIR, or "
  f"without it {_CACHE}.",
)

# The shared flags that a binary uses if it reads a finished run. The others
# have the values of the run.
OF_READERS = (
  "workdir", "dataset", "data_dir", "stream", "image_size", "grayscale",
  "cpu_devices", "compilation_cache",
)  # fmt: skip

_FIGURE_FORMAT = flags.DEFINE_enum(
  "figure_format", "png", ["png", "pdf"], "Format of figures."
)

_PROFILE = flags.DEFINE_integer(
  "profile",
  0,
  "Number of updates, after those that compile, of which a trace is written "
  "to the folder trace in --workdir; 0 for none.",
  lower_bound=0,
)

_WANDB = flags.DEFINE_string(
  "wandb",
  None,
  "Project of Weights & Biases that gets the metrics too; needs the package "
  "wandb.",
)

# Flags that name the folder of another run; records keep its last part.
_OTHER_RUNS = {"start_from"}


def open_run(workdir: str) -> directory.Run:
  """The run in a folder, with figures and metrics as the flags say."""
  writers = [metrics.TensorBoard]
  if _WANDB.value:
    project = {"project": _WANDB.value}
    writers.append(functools.partial(metrics.WeightsAndBiases, **project))
  return directory.Run(workdir, _FIGURE_FORMAT.value, writers)


def loop_config(num_steps: int | None = None) -> LoopConfig:
  """The configuration of training; `num_steps` replaces that of the flags."""
  return LoopConfig(
    num_steps=num_steps or NUM_STEPS.value,
    batch_size=BATCH_SIZE.value,
    seed=SEED.value,
    num_validation=NUM_VALIDATION.value,
    log_every=LOG_EVERY.value,
    eval_every=EVAL_EVERY.value,
    checkpoint_every=CHECKPOINT_EVERY.value,
    checkpoint_minutes=CHECKPOINT_MINUTES.value,
    stop_accuracy=STOP_ACCURACY.value,
    average_decay=AVERAGE_DECAY.value,
    num_micro_batches=NUM_MICRO_BATCHES.value,
    model_parallel=MODEL_PARALLEL.value,
    profile=_PROFILE.value,
    rematerialise=REMATERIALISE.value,
  )


def invocation() -> Invocation:
  """The command line of this process, after its flags have been parsed."""
  known = limits.experiment_flags()
  name, folder = datasets.place()
  # The flags by which data and other runs are found again from any folder.
  places = {"dataset": f"--dataset={name}"}
  if folder is not None:
    places["data_dir"] = f"--data_dir={folder}"
  source = START_FROM.value
  if source and source not in pretrained.names():
    path = os.path.abspath(pathlib.Path(source).expanduser())
    places["start_from"] = f"--start_from={path}"
  return Invocation(
    experiment=pathlib.Path(sys.argv[0]).stem,
    command=_command(),
    preset=_preset(),
    dataset=name,
    seed=SEED.value,
    flags={
      flag.name: _recorded(flag.name, flag.value)
      for flag in known
      if flag.name not in FREE_FLAGS
    },
    words={
      flag.name: flag.serialize()
      for flag in known
      if flag.value is not None and flag.name not in PROCESS_FLAGS
    }
    | places,
    defaults=frozenset(
      flag.name for flag in known if limits.is_default(flag.name)
    ),
  )


def flag_name(word: str) -> str:
  """The flag of this process that a word sets: `seed` of `--seed=1`."""
  return commands.flag_name(word, flags.FLAGS.__contains__)


def configure() -> None:
  """Applies the flags that JAX reads at its start."""
  arithmetic.configure()
  if DETERMINISTIC.value:
    options = os.environ.get("XLA_FLAGS", "")
    if "xla_gpu_deterministic_ops" not in options:
      options += " --xla_gpu_deterministic_ops=true"
      os.environ["XLA_FLAGS"] = options.strip()
  cache = COMPILATION_CACHE.value
  if cache is None:
    cache = os.environ.get("JAX_COMPILATION_CACHE_DIR", _CACHE)
  folder = str(pathlib.Path(cache).expanduser()) if cache else None
  jax.config.update("jax_compilation_cache_dir", folder)
  if folder:
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def _arguments() -> list[str]:
  """The command line with every flag as one word, `--name=value`."""
  words, arguments = iter(sys.argv[1:]), []
  for word in words:
    name = flag_name(word)
    takes_value = name == "flagfile" or (
      name in flags.FLAGS and not flags.FLAGS[name].boolean
    )
    if takes_value and "=" not in word:
      word = f"{word}={next(words, '')}"
    arguments.append("--" + word.lstrip("-"))
  return arguments


def _command() -> str:
  """The command line, without folders that differ between machines."""
  arguments = []
  for argument in _arguments():
    name = flag_name(argument)
    if name in {"dataset", *_OTHER_RUNS}:
      value = argument.partition("=")[2]
      argument = f"--{name}={_recorded(name, value)}"
    if name == "flagfile":
      path = argument.partition("=")[2]
      argument = f"--flagfile={presets.portable(path)}"
    if name not in FREE_FLAGS:
      arguments.append(argument)
  if datasets.place()[1] is not None:
    arguments.append("--data_dir=DATA")
  module = f"experiments.{pathlib.Path(sys.argv[0]).stem}"
  folder = [] if WORKDIR.value is None else ["--workdir=DIR"]
  return shlex.join(["python", "-m", module, *folder, *arguments])


def _recorded(name: str, value: Any) -> Any:
  if name == "dataset":
    return data.split_path(value, datasets.DATA_DIR.value)[0]
  if name in _OTHER_RUNS and value and value not in pretrained.names():
    last = pathlib.Path(value).name
    return f"./{last}" if last in pretrained.names() else last
  return value


def _preset() -> str | None:
  for argument in _arguments():
    if flag_name(argument) == "flagfile":
      return pathlib.Path(argument.partition("=")[2]).stem
  return None
