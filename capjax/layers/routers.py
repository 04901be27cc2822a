"""Routings by name, in the form that layers call; most have parameters.

Each routes one example: `(poses [I C], transforms [I J C D], activations=[I] or
None, bias=[J D] or None) -> RoutingOutput`, with poses [J D], activations [J]
and coefficients [I J]. The poses may be matrices [I P Q]; the transforms then
are [I J Q R], and D is P R, the numbers of a matrix in rows. Where objects
share votes, the transforms are [I 1 C D]. Without activations those of the
parts are the lengths of their poses; routings whose kernel takes none ignore
them.

`ROUTERS` lists them with their papers. A routing without parameters is a
`Kernel` there; one with parameters is a module, with its row in the same file.

Differs from the papers: besides the differences of the kernels, `CapsNet`
trains all routings with the margin loss on activations, whereas EM, inverted
attention, self-routing and variational Bayes had other losses; its parts have
no activations but the lengths of their poses, whereas EM, self-routing and
variational Bayes have separate activations.

Axes: B batch, I parts below, J objects above, C pose of a part, D pose of an
object.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from capjax.kernels import checks, routing
from capjax.kernels.routing import em, linear_votes, variational
from capjax.layers import (
  agreement,
  attention_routers,
  custom_routing,
  em_forms,
  heinsen_routers,
  routing_inputs,
)
from capjax.layers.named_routing import ITERATIONS, Router, Sizes


@dataclasses.dataclass(frozen=True, kw_only=True)
class DynamicRouting:
  """Dynamic routing in the fastest form for the platform (Sabour et al., 2017).

  Has no parameters; compares by value, so that equal models share compiled
  code.

  Attributes:
    num_iterations: at least 1; with 1 every part is divided evenly among the
      parents.
    leaky: adds an orphan parent for parts that agree with no parent.
    gradient: "all" or "last", as for `routing.dynamic_routing`.
    batch_size: number of examples that this is `vmap`ped over; decides the form
      only.

  Differs from paper: nothing.
  """

  num_iterations: int = 3
  leaky: bool = False
  gradient: str = "all"
  batch_size: int = 1

  def __post_init__(self):
    linear_votes.require_iterations(self.num_iterations, gradient=self.gradient)

  def __call__(
    self,
    poses: Float[Array, " I *pose"],
    transforms: Float[Array, "I J Q R"],
    *,
    activations: Float[Array, " I"] | None = None,
    bias: Float[Array, "J D"] | None = None,
  ) -> routing.RoutingOutput:
    """Routes one example; the bias is added before squashing."""
    del activations  # lengths of poses count instead
    options: dict[str, Any] = {
      "num_iterations": self.num_iterations,
      "leaky": self.leaky,
      "gradient": self.gradient,
    }
    if poses.ndim > 2:
      votes = routing_inputs.stored_votes(poses, transforms)
      return routing.dynamic_routing(votes, bias=bias, **options)
    return agreement.route_by_agreement(
      poses,
      transforms,
      bias=bias,
      **options,
      batch_size=self.batch_size,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kernel:
  """A routing without parameters of its own: its kernel.

  Compares by value, so that equal models share compiled code.

  Attributes:
    function: of the votes, with the bias by keyword.
    options: its other arguments by keyword, as pairs.
    takes_activations: whether it takes activations of the parts by keyword.
  """

  function: Callable[..., routing.RoutingOutput]
  options: tuple[tuple[str, Any], ...] = ()
  takes_activations: bool = False

  def __post_init__(self):
    options = dict(self.options)
    linear_votes.require_iterations(
      options.get("num_iterations", 1), gradient=options.get("gradient", "all")
    )

  def __call__(
    self,
    poses: Float[Array, " I *pose"],
    transforms: Float[Array, "I J Q R"],
    *,
    activations: Float[Array, " I"] | None = None,
    bias: Float[Array, "J D"] | None = None,
  ) -> routing.RoutingOutput:
    """Routes one example; the bias is passed to the function."""
    votes = routing_inputs.linear_votes(poses, transforms)
    options = dict(self.options)
    if self.takes_activations:
      options["activations"] = routing_inputs.part_activations(
        poses, activations
      )
    return self.function(votes, bias=bias, **options)


class Variational(nnx.Module):
  """Variational Bayes routing with its learned offset (Ribeiro et al., 2020).

  The layer's bias [J D] is added to all votes for a parent. The offset beta [J]
  starts at zero, the gain [J] at one.

  Differs from paper: bias, beta and gain replace the batch norms of poses and
  activations; the loss is the margin loss.
  """

  def __init__(
    self, num_objects: int, *, num_iterations: int = 3, gradient: str = "all"
  ):
    """Initialises the parameters.

    Args:
      num_objects: J, capsules above.
      num_iterations: at least 1; with 1 every part is divided evenly among the
        parents.
      gradient: "all" or "last", as for `variational.variational_routing`.

    Raises:
      TypeError: if `num_iterations` is no whole number.
      ValueError: if it is below 1, or `gradient` is unknown.
    """
    linear_votes.require_iterations(num_iterations, gradient=gradient)
    self.gradient = gradient
    self.beta = nnx.Param(jnp.zeros(num_objects, jnp.float32))
    self.gain = nnx.Param(jnp.ones(num_objects, jnp.float32))
    self.num_iterations = num_iterations

  def __call__(
    self,
    poses: Float[Array, " I *pose"],
    transforms: Float[Array, "I J Q R"],
    *,
    activations: Float[Array, " I"] | None = None,
    bias: Float[Array, "J D"] | None = None,
  ) -> routing.RoutingOutput:
    """Routes one example; the bias is added to the votes.

    Raises:
      ValueError: if a known activation is below 0.
    """
    votes = routing_inputs.stored_votes(poses, transforms)
    if bias is not None:
      votes += bias
    return variational.variational_routing(
      votes,
      routing_inputs.part_activations(poses, activations),
      num_iterations=self.num_iterations,
      beta=self.beta[...],
      gain=self.gain[...],
      gradient=self.gradient,
    )


class EM(nnx.Module):
  """EM routing with its learned costs (Hinton et al., 2018).

  The layer's bias [J D] is added to all votes for a parent. As in the layers of
  `MatrixCapsules`, beta_a [J] is in units of the last iteration's logit and
  starts at -1, beta_u [J] at zero, and costs are scaled to 100 children
  (Gritzman, 2019), so that one lambda fits layers of any size.

  Differs from paper: this scale and the bias; the loss is the margin loss.
  """

  def __init__(
    self,
    num_parts: int,
    num_objects: int,
    *,
    num_iterations: int = 3,
    gradient: str = "all",
  ):
    """Initialises the parameters.

    Args:
      num_parts: I, capsules below.
      num_objects: J, capsules above.
      num_iterations: at least 1; with 1 every part is divided evenly among the
        parents.
      gradient: "all" or "last", as for `em.em_routing`.

    Raises:
      TypeError: if `num_iterations` is no whole number.
      ValueError: if it is below 1, or `gradient` is unknown.
    """
    linear_votes.require_iterations(num_iterations, gradient=gradient)
    self.gradient = gradient
    self.beta_a, self.beta_u = (
      nnx.Param(jnp.full(num_objects, value, jnp.float32))
      for value in em_forms.BETAS
    )
    self.inverse_temperatures = em.inverse_temperature_schedule(num_iterations)
    self.form = em_forms.scale_costs(
      em_forms.paper_form(self.inverse_temperatures), num_parts, num_objects
    )

  def __call__(
    self,
    poses: Float[Array, " I *pose"],
    transforms: Float[Array, "I J Q R"],
    *,
    activations: Float[Array, " I"] | None = None,
    bias: Float[Array, "J D"] | None = None,
  ) -> routing.RoutingOutput:
    """Routes one example; the bias is added to the votes.

    Raises:
      ValueError: if a known activation is outside of [0, 1].
    """
    votes = routing_inputs.stored_votes(poses, transforms)
    if bias is not None:
      votes += bias
    output = em.em_routing(
      votes,
      routing_inputs.part_activations(poses, activations),
      self.beta_a[...],
      self.beta_u[...],
      inverse_temperatures=self.inverse_temperatures,
      form=self.form,
      gradient=self.gradient,
    )
    return routing.RoutingOutput(*output[:3])


def _kernel(function, *, takes_activations=False):
  """Returns the `Router.make` of a `Kernel`."""

  def make(sizes, rngs, **options):
    del sizes, rngs
    return Kernel(
      function=function,
      options=tuple(options.items()),
      takes_activations=takes_activations,
    )

  return make


ROUTERS: dict[str, Router] = {
  "dynamic": Router(
    "by agreement (Sabour et al., 2017)",
    lambda sizes, rngs, **options: DynamicRouting(**options),
    options=(*ITERATIONS, "leaky"),
  ),
  "variational": Router(
    "a Bayesian mixture (Ribeiro et al., 2020)",
    lambda sizes, rngs, **options: Variational(sizes.num_objects, **options),
    options=ITERATIONS,
    uses_activations=True,
    is_mixture=True,
  ),
  "em": Router(
    "a mixture of Gaussians (Hinton et al., 2018)",
    lambda sizes, rngs, **options: EM(
      sizes.num_parts, sizes.num_objects, **options
    ),
    options=ITERATIONS,
    uses_activations=True,
    is_mixture=True,
    takes_probabilities=True,
  ),
  "uniform": Router(
    "a control, even shares (Paik et al., 2019)",
    _kernel(routing.uniform_routing),
  ),
  "top1": Router(
    "a control, each part to its best parent",
    _kernel(routing.top1_routing),
    options=("num_iterations",),
  ),
  "sinkhorn": Router(
    "by agreement, with as many parts for every parent (Cuturi, 2013)",
    _kernel(routing.sinkhorn_routing, takes_activations=True),
    options=ITERATIONS,
    uses_activations=True,
  ),
  **attention_routers.ROUTERS,
  **heinsen_routers.ROUTERS,
}
NAMES = tuple(ROUTERS)


def shares_votes(name: str | Callable) -> bool:
  """Whether a part has one matrix, and so one vote, for all objects.

  Args:
    name: of a routing, or a function, for which this is False.
  """
  return name in NAMES and ROUTERS[name].shares_votes


def is_mixture(name: str | Callable) -> bool:
  """Whether poses are means of votes, of any length.

  Args:
    name: of a routing, or a function, for which this is False.
  """
  return name in NAMES and ROUTERS[name].is_mixture


def takes_probabilities(name: str | Callable) -> bool:
  """Whether activations must be in [0, 1], also if they are lengths.

  Args:
    name: of a routing, or a function, for which this is False.
  """
  return name in NAMES and ROUTERS[name].takes_probabilities


def router(
  name: str | Callable,
  *,
  num_iterations: int | None = None,
  leaky: bool = False,
  gradient: str = "all",
  num_parts: int,
  part_size: int,
  num_objects: int,
  pose_size: int,
  rngs: nnx.Rngs,
) -> Callable[..., routing.RoutingOutput]:
  """Makes a routing for a layer of the given sizes.

  Args:
    name: one of `NAMES`, or a function with the signature of the kernels; see
      `custom_routing.FromFunction`.
    num_iterations: at least 1; by default the number in the paper. For routings
      by name.
    leaky: adds an orphan parent; for dynamic routing by name only.
    gradient: "all" for gradients through all iterations, "last" for those
      through the last one alone, as the kernels say; for routings by name that
      iterate.
    num_parts: I, capsules below.
    part_size: C, the numbers of their poses.
    num_objects: J, capsules above.
    pose_size: D, the numbers of their poses.
    rngs: its `params` stream initialises the parameters.

  Returns:
    A function as the module's docstring says.

  Raises:
    TypeError: if a function needs arguments that no layer gives.
    ValueError: if the name or the gradient is unknown, `num_iterations` is
      below 1, or the routing has no iterations or no orphan parent but one is
      requested.
  """
  if callable(name):
    if leaky or num_iterations is not None or gradient != "all":
      raise ValueError(
        "num_iterations, leaky and the gradient are of routings by name; bind "
        "them to the function by functools.partial."
      )
    return custom_routing.FromFunction(name)
  if name not in tuple(ROUTERS):
    near = checks.did_you_mean(name, ROUTERS)
    raise ValueError(f"routing {name!r} is unknown; {near}give one of {NAMES}.")
  linear_votes.require_iterations(1, gradient=gradient)
  row = ROUTERS[name]
  if leaky and "leaky" not in row.options:
    raise ValueError(f"{name} routing has no leaky form; only dynamic has.")
  if "num_iterations" not in row.options and num_iterations not in (None, 1):
    raise ValueError(
      f"{name} routing takes one pass, not num_iterations of {num_iterations};"
      " give None or 1."
    )
  if gradient == "last" and "gradient" not in row.options:
    raise ValueError(
      f"{name} routing has no gradient through earlier iterations; give 'all'."
    )
  given = {
    "num_iterations": num_iterations,
    "gradient": None if gradient == "all" else gradient,
    "leaky": leaky or None,
  }
  options = {
    option: value
    for option, value in given.items()
    if option in row.options and value is not None
  }
  sizes = Sizes(num_parts, part_size, num_objects, pose_size)
  return row.make(sizes, rngs, **options)
