"""Routing by attention against the papers' equations, written as loops.

What it shares with all routings is in `all_routings_test`.
"""

import functools

import cases
import chex
import jax
import jax.numpy as jnp
import numpy as np
import oracles
from absl.testing import absltest, parameterized
from jax.test_util import check_grads

from kernels import numerics
from kernels.routing import attention

_SEEDS = (0, 1)
_SHAPE = cases.VOTES_SHAPE


def _arguments(name, seed=0, shape=_SHAPE, dtype=jnp.float32):
  """All arguments of a routing by name, votes left out."""
  random = np.random.default_rng(seed + 100)
  parent_poses = random.normal(size=shape[1:]) / 2
  pose = random.normal(size=shape[2])
  shares = random.normal(size=shape[:2])
  arguments = {
    "self_attention": {"priors": shares / 4, "bias": parent_poses},
    "inverted_attention": {
      "readout": pose,
      "scale": 1 + random.normal(size=shape[2]) / 4,
      "offset": parent_poses,
    },
    "self": {
      "logits": 2 * shares,
      "activations": random.uniform(size=shape[0]),
    },
  }[name]
  return jax.tree.map(lambda x: jnp.array(x, dtype), arguments)


_ROUTINGS = {
  "self_attention": attention.self_attention_routing,
  "inverted_attention": attention.inverted_attention_routing,
  "self": attention.self_routing,
}


def _through_factors(route, votes, **arguments):
  """Votes as the product u_i W_ij of two-dimensional poses and matrices."""
  poses = jnp.tile(jnp.asarray([0.5, -0.5], votes.dtype), (len(votes), 1))
  factors = attention.LinearVotes(poses, jnp.stack([votes, -votes], axis=2))
  return route(factors, **arguments)


_FORMS = {
  "votes": lambda route, votes, **arguments: route(votes, **arguments),
  "factors": _through_factors,
}
_ROUTES = {
  (name, form): jax.jit(
    functools.partial(function, route), static_argnames="num_iterations"
  )
  for name, route in _ROUTINGS.items()
  for form, function in _FORMS.items()
}


def _self_attention_oracle(votes, priors=None, bias=None):
  num_parts, num_parents, pose_size = votes.shape
  c, v = np.zeros((num_parts, num_parents)), np.zeros((num_parents, pose_size))
  for i in range(num_parts):
    scores = np.zeros(num_parents)
    for j in range(num_parents):
      for other in range(num_parts):
        scores[j] += votes[i, j] @ votes[other, j] / np.sqrt(pose_size)
    c[i] = oracles.softmax(scores) + (0 if priors is None else priors[i])
  for j in range(num_parents):
    s = np.zeros(pose_size) if bias is None else bias[j]
    for i in range(num_parts):
      s = s + c[i, j] * votes[i, j]
    v[j] = oracles.exponential_squash(s)
  return v, np.sqrt(np.sum(v**2, axis=1)), c


def _inverted_attention_oracle(
  votes, readout, scale=None, offset=None, num_iterations=2
):
  num_parts, num_parents, pose_size = votes.shape
  scale = np.ones(pose_size) if scale is None else scale
  offset = np.zeros((num_parents, pose_size)) if offset is None else offset
  r, v = np.zeros((num_parts, num_parents)), np.zeros((num_parents, pose_size))
  for _ in range(num_iterations):
    for i in range(num_parts):
      r[i] = oracles.softmax(np.sum(votes[i] * v, axis=1) / np.sqrt(pose_size))
    for j in range(num_parents):
      s = sum(r[i, j] * votes[i, j] for i in range(num_parts))
      mean = sum(s) / pose_size
      variance = sum((s - mean) ** 2) / pose_size
      v[j] = scale * (s - mean) / np.sqrt(variance + 1e-5) + offset[j]
  a = [1 / (1 + np.exp(-(readout @ pose))) for pose in v]
  return v, np.array(a), r


def _self_oracle(votes, logits, activations):
  num_parts, num_parents, pose_size = votes.shape
  c = np.array([oracles.softmax(row) for row in logits])
  v, a = np.zeros((num_parents, pose_size)), np.zeros(num_parents)
  for j in range(num_parents):
    mass = sum(c[i, j] * activations[i] for i in range(num_parts))
    a[j] = mass / sum(activations)
    for i in range(num_parts):
      v[j] += c[i, j] * activations[i] * votes[i, j] / mass
  return v, a, c


_ORACLES = {
  "self_attention": _self_attention_oracle,
  "inverted_attention": _inverted_attention_oracle,
  "self": _self_oracle,
}


def _oracle(name, votes, **arguments):
  votes = np.float64(votes.astype(jnp.float32))
  return _ORACLES[name](votes, **jax.tree.map(np.array, arguments))


def _sums_of_scores(votes, fault):
  """sum_i' <u_ij, u_i'j> with the [I I J] that the kernel never makes."""
  pairs = jnp.einsum("ijd,kjd->ikj", votes, votes)
  if fault == "itself_left_out":
    pairs *= 1 - jnp.eye(len(votes))[:, :, None]
  if fault == "over_parents":
    return jnp.einsum("ijd,ikd->ij", votes, votes)
  return jnp.sum(pairs, axis=1)


def _textbook_self_attention(votes, priors, bias, *, fault=None):
  scores = _sums_of_scores(votes, fault)
  if fault != "unscaled":
    scores /= jnp.sqrt(votes.shape[2])
  if fault == "priors_are_logits":
    scores += priors
  axis = 0 if fault == "over_children" else 1
  coefficients = jax.nn.softmax(scores, axis=axis)
  if fault not in ("priors_are_logits", "priors_forgotten"):
    coefficients += priors
  squash = numerics.exponential_squash
  if fault == "squash_of_sabour":
    squash = numerics.squash
  poses = squash(jnp.einsum("ij,ijd->jd", coefficients, votes) + bias)
  return poses, jnp.linalg.norm(poses, axis=-1), coefficients


def _textbook_inverted_attention(
  votes, readout, scale, offset, *, num_iterations=2, fault=None
):
  poses = jnp.zeros(votes.shape[1:])
  steps = num_iterations + {"one_more": 1, "last_skipped": -1}.get(fault, 0)
  for _ in range(steps):
    scores = jnp.einsum("ijd,jd->ij", votes, poses)
    if fault != "unscaled":
      scores /= jnp.sqrt(votes.shape[2])
    if fault == "disagreement":
      scores = -scores
    coefficients = jax.nn.softmax(scores, axis=fault != "over_children")
    total = jnp.einsum("ij,ijd->jd", coefficients, votes)
    deviations = total - jnp.mean(total, axis=1, keepdims=True)
    if fault == "not_centred":
      deviations = total
    variance = jnp.var(
      total, axis=1, keepdims=True, ddof=fault == "sample_variance"
    )
    poses = deviations / jnp.sqrt(variance + 1e-5)
    poses = poses * scale + (0 if fault == "offset_forgotten" else offset)
  activations = jax.nn.sigmoid(poses @ readout)
  if fault == "length_as_activation":
    activations = jnp.linalg.norm(numerics.squash(poses), axis=-1)
  return poses, activations, coefficients


def _textbook_self(votes, logits, activations, *, fault=None):
  axis = 0 if fault == "over_children" else 1
  coefficients = jax.nn.softmax(logits, axis=axis)
  weights = coefficients * activations[:, None]
  mass = jnp.sum(weights, axis=0)
  if fault == "poses_ignore_activations":
    weights = coefficients
  if fault == "poses_are_sums":
    poses = jnp.einsum("ij,ijd->jd", weights, votes)
  else:
    shares = weights / jnp.sum(weights, axis=0)
    poses = jnp.einsum("ij,ijd->jd", shares, votes)
  total = len(votes) if fault == "mean_of_shares" else jnp.sum(activations)
  return poses, mass / total, coefficients


_TEXTBOOKS = {
  "self_attention": _textbook_self_attention,
  "inverted_attention": _textbook_inverted_attention,
  "self": _textbook_self,
}


def check_matches_oracle(route, name, seed=0):
  votes, arguments = cases.votes(seed), _arguments(name, seed)
  cases.assert_outputs_close(
    route(votes, **arguments), _oracle(name, votes, **arguments)
  )


class AttentionTest(chex.TestCase):
  @parameterized.product(name=tuple(_ROUTINGS), form=tuple(_FORMS), seed=_SEEDS)
  def test_matches_oracle(self, name, form, seed):
    check_matches_oracle(_ROUTES[name, form], name, seed)

  @parameterized.parameters(*_ROUTINGS)
  def test_textbook_form_is_right(self, name):
    check_matches_oracle(_TEXTBOOKS[name], name)

  @parameterized.parameters(
    ("self_attention", "over_children"),
    ("self_attention", "over_parents"),
    ("self_attention", "itself_left_out"),
    ("self_attention", "unscaled"),
    ("self_attention", "priors_are_logits"),
    ("self_attention", "priors_forgotten"),
    ("self_attention", "squash_of_sabour"),
    ("inverted_attention", "over_children"),
    ("inverted_attention", "unscaled"),
    ("inverted_attention", "disagreement"),
    ("inverted_attention", "one_more"),
    ("inverted_attention", "last_skipped"),
    ("inverted_attention", "not_centred"),
    ("inverted_attention", "sample_variance"),
    ("inverted_attention", "offset_forgotten"),
    ("inverted_attention", "length_as_activation"),
    ("self", "over_children"),
    ("self", "poses_ignore_activations"),
    ("self", "poses_are_sums"),
    ("self", "mean_of_shares"),
  )
  def test_broken_copy_fails(self, name, fault):
    broken = functools.partial(_TEXTBOOKS[name], fault=fault)
    with self.assertRaises(AssertionError):
      check_matches_oracle(broken, name)

  @parameterized.product(num_iterations=[1, 2, 4], form=tuple(_FORMS))
  def test_iterations(self, num_iterations, form):
    options = {
      "num_iterations": num_iterations,
      **_arguments("inverted_attention"),
    }
    got = _ROUTES["inverted_attention", form](cases.votes(), **options)
    cases.assert_outputs_close(
      got, _oracle("inverted_attention", cases.votes(), **options)
    )

  def test_defaults(self):
    votes, readout = cases.votes(), jnp.arange(5.0) / 5
    for name, arguments in [
      ("self_attention", {}),
      ("inverted_attention", {"readout": readout}),
    ]:
      got = _ROUTES[name, "votes"](votes, **arguments)
      cases.assert_outputs_close(got, _oracle(name, votes, **arguments))

  @parameterized.product(name=tuple(_ROUTINGS), shape=[(1, 4, 3), (6, 1, 3)])
  def test_small_shapes_match_oracle(self, name, shape):
    votes, arguments = cases.votes(0, shape), _arguments(name, 0, shape)
    got = _ROUTES[name, "factors"](votes, **arguments)
    cases.assert_outputs_close(got, _oracle(name, votes, **arguments))

  @parameterized.product(name=tuple(_ROUTINGS), seed=_SEEDS)
  def test_factors_make_the_votes(self, name, seed):
    factors = attention.LinearVotes(
      cases.votes(seed, (7, 3)), cases.votes(seed + 1, (7, 4, 3, 5))
    )
    votes = np.zeros(_SHAPE)
    for i in range(7):
      for j in range(4):
        votes[i, j] = factors.poses[i] @ np.float64(factors.transforms[i, j])
    self.assertEqual(factors.shape, _SHAPE)
    arguments = _arguments(name, seed)
    got = _ROUTES[name, "votes"](factors, **arguments)
    cases.assert_outputs_close(
      got, _oracle(name, votes, **arguments), atol=1e-4
    )

  @parameterized.parameters(*_ROUTINGS)
  def test_gradients(self, name):
    """Of all arguments; `all_routings_test` takes those of plain votes."""
    with jax.enable_x64(True):
      votes = cases.votes(0, (4, 3, 3), jnp.float64)
      arguments = _arguments(name, 0, (4, 3, 3), jnp.float64)

      def route(votes, arguments):
        return _ROUTES[name, "factors"](votes, **arguments)

      check_grads(route, (votes, arguments), order=1, modes=("fwd", "rev"))

  @parameterized.product(name=tuple(_ROUTINGS), form=tuple(_FORMS))
  def test_bfloat16_rounds_only_inputs_and_outputs(self, name, form):
    shape = (100, 4, 5)
    votes = cases.votes(0, shape, jnp.bfloat16) / 4
    arguments = _arguments(name, 0, shape)
    got = _ROUTES[name, form](votes, **arguments)
    chex.assert_type(list(got), jnp.bfloat16)
    got = jax.tree.map(lambda x: x.astype(jnp.float32), got)
    # Half of the spacing of numbers below 4 is 2^-7.
    cases.assert_outputs_close(
      got, _oracle(name, votes, **arguments), atol=1.01 * 2**-7
    )

  @parameterized.parameters(
    (jnp.zeros(7), 1.0), (jnp.full(7, 1e-30), 1.0), (jnp.ones(7), 1e4)
  )
  def test_absent_parts_and_saturated_logits(self, activations, scale):
    def energy(votes, logits, activations):
      output = attention.self_routing(votes, logits, activations)
      return sum(jnp.sum(jnp.cos(x)) for x in output), output

    logits = scale * _arguments("self")["logits"]
    gradient = jax.jit(jax.grad(energy, (0, 1, 2), has_aux=True))
    gradients, output = gradient(cases.votes(), logits, activations)
    chex.assert_tree_all_finite((gradients, output))
    if not np.any(activations > 1e-6):
      np.testing.assert_allclose(output.activations, 0, atol=1e-6)
      np.testing.assert_allclose(output.poses, 0, atol=1e-6)

  def test_layer_norm_of_almost_equal_numbers(self):
    """Where the difference of squares would be rounding error."""
    votes = 1e3 + jnp.zeros((1, 1, 4)).at[..., 0].set(1.0)
    got = attention.inverted_attention_routing(votes, jnp.ones(4)).poses
    want = _oracle("inverted_attention", votes, readout=np.ones(4))[0]
    np.testing.assert_allclose(got, want, rtol=1e-3)

  def test_pairs_of_votes_are_not_stored(self):
    num_parts = 2048
    votes = jax.ShapeDtypeStruct((num_parts, 2, 2), jnp.float32)

    def temporary_bytes(route):
      compiled = jax.jit(lambda votes: route(votes)[0]).lower(votes).compile()
      return compiled.memory_analysis().temp_size_in_bytes

    pairs = 4 * num_parts**2
    self.assertLess(temporary_bytes(attention.self_attention_routing), pairs)
    textbook = functools.partial(
      _textbook_self_attention, priors=0.0, bias=0.0, fault="itself_left_out"
    )
    self.assertGreater(temporary_bytes(textbook), pairs)

  @parameterized.parameters(*_ROUTINGS)
  def test_votes_of_factors_are_not_stored(self, name):
    """Not even for the gradient."""
    batch, shape, part_size = 32, (128, 10, 64), 4
    poses = jax.ShapeDtypeStruct((batch, shape[0], part_size), jnp.float32)
    transforms = jax.ShapeDtypeStruct(
      (*shape[:2], part_size, shape[2]), jnp.float32
    )
    arguments = _arguments(name, 0, shape)

    def temporary_bytes(vote):
      def energy(poses, transforms):
        def route(poses):
          return _ROUTINGS[name](vote(poses, transforms), **arguments).poses

        return jnp.sum(jnp.square(jax.vmap(route)(poses)))

      gradient = jax.jit(jax.grad(energy, (0, 1))).lower(poses, transforms)
      return gradient.compile().memory_analysis().temp_size_in_bytes

    votes = 4 * batch * np.prod(shape)
    plain = functools.partial(jnp.einsum, "ic,ijcd->ijd")
    self.assertLess(temporary_bytes(attention.LinearVotes), votes)
    self.assertGreater(temporary_bytes(plain), 2 * votes)

  def test_bad_options_are_refused(self):
    route = attention.inverted_attention_routing
    for count in (0, -1):
      with self.assertRaisesRegex(ValueError, f"num_iterations is {count};"):
        route(cases.votes(), jnp.ones(5), num_iterations=count)
    with self.assertRaisesRegex(ValueError, "at least 2"):
      route(cases.votes(0, (7, 4, 1)), jnp.ones(1))


if __name__ == "__main__":
  absltest.main()
