"""Training on images that stay in their files, as real processes."""

import pathlib
import shutil
import signal
import subprocess
import sys
import time

import dataset_files
import hosts
import numpy as np
import processes
import pytest

from capjax import data

STEPS = (
  "--num_steps=20", "--eval_every=7", "--log_every=3", "--batch_size=64",
  "--num_validation=500",
)  # fmt: skip
SMALL = (*processes.SMALL, *STEPS)  # 14 steps an epoch


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
  """The embedded digits as ArrayRecord files."""
  folder = tmp_path_factory.mktemp("somewhere") / "digits_records"
  train, test = (data.load("digits", split) for split in ("train", "test"))
  data.write_records(
    folder, [train[:2]], [test[:2]], class_names=train.class_names
  )
  return folder


@pytest.fixture(scope="module")
def in_memory(train, digits, tmp_path_factory):
  """The metrics of a run with all images in memory."""
  workdir = tmp_path_factory.mktemp("runs") / "run"
  code, printed = train(workdir, *SMALL, f"--dataset={digits}")
  assert code == 0, printed
  assert "read while they are used" not in printed
  return processes.metrics_of(workdir)


@pytest.mark.long
def test_a_run_from_files_is_one_from_memory(
  train, start, digits, in_memory, tmp_path
):
  """Killed in its second epoch; it ends in memory, with the same flags."""
  flags = (*SMALL, f"--dataset={digits}", "--checkpoint_every=16")
  process = start(tmp_path / "run", *flags, "--stream")
  while len(processes.metrics_of(tmp_path / "run")) < 8:
    assert not process.has_ended()
    time.sleep(0.01)
  process.send_signal(signal.SIGKILL)
  process.wait()
  before = len(processes.metrics_of(tmp_path / "run"))
  code, printed = train(tmp_path / "run", *flags, "--stream")
  assert code == 0, printed
  assert "train images are read while they are used" in printed
  assert processes.metrics_of(tmp_path / "run") == in_memory
  assert 8 <= before <= len(in_memory)


@pytest.mark.long
def test_the_binary_writes_what_another_reads(tmp_path, digits):
  # It has no --workdir, which `train` gives.
  def write(*words):
    module = "experiments.write_records"
    return subprocess.run(
      [sys.executable, "-m", module, f"--out={tmp_path / 'out'}", *words],
      cwd=processes.ROOT, capture_output=True, text=True,
    )  # fmt: skip

  refused = write("--nostream")
  assert refused.returncode == 1
  assert "--stream: this command does not use it" in refused.stderr
  done = write()
  assert done.returncode == 0, done.stderr
  assert "not written" not in done.stdout
  assert "wrote 1,437 images to train on and 360 to test" in done.stdout
  for split in ("train", "test"):
    got, want = (data.load(str(x), split) for x in (tmp_path / "out", digits))
    assert data.fingerprint(got) == data.fingerprint(want)
  dataset_files.write_solids(tmp_path, train=6, test=2)
  solids = write(
    "--dataset=viewpoint_solids", f"--data_dir={tmp_path}",
    f"--out={tmp_path / 'solids'}",
  )  # fmt: skip
  assert solids.returncode == 0, solids.stderr
  assert "label_elevation" in solids.stdout
  assert "are not written; without them there is no --view" in solids.stdout


@pytest.mark.long
def test_two_processes_read_for_one_training(
  start, digits, in_memory, tmp_path
):
  address = hosts.free_address()
  running = [
    start(
      tmp_path / "run", *SMALL, f"--dataset={digits}", "--stream",
      "--distributed", "--num_processes=2", f"--process_id={index}",
      f"--coordinator_address={address}",
    )
    for index in range(2)
  ]  # fmt: skip
  ends = [x.wait() for x in running]
  assert [code for code, _ in ends] == [0, 0], ends
  for mine, theirs in zip(
    processes.metrics_of(tmp_path / "run"), in_memory, strict=True
  ):
    for name, value in theirs.items():
      if name in ("loss", "margin_loss", "step", "epoch"):
        assert mine[name] == pytest.approx(value, rel=1e-3)


@pytest.mark.long
def test_memory_does_not_grow_with_the_data(start, tmp_path):
  """With 175 MB more of images, less than a third of them is needed more."""
  shape, small, large = (64, 64, 3), 2048, 16_384
  block = np.random.default_rng(0).integers(0, 256, (512, *shape), np.uint8)
  peaks = []
  for count in (small, large):
    folder = tmp_path / str(count)
    blocks = ((block + np.uint8(n), block[:, 0, 0, 0] % 2)
              for n in range(count // len(block)))  # fmt: skip
    data.write_records(
      folder, blocks, [(block[:64], np.arange(64) % 2)], class_names=["a", "b"]
    )
    process = start(
      tmp_path / f"run_{count}", *processes.BASELINE, "--stream",
      f"--dataset={folder}", "--num_steps=4", "--num_validation=64",
    )  # fmt: skip
    peaks.append(peak(process))
    code, printed = process.wait()
    assert code == 0, printed
    shutil.rmtree(folder)
  grown = peaks[1] - peaks[0]
  assert grown < 175e6 / 3, f"{grown / 1e6:.0f} MB more"


def peak(process):
  """The most memory that a process had, in bytes, once it has ended."""
  found, path = 0, pathlib.Path(f"/proc/{process._process.pid}/status")
  while not process.has_ended():
    try:
      lines = dict(x.split(":", 1) for x in path.read_text().splitlines())
    except OSError:  # It ended after it was asked whether it had.
      break
    # Absent where the process has ended and is not yet gathered.
    found = max(found, 1024 * int(lines.get("VmHWM", "0").split()[0]))
    time.sleep(0.02)
  return found
