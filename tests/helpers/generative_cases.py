"""Small generative capsules and their guides, for several tests."""

import functools

import jax
from flax import nnx

from capjax import generative
from capjax.generative import guides

SHAPE = (9, 10, 1)


@functools.cache
def small(gaussian=False, counts=(3, 2)):
  """A small model, its guide and images."""
  rngs = nnx.Rngs(0)
  capsules = generative.GenerativeCapsules(
    SHAPE, num_capsules=counts, template_size=5, rngs=rngs
  )
  encoders = [guides.PartEncoder(SHAPE, counts[0], features=(4,), rngs=rngs)]
  for children, parents in zip(counts[:-1], counts[1:], strict=True):
    encoders.append(
      guides.ObjectEncoder(
        children, parents, width=8, num_blocks=1, num_heads=2, num_inducing=3,
        out_features=8, hidden=8, rngs=rngs,
      )
    )  # fmt: skip
  guide = guides.CapsuleGuide(encoders)
  if gaussian:
    guide.add_scales(scale=0.1, rngs=rngs)
  images = jax.random.uniform(jax.random.key(1), (2, *SHAPE))
  return capsules, guide, images


guide = jax.jit(lambda guide, *arguments: guide(*arguments))
