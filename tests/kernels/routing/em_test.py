"""EM routing of stored votes against the equations, and at its limits."""

import functools
import inspect
import math

import cases
import chex
import em_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import widths
from absl.testing import absltest, parameterized
from jax.test_util import check_grads

from kernels.routing import em

_SEEDS = (0, 1)
_SHAPE = cases.VOTES_SHAPE


def _arguments(seed=0, shape=_SHAPE, form="paper", dtype=jnp.float32):
  random = np.random.default_rng(seed)
  votes = jnp.array(random.normal(size=shape), dtype)
  activations = jnp.array(random.uniform(0.1, 1.0, shape[0]), dtype)
  return votes, activations, *em_cases.betas(seed, shape[1], form, dtype)


def _compiled(route):
  return jax.jit(
    lambda *arguments, form="paper": route(
      *arguments,
      inverse_temperatures=em_cases.TEMPERATURES,
      form=em_cases.FORMS[form],
    ),
    static_argnames="form",
  )


_route = _compiled(em.em_routing)


def _textbook(
  votes, activations, beta_a, beta_u, *, inverse_temperatures, form, fault=""
):
  """The paper's form in jnp, and ways to get it wrong."""
  del form
  r = jnp.full(votes.shape[:2], 1 / votes.shape[1])
  floor = 0.0 if fault == "no_floor" else 5e-4
  for iteration, inverse_temperature in enumerate(inverse_temperatures):
    if iteration:
      spread = jnp.square(votes - mean) / variance  # noqa: F821
      log_volume = jnp.sum(jnp.log(variance), 1) / 2  # noqa: F821
      if fault == "variance_as_std":
        log_volume *= 2
      log_p = -log_volume - jnp.sum(spread, 2) / 2
      if fault == "no_half":
        log_p = -log_volume - jnp.sum(spread, 2)
      if fault != "prior_forgotten":
        log_p += jax.nn.log_sigmoid(logit)  # noqa: F821
      known = jax.lax.stop_gradient(log_p) if fault == "detached" else log_p
      r = jax.nn.softmax(known, 0 if fault == "over_children" else 1)
      if fault == "not_in_logs":
        r = jnp.exp(log_p) / jnp.sum(jnp.exp(log_p), 1, keepdims=True)
    w = r * (1.0 if fault == "unweighted" else activations[:, None])
    mass = jnp.sum(w, axis=0)[:, None] + (0.0 if fault == "no_floor" else 1e-7)
    mean = jnp.sum(w[..., None] * votes, axis=0) / mass
    squares = jnp.square(votes - (0.0 if fault == "about_zero" else mean))
    variance = floor + jnp.sum(w[..., None] * squares, axis=0) / mass
    log_sigma = jnp.log(variance) * (1.0 if fault == "sigma_factor" else 0.5)
    if fault == "standard_deviation":
      log_sigma = jnp.log(jnp.sqrt(variance - floor))
    cost = jnp.sum(beta_u[:, None] + log_sigma, axis=1)
    if fault != "cost_without_mass":
      cost *= mass[:, 0]
    logit = inverse_temperature * (beta_a - cost)
    if fault == "constant_temperature":
      logit = inverse_temperatures[0] * (beta_a - cost)
    if fault == "position":
      votes += jnp.arange(len(votes))[:, None, None] / 10
  return em.EMOutput(mean, jax.nn.sigmoid(logit), r, variance)


def check_matches_oracle(route, seed=0, form="paper"):
  arguments = _arguments(seed, form=form)
  want = em_cases.dense_oracle(*arguments, em_cases.TEMPERATURES, form)
  em_cases.assert_close(route(*arguments, form=form), want)


def check_shares(route, seed=0, form="paper"):
  votes, *rest = _arguments(seed, form=form)
  for scale in (0.01, 1.0, 100.0):
    got = route(scale * votes, *rest, form=form).coefficients
    np.testing.assert_array_less(-1e-30, got)
    np.testing.assert_allclose(np.sum(got, axis=1), 1, atol=1e-5)


def check_children_permute(route, seed=0, form="paper"):
  order = np.random.default_rng(seed).permutation(_SHAPE[0])
  votes, activations, *betas = _arguments(seed, form=form)
  want = route(votes, activations, *betas, form=form)
  want = want._replace(coefficients=want.coefficients[order])
  got = route(votes[order], activations[order], *betas, form=form)
  em_cases.assert_close(got, want)


def check_parents_permute(route, seed=0, form="paper"):
  order = np.random.default_rng(seed).permutation(_SHAPE[1])
  votes, activations, *betas = _arguments(seed, form=form)
  want = route(votes, activations, *betas, form=form)
  want = em.EMOutput(
    want.poses[order],
    want.activations[order],
    want.coefficients[:, order],
    want.variances[order],
  )
  betas = [beta[order] for beta in betas]
  got = route(votes[:, order], activations, *betas, form=form)
  em_cases.assert_close(got, want)


def check_offset_moves_poses_alone(route, seed=0, form="paper"):
  votes, *rest = _arguments(seed, form=form)
  offset = 3 * cases.votes(seed + 1, _SHAPE[2:])
  want = route(votes, *rest, form=form)
  want = want._replace(poses=want.poses + offset)
  got = route(votes + offset, *rest, form=form)
  em_cases.assert_close(got, want, atol=1e-4)


def check_agreement_wins(route, seed=0, form="paper"):
  """The votes for the first parent agree, the others are noise."""
  common = cases.votes(seed + 1, _SHAPE[2:])
  votes = cases.votes(seed).at[:, 0].multiply(0.1).at[:, 0].add(common)
  got = route(votes, jnp.ones(7), jnp.zeros(4), jnp.zeros(4), form=form)
  np.testing.assert_array_less(got.activations[1:], got.activations[0] + 1e-6)
  np.testing.assert_array_less(0.5, np.mean(got.coefficients[:, 0]))


@functools.cache
def _energy(route):
  """A number that depends on every output, its gradients, and the outputs."""

  def energy(*arguments, form):
    output = route(*arguments, form=form)
    return sum(jnp.sum(jnp.cos(x)) for x in output), output

  return jax.jit(
    jax.value_and_grad(energy, (0, 1, 2, 3), has_aux=True),
    static_argnames="form",
  )


_LIMITS = {
  "one_child": lambda: (cases.votes(0, (1, 4, 5)), jnp.ones(1)),
  "one_effective_child": lambda: (cases.votes(), jnp.eye(7)[0]),
  "one_parent": lambda: (cases.votes(0, (7, 1, 5)), jnp.ones(7)),
  "zero_votes": lambda: (jnp.zeros(_SHAPE), jnp.ones(7)),
  "identical_votes": lambda: (
    jnp.broadcast_to(cases.votes(0, (5,)), _SHAPE),
    jnp.ones(7),
  ),
  "identical_large_votes": lambda: (jnp.full(_SHAPE, 1e4), jnp.ones(7)),
  "far_votes": lambda: (1e4 * cases.votes(), jnp.ones(7)),
  "nobody_there": lambda: (cases.votes(), jnp.zeros(7)),
  "hardly_there": lambda: (cases.votes(), jnp.full(7, 1e-30)),
}


def check_limit_is_finite(route, limit, form="paper"):
  votes, activations = _LIMITS[limit]()
  for beta in (0.0, 1.0, -30.0):
    betas = jnp.full((2, votes.shape[1]), beta)
    (_, output), gradients = _energy(route)(
      votes, activations, *betas, form=form
    )
    chex.assert_tree_all_finite((output, gradients))
    np.testing.assert_allclose(np.sum(output.coefficients, 1), 1, atol=1e-5)


_CHECKS = (
  check_matches_oracle,
  check_shares,
  check_children_permute,
  check_parents_permute,
  check_agreement_wins,
)


class EMTest(chex.TestCase):
  @parameterized.product(check=_CHECKS, seed=_SEEDS, form=tuple(em_cases.FORMS))
  def test_property(self, check, seed, form):
    check(_route, seed, form)

  @parameterized.parameters(*_SEEDS)
  def test_offset_moves_poses_alone(self, seed):
    check_offset_moves_poses_alone(_route, seed)

  def test_damping_pulls_poses_to_zero(self):
    """So that an offset of all votes changes what the official form says."""
    with self.assertRaises(AssertionError):
      check_offset_moves_poses_alone(_route, form="official")

  def test_full_damping_is_refused(self):
    form = em.OFFICIAL._replace(damping=1.0)
    with self.assertRaisesRegex(ValueError, "damping is 1.0; give .* below 1"):
      em.require_form(form)

  def test_textbook_form_is_right(self):
    check_matches_oracle(_compiled(_textbook))

  @parameterized.parameters(
    (check_matches_oracle, "variance_as_std"),
    (check_matches_oracle, "no_half"),
    (check_matches_oracle, "prior_forgotten"),
    (check_matches_oracle, "over_children"),
    (check_matches_oracle, "unweighted"),
    (check_matches_oracle, "about_zero"),
    (check_matches_oracle, "sigma_factor"),
    (check_matches_oracle, "standard_deviation"),
    (check_matches_oracle, "cost_without_mass"),
    (check_matches_oracle, "constant_temperature"),
    (check_shares, "over_children"),
    (check_children_permute, "position"),
    (check_offset_moves_poses_alone, "about_zero"),
    (check_agreement_wins, "over_children"),
  )
  def test_broken_copy_fails(self, check, fault):
    with self.assertRaises(AssertionError):
      check(_compiled(functools.partial(_textbook, fault=fault)))

  @parameterized.parameters(
    ("one_effective_child", "no_floor"),
    ("identical_votes", "no_floor"),
    ("identical_votes", "standard_deviation"),
    ("nobody_there", "no_floor"),
    ("far_votes", "not_in_logs"),
  )
  @widths.limits_of_float32
  def test_broken_copy_is_not_finite(self, limit, fault):
    broken = _compiled(functools.partial(_textbook, fault=fault))
    with self.assertRaises(AssertionError):
      check_limit_is_finite(broken, limit)

  def test_gradient_is_the_textbook_one(self):
    """Through every iteration."""
    whole, detached = (
      _energy(_compiled(functools.partial(_textbook, fault=fault)))
      for fault in ("", "detached")
    )
    arguments = _arguments()
    _, got = _energy(_route)(*arguments, form="paper")
    _, want = whole(*arguments, form="paper")
    chex.assert_trees_all_close(got, want, atol=1e-4)
    _, want = detached(*arguments, form="paper")
    with self.assertRaises(AssertionError):
      chex.assert_trees_all_close(got, want, atol=1e-4)

  @parameterized.product(limit=tuple(_LIMITS), form=tuple(em_cases.FORMS))
  @pytest.mark.long_after_first
  def test_limit_is_finite(self, limit, form):
    check_limit_is_finite(_route, limit, form)

  @parameterized.parameters(*em_cases.FORMS)
  @pytest.mark.long
  def test_ten_thousand_extremes_are_finite(self, form):
    """Scales from 1e-6 to 1e4 of votes, betas and activations."""

    def energy(key):
      keys = iter(jax.random.split(key, 12))

      def scale(low, high):
        return 10 ** jax.random.uniform(next(keys), minval=low, maxval=high)

      votes = scale(-6, 4) * jax.random.normal(next(keys), (6, 3, 4))
      # Some of them agree, some are zero.
      votes += scale(-6, 4) * jax.random.normal(next(keys), (3, 4))
      votes *= jax.random.bernoulli(next(keys), 0.8, (6, 3, 1))
      activations = jax.random.uniform(next(keys), (6,)) ** scale(-1, 2)
      activations *= jax.random.bernoulli(next(keys), 0.7, (6,))
      betas = scale(-3, 2) * jax.random.normal(next(keys), (2, 3))
      arguments = votes, activations, *betas
      temperatures = scale(-4, 0) * jnp.arange(1.0, 4.0)

      def value(arguments):
        output = em.em_routing(
          *arguments,
          inverse_temperatures=temperatures,
          form=em_cases.FORMS[form],
        )
        return sum(jnp.sum(jnp.cos(x)) for x in output), output

      (_, output), gradients = jax.value_and_grad(value, has_aux=True)(
        arguments
      )
      leaves = jax.tree.leaves((output, gradients))
      return jnp.array([jnp.all(jnp.isfinite(x)) for x in leaves])

    finite = jax.jit(jax.vmap(energy))(
      jax.random.split(jax.random.key(0), 10000)
    )
    np.testing.assert_array_equal(np.mean(finite, axis=0), 1)

  @parameterized.parameters(*em_cases.FORMS)
  def test_gradients(self, form):
    with jax.enable_x64(True):
      arguments = _arguments(0, (4, 3, 3), form, jnp.float64)
      check_grads(
        functools.partial(_route, form=form),
        arguments,
        order=1,
        modes=("fwd", "rev"),
        eps=1e-6,
      )

  @parameterized.parameters(1, 2, 5)
  def test_iterations(self, num_iterations):
    temperatures = em_cases.TEMPERATURES[:1] * num_iterations
    got = em.em_routing(*_arguments(), inverse_temperatures=temperatures)
    want = em_cases.dense_oracle(*_arguments(), temperatures, "paper")
    em_cases.assert_close(got, want)

  def test_temperatures_may_be_traced(self):
    temperatures = em_cases.TEMPERATURES
    got = jax.jit(
      lambda t: em.em_routing(*_arguments(), inverse_temperatures=t)
    )(jnp.array(temperatures))
    em_cases.assert_close(got, _route(*_arguments()))

  @parameterized.parameters((1, 4, 3), (6, 1, 3), (5, 3, 1))
  def test_small_shapes_match_oracle(self, *shape):
    arguments = _arguments(0, shape)
    want = em_cases.dense_oracle(*arguments, em_cases.TEMPERATURES, "paper")
    em_cases.assert_close(_route(*arguments), want)

  @parameterized.parameters(*em_cases.FORMS)
  def test_bfloat16_rounds_only_inputs_and_outputs(self, form):
    arguments = _arguments(0, (50, 4, 5), form)
    half = [x.astype(jnp.bfloat16) for x in arguments]
    got = _route(*half, form=form)
    chex.assert_type(list(got), jnp.bfloat16)
    chex.assert_type(list(_route(*arguments, form=form)), jnp.float32)
    half = [x.astype(jnp.float32) for x in half]
    want = em_cases.dense_oracle(*half, em_cases.TEMPERATURES, form)
    # Half of the spacing of numbers from 1 to 2 is 2^-8.
    got = jax.tree.map(lambda x: x.astype(jnp.float32), got)
    em_cases.assert_close(got, want, atol=1e-4, rtol=1.01 * 2**-8)

  @chex.variants(with_jit=True, without_jit=True)
  @pytest.mark.long_after_first
  def test_vmap_is_a_loop(self):
    route = self.variant(
      functools.partial(
        em.em_routing, inverse_temperatures=em_cases.TEMPERATURES
      )
    )
    examples = [_arguments(seed) for seed in range(3)]
    want = [route(*example) for example in examples]
    batch, want = (
      jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
      for trees in (examples, want)
    )
    em_cases.assert_close(jax.vmap(route)(*batch), want)

  def test_products_are_not_rounded(self):
    route = functools.partial(
      em.em_routing, inverse_temperatures=em_cases.TEMPERATURES
    )
    cases.assert_products_are_not_rounded(route, *_arguments())

  def test_no_iterations_are_refused(self):
    with self.assertRaisesRegex(ValueError, "temperatures is empty; give one"):
      em.em_routing(*_arguments(), inverse_temperatures=())
    with self.assertRaisesRegex(ValueError, "num_iterations is 0; give"):
      em.inverse_temperature_schedule(0)

  def test_temperatures_below_0_are_refused(self):
    with self.assertRaisesRegex(ValueError, "final is -1.0; give a finite"):
      em.inverse_temperature_schedule(2, final=-1.0)
    for wrong in (-0.5, math.nan):
      for given in ((0.1, wrong), jnp.array([0.1, wrong])):
        with self.assertRaisesRegex(ValueError, f"temperature is {wrong}; giv"):
          em.em_routing(*_arguments(), inverse_temperatures=given)
    with self.assertRaisesRegex(TypeError, "temperature is 'a'; give a number"):
      inspect.unwrap(em.require_iterations)("a")


if __name__ == "__main__":
  absltest.main()
