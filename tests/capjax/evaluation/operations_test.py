"""Operations of functions whose number is known."""

import cases
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from capjax import layers
from capjax.evaluation import operations
from capjax.layers import platforms

M, K, N = 3, 5, 7
A, B = jnp.ones((M, K)), jnp.ones((K, N))


def _in_a_loop(x):
  return jax.lax.scan(lambda x, _: (x @ x, None), x, length=4)[0]


def _for_platforms(x):
  return jax.lax.platform_dependent(x, cpu=jnp.sin, default=lambda x: x @ x)


def _for_gpus(x):
  return jax.lax.platform_dependent(
    x, cpu=jnp.sin, cuda=lambda x: x @ x @ x, default=lambda x: x @ x
  )


def _in_branches(x):
  return jax.lax.cond(x[0, 0] > 0, lambda x: x @ x, lambda x: x, x)


@pytest.mark.parametrize(
  ("function", "arguments", "want"),
  [
    (jnp.matmul, (A, B), 2 * M * K * N),
    (jax.vmap(jnp.matmul), (A[None].repeat(2, 0), B[None].repeat(2, 0)),
     4 * M * K * N),
    (jax.jit(lambda a, b: jnp.exp(a @ b)), (A, B), (2 * K + 1) * M * N),
    (jnp.sum, (A,), M * K),
    (jnp.cumprod, (A.reshape(-1),), M * K),
    (lambda a: jnp.floor(jnp.arctan2(a, jnp.sign(a))), (A,), 3 * M * K),
    (lambda a: a.T.reshape(-1)[::2], (A,), 0),
    (lambda n: n + n, (jnp.arange(4),), 0),
    (_in_a_loop, (jnp.ones((M, M)),), 4 * 2 * M**3),
    (_for_platforms, (jnp.ones((M, M)),), 2 * M**3),
    (_for_gpus, (jnp.ones((M, M)),), 4 * M**3),
    (_in_branches, (jnp.ones((M, M)),), 2 * M**3),
    (jax.checkpoint(jnp.matmul), (A, B), 2 * M * K * N),
  ],
  ids=("product", "batch", "jit", "sum", "products", "functions", "copies",
       "whole", "loop", "platform", "gpu", "branch", "checkpoint"),
)  # fmt: skip
def test_operations_are_counted(function, arguments, want):
  assert operations.count(function, *arguments) == want


@pytest.mark.parametrize(
  ("size", "channels", "kernel", "stride"),
  [(9, 2, 3, 1), (9, 2, 3, 2), (18, 64, 3, 1)],
)
def test_a_convolution_counts_as_its_direct_sum(size, channels, kernel, stride):
  """Also where a CPU takes fewer multiplications, as in the last case."""
  filters = 3 * channels
  conv = layers.Conv(channels, filters, kernel, stride=stride, rngs=nnx.Rngs(0))
  images = jnp.ones((4, size, size, channels))
  positions = 4 * ((size - kernel) // stride + 1) ** 2
  # The sums, and the bias; the scale is 1, but it is multiplied.
  want = positions * filters * (2 * kernel**2 * channels + 2)
  assert operations.count(conv, images) == want
  if channels == 64:
    with platforms.known("cpu"):
      on_cpu = jax.make_jaxpr(lambda x: conv(x))(images)
    assert operations._of_jaxpr(on_cpu.jaxpr) < 0.8 * want


def test_routing_adds_operations_with_each_iteration():
  images, _ = cases.batch(size=1)
  counts = [
    operations.count(cases.capsnet(num_iterations=n), images) for n in (1, 2, 3)
  ]
  # Each adds an agreement and a weighted sum of votes, 2 I J D each, at least.
  products = 2 * 2 * 48 * 3 * 5
  assert counts[2] - counts[1] == counts[1] - counts[0] > products
  assert counts[1] - counts[0] < 2 * products


def test_a_loop_of_unknown_length_is_refused():
  def loop(x):
    return jax.lax.while_loop(lambda x: x < 9, lambda x: 2 * x, x)

  with pytest.raises(ValueError, match="loop of unknown length"):
    operations.count(loop, 1.0)


def test_votes_are_formed_once():
  images, _ = cases.batch(size=1)
  dynamic, uniform = (
    operations.count(cases.capsnet(routing=name), images)
    for name in ("dynamic", "uniform")
  )
  votes = 2 * 48 * 3 * 4 * 5
  # Two agreements and two more weighted sums, and what is on I x J numbers.
  assert votes < dynamic - uniform < 3 * votes


def test_counts_do_not_depend_on_what_was_traced_before():
  images, _ = cases.batch(size=1)
  model = cases.capsnet()
  want = operations.count(cases.capsnet(), images)
  with platforms.known("cpu"):
    jax.make_jaxpr(model)(images)
  assert operations.count(model, images) == want
