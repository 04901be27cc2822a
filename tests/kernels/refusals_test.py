"""Settings and arguments of kernels that would give a wrong result silently."""

import functools
import inspect
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels import checks, energy, geometry, numerics, rendering, routing
from kernels.energy import families
from kernels.matching import (
  constellations,
  ransac,
  selection,
  similarities,
  vote_mixture,
)
from kernels.rendering import compositing
from kernels.routing import em

_VOTES = jax.random.normal(jax.random.key(0), (3, 2, 5))


pytestmark = pytest.mark.usefixtures("as_a_user")


@pytest.mark.parametrize(
  ("widths", "kind", "words"),
  [
    (8, TypeError, r"widths is 8; give a sequence of whole numbers"),
    ("512", TypeError, r"widths is '512'; give a sequence"),
    ((8, 0), ValueError, r"widths is 0; give at least 1"),
    ((8, 2.0), TypeError, r"widths is 2.0; give a whole number"),
  ],
)
def test_a_sequence_holds_whole_numbers(widths, kind, words):
  checks.sequences(widths=())
  checks.sequences(widths=np.array([3, 2]))
  with pytest.raises(kind, match=words):
    checks.sequences(widths=widths)


@pytest.mark.parametrize(
  ("scale", "kind", "words"),
  [
    (0.0, ValueError, "scale is 0.0; give a finite number above 0"),
    (-1, ValueError, "scale is -1; give"),
    (float("nan"), ValueError, "scale is nan; give"),
    (float("inf"), ValueError, "scale is inf; give"),
    ("0.1", TypeError, "scale is '0.1'; give a number"),
    (True, TypeError, "scale is True; give a number"),
    (None, TypeError, "scale is None; give a number"),
    ((1.0, 2.0), TypeError, "give a number"),
  ],
)
def test_a_scale_is_a_number_above_0(scale, kind, words):
  for fine in (1, 0.5, np.float32(2), jnp.bfloat16(3), jnp.ones(())):
    checks.positive(scale=fine)
  jax.jit(lambda scale: checks.positive(scale=scale))(-1.0)  # not known
  with pytest.raises(kind, match=words):
    checks.positive(scale=scale)


@pytest.mark.parametrize("dtype", ["bloat16", jnp.int32, jnp.float16])
def test_products_are_of_two_dtypes(dtype):
  checks.dtype("bfloat16")
  checks.dtype(jnp.float32)
  with pytest.raises(ValueError, match="give 'float32' or 'bfloat16'"):
    checks.dtype(dtype)


def test_an_option_has_a_known_value():
  checks.choice(("a", "b"), name="b")
  for value in ("c", ["a"], None):
    with pytest.raises(ValueError, match="give a or b"):
      checks.choice(("a", "b"), name=value)


def _parameters(visible, hidden, size=4, num_capsules=3, num_hidden=2):
  """Those of a capsule RBM whose units have some families."""
  keys = jax.random.split(jax.random.key(0), 3)

  def natural(family, key, shape):
    linear = jax.random.normal(key, shape)
    if family is families.GAUSSIAN:
      return jnp.stack([linear, jnp.full(shape, -0.5)])
    return linear[None]

  return energy.Parameters(
    natural(visible, keys[0], (size,)),
    energy.Bias(
      natural(hidden, keys[1], (num_capsules, num_hidden)),
      jnp.zeros(num_capsules),
    ),
    jax.random.normal(keys[2], (size, num_capsules, num_hidden)),
    None,
  )


_BOTH = families.BERNOULLI, families.GAUSSIAN


@pytest.mark.parametrize("own", [(a, b) for a in _BOTH for b in _BOTH])
@pytest.mark.parametrize("given", [(a, b) for a in _BOTH for b in _BOTH])
def test_energies_are_of_the_families_of_the_parameters(own, given):
  parameters = _parameters(*own)
  x = jnp.full(4, 0.5)
  bias = parameters.bias
  drive = energy.drive_from_below(x, parameters)
  switches = jnp.ones(3)
  capsules = energy.state(jnp.ones((3, 2)), switches, hidden=own[1])
  key = jax.random.key(0)
  hidden = {"hidden": given[1]}
  of_hidden = [
    lambda: energy.switch_log_odds(bias, drive, **hidden),
    lambda: energy.log_partition(bias, drive, **hidden),
    lambda: energy.log_partition(bias._replace(switches=None), drive, **hidden),
    lambda: energy.posterior(bias, drive, **hidden),
    lambda: energy.posterior(bias._replace(switches=None), drive, **hidden),
    lambda: energy.mean_field(
      switches, bias, drive, num_iterations=1, **hidden
    ),
    lambda: energy.sample(key, bias, drive, **hidden),
    lambda: energy.sample_hidden(key, switches, bias, drive, **hidden),
    lambda: energy.gibbs(key, capsules, bias, drive, **hidden),
    lambda: energy.capsule_energy(capsules, bias, drive, **hidden),
  ]
  of_both = [
    lambda: energy.energy(x, capsules, parameters, families=given),
    lambda: energy.free_energy(x, parameters, families=given),
  ]
  for calls, fits in ((of_hidden, own[1] == given[1]), (of_both, own == given)):
    for call in calls:
      if fits:
        call()
      else:
        with pytest.raises(ValueError, match="parameters for each unit"):
          call()


def test_states_of_capsules_are_not_broadcast():
  parameters = _parameters(*(families.BERNOULLI,) * 2)
  drive = energy.drive_from_below(jnp.ones(4), parameters)
  with pytest.raises(
    ValueError, match=r"hidden is \[1 1\]; give \[K J\] = \[3 2\]"
  ):
    energy.switch_logits(jnp.ones((1, 1)), parameters.bias, drive)
  state = energy.state(jnp.ones((3, 2)), jnp.ones(3))
  for name in ("statistics", "active"):
    one = jnp.ones((1,) * getattr(state, name).ndim)
    with pytest.raises(ValueError, match=f"{name} is"):
      energy.capsule_energy(
        state._replace(**{name: one}), parameters.bias, drive
      )


def test_states_of_capsules_are_no_integers():
  parameters = _parameters(*(families.BERNOULLI,) * 2)
  drive = energy.drive_from_below(jnp.ones(4), parameters)
  with pytest.raises(TypeError, match="hidden holds int32"):
    energy.switch_logits(jnp.ones((3, 2), int), parameters.bias, drive)
  with pytest.raises(TypeError, match="hidden is a NoneType"):
    energy.switch_logits(None, parameters.bias, drive)
  with pytest.raises(TypeError, match="switches holds int32"):
    energy.mean_field(
      jnp.ones(3, int), parameters.bias, drive, num_iterations=1
    )
  state = energy.state(jnp.ones((3, 2)), jnp.ones(3))
  for name, values in state._asdict().items():
    integers = state._replace(**{name: values.astype(int)})
    with pytest.raises(TypeError, match=f"{name} holds int32"):
      energy.capsule_energy(integers, parameters.bias, drive)
    with pytest.raises(TypeError, match=f"{name} is a NoneType"):
      energy.capsule_energy(
        state._replace(**{name: None}), parameters.bias, drive
      )


@pytest.mark.parametrize(
  ("patterns", "words"),
  [
    ([], "patterns is empty"),
    ([np.eye(4, 3)], r"pattern 0 is \[4 3\]; give \[4 2\]"),
    ([np.eye(2), np.ones(2)], r"pattern 1 is \[2\]; give \[2 2\]"),
  ],
)
def test_patterns_are_points_of_a_plane(patterns, words):
  with pytest.raises(ValueError, match=words):
    similarities.templates(patterns)


def _points():
  template = similarities.templates([np.eye(2), 3 * np.eye(2)[::-1]])
  return template, jnp.asarray(np.eye(4, 2), jnp.float32), jnp.ones(4)


@pytest.mark.parametrize("name", ["first_precision", "last_precision"])
@pytest.mark.parametrize("value", [0.0, -1.0])
def test_precisions_are_above_0(name, value):
  template, points, presence = _points()
  with pytest.raises(ValueError, match=f"{name} is {value}; give"):
    constellations.infer(
      jax.random.key(0), points, presence, template, **{name: value}
    )


def test_a_precision_may_be_a_number():
  template, points, presence = _points()
  start = jnp.zeros((4, 4))

  def elbo(precision):
    update = constellations.update
    return update(start, points, presence, template, precision).elbo

  np.testing.assert_allclose(elbo(500.0), elbo(jnp.float32(500)))
  with pytest.raises(ValueError, match="precision is -1.0; give"):
    elbo(-1.0)


def test_templates_hold_points_of_a_plane():
  template, points, presence = _points()
  solid = template._replace(points=jnp.ones((4, 3)))
  fewer = template._replace(members=template.members[:, 1:])
  infer = functools.partial(constellations.infer, jax.random.key(0))
  for match in (infer, ransac.match):
    with pytest.raises(ValueError, match=r"template.points is \[4 3\]"):
      match(points, presence, solid)
    with pytest.raises(ValueError, match="template.members"):
      match(points, presence, fewer)


@pytest.mark.parametrize("tolerance", [0.0, float("nan"), "0.1"])
def test_a_tolerance_is_above_0(tolerance):
  template, points, presence = _points()
  with pytest.raises((TypeError, ValueError), match="tolerance is"):
    ransac.match(points, presence, template, tolerance=tolerance)


@pytest.mark.parametrize(
  ("call", "words"),
  [
    (
      lambda: routing.slot_frames(
        jnp.ones((3, 2)), jnp.ones((3, 2)), smallest=0.0
      ),
      "smallest is 0.0",
    ),
    (
      lambda: routing.sinkhorn_routing(
        jnp.ones((3, 2, 4)), temperature=float("nan")
      ),
      "temperature is nan",
    ),
    (
      lambda: inspect.unwrap(geometry.pose_matrix)(jnp.ones(6), ["affine"]),
      "kind is",
    ),
    (
      lambda: vote_mixture.explain_parts(
        *(jnp.ones(x) for x in ((2, 6), (2,), (3, 2, 6), (3, 2), (3, 2))),
        normalise="some",
      ),
      "normalise is 'some'; give none or votes or all",
    ),
  ],
)
def test_options_out_of_range_are_refused(call, words):
  with pytest.raises(ValueError, match=words):
    call()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("share", [0.2, 0.3, 0.9])
def test_layers_are_normalised_up_to_the_largest_number(dtype, share):
  largest = share * float(jnp.finfo(dtype).max)
  x = jnp.array([largest, largest, 0.0], dtype)
  want = np.array([1, 1, -2]) / np.sqrt(2)
  got = numerics.layer_norm(x).astype(jnp.float32)
  np.testing.assert_allclose(got, want, rtol=1e-2)
  gradient = jax.grad(lambda x: jnp.sum(jnp.square(numerics.layer_norm(x))))(x)
  assert np.isfinite(gradient.astype(jnp.float32)).all()


@pytest.mark.parametrize("canvas", [4, (4,), (4, 4, 1)])
def test_a_canvas_has_rows_and_columns(canvas):
  with pytest.raises(ValueError, match="canvas=.*; give the numbers of rows"):
    inspect.unwrap(rendering.warp)(jnp.ones((3, 3, 1)), jnp.eye(3), canvas)


@pytest.mark.parametrize("canvas", [(4.0, 4.0), (True, 4)])
def test_sides_of_a_canvas_are_whole_numbers(canvas):
  for render in (rendering.warp, rendering.transform):
    with pytest.raises(TypeError, match="number of canvas is .*; give a whole"):
      inspect.unwrap(render)(jnp.ones((3, 3, 1)), jnp.eye(3), canvas=canvas)


@pytest.mark.parametrize(
  ("value", "kind", "words"),
  [
    (-1.5, ValueError, "share is -1.5; give a number from -1 to 1"),
    (1.5, ValueError, "share is 1.5; give a number from -1 to 1"),
    (float("nan"), ValueError, "share is nan"),
    ("1", TypeError, "share is '1'; give a number"),
  ],
)
def test_a_setting_is_in_its_range(value, kind, words):
  for fine in (-1, 1, 0.25, np.float32(-1), jnp.zeros(())):
    checks.within(-1.0, 1.0, share=fine)
  jax.jit(lambda share: checks.within(-1.0, 1.0, share=share))(3.0)  # unknown
  with pytest.raises(kind, match=words):
    checks.within(-1.0, 1.0, share=value)


def test_a_range_may_have_no_end():
  checks.within(1.0, math.inf, rate=1e30)
  for wrong in (0.5, math.inf):
    with pytest.raises(ValueError, match="give a finite number, 1 or more"):
      checks.within(1.0, math.inf, rate=wrong)


@pytest.mark.parametrize(
  "route",
  [
    routing.dynamic_routing,
    lambda votes: routing.variational_routing(votes, jnp.ones(3)),
  ],
)
def test_factors_of_votes_are_told_from_votes(route):
  votes = routing.LinearVotes(jnp.ones((3, 4)), jnp.ones((3, 2, 4, 5)))
  with pytest.raises(TypeError, match="votes is a LinearVotes; give an array"):
    route(votes)


def test_pictures_are_not_broadcast():
  front = compositing.Picture(jnp.ones((4, 4, 3)), jnp.ones((4, 4, 1)))
  back = compositing.Picture(jnp.ones((5, 4, 4, 3)), jnp.ones((5, 4, 4, 1)))
  with pytest.raises(ValueError, match="colours behind is .5 4 4 3.; give"):
    compositing.over(front, back)
  wrong = compositing.Picture(jnp.ones((4, 5, 3)), jnp.ones((5, 1)))
  with pytest.raises(ValueError, match=r"alphas is .5 1.; give .4 5 1."):
    compositing.over(wrong, wrong)


@pytest.mark.parametrize(
  ("name", "value"),
  [("mass_floor", 0.0), ("variance_floor", -1.0), ("cost_scale", 0.0),
   ("damping", 1.0)],
)  # fmt: skip
def test_forms_of_em_routing_are_in_range(name, value):
  arrays = _VOTES, jnp.ones(3), jnp.ones(2), jnp.ones(2)
  form = em.PAPER._replace(**{name: value})
  with pytest.raises(ValueError, match=f"{name} is {value}; give"):
    em.em_routing(*arrays, inverse_temperatures=(1.0,), form=form)


def test_a_scale_of_a_gaussian_may_be_a_whole_number():
  x, mean = jnp.array([1.0, 2.0]), jnp.zeros(2)
  want = selection.gaussian(x, mean, 2.0)
  np.testing.assert_array_equal(selection.gaussian(x, mean, 2), want)
