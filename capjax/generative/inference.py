"""Inference in generative capsules without amortisation, image by image.

Starting from the posterior of a guide, the bound is maximised for each image
alone (Smith et al., 2020, section 2.4), or poses are sampled by a Markov chain.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from etils import epy
from jaxtyping import Array, Float, Key

from capjax import losses
from capjax.generative import guides
from capjax.generative.model import GenerativeCapsules, Layers
from capjax.kernels import checks, numerics
from capjax.kernels.matching.selection import Temperature

with epy.lazy_imports():  # these take seconds, and --help needs none
  from numpyro import infer


@runtime_checkable
class Optimizer(Protocol):
  """An optax transformation with extra arguments, such as `optax.lbfgs()`.

  `optax.with_extra_args_support` converts any other transformation.
  """

  init: Callable
  update: Callable


class FreeForm(NamedTuple):
  """The result of `free_form` for each image.

  Attributes:
    posteriors: posteriors of each layer, from the parts up.
    bounds: [B N], the objective before each step, in nats.
  """

  posteriors: guides.Posteriors
  bounds: Float[Array, "B N"]


class ImportanceBound(NamedTuple):
  """Bounds by samples of a guide, and the effective number of samples.

  Attributes:
    bounds: [B], in nats.
    effective_samples: [B], (sum w)^2 / sum w^2 of the weights, in [1, K].
  """

  bounds: Float[Array, " B"]
  effective_samples: Float[Array, " B"]


def importance_bound(
  capsules: GenerativeCapsules,
  guide: guides.CapsuleGuide,
  images: Float[Array, "B H W C"],
  key: Key[Array, ""],
  *,
  num_samples: int,
  temperature: Temperature | None = None,
) -> ImportanceBound:
  """Bounds log p(x) by K samples of each image, in nats.

  log 1/K sum_k p(x, t_k, A_k) / q(t_k, A_k | x) (Burda, Grosse and
  Salakhutdinov, 2016, Importance weighted autoencoders, eq. 8), with the
  selections summed out. Its mean rises with K, to log p(x).

  Samples are computed one after the other, and again for gradients, so that
  memory does not grow with K.

  Args:
    capsules: the model.
    guide: q, with Gaussian poses.
    images: x, in [0, 1].
    key: random key of the samples; a single sample uses the key itself, so that
      the bound equals `guides.elbo`.
    num_samples: K.
    temperature: as for `guides.elbo`.

  Raises:
    ValueError: if the guide has point estimates of poses, so that weights of
      samples are not ratios of densities; or if there is no sample.
  """
  if not guide.has_scales:
    raise ValueError(
      "the guide has point estimates of poses, so there is no bound; make "
      "them Gaussian by guide.add_scales, in training --gaussian_poses."
    )
  checks.counts(num_samples=num_samples)
  keys = key[None] if num_samples == 1 else jax.random.split(key, num_samples)

  @jax.checkpoint
  def log_weights(key):
    return guides.elbo(capsules, guide, images, key, temperature=temperature)

  logs = jax.lax.map(log_weights, keys).T
  shares = numerics.softmax(logs, axis=-1)
  return ImportanceBound(
    losses.likelihood_bound(logs).importance,
    1 / jnp.sum(jnp.square(shares), axis=-1),
  )


def bound(
  capsules: GenerativeCapsules,
  posteriors: guides.Posteriors,
  images: Float[Array, "B H W C"],
  key: Key[Array, ""],
) -> Float[Array, " B"]:
  """The objective of `guides.elbo` at the posteriors of each image.

  Presences are sampled at the temperature of the model, not of a guide.

  Like `guides.elbo` it bounds log p(x) only if poses are Gaussian.

  Args:
    capsules: the model.
    posteriors: q of each layer, with a leading batch axis; layers are
      independent.
    images: x, in [0, 1].
    key: random key of one sample.
  """
  keys = jax.random.split(key, len(posteriors))
  temperature = capsules.temperature
  samples = tuple(
    q.sample(k, temperature) for q, k in zip(posteriors, keys, strict=True)
  )
  return capsules.log_joint(samples, images) - guides.log_posterior(
    posteriors, samples, temperature=temperature
  )


def free_form(
  capsules: GenerativeCapsules,
  posteriors: guides.Posteriors,
  images: Float[Array, "B H W C"],
  key: Key[Array, ""],
  *,
  optimizer: Optimizer,
  num_steps: int,
  num_samples: int = 1,
  fixed_noise: bool = False,
) -> FreeForm:
  """Maximises the bound of every image by its own parameters (section 2.4).

  Each image has its own optimiser, so that line searches of images are
  independent.

  Args:
    capsules: the model, not changed.
    posteriors: initial q, such as the posterior of a guide, with a leading
      batch axis.
    images: x, in [0, 1].
    key: random key of the samples.
    optimizer: optimiser of the parameters of q.
    num_steps: N.
    num_samples: samples over which the bound is averaged.
    fixed_noise: uses the same noise in all steps, which makes the bound a
      deterministic function, as a line search or `optax.lbfgs` needs; the fewer
      the samples, the larger the error of its optimum.

  Returns:
    q of every image, and the bounds before each step.

  Raises:
    ValueError: if there is no sample.
  """
  checks.counts(num_samples=num_samples)

  def climb(start, image, image_key):
    def loss(posteriors, noise):
      batch = jax.tree.map(lambda x: x[None], posteriors)
      keys = jax.random.split(noise, num_samples)
      bounds = jax.lax.map(
        lambda key: bound(capsules, batch, image[None], key)[0], keys
      )
      return -jnp.mean(bounds)

    def step(carry, number):
      posteriors, state = carry
      noise = image_key
      if not fixed_noise:
        noise = jax.random.fold_in(image_key, number)
      value, gradient = jax.value_and_grad(loss)(posteriors, noise)
      updates, state = optimizer.update(
        gradient,
        state,
        posteriors,
        value=value,
        grad=gradient,
        value_fn=lambda posteriors: loss(posteriors, noise),
      )
      posteriors = jax.tree.map(jnp.add, posteriors, updates)
      return (posteriors, state), -value

    carry = start, optimizer.init(start)
    (posteriors, _), bounds = jax.lax.scan(step, carry, jnp.arange(num_steps))
    return FreeForm(posteriors, bounds)

  keys = jax.random.split(key, len(images))
  return jax.vmap(climb)(posteriors, images, keys)


def sample_poses(
  capsules: GenerativeCapsules,
  start: Layers,
  image: Float[Array, "H W C"],
  key: Key[Array, ""],
  *,
  num_warmup: int = 200,
  num_samples: int = 200,
  max_tree_depth: int = 8,
) -> tuple[Float[Array, "S I 6"], ...]:
  """Samples the poses of one image by NUTS, given presences.

  The selections are summed out, so that all remaining variables are continuous.

  Args:
    capsules: the model.
    start: presences, which stay fixed, and initial poses, with a batch axis of
      size 1.
    image: x, in [0, 1].
    key: random key of the chain.
    num_warmup: steps that tune the sampler.
    num_samples: S, steps that are kept.
    max_tree_depth: a step takes up to 2^max_tree_depth gradients.

  Returns:
    The poses of each layer, from the parts up.
  """

  def energy(poses):
    layers = tuple(
      layer._replace(poses=pose[None])
      for layer, pose in zip(start, poses, strict=True)
    )
    return -capsules.log_joint(layers, image[None])[0]

  chain = infer.MCMC(
    infer.NUTS(potential_fn=energy, max_tree_depth=max_tree_depth),
    num_warmup=num_warmup,
    num_samples=num_samples,
    progress_bar=False,
  )
  chain.run(key, init_params=tuple(layer.poses[0] for layer in start))
  return chain.get_samples()
