"""The provenance of a run: command, code, packages and device."""

import importlib.metadata
import os
import pathlib
import platform
import subprocess
from typing import Any

import jax

from . import atomic_files
from .invocation import Invocation

_PACKAGES = (
  "capjax", "chex", "flax", "jax", "jaxlib", "matplotlib", "numpy", "numpyro",
  "optax", "orbax-checkpoint", "pillow", "scikit-learn", "scipy",
)  # fmt: skip
# Settings of JAX that change numbers. The environment can set them too.
_SETTINGS = (
  "jax_default_matmul_precision", "jax_default_prng_impl", "jax_enable_x64",
  "jax_threefry_partitionable",
)  # fmt: skip
_NOT_CODE = (
  "results", "capjax/pretrained/*.safetensors", "capjax/pretrained/sha256.json",
)  # fmt: skip


# What may change when a run is resumed.
CHANGEABLE = ("commit", "dirty", "versions", "device", "jax_config")
# What every record has; those of older code lack some of the other entries.
REQUIRED = ("experiment", "commit", "dirty", "flags", "versions", "device")


def record(invocation: Invocation) -> dict[str, Any]:
  """What is needed to repeat a run.

  Command, commit, flags, versions, device, and settings of JAX.

  `dirty` is None where git does not know.
  """
  return {
    "experiment": invocation.experiment,
    "dataset": invocation.dataset,
    "preset": invocation.preset,
    "command": invocation.command,
    "commit": commit() or "unknown",
    "dirty": is_dirty(),
    "flags": dict(invocation.flags),
    "seed": invocation.seed,
    "versions": versions(),
    "device": device(),
    "jax_config": {name: getattr(jax.config, name) for name in _SETTINGS},
  }


def commit() -> str | None:
  """The commit of this code; None where git does not know.

  An installed copy may lie in another project's repository, whose commit does
  not describe this code.
  """
  if _git("ls-files", "--error-unmatch", __file__) is None:
    return None
  return _git("rev-parse", "HEAD")


def is_dirty() -> bool | None:
  """Whether the code differs from its commit; None where git does not know.

  Records in `results` and pretrained weights do not count as code.
  """
  if commit() is None:
    return None
  others = [f":(exclude,top){path}" for path in _NOT_CODE]
  changes = _git("status", "--porcelain", "--", ":/", *others)
  return None if changes is None else bool(changes)


def require_committed(workdir: pathlib.Path | None = None) -> None:
  """Checks that this code, and the code that began a run, are committed.

  Args:
    workdir: the folder of the run, which need not exist yet; None for a record
      of no run.

  Raises:
    ValueError: if its record would be refused.
  """
  if is_dirty() is not False:
    raise ValueError(
      "the code is not committed, so its record would be refused; commit, or "
      "remove the changes that `git status` shows"
    )
  if workdir is None:
    return
  path = workdir / "provenance.json"
  start = atomic_files.read_json(path) if path.exists() else {"dirty": False}
  all_code = [start, *start.get("resumptions", [])]
  if any(code.get("dirty") is not False for code in all_code):
    raise ValueError(
      f"{workdir} was trained by code that no commit holds, and its record "
      "would be refused; remove this folder, or train in another"
    )


def note_resumption(workdir: pathlib.Path, invocation: Invocation) -> None:
  """Adds code, packages, device and settings to a run, where they are new.

  `resumptions` of provenance.json lists them for each resumption that differs
  from what trained the run before.

  Args:
    workdir: the folder of the run.
    invocation: the command that resumes it.

  Raises:
    ValueError: if provenance.json is missing or damaged.
  """
  path = workdir / "provenance.json"
  start = atomic_files.read_json(path, names=REQUIRED)
  resumptions = start.get("resumptions", [])
  now = record(invocation)
  last = {**start, **(resumptions[-1] if resumptions else {})}
  # Older runs do not record all of them.
  if any(now[name] != last.get(name, now[name]) for name in CHANGEABLE):
    found = [*resumptions, {name: now[name] for name in CHANGEABLE}]
    atomic_files.write_json(path, {**start, "resumptions": found})


def versions() -> dict[str, str]:
  """The versions of Python and of the packages that affect numbers."""
  return {
    "python": platform.python_version(),
    **{name: _version(name) for name in _PACKAGES},
  }


def num_cores() -> int:
  """The number of cores that this process may use."""
  # Not every system tells which cores a process may use.
  may_use = getattr(os, "sched_getaffinity", None)
  return len(may_use(0)) if may_use else os.cpu_count() or 1


def device() -> str:
  """The kind and number of devices; for a CPU, the number of usable cores."""
  first, count = jax.devices()[0], jax.device_count()
  if first.platform == "cpu":
    cores = num_cores()
    text = f"CPU, {cores} core{'s' if cores > 1 else ''}"
    return text if count == 1 else f"{text} as {count} devices"
  return first.device_kind if count == 1 else f"{count} x {first.device_kind}"


def _version(package: str) -> str:
  try:
    return importlib.metadata.version(package)
  except importlib.metadata.PackageNotFoundError:
    return "not installed"


def _git(*arguments: str) -> str | None:
  folder = pathlib.Path(__file__).parent
  try:
    return subprocess.run(
      ["git", "-C", folder, *arguments],
      capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
  except (OSError, subprocess.CalledProcessError):
    return None
