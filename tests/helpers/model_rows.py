"""Likelihoods, energies and pictures, as rows of `kernel_cases`."""

import functools

import jax
import jax.numpy as jnp
from kernel_arguments import Case

from kernels import energy, rendering
from kernels.energy import annealing, families
from kernels.matching import selection, sparsity, vote_mixture
from kernels.rendering import compositing


def _key():
  return jax.random.key(3)


def _anneal(state, scale, backwards=False):
  """Anneals a Gaussian whose precision changes, without noise."""
  return annealing.anneal(
    _key(),
    state,
    jnp.linspace(0, 1, 3, dtype=state.dtype),
    log_density=lambda x, t: -t * jnp.sum(jnp.square(x / scale)) / 2,
    transition=lambda key, x, t: x * (1 - t / 2),
    backwards=backwards,
  )


def _layer(function):
  """A function of arrays, from one of the bias and the drive of a layer."""

  def of_arrays(hidden, switches, driven, driven_switches):
    return function(
      energy.Bias(hidden[None], switches),
      energy.Drive(driven, driven_switches),
    )

  return of_arrays


def _machine(function):
  """A function of arrays, from one of visible units and `Parameters`."""

  def of_arrays(x, a, hidden, switches, weights, interaction):
    bias = energy.Bias(hidden[None], switches)
    parameters = energy.Parameters(a[None], bias, weights, interaction)
    return function(x, parameters)

  return of_arrays


def _visible_parameters(h, z, **machine):
  capsules = energy.state(h, z)
  return _machine(lambda _, p: energy.visible_parameters(capsules, p))(
    **machine
  )


def _energy(h, z, **machine):
  capsules = energy.state(h, z)
  return _machine(lambda x, p: energy.energy(x, capsules, p))(**machine)


def _with_state(function):
  """A function of arrays, from one of a state, a bias and a drive."""

  def of_arrays(h, z, **layer):
    return _layer(lambda *layer: function(energy.state(h, z), *layer))(**layer)

  return of_arrays


def _gaussian(function):
  """A function of two arrays, from one of natural parameters [2 M]."""
  return lambda linear, precision: function(jnp.stack([linear, -precision]))


def _select(t, a, parents_t, parents_a, **relations):
  return selection.select(
    selection.Capsules(t, a),
    selection.Capsules(parents_t, parents_a),
    selection.Relations(**relations),
    temperature=0.7,
    off_scale=2.0,
    dummy_scale=1.0,
  )


def _picture(function):
  return lambda colours, alphas: function(compositing.Picture(colours, alphas))


def _over(front, front_alphas, back, back_alphas):
  return compositing.over(
    compositing.Picture(front, front_alphas),
    compositing.Picture(back, back_alphas),
  )


_LAYER = {
  "hidden": "K L", "switches": "K", "driven": "K L", "driven_switches": "K",
}  # fmt: skip
_STATE = {"h": "K L flag", "z": "K flag"}
_MACHINE = {
  "x": "M flag", "a": "M", "hidden": "K L", "switches": "K",
  "weights": "M K L", "interaction": "M K",
}  # fmt: skip
_PICTURES = {"colours": "I H W B", "alphas": "I H W 1 unit"}
_PARTS = {
  "parts": "I D", "presence": "I unit", "votes": "K I D",
  "scales": "K I positive", "log_weights": "K I",
}  # fmt: skip
_NATURAL = {"linear": "M", "precision": "M positive"}

CASES = {
  "annealing.anneal": Case(_anneal, {"state": "I", "scale": "I positive"}),
  "annealing.anneal backwards": Case(
    functools.partial(_anneal, backwards=True),
    {"state": "I", "scale": "I positive"},
  ),
  "compositing.over": Case(
    _over,
    {
      "front": "H W B",
      "front_alphas": "H W 1 unit",
      "back": "H W B",
      "back_alphas": "H W 1 unit",
    },
    children="H",
    largest=1e30,
  ),
  "compositing.composite_over": Case(
    _picture(compositing.composite_over), _PICTURES, largest=1e30
  ),
  "compositing.contributions": Case(
    _picture(compositing.contributions), _PICTURES, largest=1e30
  ),
  "capsules.no_drive": Case(
    lambda hidden: energy.no_drive(energy.Bias(hidden[None], None)),
    {"hidden": "K L"},
    children="K",
  ),
  "capsules.drive_from_below": Case(
    _machine(energy.drive_from_below), _MACHINE, "K"
  ),
  "capsules.visible_parameters": Case(
    _visible_parameters, _STATE | _MACHINE, "K"
  ),
  "capsules.drive_between": Case(
    lambda h, z, w, omega: energy.drive_between(energy.state(h, z), w, omega),
    {"h": "L M flag", "z": "L flag", "w": "K I L M", "omega": "K L"},
  ),
  "capsules.hidden_parameters": Case(
    _with_state(lambda s, *layer: energy.hidden_parameters(s.switches, *layer)),
    _STATE | _LAYER,
    "K",
  ),
  "capsules.switch_logits": Case(
    _with_state(lambda s, *layer: energy.switch_logits(s.active, *layer)),
    _STATE | _LAYER,
    "K",
  ),
  "capsules.switch_log_odds": Case(_layer(energy.switch_log_odds), _LAYER, "K"),
  "capsules.log_partition": Case(_layer(energy.log_partition), _LAYER, "K"),
  "capsules.posterior": Case(_layer(energy.posterior), _LAYER, "K"),
  "capsules.mean_field": Case(
    _with_state(
      lambda s, *layer: energy.mean_field(s.switches, *layer, num_iterations=2)
    ),
    _STATE | _LAYER,
    "K",
  ),
  "capsules.sample": Case(
    _layer(lambda *layer: energy.sample(_key(), *layer)),
    _LAYER,
    "K",
    smooth=False,
    random=True,
  ),
  "capsules.sample_hidden": Case(
    _with_state(lambda s, *x: energy.sample_hidden(_key(), s.switches, *x)),
    _STATE | _LAYER,
    "K",
    smooth=False,
    random=True,
  ),
  "capsules.gibbs": Case(
    _with_state(lambda s, *x: energy.gibbs(_key(), s, *x)),
    _STATE | _LAYER,
    "K",
    smooth=False,
    random=True,
  ),
  "capsules.capsule_energy": Case(
    _with_state(energy.capsule_energy), _STATE | _LAYER, "K"
  ),
  "capsules.energy": Case(_energy, _STATE | _MACHINE, "K"),
  "capsules.free_energy": Case(_machine(energy.free_energy), _MACHINE, "K"),
  "capsules.state": Case(
    energy.state, {"hidden_values": "K L", "switches": "K"}, "K"
  ),
  "families.BERNOULLI.log_partition": Case(
    families.BERNOULLI.log_partition, {"parameters": "1 M"}, "M"
  ),
  "families.BERNOULLI.moments": Case(
    families.BERNOULLI.moments, {"x": "1 M"}, "M"
  ),
  "families.GAUSSIAN.log_partition": Case(
    _gaussian(families.GAUSSIAN.log_partition), _NATURAL, "M", largest=1e17
  ),
  "families.GAUSSIAN.moments": Case(
    _gaussian(families.GAUSSIAN.moments), _NATURAL, "M", largest=1e17
  ),
  "families.GAUSSIAN.sample": Case(
    _gaussian(lambda x: families.GAUSSIAN.sample(_key(), x)),
    _NATURAL,
    "M",
    random=True,
  ),
  "vote_mixture.explain_parts": Case(
    vote_mixture.explain_parts, _PARTS, largest=1e30
  ),
  "vote_mixture.explain_parts of a constellation": Case(
    functools.partial(vote_mixture.explain_parts, normalise="votes"),
    _PARTS,
    largest=1e30,
  ),
  "vote_mixture.explain_parts of the paper": Case(
    functools.partial(vote_mixture.explain_parts, normalise="all"),
    _PARTS,
    largest=1e30,
  ),
  "warping.warp": Case(
    functools.partial(rendering.warp, canvas=(4, 3)),
    {"template": "U V B", "pose": "3 3"},
    children="U",
    largest=1e12,
  ),
  "warping.warp products": Case(
    functools.partial(
      rendering.warp, canvas=(4, 3), template_gradient="products"
    ),
    {"template": "U V B", "pose": "3 3"},
    children="U",
    largest=1e12,
  ),
  "warping.transform": Case(
    rendering.transform,
    {"image": "H W B", "pose": "3 3"},
    children="H",
    largest=1e12,
  ),
  "mixture.explain_image": Case(
    rendering.explain_image,
    {
      "image": "H W B",
      "parts": "I H W B",
      "logits": "I H W 1",
      "presence": "I unit",
      "background": "B",
      "background_logit": "1",
    },
    largest=1e17,
  ),
  "selection.identity_plus": Case(selection.identity_plus, {"poses": "I 6"}),
  "selection.expected_poses": Case(
    selection.expected_poses,
    {"parents": "J 6", "offsets": "I J 6"},
    largest=1e17,
  ),
  "selection.selection_logits": Case(
    selection.selection_logits, {"parents": "2", "log_affinities": "I 3"}
  ),
  "selection.pose_scales": Case(
    functools.partial(selection.pose_scales, off_scale=2.0),
    {"logits": "I", "scales": "I positive"},
  ),
  "selection.binary_concrete": Case(
    functools.partial(selection.binary_concrete, temperature=0.7),
    {"logits": "I", "log_odds": "I"},
  ),
  "selection.gaussian": Case(
    selection.gaussian,
    {"values": "I D", "means": "I D", "scales": "I D positive"},
    largest=1e17,
  ),
  "selection.select": Case(
    _select,
    {
      "t": "I",
      "a": "I 6",
      "parents_t": "2",
      "parents_a": "2 6",
      "log_affinities": "I 3",
      "presence_logits": "I 3",
      "offsets": "I 2 6",
      "scales": "I 2 positive",
    },
    largest=1e17,
  ),
  "sparsity.prior_within": Case(
    functools.partial(sparsity.prior_within, num_classes=2),
    {"presence": "I J unit"},
  ),
  "sparsity.prior_between": Case(
    functools.partial(sparsity.prior_between, num_classes=2),
    {"presence": "I J unit"},
  ),
  "sparsity.posterior_within": Case(
    sparsity.posterior_within, {"mass": "I J unit"}
  ),
  "sparsity.posterior_between": Case(
    sparsity.posterior_between, {"mass": "I J unit"}
  ),
}
