"""Constants of EM routing (`em.Form`) by which layers of any size can learn."""

from collections.abc import Sequence
from typing import NamedTuple

from capjax.kernels import checks
from capjax.kernels.routing import em

# beta_a and beta_u at the start: parents without children have activations
# below 1/2.
BETAS = (-1.0, 0.0)


def paper_form(inverse_temperatures: Sequence[float]) -> em.Form:
  """The paper's form, with beta_a in units of the last iteration's logit.

  In the paper's own units steps of an optimiser would not change the logit,
  since the inverse temperatures lambda are small.

  Args:
    inverse_temperatures: lambda of each iteration.
  """
  return em.PAPER._replace(beta_a_scale=1 / inverse_temperatures[-1])


def scale_costs(
  form: em.Form,
  num_children: int,
  num_parents: int,
  data_amount: float | None = em.DATA_AMOUNT,
) -> em.Form:
  """Scales costs to an amount of data (Gritzman, 2019).

  One lambda then fits layers of any size.

  Args:
    form: a form whose costs are not scaled.
    num_children: I, the children that a parent sees, of all types and
      positions.
    num_parents: J, types of parents.
    data_amount: as for `em.amount_of_data_scale`; None leaves costs as they
      are.
  """
  if data_amount is None:
    return form
  scale = em.amount_of_data_scale(num_children, num_parents, amount=data_amount)
  return form._replace(cost_scale=scale)


class Options(NamedTuple):
  """How a layer routes: the options of the EM kernels.

  Attributes:
    inverse_temperatures: lambda of each iteration.
    form: form of EM routing.
    gradient: "all" or "last".
  """

  inverse_temperatures: tuple[float, ...]
  form: em.Form
  gradient: str

  @classmethod
  def of(
    cls,
    num_children: int,
    num_parents: int,
    inverse_temperatures: Sequence[float],
    form: em.Form | None,
    gradient: str,
  ) -> "Options":
    """Checks the arguments of a layer.

    Args:
      num_children: as for `scale_costs`.
      num_parents: as for `scale_costs`.
      inverse_temperatures: lambda of each iteration.
      form: None for the paper's, with costs scaled to the size of the layer.
      gradient: "all" or "last", as for `em.em_routing`.

    Raises:
      TypeError: if `form` is no form, or there is one lambda, not a sequence.
      ValueError: if there is no iteration, the gradient is unknown or, without
        a form, the last lambda is not above 0.
    """
    em.require_iterations(inverse_temperatures, gradient=gradient)
    temperatures = tuple(map(float, inverse_temperatures))
    if not isinstance(form, em.Form | None):
      raise TypeError(
        f"form is {form!r}; give None or a form, such as em.PAPER."
      )
    if form is None:
      checks.positive(last_inverse_temperature=temperatures[-1])
      form = scale_costs(paper_form(temperatures), num_children, num_parents)
    return cls(temperatures, form, gradient)
