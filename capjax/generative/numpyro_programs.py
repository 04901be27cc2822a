"""Generative capsules and their recognition as NumPyro programs.

They provide samples from the prior, densities given any of the variables, and
bounds by all estimators of NumPyro.

Axes: B batch, I capsules of a layer, H W C image.
"""

from typing import Any

import jax
import jax.numpy as jnp
from etils import epy
from jaxtyping import Array, Float

from capjax.generative import guides
from capjax.generative.model import GenerativeCapsules
from capjax.kernels import checks
from capjax.kernels.matching import selection
from capjax.kernels.matching.selection import Capsules

with epy.lazy_imports():  # these take seconds, and --help needs none
  import numpyro
  import numpyro.distributions as dist


def model(
  capsules: GenerativeCapsules,
  images: Float[Array, "B H W C"] | None = None,
  *,
  num_images: int = 1,
  summed: bool = False,
) -> None:
  """The model as a NumPyro program, with every random variable of the paper.

  Sites, with l from 1 at the parts to L at the top: `presence_l` [B I], the
  logit of t; `pose_l` [B I 6]; `selection_l` [B I], s, with the dummy parent 0;
  `image` [B 1 H W C]; and `mean_image`, without noise.

  Args:
    capsules: the parameters.
    images: observed images; None to sample `num_images`.
    num_images: B, where `images` is None.
    summed: leaves out the sites of the selections, which the kernel sums out in
      a `numpyro.factor`; the program then has a density but cannot be sampled
      from. Otherwise selections can be enumerated, as `TraceEnum_ELBO` does.

  Raises:
    TypeError: if the images hold integers.
    ValueError: if the images have another shape, there is none, or values are
      known and not finite.
  """
  if images is not None:
    checks.images(images, capsules.image_shape)
  num_images = num_images if images is None else len(images)
  plates = numpyro.plate("images", num_images, dim=-2)
  depth = len(capsules.num_capsules)
  with plates, numpyro.plate(f"capsules_{depth}", capsules.num_capsules[-1]):
    parents = Capsules(
      numpyro.sample(
        f"presence_{depth}",
        _relaxed(capsules.top_presences[...], capsules.temperature),
      ),
      numpyro.sample(
        f"pose_{depth}",
        dist.Normal(jnp.zeros(6), capsules.top_scale).to_event(1),
      ),
    )
  sample = _declare_children if summed else _sample_children
  for layer in reversed(range(1, depth)):
    with (
      plates,
      numpyro.plate(f"capsules_{layer}", capsules.num_capsules[layer - 1]),
    ):
      parents = sample(capsules, layer, parents)
  means = numpyro.deterministic("mean_image", capsules.render(parents))
  with plates:
    numpyro.sample(
      "image",
      dist.Normal(means[:, None], capsules.pixel_scale).to_event(3),
      obs=None if images is None else images[:, None],
    )


def guide(
  recognition: guides.CapsuleGuide,
  capsules: GenerativeCapsules,
  images: Float[Array, "B H W C"],
) -> None:
  """The recognition as a NumPyro program, with the sites of `model`.

  `functools.partial(guide, recognition)` takes the positional arguments of the
  model. Bind `num_images` and `summed` to the model: the guide takes neither.

  Args:
    recognition: q.
    capsules: the model; not used.
    images: observed images.
  """
  del capsules
  below: Any = images  # then the capsules of each layer
  plates = numpyro.plate("images", len(images), dim=-2)
  for layer, encoder in enumerate(recognition.encoders, start=1):
    posterior = encoder(below)
    num_capsules = posterior.log_odds.shape[1]
    with plates, numpyro.plate(f"capsules_{layer}", num_capsules):
      logits = numpyro.sample(
        f"presence_{layer}",
        _relaxed(posterior.log_odds, recognition.temperature),
      )
      if posterior.log_scales is None:
        known = dist.Delta(posterior.poses, event_dim=1)
        poses = numpyro.sample(f"pose_{layer}", known)
      else:
        scales = jnp.exp(posterior.log_scales)
        poses = numpyro.sample(
          f"pose_{layer}", dist.Normal(posterior.poses, scales).to_event(1)
        )
    below = Capsules(logits, poses)


def _sample_children(capsules, layer, parents):
  """Samples s, then t and A of a layer."""
  relations = capsules.relations[layer - 1]()
  off_scale, dummy_scale = capsules.off_scale, capsules.dummy_scale
  logits = jax.vmap(selection.selection_logits, (0, None))(
    parents.logits, relations.log_affinities
  )
  chosen = numpyro.sample(
    f"selection_{layer}",
    dist.Categorical(logits=logits),
    infer={"enumerate": "parallel"},
  )
  image, child = jnp.ogrid[: logits.shape[0], : logits.shape[1]]
  log_odds = relations.presence_logits[child, chosen]
  presences = numpyro.sample(
    f"presence_{layer}", _relaxed(log_odds, capsules.temperature)
  )
  means = jax.vmap(selection.expected_poses, (0, None))(
    parents.poses, relations.offsets
  )
  scales = jnp.pad(
    relations.scales, ((0, 0), (1, 0)), constant_values=dummy_scale
  )
  scales = selection.pose_scales(
    presences, scales[child, chosen], off_scale=off_scale
  )
  poses = numpyro.sample(
    f"pose_{layer}",
    dist.Normal(means[image, child, chosen], scales[..., None]).to_event(1),
  )
  return Capsules(presences, poses)


def _declare_children(capsules, layer, parents):
  """Declares t and A of a layer, whose density is the kernel's."""
  free = dist.ImproperUniform
  children = Capsules(
    numpyro.sample(f"presence_{layer}", free(dist.constraints.real, (), ())),
    numpyro.sample(
      f"pose_{layer}", free(dist.constraints.real_vector, (), (6,))
    ),
  )

  def one(children, parents):
    return selection.select(
      children,
      parents,
      capsules.relations[layer - 1](),
      temperature=capsules.temperature,
      off_scale=capsules.off_scale,
      dummy_scale=capsules.dummy_scale,
    )

  selected = jax.vmap(one)(children, parents)
  numpyro.factor(f"children_{layer}", selected.log_densities)
  return children


def _relaxed(log_odds, temperature):
  """The logit of a relaxed Bernoulli variable."""
  return dist.Logistic(log_odds / temperature, 1 / temperature)
