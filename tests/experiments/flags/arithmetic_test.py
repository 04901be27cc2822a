"""The flags of precision, of every binary."""

import subprocess
import sys

import jax
import processes
import pytest
from absl import flags
from absl.testing import flagsaver

from experiments import train_capsnet  # noqa: F401 (its flags)
from experiments.flags import arithmetic

_BINARIES = sorted(
  path.stem for path in (processes.ROOT / "experiments").glob("train_*.py")
)
_ENERGY = ("train_boltzmann", "train_helmholtz")
# Prints the dtypes of the model's layers.
_CODE = """
import sys
from absl import flags
from experiments import {binary} as module
sys.argv = ["{binary}", "--workdir=unused", "--bfloat16"]
flags.FLAGS(sys.argv)
if {refused}:
  module.main()
model = module.make_task().describe((28, 28, 1), 10).shapes()
print({{str(getattr(m, "dtype", None)) for _, m in model.iter_modules()}})
"""


@pytest.mark.parametrize("binary", _BINARIES)
@pytest.mark.long
def test_every_binary_takes_bfloat16_or_says_why_not(binary):
  done = subprocess.run(
    [
      sys.executable,
      "-c",
      _CODE.format(binary=binary, refused=binary in _ENERGY),
    ],
    cwd=processes.ROOT,
    capture_output=True,
    text=True,
  )
  if binary in _ENERGY:
    assert done.returncode == 1
    assert "--bfloat16 is not for this model: its gradient" in done.stderr
  else:
    assert done.returncode == 0, done.stderr
    assert "bfloat16" in done.stdout


def test_precision_is_that_of_jax():
  before = jax.config.jax_default_matmul_precision
  try:
    for words, want in (([], before), (["--precision=high"], "high")):
      with flagsaver.flagsaver():
        flags.FLAGS(["binary", *words])
        arithmetic.configure()
        assert jax.config.jax_default_matmul_precision == want
  finally:
    jax.config.update("jax_default_matmul_precision", before)
