"""The flag that divides a CPU into devices."""

import subprocess
import sys

import jax
import processes
import pytest
from absl import flags
from absl.testing import flagsaver

from experiments import launch, train_capsnet  # noqa: F401 (its flags)
from experiments.benchmarks import step_cost
from experiments.flags import hosts
from experiments.run import invocation, provenance

_OPTION = "xla_force_host_platform_device_count"


@pytest.fixture
def divided(monkeypatch):
  """Calls `hosts.divide_cpu`, or `by`; the devices that JAX is told to make."""
  monkeypatch.delenv("XLA_FLAGS", raising=False)
  monkeypatch.delenv("JAX_NUM_CPU_DEVICES", raising=False)

  def divide(*words, cores=2, batch_size=64, by=None):
    told = {}
    monkeypatch.setattr(provenance, "num_cores", lambda: cores)
    monkeypatch.setattr(jax.config, "update", told.__setitem__)
    with flagsaver.flagsaver():
      flags.FLAGS(["binary", *words])
      by() if by else hosts.divide_cpu(batch_size)
    return told.get("jax_num_cpu_devices", 1)

  return divide


@pytest.mark.parametrize(
  ("cores", "batch_size", "want"),
  [(1, 64, 1), (2, 64, 2), (3, 64, 2), (6, 100, 5), (16, 128, 8), (4, 7, 1)],
)
def test_each_core_is_a_device_if_they_share_the_batch(
  divided, cores, batch_size, want
):
  found = divided("--cpu_devices=0", cores=cores, batch_size=batch_size)
  assert found == want


def test_the_number_is_taken_as_it_is_given(divided):
  assert divided() == 1
  assert divided("--cpu_devices=3") == 3


def test_processes_of_one_machine_do_not_divide_it_again(divided):
  assert divided("--cpu_devices=0", "--distributed", cores=8) == 1
  assert divided("--cpu_devices=4", "--distributed", cores=8) == 4


@pytest.mark.parametrize(
  ("variable", "value"),
  [("XLA_FLAGS", f"--{_OPTION}=4"), ("JAX_NUM_CPU_DEVICES", "4")],
)
def test_a_variable_stays_and_two_numbers_are_refused(
  divided, monkeypatch, variable, value
):
  monkeypatch.setenv(variable, value)
  assert divided("--cpu_devices=0") == 1
  with pytest.raises(ValueError, match=f"--cpu_devices=2, and {variable} sets"):
    divided("--cpu_devices=2")


@pytest.mark.parametrize(
  ("binary", "want"),
  [("matrix_capsules", 0), ("scae", 0), ("capsnet", 1), ("boltzmann", 1)],
)
@pytest.mark.long
def test_models_of_small_operations_divide_the_cpu(binary, want):
  code = (
    f"from experiments import train_{binary}\n"
    "from experiments.flags import hosts\n"
    "print(hosts.CPU_DEVICES.default)"
  )
  done = subprocess.run(
    [sys.executable, "-c", code], cwd=processes.ROOT, capture_output=True,
    text=True, check=True,
  )  # fmt: skip
  assert int(done.stdout) == want


def test_parts_of_a_batch_are_what_devices_share(divided):
  words = "--cpu_devices=0", "--batch_size=64", "--num_micro_batches=32"
  assert divided(*words, by=launch.divide_cpu, cores=8) == 2


def test_a_run_does_not_keep_the_number():
  assert "cpu_devices" in invocation.PROCESS_FLAGS


@pytest.mark.parametrize(
  ("cores", "want"), [(1, [""]), (4, ["", " on 4 CPU devices"])]
)
def test_benchmarks_divide_a_cpu_as_training_does(monkeypatch, cores, want):
  monkeypatch.setattr(provenance, "num_cores", lambda: cores)
  divisions = step_cost.cpu_divisions(64)
  assert [x.remark for x in divisions] == want
  assert divisions[-1].environment == {"JAX_NUM_CPU_DEVICES": str(cores)}


def test_other_options_of_xla_do_not_count(divided, monkeypatch):
  monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
  assert divided("--cpu_devices=0") == 2
