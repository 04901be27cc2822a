"""Counts the iterations of the loops of a traced function."""

from jax.extend import core


def num_turns(traced: core.ClosedJaxpr) -> int:
  """Counts the iterations of all scans, on a platform that is not a CPU.

  Args:
    traced: what `jax.make_jaxpr` gives. Where a function has forms for several
      platforms, the last, which is the default, is counted.
  """
  return _of(traced.jaxpr)


def _of(jaxpr):
  return sum(map(_of_equation, jaxpr.eqns))


def _of_equation(equation):
  parameters = equation.params
  if equation.primitive.name == "while":
    raise ValueError("a loop whose turns depend on numbers")
  if equation.primitive.name == "cond":
    return _of(parameters["branches"][-1].jaxpr)
  inner = sum(_of(x) for x in core.jaxprs_in_params(parameters))
  if equation.primitive.name != "scan":
    return inner
  return parameters["length"] * max(inner, 1)
