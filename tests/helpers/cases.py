"""Inputs, small models and comparisons that several tests share."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from capjax import capsnet as capsnets
from capjax import efficient_capsnet as efficient_capsnets
from kernels import routing

VOTES_SHAPE = (7, 4, 5)  # I J D
IMAGE_SHAPE = (12, 11, 2)
EFFICIENT_IMAGE_SHAPE = (13, 10, 2)
EFFICIENT_STRIDES = (1, 2)


def keys(count, seed=0):
  return jax.random.split(jax.random.key(seed), count)


def votes(seed=0, shape=VOTES_SHAPE, dtype=jnp.float32):
  return jnp.array(np.random.default_rng(seed).normal(size=shape), dtype)


def bias(seed=0, shape=VOTES_SHAPE, dtype=jnp.float32):
  """Biases of the parents, for votes of a shape."""
  return jax.random.normal(jax.random.key(seed + 100), shape[1:], dtype) / 2


def batch(seed=0, size=4, shape=IMAGE_SHAPE):
  """Images, and labels of three classes."""
  image_key, label_key = keys(2, seed)
  images = jax.random.uniform(image_key, (size, *shape))
  return images, jax.random.randint(label_key, (size,), 0, 3)


def capsnet(seed=0, **options):
  """A CapsNet of 48 parts of length 4 and three classes of length 5."""
  options = {
    "image_shape": IMAGE_SHAPE,
    "num_classes": 3,
    "conv_features": 4,
    "conv_kernel": 3,
    "num_types": 3,
    "part_size": 4,
    "primary_kernel": 3,
    "pose_size": 5,
    "decoder_features": (6, 7),
    **options,
  }
  return capsnets.CapsNet(**options, rngs=nnx.Rngs(seed))


def efficient_capsnet(seed=0, **options):
  """An Efficient-CapsNet of 2 parts of length 4, three classes of length 5."""
  options = {
    "image_shape": EFFICIENT_IMAGE_SHAPE,
    "num_classes": 3,
    "conv_features": (5, 8),
    "conv_kernels": (4, 3),
    "conv_strides": EFFICIENT_STRIDES,
    "part_size": 4,
    "pose_size": 5,
    "decoder_features": (6, 7),
    **options,
  }
  return efficient_capsnets.EfficientCapsNet(**options, rngs=nnx.Rngs(seed))


def perturbed(model, seed=0):
  """A copy of a model with every number changed."""
  random = np.random.default_rng(seed)

  def move(leaf):
    return leaf + 0.3 * random.uniform(size=leaf.shape).astype(leaf.dtype)

  return jax.tree.map(move, model)


def num_parameters(model):
  return sum(x.size for x in jax.tree.leaves(nnx.state(model, nnx.Param)))


def assert_outputs_close(got, want, atol=1e-5):
  """Compares two outputs of a routing, or triples like them."""
  fields = routing.RoutingOutput._fields
  for name, one, other in zip(fields, got, want, strict=True):
    np.testing.assert_allclose(one, other, atol=atol, err_msg=name)


def assert_equally_often(counts):
  """Checks that counts differ only as those of random samples do.

  The limit of six standard deviations allows one false alarm in 10^8 counts.
  """
  counts = np.asarray(list(counts))
  mean = counts.sum() / counts.size
  np.testing.assert_array_less(np.abs(counts - mean), 6 * mean**0.5)


def precisions(jaxpr):
  """Yields the precision of each product and convolution in a jaxpr.

  Inner jaxprs are included. Products with ones are left out, since they are
  sums, which are never rounded.
  """
  products = jax.lax.dot_general_p, jax.lax.conv_general_dilated_p
  ones = set()
  for equation in jaxpr.eqns:
    if equation.primitive is jax.lax.broadcast_in_dim_p:
      number = equation.invars[0]
      is_float = jnp.issubdtype(number.aval.dtype, jnp.floating)
      if is_float and getattr(number, "val", None) == 1:
        ones.add(id(equation.outvars[0]))
    if equation.primitive in products:
      if not ones & set(map(id, equation.invars)):
        yield equation.params["precision"]
    for inner in jax.tree.leaves(list(equation.params.values())):
      if hasattr(inner, "eqns"):
        yield from precisions(inner)


def assert_products_are_not_rounded(function, *arguments):
  """Checks that products do not round to TF32 or bfloat16.

  Some devices would do so by default.
  """
  found = set(precisions(jax.make_jaxpr(function)(*arguments)))
  assert found == {(jax.lax.Precision.HIGHEST,) * 2}, found
