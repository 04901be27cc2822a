"""What every kernel promises, whatever it computes.

Rows of the table in `kernel_cases`: compiled, batched and differentiated they
agree with themselves, in every precision, and are finite at the limits.
"""

import importlib
import inspect
import pkgutil
import types

import chex
import jax
import jax.numpy as jnp
import kernel_cases
import numpy as np
import pytest
from absl.testing import absltest, parameterized

import kernels

_STEP = 1e-5  # of differences in float64
_SATURATED = 1e4
_HALF = 2.0**-8  # half of the spacing of bfloat16 numbers from 1 to 2
_ORDINARY = 2  # the first rows of a batch


def _batch(case, sizes=kernel_cases.SIZES):
  """Arguments in float64, stacked: ordinary ones first, then limits."""
  random = np.random.default_rng(0)
  rows = [
    kernel_cases.draw(case, random, sizes=sizes) for _ in range(_ORDINARY)
  ]
  first = rows[0]
  kinds = jax.tree.map(kernel_cases.kind_of, case.arguments)
  limits = {
    # Of all that may be zero.
    "zeros": lambda x, kind: np.zeros_like(x) if kind != "positive" else x,
    "equal": lambda x, kind: np.broadcast_to(x[:1], x.shape) if x.ndim else x,
    "absent": lambda x, kind: 0 * x if kind in ("unit", "flag") else x,
    "present": lambda x, kind: 1 + 0 * x if kind in ("unit", "flag") else x,
    "saturated": lambda x, kind: (
      min(_SATURATED, case.largest) * x if kind in ("real", "log") else x
    ),
    "largest": lambda x, kind: (
      case.largest * x if kind in ("real", "log") else x
    ),
    "tiny": lambda x, kind: 1e-25 * x if kind in ("real", "log") else x,
  }
  for limit in limits.values():
    rows.append({name: limit(first[name], kinds[name]) for name in first})
  return {name: np.stack([row[name] for row in rows]) for name in first}


def _cast(arguments, dtype):
  return {name: jnp.asarray(x, dtype) for name, x in arguments.items()}


def _floats(tree):
  """Those of the outputs that have derivatives."""
  return [
    x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact)
  ]


def _directions(tree, seed):
  """Random numbers shaped like these arrays."""
  random = np.random.default_rng(seed)
  return jax.tree.map(
    lambda x: jnp.asarray(random.normal(size=x.shape), x.dtype), tree
  )


def _moves(case, arguments):
  """Directions, of which those of flags, which do not change, are 0."""
  moves = _directions(arguments, 1)
  return {
    name: 0 * x if kernel_cases.kind_of(case.arguments[name]) == "flag" else x
    for name, x in moves.items()
  }


def _derived(case, *, forward=False, reverse=True):
  """A function of a batch: values, and derivatives as the case has them."""

  def function(arguments):
    return _floats(case.function(**arguments))

  def of_row(arguments):
    found = {"values": case.function(**arguments)}
    if case.reverse and reverse:
      values, pull = jax.vjp(function, arguments)
      (found["pulled"],) = pull(_directions(values, 2))
    if case.forward and forward:
      moves = _moves(case, arguments)
      _, found["pushed"] = jax.jvp(function, (arguments,), (moves,))
    return found

  return jax.jit(jax.vmap(of_row))


def _run(case, batch, **derivatives):
  return _derived(case, **derivatives)(batch)


def _alone(case, arguments):
  """Values of one row."""

  def function(arguments):
    return case.function(**arguments)

  return jax.jit(function)(arguments)


def _row(tree, n):
  return jax.tree.map(lambda x: x[n], tree)


def _wide(tree):
  return [np.float64(x) for x in _floats(tree)]


def _assert_near(got, want, tolerance):
  """Each array within its largest number times `tolerance`."""
  for one, other in zip(_wide(got), _wide(want), strict=True):
    size = np.max(np.abs(other), initial=1.0)
    np.testing.assert_allclose(one, other, atol=tolerance * size)


def _inner(one, other):
  return sum(
    np.sum(x * y) for x, y in zip(_wide(one), _wide(other), strict=True)
  )


def _public():
  """All public functions of the kernels, by module and name."""
  modules = [
    importlib.import_module(found.name)
    for found in pkgutil.walk_packages(kernels.__path__, "kernels.")
  ]
  return {
    f"{module.__name__.rpartition('.')[2]}.{name}": value
    for module in modules
    for name, value in vars(module).items()
    if isinstance(value, types.FunctionType | jax.custom_jvp)
    and value.__module__ == module.__name__
    and not name.startswith("_")
  }


class ConformanceTest(parameterized.TestCase):
  def test_every_public_kernel_has_a_row(self):
    held = {name.split()[0] for name in kernel_cases.CASES}
    held = {name for name in held if not name.startswith("families.")}
    self.assertEqual(set(_public()), held | kernel_cases.NOT_OF_ARRAYS)

  def test_every_form_of_gradients_has_a_row(self):
    """Kernels with `gradient=`, but for what checks it or passes it on."""
    taking = {
      name
      for name, function in _public().items()
      if "gradient" in inspect.signature(function).parameters
    }
    iterate = {
      n.split()[0] for n, x in kernel_cases.CASES.items() if x.iterates
    }
    self.assertEqual(taking - kernel_cases.NOT_OF_ARRAYS, iterate)

  @parameterized.parameters(*(x for x in kernel_cases.CASES if " " not in x))
  def test_single_precision(self, name):
    """Finite at every limit; the same one by one, compiled and not."""
    self._check_single_precision(name)

  @parameterized.parameters(*(x for x in kernel_cases.CASES if " " in x))
  @pytest.mark.long
  def test_single_precision_of_options(self, name):
    """The same for kernels with other options, such as an orphan parent."""
    self._check_single_precision(name)

  def _check_single_precision(self, name):
    case = kernel_cases.CASES[name]
    batch = _cast(_batch(case), jnp.float32)
    found = _run(case, batch)
    chex.assert_tree_all_finite(found)
    for n in range(_ORDINARY):
      plain = case.function(**_row(batch, n))
      _assert_near(_row(found["values"], n), plain, case.tolerance)

  @parameterized.parameters(*kernel_cases.CASES)
  @pytest.mark.long
  def test_lowers_for_accelerators(self, name):
    """Values and derivatives have a program for GPUs and for TPUs."""
    case = kernel_cases.CASES[name]
    batch = _cast(_batch(case), jnp.float32)
    exported = jax.export.export(
      _derived(case, forward=True), platforms=("cuda", "tpu")
    )(batch)
    self.assertEqual(exported.platforms, ("cuda", "tpu"))

  @parameterized.parameters(*kernel_cases.CASES)
  @pytest.mark.long
  def test_one_child_in_half_precision(self, name):
    """Finite at every limit; what is rounded is arguments and results."""
    case = kernel_cases.CASES[name]
    sizes = kernel_cases.SIZES | {case.children: 1}
    batch = _cast(_batch(case, sizes), jnp.bfloat16)
    found = _run(case, batch)
    chex.assert_tree_all_finite(found)
    if not case.random:
      same = _cast(_row(batch, 0), jnp.float32)
      _assert_near(_row(found["values"], 0), _alone(case, same), 2 * _HALF)

  @parameterized.parameters(*kernel_cases.CASES)
  @pytest.mark.long
  def test_double_precision(self, name):
    """Differences, forward and reverse mode agree; dtypes may be mixed."""
    case = kernel_cases.CASES[name]
    single = _cast(_row(_batch(case), 0), jnp.float32)
    kept = jax.eval_shape(lambda x: case.function(**x), single)
    with jax.enable_x64(True):
      x = _row(_batch(case), 0)
      again = jax.eval_shape(lambda x: case.function(**x), single)
      chex.assert_trees_all_equal_dtypes(
        *(_floats(shapes) for shapes in (kept, again))
      )
      move = _moves(case, x)
      steps = [
        {name: x[name] + t * move[name] for name in x}
        for t in (0, _STEP, -_STEP)
      ]
      batch = {name: jnp.stack([s[name] for s in steps]) for name in x}
      found = _run(case, batch, forward=True)
      values = found["values"]
      for leaf in _floats(values):
        self.assertEqual(leaf.dtype, jnp.float64)
      if not case.reverse:
        return
      want = [(value[1] - value[2]) / (2 * _STEP) for value in _floats(values)]
      weights = _directions(_floats(_row(values, 0)), 2)
      slope = _inner(weights, want)
      pulled = _inner(_row(found["pulled"], 0), move)
      size = max(1, abs(pulled))
      if case.smooth:
        self.assertAlmostEqual(slope, pulled, delta=1e-5 * size)
      if case.forward:
        pushed = _inner(_row(found["pushed"], 0), weights)
        self.assertAlmostEqual(pushed, pulled, delta=1e-9 * size)

  @pytest.mark.long
  def test_em_convolution_in_forward_mode_is_the_same(self):
    name = "em_convolution.em_convolution"
    case, other = (
      kernel_cases.CASES[name + mode] for mode in ("", " in forward mode")
    )
    batch = {name: x[:1] for name, x in _batch(case).items()}
    got, want = (_run(x, _cast(batch, jnp.float32)) for x in (case, other))
    _assert_near(got["values"], want["values"], case.tolerance)
    _assert_near(got["pulled"], want["pulled"], case.tolerance)


if __name__ == "__main__":
  absltest.main()
