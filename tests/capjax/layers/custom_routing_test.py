"""Routings of one's own: what they are given, and what they must return."""

import functools
import json

import cases
import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import capjax
from capjax import layers, specs
from capjax.layers import custom_routing
from kernels import numerics, routing

_I, _C, _J, _D = 6, 3, 4, 5


def _poses(seed=0):
  poses = jax.random.normal(jax.random.key(seed), (2, _I, _C))
  return numerics.squash(poses)


def _layer(function, **options):
  return layers.DenseCaps(
    _I, _C, _J, _D, routing=function, **options, rngs=nnx.Rngs(0)
  )


@jax.jit
def _call(layer, *arguments):
  return layer(*arguments)


def mean_of_votes(votes):
  """The simplest routing: even shares."""
  coefficients = jnp.full(votes.shape[:2], 1 / votes.shape[1])
  poses = numerics.squash(jnp.mean(votes, axis=0))
  return routing.RoutingOutput(poses, numerics.safe_norm(poses), coefficients)


class Gated(nnx.Module):
  """With a parameter to learn; activations by keyword."""

  def __init__(self):
    self.gain = nnx.Param(jnp.ones(_J))

  def __call__(self, votes, *, activations):
    output = mean_of_votes(activations[:, None, None] * votes)
    return output._replace(
      activations=jax.nn.sigmoid(self.gain[...] * output.activations)
    )


KERNELS = {
  "dynamic_routing": routing.dynamic_routing,
  "with options bound": functools.partial(
    routing.dynamic_routing, num_iterations=2, leaky=True
  ),
  "transform_and_route": routing.transform_and_route,
  "self_attention_routing": routing.self_attention_routing,
  "inverted_attention_routing": functools.partial(
    routing.inverted_attention_routing, readout=jnp.ones(_D)
  ),
  "variational_routing": routing.variational_routing,
  "self_routing": functools.partial(
    routing.self_routing, logits=jnp.zeros((_I, _J))
  ),
  "em_routing": functools.partial(
    routing.em_routing,
    beta_a=jnp.ones(_J),
    beta_u=jnp.ones(_J),
    inverse_temperatures=(0.1, 0.2),
  ),
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.long_after_first
def test_every_kernel_is_a_routing(name):
  """Each is given of activations and bias what it asks for."""
  kernel = KERNELS[name]
  layer, poses = _layer(kernel), _poses()
  activations = jnp.linspace(0.1, 1, 2 * _I).reshape(2, _I)
  got = _call(layer, poses, activations)
  named = name.split()[0]
  has_bias = named in (
    "dynamic_routing", "with", "transform_and_route", "self_attention_routing",
  )  # fmt: skip
  assert (layer.bias is not None) == has_bias
  for b in range(2):
    votes = jnp.einsum("ic,ijcd->ijd", poses[b], layer.transforms[...])
    options = {"bias": layer.bias[...]} if has_bias else {}
    if named in ("variational_routing", "self_routing", "em_routing"):
      options["activations"] = activations[b]
    if named == "transform_and_route":
      want = routing.dynamic_routing(votes, **options)
    else:
      want = kernel(votes, **options)
    for field in routing.RoutingOutput._fields:
      np.testing.assert_allclose(
        getattr(got, field)[b], getattr(want, field), atol=1e-5, err_msg=field
      )


def test_activations_are_lengths_where_none_are_given():
  layer, poses = _layer(routing.variational_routing), _poses()
  lengths = jnp.linalg.norm(poses, axis=-1)
  chex.assert_trees_all_close(
    _call(layer, poses), _call(layer, poses, lengths), atol=1e-6
  )


def test_a_function_may_read_poses_and_transforms():
  seen = {}

  def own(votes, poses, transforms, bias=None):
    seen.update(poses=poses.shape, transforms=transforms.shape, bias=bias.shape)
    return mean_of_votes(votes)

  _call(_layer(own), _poses())
  assert seen == {"poses": (6, 3), "transforms": (6, 4, 3, 5), "bias": (4, 5)}


def test_a_module_learns():
  layer, poses = _layer(Gated()), _poses()

  @jax.jit
  @jax.grad
  def gradient(layer):
    return jnp.sum(jnp.square(layer(poses).activations))

  found = gradient(layer)
  assert np.all(np.isfinite(found.route.function.gain[...]))
  assert np.any(found.route.function.gain[...])
  assert np.any(found.transforms[...])


def test_models_of_one_function_share_what_is_compiled():
  count = []

  @jax.jit
  def run(layer, poses):
    count.append(1)
    return layer(poses)

  for _ in range(2):
    run(_layer(mean_of_votes), _poses())
  assert len(count) == 1


@pytest.mark.parametrize(
  ("function", "words"),
  [
    (routing.self_routing, "self_routing needs logits, which layers do not"),
    (functools.partial(routing.em_routing, beta_a=jnp.ones(_J)),
     "em_routing needs beta_u, inverse_temperatures, which"),
    (lambda: None, "takes no votes; give a function of votes [I J D]"),
    (lambda *, bias: None, "takes no votes"),
  ],
)  # fmt: skip
def test_functions_of_other_arguments_are_refused(function, words):
  with pytest.raises(TypeError) as error:
    _layer(function)
  assert words in str(error.value)


def _without_activations(votes):
  return mean_of_votes(votes)[0]


def _transposed(votes):
  output = mean_of_votes(votes)
  return output._replace(coefficients=output.coefficients.T)


@pytest.mark.parametrize(
  ("function", "words"),
  [
    (lambda votes: None, ["<lambda> returned a NoneType", "none of the"]),
    (_without_activations, ["_without_activations returned an array"]),
    (_transposed, ["a RoutingOutput", "coefficients [4 6]; give"]),
    (lambda votes: tuple(mean_of_votes(votes)), ["returned a tuple"]),
  ],
)  # fmt: skip
def test_other_results_are_refused_in_a_sentence(function, words):
  with pytest.raises(TypeError) as error:
    _layer(function)(_poses())
  text = str(error.value)
  assert all(word in text for word in words), text
  assert text.endswith(
    "give a RoutingOutput with poses [4 5], activations [4], coefficients "
    "[6 4]."
  )


@pytest.mark.parametrize("options", [{"num_iterations": 2}, {"leaky": True}])
def test_options_are_bound_to_functions(options):
  with pytest.raises(ValueError, match=r"by name; bind .* functools\.partial"):
    _layer(mean_of_votes, **options)


def test_capsnet_takes_a_function():
  """And gives what it gives by name, with the same parameters."""
  images, _ = cases.batch()
  named = cases.capsnet()
  own = cases.capsnet(routing=routing.dynamic_routing)
  chex.assert_trees_all_close(
    _call(own, images), _call(named, images), atol=1e-5
  )
  assert cases.num_parameters(own) == cases.num_parameters(named)
  output = _call(cases.capsnet(routing=mean_of_votes), images)
  np.testing.assert_allclose(output.coefficients, 1 / 3, rtol=1e-6)


def test_signatures_that_cannot_be_read_take_votes():
  route = custom_routing.FromFunction(np.add.reduce.__call__)
  assert route.takes_votes and not route.takes_bias


def test_a_function_has_no_json():
  spec = specs.Spec(capjax.CapsNet, {"routing": mean_of_votes})
  with pytest.raises(TypeError) as error:
    spec.as_json()
  assert "routing of capjax.capsnet.CapsNet is <function mean" in str(
    error.value
  )
  assert "JSON cannot hold; give a name instead, or" in str(error.value)
  named = specs.Spec(capjax.CapsNet, {"routing": "self"})
  assert json.dumps(named.as_json())


class Normalised(nnx.Module):
  def __init__(self, *, rngs):
    self.norm = nnx.BatchNorm(5, rngs=rngs)

  def __call__(self, votes):
    return routing.uniform_routing(self.norm(votes))


def test_modules_with_other_state_than_parameters_are_refused():
  with pytest.raises(TypeError, match="Normalised.* has statistics or random"):
    custom_routing.FromFunction(Normalised(rngs=nnx.Rngs(0)))


class Scaled(nnx.Module):
  def __init__(self):
    self.scale = nnx.Param(jnp.ones(()))

  def __call__(self, votes, gain=1.0):
    return routing.uniform_routing(gain * self.scale * votes)

  def route(self, votes):
    return self(votes)


def _in_closure(module):
  return lambda votes: module(votes)


def _twice(routing):
  return functools.partial(functools.partial(routing, gain=2.0), gain=3.0)


@pytest.mark.parametrize(
  "wrap",
  [
    lambda module: functools.partial(module, gain=2.0),
    _twice,
    lambda module: module.route,
    _in_closure,
    lambda module: jax.jit(_in_closure(module)),
    lambda module: functools.partial(_in_closure(module)),
  ],
  ids=["partial", "partials", "method", "closure", "jit", "both"],
)
def test_modules_that_flax_would_not_find_are_refused(wrap):
  """Else their parameters would keep their initial values."""
  with pytest.raises(TypeError, match="a Scaled inside.* give the module its"):
    custom_routing.FromFunction(wrap(Scaled()))


def test_a_class_is_refused_before_it_is_called():
  class Learnt(nnx.Module):
    def __call__(self, votes):
      return votes

  with pytest.raises(TypeError, match="routing is the class Learnt; give one"):
    custom_routing.FromFunction(Learnt)


def test_functions_that_refer_to_themselves_are_taken():
  def routed(votes, depth=2):
    return routed(votes, depth - 1) if depth else routing.uniform_routing(votes)

  assert custom_routing.FromFunction(routed).takes_votes


def test_parameters_of_modules_are_found():
  layer = custom_routing.FromFunction(Scaled())
  assert len(jax.tree.leaves(nnx.state(layer, nnx.Param))) == 1


def test_functions_of_names_without_a_value_yet_are_taken():
  def routed(votes):
    return later(votes)

  route = custom_routing.FromFunction(routed)
  later = routing.uniform_routing
  assert route.takes_votes and later


def test_modules_without_parameters_may_be_inside():
  dropout = nnx.Dropout(0.5, deterministic=True, rngs=nnx.Rngs(0))
  route = custom_routing.FromFunction(
    lambda votes: routing.uniform_routing(dropout(votes))
  )
  assert route.takes_votes
