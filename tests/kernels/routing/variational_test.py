"""Variational routing against the paper's equations, and against scikit-learn.

What it shares with all routings is in `all_routings_test`.
"""

import functools

import cases
import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jax.scipy.special import digamma
from jax.test_util import check_grads
from scipy import special
from sklearn import mixture

from kernels.routing import variational

_SEEDS = (0, 1)
_SHAPE = cases.VOTES_SHAPE
_PRIOR = {"alpha_0": 0.5, "kappa_0": 2.0, "nu_0": 7.5, "psi_0": 0.3}


def _arguments(seed=0, shape=_SHAPE, dtype=jnp.float32):
  random = np.random.default_rng(seed)
  arguments = {
    "votes": random.normal(size=shape),
    "activations": random.uniform(size=shape[0]),
    "beta": random.normal(size=shape[1]),
    "gain": 1 + random.normal(size=shape[1]) / 4,
  }
  return jax.tree.map(lambda x: jnp.array(x, dtype), arguments)


_route = jax.jit(
  variational.variational_routing,
  static_argnames=("num_iterations", *_PRIOR),
)


@jax.jit
@functools.partial(jax.value_and_grad, has_aux=True)
def _energy(arguments):
  """A number that depends on every output, its gradient, and the outputs."""
  output = variational.variational_routing(**arguments)
  return sum(jnp.sum(jnp.cos(x)) for x in output), output


def _oracle(
  votes,
  activations,
  beta,
  gain,
  *,
  num_iterations=3,
  alpha_0=1.0,
  kappa_0=1.0,
  nu_0=None,
  psi_0=1.0,
):
  """The updates with R_j, mu_j and S_j as the paper has them, in float64."""
  votes, activations = np.float64(votes), np.float64(activations)
  num_parts, num_parents, pose_size = votes.shape
  nu_0 = pose_size + 1 if nu_0 is None else nu_0
  r = np.full((num_parts, num_parents), 1 / num_parents)
  for iteration in range(num_iterations):
    mass = np.zeros(num_parents)
    m, psi = np.zeros((2, num_parents, pose_size))
    log_precision = np.zeros(num_parents)
    for j in range(num_parents):
      mass[j] = sum(r[i, j] * activations[i] for i in range(num_parts))
      mu, spread = np.zeros((2, pose_size))
      for i in range(num_parts):
        mu += r[i, j] * activations[i] * votes[i, j] / mass[j]
      for i in range(num_parts):
        spread += r[i, j] * activations[i] * (votes[i, j] - mu) ** 2
      kappa, nu = kappa_0 + mass[j], nu_0 + mass[j]
      m[j] = mass[j] * mu / kappa
      psi[j] = 1 / (1 / psi_0 + spread + kappa_0 * mass[j] / kappa * mu**2)
      for d in range(pose_size):
        log_precision[j] += special.digamma((nu - d) / 2)
        log_precision[j] += np.log(2) + np.log(psi[j, d])
    alpha = alpha_0 + mass
    log_share = special.digamma(alpha) - special.digamma(sum(alpha))
    if iteration == num_iterations - 1:
      break
    for i in range(num_parts):
      log_rho = np.zeros(num_parents)
      for j in range(num_parents):
        distance = pose_size / (kappa_0 + mass[j]) + (nu_0 + mass[j]) * sum(
          psi[j] * (votes[i, j] - m[j]) ** 2
        )
        log_rho[j] = log_share[j] + log_precision[j] / 2 - distance / 2
      rho = np.exp(log_rho - max(log_rho))
      r[i] = rho / sum(rho)
  a = np.zeros(num_parents)
  for j in range(num_parents):
    entropy = pose_size / 2 * np.log(2 * np.pi * np.e) - log_precision[j] / 2
    logit = beta[j] - gain[j] * np.exp(log_share[j]) * entropy
    a[j] = 1 / (1 + np.exp(-logit))
  return m, a, r


def _textbook(votes, activations, beta, gain, *, num_iterations=3, fault=None):
  """The same in jnp, and ways to get it wrong."""
  num_parts, num_parents, pose_size = votes.shape
  weigh = jnp.ones(num_parts) if fault == "unweighted" else activations
  log_or_digamma = jnp.log if fault == "maximum_likelihood" else digamma
  steps = num_iterations + {"one_more": 1, "last_skipped": -1}.get(fault, 0)
  r = jnp.full((num_parts, num_parents), 1 / num_parents)
  for iteration in range(steps):
    w = (r * weigh[:, None])[..., None]
    mass = jnp.sum(w, axis=0)
    kappa = mass + (0 if fault == "no_prior_mean" else 1)
    nu = mass + pose_size + (0 if fault == "freedom" else 1)
    mu = jnp.sum(w * votes, axis=0) / mass
    m = mass * mu / kappa
    spread = jnp.sum(w * jnp.square(votes - mu), axis=0)
    if fault == "mean_spread":
      spread /= mass
    psi = 1 / (1 + spread + mass / kappa * mu**2)
    if fault == "mean_not_in_psi":
      psi = 1 / (1 + spread)
    dimensions = 0 if fault == "gamma" else jnp.arange(pose_size)
    log_precision = log_or_digamma((nu - dimensions) / 2) + jnp.log(2 * psi)
    log_precision = jnp.sum(log_precision, axis=1)
    alpha = 1 + mass[:, 0]
    log_share = log_or_digamma(alpha) - log_or_digamma(jnp.sum(alpha))
    if iteration == steps - 1:
      break
    distance = jnp.sum(psi * jnp.square(votes - m), axis=2) * nu[:, 0]
    if fault != "mean_is_certain":
      distance += pose_size / kappa[:, 0]
    log_rho = log_share + log_precision / 2 - distance / 2
    if fault == "over_children":
      r = jax.nn.softmax(log_rho, axis=0)
    elif fault == "shares_only_below":
      total = jax.nn.logsumexp(log_rho, axis=1, keepdims=True)
      r = jnp.exp(log_rho - log_share - total)
    else:
      r = jax.nn.softmax(log_rho, axis=1)
  entropy = pose_size / 2 * jnp.log(2 * jnp.pi * jnp.e) - log_precision / 2
  if fault != "entropy_unweighted":
    entropy *= jnp.exp(log_share)
  if fault == "precision_as_activation":
    entropy = -entropy
  return m, jax.nn.sigmoid(beta - gain * entropy), r


def check_matches_oracle(route, seed=0):
  arguments = _arguments(seed)
  cases.assert_outputs_close(route(**arguments), _oracle(**arguments))


class VariationalTest(chex.TestCase):
  @parameterized.parameters(*_SEEDS)
  def test_matches_oracle(self, seed):
    check_matches_oracle(_route, seed)

  @parameterized.parameters(1, 4)
  def test_iterations(self, num_iterations):
    options = {"num_iterations": num_iterations, **_arguments()}
    cases.assert_outputs_close(_route(**options), _oracle(**options))

  def test_prior(self):
    options = {**_PRIOR, **_arguments()}
    cases.assert_outputs_close(_route(**options), _oracle(**options))

  @parameterized.parameters((1, 4, 3), (6, 1, 3), (5, 3, 1))
  def test_small_shapes_match_oracle(self, *shape):
    arguments = _arguments(0, shape)
    cases.assert_outputs_close(_route(**arguments), _oracle(**arguments))

  def test_defaults(self):
    arguments = _arguments()
    votes, activations = arguments["votes"], arguments["activations"]
    want = _oracle(votes, activations, np.zeros(4), np.ones(4))
    cases.assert_outputs_close(_route(votes, activations), want)

  def test_textbook_form_is_right(self):
    check_matches_oracle(_textbook)

  @parameterized.parameters(
    "unweighted",
    "maximum_likelihood",
    "one_more",
    "last_skipped",
    "no_prior_mean",
    "freedom",
    "mean_spread",
    "mean_not_in_psi",
    "gamma",
    "mean_is_certain",
    "over_children",
    "shares_only_below",
    "entropy_unweighted",
    "precision_as_activation",
  )
  def test_broken_copy_fails(self, fault):
    with self.assertRaises(AssertionError):
      check_matches_oracle(functools.partial(_textbook, fault=fault))

  @parameterized.parameters(*_SEEDS)
  def test_one_parent_is_a_gaussian_of_scikit_learn(self, seed):
    """Alone, a parent takes every vote: one component of a mixture."""
    votes = _arguments(seed, (30, 1, 5))["votes"] + 1
    model = mixture.BayesianGaussianMixture(
      covariance_type="diag",
      weight_concentration_prior_type="dirichlet_distribution",
      weight_concentration_prior=1.0,
      mean_prior=np.zeros(5),
      mean_precision_prior=1.0,
      degrees_of_freedom_prior=6.0,
      covariance_prior=np.ones(5),
      reg_covar=0.0,
    ).fit(np.float64(votes[:, 0]))
    freedom = model.degrees_of_freedom_[0]
    log_precision = np.sum(
      special.digamma((freedom - np.arange(5)) / 2)
      + np.log(2 / (freedom * model.covariances_[0]))
    )
    entropy = (5 * np.log(2 * np.pi * np.e) - log_precision) / 2
    got = _route(votes, jnp.ones(30))
    np.testing.assert_allclose(got.poses, model.means_, atol=1e-5)
    np.testing.assert_allclose(
      special.logit(np.float64(got.activations)), -entropy, rtol=1e-4
    )

  def test_gradients(self):
    """Of all arguments; `all_routings_test` takes those of plain votes."""
    with jax.enable_x64(True):
      arguments = _arguments(0, (4, 3, 3), jnp.float64)
      check_grads(
        lambda arguments: _route(**arguments),
        (arguments,),
        order=1,
        modes=("fwd", "rev"),
      )

  @parameterized.parameters(0.0, 1e-30, 1e4)
  def test_activations_of_any_size(self, scale):
    """Parts that are all absent leave the prior."""
    arguments = _arguments()
    arguments["activations"] *= scale
    (_, output), gradients = _energy(arguments)
    chex.assert_tree_all_finite((output, gradients))
    if scale < 1:
      np.testing.assert_allclose(output.poses, 0, atol=1e-6)

  def test_bfloat16_rounds_only_inputs_and_outputs(self):
    arguments = _arguments(0, (100, 4, 5))
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), arguments)
    got = _route(**half)
    chex.assert_type(list(got), jnp.bfloat16)
    half = jax.tree.map(lambda x: x.astype(jnp.float32), half)
    got = jax.tree.map(lambda x: x.astype(jnp.float32), got)
    # Half of the spacing of numbers below 1 is 2^-9.
    cases.assert_outputs_close(got, _oracle(**half), atol=1.01 * 2**-9)

  @parameterized.parameters(
    ("num_iterations", 0),
    ("alpha_0", 0.0),
    ("kappa_0", -1.0),
    ("psi_0", 0.0),
  )
  def test_bad_options_are_refused(self, name, value):
    arguments = _arguments()
    votes, activations = arguments["votes"], arguments["activations"]
    with self.assertRaisesRegex(ValueError, f"{name}.*{value}.*give"):
      variational.variational_routing(votes, activations, **{name: value})

  def test_the_wishart_has_enough_degrees_of_freedom(self):
    votes = jnp.ones((3, 2, 5))
    with self.assertRaisesRegex(
      ValueError, "nu_0 is 4.0; give a finite number above 4"
    ):
      variational.variational_routing(votes, jnp.ones(3), nu_0=4.0)


if __name__ == "__main__":
  absltest.main()
