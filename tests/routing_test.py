"""Routing by agreement against the procedure as the paper prints it.

Every test runs `dynamic_routing`, and `transform_and_route` with chunks of
several sizes, through the same checks.
"""

import functools
import inspect

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jax.test_util import check_grads

from kernels import numerics, routing

_SEEDS = (0, 1)
_SHAPE = (7, 4, 5)


def _votes(seed=0, shape=_SHAPE, dtype=jnp.float32):
  return jax.random.normal(jax.random.key(seed), shape, dtype)


def _bias(seed=0, shape=_SHAPE, dtype=jnp.float32):
  return jax.random.normal(jax.random.key(seed + 100), shape[1:], dtype) / 2


def _through_transforms(votes, *, chunk_size, **options):
  """Votes as the product u_i W_ij of two-dimensional poses and matrices."""
  poses = jnp.tile(jnp.asarray([0.5, -0.5], votes.dtype), (len(votes), 1))
  transforms = jnp.stack([votes, -votes], axis=2)
  return routing.transform_and_route(
    poses, transforms, chunk_size=chunk_size, **options
  )


# 3 does not divide the 7 parts.
_FORMS = {
  "votes": routing.dynamic_routing,
  "transforms": functools.partial(_through_transforms, chunk_size=3),
}


def _compiled(form):
  """With every option given, so that the checks share what is compiled."""
  jitted = jax.jit(form, static_argnames=("num_iterations", "leaky"))

  def route(votes, *, num_iterations=3, bias=None, leaky=False):
    bias = jnp.zeros(votes.shape[1:], votes.dtype) if bias is None else bias
    return jitted(votes, num_iterations=num_iterations, bias=bias, leaky=leaky)

  return route


_ROUTES = {name: _compiled(form) for name, form in _FORMS.items()}


def _oracle(votes, *, num_iterations=3, bias=None, leaky=False):
  """Procedure 1 in float64, with its logits b_ij; returns v, |v| and c."""
  votes = np.float64(votes.astype(jnp.float32))
  num_parts, num_parents, pose_size = votes.shape
  bias = np.zeros((num_parents, pose_size)) if bias is None else bias
  b = np.zeros((num_parts, num_parents))
  for _ in range(num_iterations):
    c, v = np.zeros_like(b), np.zeros((num_parents, pose_size))
    for i in range(num_parts):
      rivals = [0.0, *b[i]] if leaky else b[i]
      total = sum(np.exp(rival - max(rivals)) for rival in rivals)
      for j in range(num_parents):
        c[i, j] = np.exp(b[i, j] - max(rivals)) / total
    for j in range(num_parents):
      s = np.float64(bias[j])
      for i in range(num_parts):
        s = s + c[i, j] * votes[i, j]
      norm = np.sqrt(s @ s)
      v[j] = norm**2 / (1 + norm**2) * s / norm
    for i in range(num_parts):
      for j in range(num_parents):
        b[i, j] += votes[i, j] @ v[j]
  return v, np.sqrt(np.sum(v**2, axis=1)), c


def _textbook(votes, *, num_iterations=3, bias=None, leaky=False, fault=None):
  """Procedure 1 with its logits in jnp, and ways to get it wrong."""
  bias = jnp.zeros(votes.shape[1:], votes.dtype) if bias is None else bias
  squash = {"no_squash": lambda s: s, "tanh": jnp.tanh}.get(
    fault, numerics.squash
  )
  steps = {"last_skipped": -1, "one_more": 1}.get(fault, 0) + num_iterations
  logits = jnp.zeros(votes.shape[:2], votes.dtype)
  poses = jnp.zeros(votes.shape[1:], votes.dtype)
  coefficients = jnp.zeros(votes.shape[:2], votes.dtype)
  for _ in range(steps):
    rivals = logits
    if leaky and fault != "not_leaky":
      rivals = jnp.pad(logits, ((0, 0), (1, 0)))
    axis = 0 if fault == "over_children" else 1
    coefficients = jax.nn.softmax(rivals, axis)
    if leaky and fault == "wrong_column_dropped":
      coefficients = coefficients[:, :-1]
    elif rivals.shape != logits.shape:
      coefficients = coefficients[:, 1:]
    if fault == "orphan_kept":
      coefficients /= jnp.sum(coefficients, 1, keepdims=True)
    inputs = jnp.einsum("ij,ijd->jd", coefficients, votes)
    if fault == "bias_after_squash":
      poses = squash(inputs) + bias
    elif fault == "bias_forgotten":
      poses = squash(inputs)
    else:
      poses = squash(inputs + bias)
    known = jax.lax.stop_gradient(poses) if fault == "detached" else poses
    agreement = jnp.einsum("ijd,jd->ij", votes, known)
    if fault == "disagreement":
      agreement = -agreement
    if fault == "only_last":
      logits = agreement
    elif fault == "position":
      logits += agreement + jnp.arange(votes.shape[0])[:, None] * jnp.eye(
        1, votes.shape[1]
      )
    elif fault == "parent_order":
      logits += agreement + jnp.arange(votes.shape[1])
    else:
      logits += agreement
  return routing.RoutingOutput(
    poses, numerics.safe_norm(poses), coefficients.astype(votes.dtype)
  )


def _close(got, want, atol=1e-5):
  for name, value in zip(routing.RoutingOutput._fields, want, strict=True):
    np.testing.assert_allclose(
      getattr(got, name), value, atol=atol, err_msg=name
    )


def check_matches_oracle(route, seed=0):
  for num_iterations, leaky, bias in [
    (3, True, _bias(seed)),
    (3, False, _bias(seed)),
    (3, False, None),
    (1, False, _bias(seed)),
    (2, True, _bias(seed)),
    (4, True, None),
    (5, False, _bias(seed)),
  ]:
    options = dict(num_iterations=num_iterations, bias=bias, leaky=leaky)
    got = route(_votes(seed), **options)
    _close(got, _oracle(_votes(seed), **options))


def check_children_permute(route, seed=0):
  order = np.random.default_rng(seed).permutation(_SHAPE[0])
  want, got = route(_votes(seed)), route(_votes(seed)[order])
  _close(got, want._replace(coefficients=want.coefficients[order]))


def check_parents_permute(route, seed=0):
  order = np.random.default_rng(seed).permutation(_SHAPE[1])
  votes, bias = _votes(seed), _bias(seed)
  want = route(votes, bias=bias)
  got = route(votes[:, order], bias=bias[order])
  _close(
    got,
    (
      want.poses[order],
      want.activations[order],
      want.coefficients[:, order],
    ),
  )


def check_coefficients_sum_to_one(route, seed=0):
  for num_iterations in (1, 3):
    got = route(_votes(seed), num_iterations=num_iterations).coefficients
    np.testing.assert_array_less(-1e-30, got)
    np.testing.assert_allclose(np.sum(got, axis=1), 1, atol=1e-5)


def check_orphan_is_a_logit_of_zero(route, seed=0):
  """The second iteration's logits are the votes times the first's outputs."""
  votes = _votes(seed)
  first = route(votes, num_iterations=1, leaky=True)
  got = route(votes, num_iterations=2, leaky=True).coefficients
  logits = np.einsum("ijd,jd->ij", votes, first.poses)
  weights = np.exp(np.pad(logits, ((0, 0), (1, 0))))
  want = weights / np.sum(weights, axis=1, keepdims=True)
  np.testing.assert_allclose(got, want[:, 1:], atol=1e-5)
  np.testing.assert_array_less(np.sum(got, axis=1), 1)


def check_rotation_passes_through(route, seed=0):
  matrix = jax.random.normal(jax.random.key(seed), (_SHAPE[2], _SHAPE[2]))
  rotation, _ = jnp.linalg.qr(matrix)
  votes, bias = _votes(seed), _bias(seed)
  want = route(votes, bias=bias)
  got = route(votes @ rotation, bias=bias @ rotation)
  _close(got, want._replace(poses=want.poses @ rotation))


def check_one_iteration_is_uniform(route, seed=0):
  votes = _votes(seed)
  for leaky in (False, True):
    share = 1 / (votes.shape[1] + leaky)
    got = route(votes, num_iterations=1, leaky=leaky)
    np.testing.assert_allclose(got.coefficients, share, rtol=1e-6)
    want = numerics.squash(share * jnp.sum(votes, axis=0))
    np.testing.assert_allclose(got.poses, want, atol=1e-5)


def check_agreement_wins(route, seed=0):
  """All but one part vote alike for the first parent, at random elsewhere."""
  common = _votes(seed + 1, _SHAPE[2:])
  votes = _votes(seed).at[:-1, 0].set(common)
  shares = [
    np.mean(route(votes, num_iterations=n).coefficients[:-1, 0])
    for n in (1, 3, 5)
  ]
  np.testing.assert_array_less(shares[:-1], shares[1:])
  np.testing.assert_array_less(0.5, shares[-1])


def check_bias_is_a_vote(route, seed=0):
  """A bias adds to the total input what the squash then shrinks."""
  votes, bias = _votes(seed), _bias(seed)
  got = route(votes, num_iterations=1, bias=bias)
  want = route(votes + _SHAPE[1] / _SHAPE[0] * bias, num_iterations=1)
  np.testing.assert_allclose(got.poses, want.poses, atol=1e-5)


def _energy(route):
  """A number that depends on every output, and the outputs."""

  def energy(votes, bias, leaky):
    outputs = route(votes, bias=bias, leaky=leaky)
    return sum(jnp.sum(jnp.cos(x)) for x in outputs), outputs

  return jax.jit(
    jax.value_and_grad(energy, (0, 1), has_aux=True), static_argnums=2
  )


_ENERGIES = {name: _energy(form) for name, form in _FORMS.items()}
_TEXTBOOK_ENERGY = _energy(_textbook)


def check_gradient_is_the_textbook_one(energy, seed=0):
  """Of every output, through every iteration, for votes and bias."""
  for leaky in (True, False):
    _, want = _TEXTBOOK_ENERGY(_votes(seed), _bias(seed), leaky)
    _, got = energy(_votes(seed), _bias(seed), leaky)
    chex.assert_trees_all_close(got, want, atol=1e-4)


_CHECKS = (
  check_matches_oracle,
  check_children_permute,
  check_parents_permute,
  check_coefficients_sum_to_one,
  check_orphan_is_a_logit_of_zero,
  check_rotation_passes_through,
  check_one_iteration_is_uniform,
  check_agreement_wins,
  check_bias_is_a_vote,
)


class RoutingTest(chex.TestCase):
  @parameterized.product(form=tuple(_FORMS), check=_CHECKS, seed=_SEEDS)
  def test_property(self, form, check, seed):
    check(_ROUTES[form], seed=seed)

  def test_textbook_form_is_right(self):
    check_matches_oracle(_compiled(_textbook))

  @parameterized.product(form=tuple(_FORMS), seed=_SEEDS)
  def test_gradient_is_the_textbook_one(self, form, seed):
    check_gradient_is_the_textbook_one(_ENERGIES[form], seed)

  @parameterized.parameters(
    (check_matches_oracle, "over_children"),
    (check_matches_oracle, "only_last"),
    (check_matches_oracle, "no_squash"),
    (check_matches_oracle, "bias_after_squash"),
    (check_matches_oracle, "orphan_kept"),
    (check_matches_oracle, "wrong_column_dropped"),
    (check_matches_oracle, "last_skipped"),
    (check_children_permute, "position"),
    (check_parents_permute, "parent_order"),
    (check_coefficients_sum_to_one, "over_children"),
    (check_orphan_is_a_logit_of_zero, "not_leaky"),
    (check_orphan_is_a_logit_of_zero, "wrong_column_dropped"),
    (check_rotation_passes_through, "tanh"),
    (check_one_iteration_is_uniform, "over_children"),
    (check_one_iteration_is_uniform, "one_more"),
    (check_agreement_wins, "disagreement"),
    (check_agreement_wins, "over_children"),
    (check_bias_is_a_vote, "bias_after_squash"),
    (check_bias_is_a_vote, "bias_forgotten"),
    (check_gradient_is_the_textbook_one, "detached"),
    (check_gradient_is_the_textbook_one, "only_last"),
  )
  def test_broken_copy_fails(self, check, fault):
    broken = functools.partial(_textbook, fault=fault)
    gradient = check is check_gradient_is_the_textbook_one
    broken = _energy(broken) if gradient else _compiled(broken)
    with self.assertRaises(AssertionError):
      check(broken)

  @parameterized.product(
    shape=[(1, 1, 1), (1, 4, 3), (6, 1, 3), (5, 3, 1)], form=tuple(_FORMS)
  )
  def test_small_shapes_match_oracle(self, shape, form):
    votes, bias = _votes(0, shape), _bias(0, shape)
    got = _ROUTES[form](votes, bias=bias, leaky=True)
    _close(got, _oracle(votes, bias=bias, leaky=True))

  @parameterized.parameters(1, 2, 7, 100)
  def test_transforms_make_the_votes(self, chunk_size, seed=0):
    keys = jax.random.split(jax.random.key(seed))
    poses = jax.random.normal(keys[0], (7, 3))
    transforms = jax.random.normal(keys[1], (7, 4, 3, 5))
    votes = np.zeros(_SHAPE)
    for i in range(7):
      for j in range(4):
        votes[i, j] = np.float64(poses[i]) @ np.float64(transforms[i, j])
    options = dict(bias=_bias(seed), leaky=True)
    route = functools.partial(
      routing.transform_and_route, chunk_size=chunk_size, **options
    )
    _close(jax.jit(route)(poses, transforms), _oracle(votes, **options))

  def test_defaults(self):
    votes = _votes()
    want = _oracle(votes, num_iterations=3, bias=None, leaky=False)
    _close(routing.dynamic_routing(votes), want)
    _close(
      routing.transform_and_route(jnp.ones((7, 1)), votes[:, :, None]), want
    )

  @parameterized.parameters(False, True)
  def test_gradients_of_votes_and_bias(self, leaky):
    with jax.enable_x64(True):
      votes = _votes(0, (4, 3, 2), jnp.float64)
      bias = _bias(0, (4, 3, 2), jnp.float64)
      route = jax.jit(
        lambda votes, bias: routing.dynamic_routing(
          votes, bias=bias, leaky=leaky
        )
      )
      check_grads(route, (votes, bias), order=1, modes=("fwd", "rev"))

  def test_gradients_of_poses_and_transforms(self, seed=0):
    with jax.enable_x64(True):
      keys = jax.random.split(jax.random.key(seed))
      poses = jax.random.normal(keys[0], (5, 2), jnp.float64)
      transforms = jax.random.normal(keys[1], (5, 3, 2, 4), jnp.float64)
      bias = _bias(seed, (5, 3, 4), jnp.float64)
      route = jax.jit(
        lambda poses, transforms, bias: routing.transform_and_route(
          poses, transforms, bias=bias, chunk_size=2
        )
      )
      arguments = (poses, transforms, bias)
      check_grads(route, arguments, order=1, modes=("fwd", "rev"))

  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.parameters(*_FORMS)
  def test_vmap_is_a_loop(self, form):
    route = self.variant(_FORMS[form])
    votes = _votes(0, (2, *_SHAPE))
    want = [route(example) for example in votes]
    want = jax.tree.map(lambda *leaves: jnp.stack(leaves), *want)
    chex.assert_trees_all_close(jax.vmap(route)(votes), want, atol=1e-6)

  @parameterized.product(form=tuple(_FORMS), seed=[0])
  def test_bfloat16_rounds_only_inputs_and_outputs(self, form, seed):
    votes = _votes(seed, (300, 4, 5)).astype(jnp.bfloat16)
    got = _ROUTES[form](votes)
    chex.assert_type(list(got), jnp.bfloat16)
    want = _oracle(votes)
    # Half of the spacing of numbers below 1 is 2^-9.
    got = jax.tree.map(lambda x: x.astype(jnp.float32), got)
    _close(got, want, atol=1.01 * 2**-9)
    chex.assert_type(list(_ROUTES[form](_votes(seed))), jnp.float32)

  @parameterized.product(
    case=[
      ("zero_votes", jnp.zeros(_SHAPE)),
      ("one_child", _votes(0, (1, 4, 5))),
      ("one_parent", _votes(0, (7, 1, 5))),
      ("one_dimension", _votes(0, (7, 4, 1))),
      ("coincident_votes", jnp.broadcast_to(_votes(0, (5,)), _SHAPE)),
      (
        "opposite_votes",
        _votes(0, (4, 5)) * (-1) ** jnp.arange(7.0)[:, None, None],
      ),
      ("large_votes", 1e4 * _votes()),
      ("large_coincident_votes", jnp.full(_SHAPE, -1e4)),
      ("small_votes", 1e-6 * _votes()),
      ("tiny_votes", 1e-25 * _votes()),
    ],
    leaky=[False, True],
    form=tuple(_FORMS),
  )
  def test_degenerate_votes_are_finite(self, case, leaky, form):
    _, votes = case
    for bias in (jnp.zeros(votes.shape[1:]), _bias(0, votes.shape)):
      (_, outputs), gradients = _ENERGIES[form](votes, bias, leaky)
      chex.assert_tree_all_finite((outputs, gradients))
      total = np.sum(outputs.coefficients, axis=1)
      np.testing.assert_array_less(total, 1 + 1e-5)
      if not leaky:
        np.testing.assert_allclose(total, 1, atol=1e-5)

  @parameterized.parameters(*_FORMS)
  def test_new_values_do_not_recompile(self, form):
    chex.clear_trace_counter()

    @jax.jit
    @chex.assert_max_traces(n=1)
    def route(votes, bias):
      return _FORMS[form](votes, bias=bias)

    for seed in range(3):
      route(_votes(seed), _bias(seed))

  def test_votes_are_not_stored(self):
    """Not even for the gradient, where the plain form keeps several copies."""
    batch, num_parts, num_parents, part_size, pose_size = 64, 512, 10, 8, 16
    poses = jax.ShapeDtypeStruct((batch, num_parts, part_size), jnp.float32)
    transforms = jax.ShapeDtypeStruct(
      (num_parts, num_parents, part_size, pose_size), jnp.float32
    )
    votes = 4 * batch * num_parts * num_parents * pose_size

    def temporary_bytes(route):
      def energy(poses, transforms):
        output = jax.vmap(route, (0, None))(poses, transforms)
        return jnp.sum(jnp.square(output.poses))

      gradient = jax.jit(jax.grad(energy, (0, 1))).lower(poses, transforms)
      return gradient.compile().memory_analysis().temp_size_in_bytes

    def plain(poses, transforms):
      votes = jnp.einsum("ic,ijcd->ijd", poses, transforms)
      return routing.dynamic_routing(votes)

    self.assertLess(temporary_bytes(routing.transform_and_route), votes)
    self.assertGreater(temporary_bytes(plain), 2 * votes)

  @parameterized.parameters(0, -1)
  def test_too_few_iterations_are_refused(self, num_iterations):
    for route in _FORMS.values():
      with self.assertRaisesRegex(ValueError, f"num_iter.* {num_iterations};"):
        route(_votes(), num_iterations=num_iterations)

  @parameterized.parameters(0, -1)
  def test_empty_chunks_are_refused(self, chunk_size):
    with self.assertRaisesRegex(ValueError, f"chunk_size is {chunk_size} "):
      _through_transforms(_votes(), chunk_size=chunk_size)

  def test_wrong_shapes_are_refused(self):
    route = inspect.unwrap(routing.dynamic_routing)
    with self.assertRaises(AssertionError):
      route(_votes()[None])
    route = inspect.unwrap(routing.transform_and_route)
    transforms = jnp.ones((7, 4, 2, 5))
    with self.assertRaises(AssertionError):
      route(jnp.ones((3, 7, 2)), transforms)
    with self.assertRaises(AssertionError):
      route(jnp.ones((1, 2)), transforms)


if __name__ == "__main__":
  absltest.main()
