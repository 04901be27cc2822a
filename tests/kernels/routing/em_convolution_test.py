"""Convolutional EM routing against loops over positions, and at its limits."""

import functools

import cases
import chex
import em_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized
from jax.test_util import check_grads

from kernels.routing import em, em_convolution

# A border is left over along both axes, and windows overlap.
_SIZE, _KERNEL, _TYPES, _PARENTS = (6, 8), (2, 3), 2, 3
_VECTOR = (1, 9)  # a pose of more numbers than are summed one by one
_STRIDE = em_cases.STRIDE
_TEMPERATURES = em_cases.TEMPERATURES[1:]


def _arguments(
  seed=0,
  form="paper",
  size=_SIZE,
  dtype=jnp.float32,
  scale=1.0,
  pose=(2, 3),
):
  random = np.random.default_rng(seed)
  poses = scale * random.normal(size=(*size, _TYPES, *pose))
  activations = random.uniform(0.1, 1.0, (*size, _TYPES))
  transforms = random.normal(size=(*_KERNEL, _TYPES, _PARENTS, pose[1], 2))
  arrays = (jnp.array(x, dtype) for x in (poses, activations, transforms))
  return *arrays, *em_cases.betas(seed, _PARENTS, form, dtype)


_STATIC = ("stride", "padding", "form", "temperatures")


@functools.partial(jax.jit, static_argnames=_STATIC)
def _route(
  *arguments,
  stride=_STRIDE,
  padding="VALID",
  form="paper",
  temperatures=_TEMPERATURES,
):
  return em_convolution.em_convolution(
    *arguments,
    inverse_temperatures=temperatures,
    stride=stride,
    padding=padding,
    form=em_cases.FORMS[form],
  )


def check_matches_oracle(oracle, seed=0, pose=(2, 3), **options):
  arguments = _arguments(seed, options.get("form", "paper"), pose=pose)
  got = _route(*arguments, **options)
  em_cases.assert_close(got, oracle(*arguments, **options), atol=1e-4)


def _sums_of_children(coefficients, stride=_STRIDE):
  """[H W I], of the shares that each child gives away."""
  total = np.zeros((*_SIZE, _TYPES))
  rows, columns, height, width = coefficients.shape[:4]
  for y in range(rows):
    for x in range(columns):
      for v in range(height):
        for u in range(width):
          at = stride * y + v, stride * x + u
          total[at] += np.sum(coefficients[y, x, v, u], axis=1)
  return total


def check_children_share_themselves_out(coefficients):
  total = _sums_of_children(coefficients)
  want = np.ones(_SIZE)
  want[:, -1] = 0  # no window reaches the last column
  np.testing.assert_allclose(total, want[..., None] + 0 * total, atol=1e-5)


def _sum_of(output, whole):
  """Depends on every output, or on all but the coefficients."""
  used = output if whole else output._replace(coefficients=jnp.zeros(()))
  return sum(jnp.sum(jnp.cos(x)) for x in used)


@functools.partial(jax.jit, static_argnames=("form", "whole"))
def _energy(arguments, form="paper", whole=False):
  """The gradients of such a number, and the outputs."""

  def energy(arguments):
    output = _route(*arguments, form=form)
    return _sum_of(output, whole), output

  return jax.grad(energy, has_aux=True)(arguments)


def _plain(arguments, form="paper", detached=False):
  """The same through `em.em_routing`, for a single window over everything."""
  poses, activations, transforms, beta_a, beta_u = arguments
  votes = jnp.einsum("yxipq,yxijqr->yxijpr", poses, transforms)
  if detached:
    votes = jax.lax.stop_gradient(votes)
  output = em.em_routing(
    votes.reshape(-1, _PARENTS, 4),
    activations.reshape(-1),
    beta_a,
    beta_u,
    inverse_temperatures=_TEMPERATURES,
    form=em_cases.FORMS[form],
  )
  shapes = (
    (1, 1, _PARENTS, 2, 2),
    (1, 1, _PARENTS),
    (1, 1, *transforms.shape[:4]),
    (1, 1, _PARENTS, 2, 2),
  )
  return em.EMOutput(
    *(x.reshape(shape) for x, shape in zip(output, shapes, strict=True))
  )


@functools.partial(jax.jit, static_argnames=("form", "detached"))
def _plain_energy(arguments, form, detached=False):
  def energy(arguments):
    outputs = _plain(arguments, form, detached)
    return _sum_of(outputs, whole=True), outputs

  return jax.grad(energy, has_aux=True)(arguments)


class EMConvolutionTest(parameterized.TestCase):
  @parameterized.product(seed=(0, 1), form=tuple(em_cases.FORMS))
  def test_matches_oracle(self, seed, form):
    check_matches_oracle(em_cases.convolution_oracle, seed, form=form)

  def test_stride_of_one_and_more_iterations(self):
    check_matches_oracle(
      em_cases.convolution_oracle, stride=1, temperatures=em_cases.TEMPERATURES
    )

  def test_votes_of_many_terms(self):
    """They are matrix products; those of few are written out."""
    check_matches_oracle(em_cases.convolution_oracle, pose=_VECTOR)

  def test_one_iteration(self):
    check_matches_oracle(em_cases.convolution_oracle, temperatures=(0.5,))

  @parameterized.parameters(
    "types_alone_compete", "positions_alone_compete", "even_over_types"
  )
  def test_broken_copy_fails(self, fault):
    with self.assertRaises(AssertionError):
      check_matches_oracle(
        functools.partial(em_cases.convolution_oracle, fault=fault)
      )

  def test_same_padding_surrounds_with_absent_children(self):
    """Of 6 rows every second sees 2: none missing; of 8 columns one is."""
    arguments = _arguments()
    padded = [
      np.pad(x, ((0, 0), (0, 1), *[(0, 0)] * (x.ndim - 2)))
      for x in arguments[:2]
    ]
    want = em_cases.convolution_oracle(*padded, *arguments[2:])
    got = _route(*arguments, padding="SAME")
    self.assertEqual(got.activations.shape[:2], (3, 4))
    em_cases.assert_close(got, want, atol=1e-4)

  @parameterized.parameters(*em_cases.FORMS)
  @pytest.mark.long_after_first
  def test_one_window_is_a_dense_layer(self, form):
    """In its outputs, and in gradients that go through the votes."""
    arguments = _arguments(0, form, size=_KERNEL)
    got, output = _energy(arguments, form=form, whole=True)
    want, outputs = _plain_energy(arguments, form)
    em_cases.assert_close(output, outputs)
    chex.assert_trees_all_close(got, want, atol=2e-4, rtol=1e-4)
    want, _ = _plain_energy(arguments, form, detached=True)
    with self.assertRaises(AssertionError):
      chex.assert_trees_all_close(got, want, atol=2e-4, rtol=1e-4)

  def test_children_share_themselves_out(self):
    got = _route(*_arguments()).coefficients
    check_children_share_themselves_out(got)
    types_alone = em_cases.convolution_oracle(
      *_arguments(), fault="types_alone_compete"
    )
    with self.assertRaises(AssertionError):
      check_children_share_themselves_out(types_alone.coefficients)

  @pytest.mark.long
  def test_children_beyond_all_windows_change_nothing(self):
    poses, activations, *rest = _arguments()
    want = _energy((poses, activations, *rest))
    gradients, output = _energy(
      (poses.at[:, -1].set(1e4), activations.at[:, -1].set(0.0), *rest)
    )
    chex.assert_trees_all_close((gradients, output), want)
    np.testing.assert_array_equal(gradients[0][:, -1], 0)
    np.testing.assert_array_equal(gradients[1][:, -1], 0)

  def test_types_permute(self):
    poses, activations, transforms, *betas = _arguments()
    want = _route(poses, activations, transforms, *betas)
    order = np.array([2, 0, 1])
    got = _route(
      poses[:, :, ::-1],
      activations[:, :, ::-1],
      transforms[:, :, ::-1, order],
      *(beta[order] for beta in betas),
    )
    want = em.EMOutput(
      want.poses[:, :, order],
      want.activations[:, :, order],
      want.coefficients[..., ::-1, order],
      want.variances[:, :, order],
    )
    em_cases.assert_close(got, want)

  @pytest.mark.long
  def test_whole_strides_shift_the_parents(self):
    """Where a border of absent children keeps the edges alike."""
    poses, activations, *rest = _arguments(size=(12, 14))
    inside = np.zeros((12, 14, 1))
    inside[4:8, 4:9] = 1
    activations = activations * inside
    poses = poses * inside[..., None, None]
    want = _route(poses, activations, *rest)
    moved = (jnp.roll(x, (2, -2), (0, 1)) for x in (poses, activations))
    got = _route(*moved, *rest)
    em_cases.assert_close(
      jax.tree.map(lambda x: x[2:5, 1:4], got),
      jax.tree.map(lambda x: x[1:4, 2:5], want),
    )

  @parameterized.parameters((2, 3), _VECTOR)
  @pytest.mark.long_after_first
  def test_gradients(self, *pose):
    """In reverse mode, with windows that overlap."""
    with jax.enable_x64(True):
      check_grads(
        _route,
        _arguments(0, size=(4, 5), dtype=jnp.float64, pose=pose),
        order=1,
        modes=("rev",),
        eps=1e-6,
      )

  @parameterized.product(
    limit=("zeros", "far", "nobody", "one", "alike"),
    form=tuple(em_cases.FORMS),
  )
  @pytest.mark.long_after_first
  def test_limit_is_finite(self, limit, form):
    poses, activations, transforms, *betas = _arguments(0, form)
    if limit == "zeros":
      poses = jnp.zeros_like(poses)
    elif limit == "far":
      poses *= 1e4
    elif limit == "nobody":
      activations = jnp.zeros_like(activations)
    elif limit == "one":
      activations = jnp.zeros_like(activations).at[2, 3, 1].set(1.0)
    elif limit == "alike":
      poses, transforms = jnp.ones_like(poses), jnp.ones_like(transforms)
    gradients, output = _energy(
      (poses, activations, transforms, *betas), form=form
    )
    chex.assert_tree_all_finite((gradients, output))
    total = _sums_of_children(output.coefficients)
    np.testing.assert_allclose(total[:, :-1], 1, atol=1e-5)

  @pytest.mark.long
  def test_many_extremes_are_finite(self):
    def finite(key):
      keys = iter(jax.random.split(key, 12))

      def scale(low, high):
        return 10 ** jax.random.uniform(next(keys), minval=low, maxval=high)

      poses = scale(-6, 3) * jax.random.normal(next(keys), (4, 5, _TYPES, 2, 3))
      poses += scale(-6, 3) * jax.random.normal(next(keys), (2, 3))
      shape = (*_KERNEL, _TYPES, _PARENTS, 3, 2)
      transforms = scale(-3, 1) * jax.random.normal(next(keys), shape)
      activations = jax.random.uniform(next(keys), (4, 5, _TYPES)) ** scale(
        -1, 2
      )
      activations *= jax.random.bernoulli(next(keys), 0.7, (4, 5, _TYPES))
      betas = scale(-3, 2) * jax.random.normal(next(keys), (2, _PARENTS))
      arguments = (poses, activations, transforms, *betas)
      leaves = jax.tree.leaves(_energy(arguments, form="official"))
      return jnp.array([jnp.all(jnp.isfinite(x)) for x in leaves])

    found = jax.jit(jax.vmap(finite))(jax.random.split(jax.random.key(0), 2000))
    np.testing.assert_array_equal(np.mean(found, axis=0), 1)

  @pytest.mark.long
  def test_bfloat16_rounds_only_inputs_and_outputs(self):
    half = [x.astype(jnp.bfloat16) for x in _arguments()]
    got = _route(*half)
    chex.assert_type(list(got), jnp.bfloat16)
    chex.assert_type(list(_route(*_arguments())), jnp.float32)
    want = em_cases.convolution_oracle(*(x.astype(jnp.float32) for x in half))
    got = jax.tree.map(lambda x: x.astype(jnp.float32), got)
    # Half of the spacing of numbers from 1 to 2 is 2^-8.
    em_cases.assert_close(got, want, atol=1e-4, rtol=1.01 * 2**-8)

  @pytest.mark.long
  def test_vmap_is_a_loop(self):
    """Values, and gradients where the transforms are shared."""
    examples = [_arguments(seed)[:2] for seed in range(3)]
    shared = _arguments()[2:]

    def energy(shared, example):
      output = _route(*example, *shared)
      return _sum_of(output, whole=False), output

    single = jax.jit(jax.grad(energy, has_aux=True))
    found = [single(shared, example) for example in examples]
    want = jax.tree.map(
      lambda *x: sum(x), *(gradients for gradients, _ in found)
    )
    outputs = jax.tree.map(
      lambda *x: jnp.stack(x), *(output for _, output in found)
    )
    batch = jax.tree.map(lambda *x: jnp.stack(x), *examples)

    def energies(shared):
      values, outputs = jax.vmap(energy, (None, 0))(shared, batch)
      return jnp.sum(values), outputs

    got, output = jax.jit(jax.grad(energies, has_aux=True))(shared)
    em_cases.assert_close(output, outputs)
    chex.assert_trees_all_close(got, want, atol=1e-4, rtol=1e-4)

  @pytest.mark.long
  def test_without_jit(self):
    arguments = _arguments(size=(4, 5))
    got = em_convolution.em_convolution(
      *arguments, inverse_temperatures=_TEMPERATURES, stride=_STRIDE
    )
    em_cases.assert_close(got, _route(*arguments))

  @pytest.mark.long
  def test_votes_are_not_stored(self):
    batch, size, types, parents = 4, 8, 8, 16
    shapes = (
      (batch, size, size, types, 4, 4),
      (batch, size, size, types),
      (3, 3, types, parents, 4, 4),
      (parents,),
      (parents,),
    )
    votes = 4 * batch * 3 * 3 * 9 * types * parents * 16
    route = functools.partial(_route, stride=2)

    def energy(*arguments):
      output = jax.vmap(route, (0, 0, None, None, None))(*arguments)
      return jnp.sum(output.poses) + jnp.sum(output.activations)

    gradient = jax.jit(jax.grad(energy, range(5))).lower(
      *(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    )
    memory = gradient.compile().memory_analysis().temp_size_in_bytes
    self.assertLess(memory, votes)

  def test_products_are_not_rounded(self):
    cases.assert_products_are_not_rounded(
      jax.grad(lambda *x: jnp.sum(_route(*x).poses), range(5)), *_arguments()
    )

  def test_bad_options_are_refused(self):
    arguments = _arguments()
    route = functools.partial(
      em_convolution.em_convolution, inverse_temperatures=(0.1,)
    )
    with self.assertRaisesRegex(ValueError, "padding is 'valid'; give"):
      route(*arguments, padding="valid")
    with self.assertRaisesRegex(ValueError, "stride is 0; give"):
      route(*arguments, stride=0)
    with self.assertRaisesRegex(ValueError, "window of 2x3 .* not 1x8; give"):
      route(arguments[0][:1], arguments[1][:1], *arguments[2:])
    with self.assertRaisesRegex(ValueError, "temperatures is empty; give"):
      route(*arguments, inverse_temperatures=())


if __name__ == "__main__":
  absltest.main()
