"""Kills runs, damages their files and fills their disk; counts what is lost.

  python tests/helpers/soak.py [--part=kills|damages|disk] [--first=0]
    [--count=80]

A run that was killed or damaged must end in one of three ways: with the numbers
of an undisturbed run; with the second-best checkpoint, and a message that says
so; or with an error of one sentence and an unchanged folder. Any other end
counts as lost, and the script fails.

Lines of metrics.jsonl have no second copy and no checksum, since a run appends
them one by one. If this file is damaged, the summary must have the numbers of
an undisturbed run. Lines of the curve may be missing, with a message, and one
line may differ, if what is left of it is a valid line.
"""

import argparse
import collections
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import processes

_BINARIES = {
  "train_capsnet": (
    *processes.UNDECODED, "--num_steps=120", "--log_every=5", "--eval_every=30",
  ),
  "train_boltzmann": (
    "--num_capsules=4", "--capsule_size=3", "--num_sweeps=2",
    "--num_steps=120", "--eval_every=30", "--log_every=5",
  ),
  "train_helmholtz": (
    "--num_capsules=4,3", "--capsule_size=3", "--num_sweeps=2",
    "--num_steps=60", "--pretrain_steps=40", "--eval_every=20", "--log_every=5",
  ),
  "train_transforming": (
    "--num_capsules=8", "--recognition_units=6", "--generation_units=8",
    "--max_jitter=1", "--max_shift=1", "--batch_size=64", "--num_steps=120",
    "--eval_every=30", "--log_every=5",
  ),
  "train_multimnist": (
    *processes.SMALL, "--pad=2", "--max_shift=2", "--num_steps=120",
    "--eval_every=30", "--log_every=5",
  ),
}  # fmt: skip
_KILLS = 4  # of each run
_DAMAGED = (*processes.BASELINE, "--num_steps=40", "--eval_every=10")
_NOT_DAMAGED = {"lock", "figures"}
_OUTCOMES = (
  "same numbers", "second best, said", "refused, untouched",
  "lines gone, said", "one line changed", "lost",
)  # fmt: skip
_Table = dict[str, collections.Counter]


class Soak:
  """Runs in a folder, and their results."""

  def __init__(self, folder: pathlib.Path):
    self._folder = folder
    self._table: _Table = {}

  def train(self, workdir, flags, binary="train_capsnet"):
    cache = f"--compilation_cache={self._folder / 'xla'}"
    return processes.Running(binary, f"--workdir={workdir}", cache, *flags)

  def finished(self, workdir, flags, binary="train_capsnet"):
    """Trains to the end; returns the folder."""
    code, printed = self.train(workdir, flags, binary).wait()
    assert code == 0, printed
    return workdir

  def note(self, part: str, outcome: str, about: str) -> None:
    self._table.setdefault(part, collections.Counter())[outcome] += 1
    print(f"{part}: {outcome}: {about}", flush=True)

  def kills(self) -> None:
    """Sends signals at random moments; three of four cannot be caught."""
    for binary, flags in _BINARIES.items():
      began = time.monotonic()
      unbroken = self.finished(self._folder / binary, flags, binary)
      length = time.monotonic() - began
      draw = random.Random(binary)
      workdir = self._folder / f"{binary}_killed"
      for number in range(_KILLS):
        process = self.train(workdir, flags, binary)
        time.sleep(length * draw.uniform(0.3, 0.9))
        kind = signal.SIGKILL if number else signal.SIGTERM
        ended = process.has_ended()
        process.send_signal(kind) if not ended else None
        code, printed = process.wait()
        steps = [line["step"] for line in processes.metrics_of(workdir)]
        about = f"{binary}, {kind.name} after step {max(steps, default=0)}"
        # Before it trains, a program ends as the system has it end.
        expected = (-kind, 128 + kind) if not ended and code else (0,)
        if code not in expected:
          self.note("kills", "lost", f"{about}: exit code {code}: {printed}")
      code, printed = self.train(workdir, flags, binary).wait()
      same = code == 0 and _numbers(workdir) == _numbers(unbroken)
      outcome = "same numbers" if same else "lost"
      for number in range(_KILLS):
        about = f"{binary}, kill {number + 1}"
        self.note("kills", outcome, about if same else f"{about}: {printed}")

  def damages(self, numbers: range) -> None:
    """Damages a random file of a finished run, then resumes the run."""
    unbroken = self.finished(self._folder / "unbroken", _DAMAGED)
    whole = _numbers(unbroken)
    for number in numbers:
      draw = random.Random(number)
      workdir = shutil.copytree(unbroken, self._folder / f"damaged_{number}")
      path, kind = _damage(workdir, draw)
      about = f"{number}: {kind} of {path.relative_to(workdir)}"
      before = _contents(workdir)
      code, printed = self.train(workdir, _DAMAGED).wait()
      if code == 0 and _numbers(workdir) == whole:
        outcome = "same numbers"
      elif code == 0 and "cannot read checkpoint" in printed:
        outcome = "second best, said"
      elif code == 1 and "Traceback" not in printed and str(workdir) in printed:
        untouched = _contents(workdir) == before
        outcome = "refused, untouched" if untouched else "lost"
      elif code == 0 and path == workdir / "metrics.jsonl":
        outcome = _of_curve(_numbers(workdir), whole, path, printed)
      else:
        outcome = "lost"
      self.note("damages", outcome, about)
      if outcome != "same numbers":
        print(printed)
      shutil.rmtree(workdir)

  def disk(self) -> None:
    """Trains in a small, full file system, then frees space and resumes."""
    unbroken = self.finished(self._folder / "roomy", _DAMAGED)
    small = self._folder / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True).returncode:
      print("disk: not filled, for mounting is not permitted here")
      return
    try:
      for free in (0, 30, 300, 600, 900):  # kB
        workdir, filler = small / f"run_{free}", small / "filler"
        room = shutil.disk_usage(small).free - 1000 * free
        filler.write_bytes(bytes(max(room, 0)))
        code, printed = self.train(workdir, _DAMAGED).wait()
        filler.unlink()
        full = f"no space left to write {small}" in printed
        said = code == 0 or (code == 1 and full)  # or there was room enough
        clean = "Traceback" not in printed and len(printed.splitlines()) < 40
        again, more = self.train(workdir, _DAMAGED).wait()
        same = again == 0 and _numbers(workdir) == _numbers(unbroken)
        outcome = "same numbers" if same and said and clean else "lost"
        self.note("disk", outcome, f"{free} kB free")
        if outcome == "lost":
          print(code, printed, again, more)
        shutil.rmtree(workdir)
    finally:
      subprocess.run(["umount", str(small)], check=True)

  def report(self) -> bool:
    """Prints the table; returns whether nothing was lost."""
    row = "{:<10}" + "{:>20}" * len(_OUTCOMES)
    print(row.format("", *_OUTCOMES))
    for part, counts in self._table.items():
      print(row.format(part, *(counts[name] for name in _OUTCOMES)))
    return not any(counts["lost"] for counts in self._table.values())


def _damage(workdir: pathlib.Path, draw: random.Random):
  """Damages a file; returns its path and the kind of damage."""
  files = sorted(
    path
    for path in workdir.rglob("*")
    if path.is_file()
    and not _NOT_DAMAGED & set(path.relative_to(workdir).parts)
    and not path.name.startswith("events.")
  )
  # Half of the time a file of the run, which has many more of checkpoints.
  top = [path for path in files if path.parent == workdir]
  path = draw.choice(top if draw.random() < 0.5 else files)
  content = bytearray(path.read_bytes())
  kind = draw.choice(("flip", "truncation", "deletion", "garbage"))
  if kind == "deletion":
    path.unlink()
    return path, kind
  if kind == "flip":
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
  elif kind == "truncation":
    content = content[: draw.randrange(len(content))]
  else:
    content = draw.randbytes(len(content))
  path.write_bytes(content)
  return path, kind


def _of_curve(found: tuple, whole: tuple, path, printed: str) -> str:
  """The outcome of a run whose metrics.jsonl was damaged."""
  (told, (lines,)), (want, (whole_lines,)) = found, whole
  if told != want:
    return "lost"
  missing = [line for line in whole_lines if line not in lines]
  if f"{path}" in printed:
    added = [line for line in lines if line not in whole_lines]
    return "lost" if added else "lines gone, said"
  return "one line changed" if len(missing) <= 1 else "lost"


def _contents(workdir: pathlib.Path) -> dict[pathlib.Path, bytes]:
  return {
    path: path.read_bytes() for path in workdir.rglob("*") if path.is_file()
  }


def _numbers(workdir: pathlib.Path) -> tuple:
  """The numbers of a run that interruptions must not change."""
  summary = processes.summary_of(workdir)
  names = ("metrics", "num_steps", "num_parameters", "flags", "experiment")
  told = {name: summary[name] for name in names}
  lines = [
    processes.metrics_of(folder)
    for folder in [workdir, *sorted(workdir.glob("layer_*"))]
  ]
  return told, lines


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("--part", choices=("kills", "damages", "disk"))
  parser.add_argument("--first", type=int, default=0, help="of the damages")
  parser.add_argument("--count", type=int, default=80, help="of the damages")
  given = parser.parse_args()
  with tempfile.TemporaryDirectory() as folder:
    soak = Soak(pathlib.Path(folder))
    if given.part in (None, "kills"):
      soak.kills()
    if given.part in (None, "damages"):
      soak.damages(range(given.first, given.first + given.count))
    if given.part in (None, "disk"):
      soak.disk()
    sys.exit(0 if soak.report() else "something was lost")


if __name__ == "__main__":
  main()
