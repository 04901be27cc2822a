"""Runs binaries in processes of their own, and reads the files that they write.

Importing JAX takes longer than most of these runs. The processes are therefore
forked from a server that has imported JAX. Otherwise each is like a process of
`python -m`, with its own flags, signals, output and exit code.
"""

import json
import multiprocessing
import os
import pathlib
import runpy
import signal
import sys
import tempfile
import traceback

import compiling

ROOT = pathlib.Path(__file__).parents[2]
# Networks of a few hundred weights, on the embedded digits.
_CAPSULES = (
  "--conv_features=4", "--conv_kernel=3", "--num_types=2", "--primary_kernel=3",
  "--batch_size=64",
)  # fmt: skip
SMALL = (*_CAPSULES, "--decoder_features=8")
UNDECODED = (*_CAPSULES, "--reconstruction=none")
BASELINE = (
  "--model=baseline", "--cnn_features=4,4", "--cnn_kernels=3,3",
  "--cnn_dense=8", "--batch_size=64",
)  # fmt: skip
_SERVER = multiprocessing.get_context("forkserver")
# None of these modules starts threads of JAX, which a fork would not keep.
_SERVER.set_forkserver_preload(
  [
    "flax.nnx", "matplotlib.figure", "optax", "orbax.checkpoint",
    "sklearn.datasets", "tensorboardX",
  ]
)  # fmt: skip


class Running:
  """A binary that runs in a process of its own."""

  def __init__(
    self,
    binary: str,
    *flags: str,
    xla_flags: str = "",
    package: str = "experiments.",
  ):
    descriptor, path = tempfile.mkstemp()
    os.close(descriptor)
    self._printed = pathlib.Path(path)
    self._process = _SERVER.Process(
      target=_run,
      args=(package + binary, flags, f"{compiling.FLAGS} {xla_flags}", path),
    )
    self._process.start()

  def has_ended(self) -> bool:
    return not self._process.is_alive()

  def send_signal(self, number: signal.Signals) -> None:
    os.kill(self._process.pid, number)

  def wait(self) -> tuple[int, str]:
    """The exit code, negative for a signal, and all that it printed."""
    self._process.join(300)
    code, printed = self._process.exitcode, self._printed.read_text()
    if code is None:
      self._process.kill()
      raise TimeoutError(printed)
    self._printed.unlink()
    return code, printed


def _run(name, flags, xla_flags, path):
  os.chdir(ROOT)
  os.environ["XLA_FLAGS"] = xla_flags
  with open(path, "w") as printed:
    os.dup2(printed.fileno(), 1)
    os.dup2(printed.fileno(), 2)
  sys.argv = [name, *flags]
  try:
    runpy.run_module(name, run_name="__main__", alter_sys=True)
    code = 0
  except SystemExit as end:
    code = end.code
  except BaseException:
    traceback.print_exc()
    code = 1
  if isinstance(code, str):
    print(code, file=sys.stderr)
    code = 1
  sys.stdout.flush()
  os._exit(code or 0)


def metrics_of(workdir: pathlib.Path, *, timed: bool = False) -> list[dict]:
  """The lines of metrics.jsonl, with entries about time only if `timed`."""
  path = workdir / "metrics.jsonl"
  lines = []
  for line in path.read_text().splitlines() if path.exists() else ():
    try:
      lines.append(json.loads(line))
    except json.JSONDecodeError:
      continue  # still being written
  for line in lines if not timed else ():
    line.pop("images_per_second", None)
  return lines


def summary_of(workdir: pathlib.Path) -> dict:
  return json.loads((workdir / "summary.json").read_text())


def evaluation_of(workdir: pathlib.Path) -> dict:
  """The record of each suite, by its name."""
  return json.loads((workdir / "evaluation.json").read_text())
