"""What else a change of the number of steps changes."""

import pytest
from absl import flags
from run_cases import given

from experiments import train_capsnet  # noqa: F401 (its flags)
from experiments.flags import lengths


@pytest.mark.parametrize(
  ("words", "want"),
  [
    ((), []),
    (("--schedule=cosine",), ["--schedule=cosine"]),
    (("--final_rate_fraction=0.1",), ["--final_rate_fraction=0.1"]),
  ],
)
def test_flags_that_depend_on_the_length_are_named(words, want):
  with given(*words):
    assert lengths.depending() == want


@pytest.mark.parametrize(
  ("words", "want"),
  [
    ((), ["--decay_steps by default"]),
    (("--schedule=cosine",), ["--schedule=cosine"]),
    (("--final_rate_fraction=0.1",), ["--final_rate_fraction=0.1"]),
  ],
)
def test_a_default_that_is_not_used_is_not_named(words, want):
  with given(*words):
    flags.FLAGS["decay_steps"].value = None
    assert lengths.depending() == want
