"""The mutants of `make mutants` still apply, and faults are detected."""

import mutants
import processes
import pytest


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda x: x.path)
def test_a_mutant_changes_a_line_that_is_there_once(mutant):
  source = (processes.ROOT / mutant.path).read_text()
  assert mutant.applied() != source
  compile(mutant.applied(), mutant.path, "exec")
  assert (processes.ROOT / "tests" / mutant.test).exists()


def test_there_are_many():
  assert len(mutants.MUTANTS) >= 40


def test_a_mutant_whose_line_is_gone_is_refused():
  gone = mutants.MUTANTS[0]._replace(line="no such line")
  with pytest.raises(ValueError, match="has 0 times"):
    gone.applied()


@pytest.mark.long
def test_what_changes_nothing_survives():
  nothing = mutants.Mutant(
    "kernels/geometry.py", "cos, sin = jnp.cos(theta), jnp.sin(theta)",
    "sin, cos = jnp.sin(theta), jnp.cos(theta)", "kernels/geometry_test.py",
  )  # fmt: skip

  assert mutants.survives(nothing)
