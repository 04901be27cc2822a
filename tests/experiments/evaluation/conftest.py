"""A run that suites evaluate."""

import pytest

from experiments.run import directory
from experiments.run.invocation import Invocation


@pytest.fixture
def run(tmp_path):
  begun = directory.Run(str(tmp_path))
  flags = {"model": "constructed", "dataset": "mnist"}
  begun.lock(Invocation("train_capsnet", flags=flags))
  return begun
