"""Speed of training by two processes, and by one with as many devices."""

import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

_DEVICES = 2
# Batch sizes, and the updates to take; half of them are timed.
STEPS = {64: 400, 512: 80}
_MODULE = f"{__package__.rpartition('.')[0]}.train_capsnet"


def rates(
  preset: str = "digits", steps: dict[int, int] = STEPS
) -> dict[str, float]:
  """Measures images a second of `train_capsnet` on two imitated CPU devices.

  Both devices belong to one process, or one device to each of two processes,
  which communicate over the loopback interface. Only the second half of the
  updates is timed, when everything is compiled.

  Args:
    preset: of `train_capsnet`.
    steps: the number of updates for each batch size.

  Returns:
    `hosts_B_one` and `hosts_B_two` for each batch size B: images a second with
    one process and with two.

  Raises:
    subprocess.CalledProcessError: if a process fails.
  """
  found = {}
  for batch_size, num_steps in steps.items():
    words = [
      f"--preset={preset}", f"--batch_size={batch_size}",
      f"--num_steps={num_steps}", f"--eval_every={num_steps}",
      f"--log_every={num_steps // 2}",
    ]  # fmt: skip
    for name, count in (("one", 1), ("two", _DEVICES)):
      with tempfile.TemporaryDirectory() as folder:
        found[f"hosts_{batch_size}_{name}"] = _rate(words, count, folder)
  return found


def _rate(words, count, folder):
  devices = _DEVICES // count
  flag = f"--xla_force_host_platform_device_count={devices}"
  flags = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
  environment = os.environ | {"XLA_FLAGS": flags}
  command = [sys.executable, "-m", _MODULE, f"--workdir={folder}/run", *words]
  address, running = _free_address(), []
  for index in range(count):
    connected = [
      "--distributed", f"--coordinator_address={address}",
      f"--num_processes={count}", f"--process_id={index}",
    ]  # fmt: skip
    running.append(
      subprocess.Popen(
        command + (connected if count > 1 else []),
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
      )
    )  # fmt: skip
  _wait(running, command)
  lines = pathlib.Path(folder, "run/metrics.jsonl").read_text().splitlines()
  train = [x for x in map(json.loads, lines) if x["split"] == "train"]
  return float(train[-1]["images_per_second"])


def _wait(running, command):
  """Waits for all processes; ends the others if one fails, or at Ctrl-C."""
  try:
    while None in (codes := [process.poll() for process in running]):
      if any(codes):
        break
      time.sleep(0.1)
    if failed := next(filter(None, codes), 0):
      raise subprocess.CalledProcessError(failed, command)
  finally:
    for process in running:
      process.kill()
      process.wait()


def _free_address() -> str:
  """An address of this machine with a free port."""
  with socket.socket() as some:
    some.bind(("127.0.0.1", 0))
    return f"127.0.0.1:{some.getsockname()[1]}"
