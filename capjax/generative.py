"""The generative model of capsules as a probability (Smith et al., 2020).

Objects are present or not, in poses; each object below selects one above that
it is a part of, and its presence and pose follow from that one; the lowest are
templates, drawn one over another. Layers are counted from these parts up: a
tuple of layers has the parts first and the top last.

Axes: B batch, I children, J parents, H W C image; a last axis of 1 + J has the
dummy parent first. The paper's i is our j, and its j our i.
"""

import itertools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from flax import nnx
from jaxtyping import Array, Float

from kernels import compositing, geometry, rendering, selection
from kernels.selection import Capsules

Layers = tuple[Capsules, ...]

# Where learned numbers start: deviations of random offsets and logits, and
# that of poses beyond the floor.
_OFFSET, _LOGIT, _SCALE = 0.3, 0.1, 0.3


class Relations(nnx.Module):
  """What a layer of parents knows of its children; learned."""

  def __init__(
    self,
    num_children: int,
    num_parents: int,
    *,
    scale_floor: float,
    dummy_affinity: float,
    rngs: nnx.Rngs,
  ):
    """Draws the parameters.

    Args:
      num_children: I.
      num_parents: J, without the dummy.
      scale_floor: sigma is above it.
      dummy_affinity: rho of the dummy, > 0, not learned; a parent's starts
        near 1.
      rngs: its `params` stream draws the parameters.
    """
    shape = (num_children, num_parents)
    normal = jax.random.normal
    self.affinities = nnx.Param(_LOGIT * normal(rngs.params(), shape))
    self.presences = nnx.Param(
      _LOGIT * normal(rngs.params(), (num_children, 1 + num_parents))
    )
    self.offsets = nnx.Param(_OFFSET * normal(rngs.params(), (*shape, 6)))
    self.scales = nnx.Param(jnp.full(shape, math.log(math.expm1(_SCALE))))
    self.scale_floor = scale_floor
    self.dummy_affinity = dummy_affinity

  def __call__(self) -> selection.Relations:
    return selection.Relations(
      jnp.pad(
        self.affinities[...],
        ((0, 0), (1, 0)),
        constant_values=math.log(self.dummy_affinity),
      ),
      self.presences[...],
      self.offsets[...],
      self.scale_floor + jax.nn.softplus(self.scales[...]),
    )


class GenerativeCapsules(nnx.Module):
  """Holds what the model learns; priors and floors are fixed.

  A part in the pose of the identity is drawn at the size of its template,
  pixel for pixel, in the middle of the image.
  """

  def __init__(
    self,
    image_shape: Sequence[int] = (28, 28, 1),
    *,
    num_capsules: Sequence[int] = (16, 16),
    template_size: int = 11,
    temperature: float = 0.5,
    pixel_scale: float = 0.15,
    scale_floor: float = 0.1,
    off_scale: float = 2.0,
    dummy_scale: float = 2.0,
    top_scale: float = 1.0,
    dummy_affinity: float = 0.01,
    rngs: nnx.Rngs,
  ):
    """Draws the parameters.

    Args:
      image_shape: height, width and channels.
      num_capsules: of each layer, from the parts up; without dummies.
      template_size: rows and columns of a template.
      temperature: tau of the relaxed presences.
      pixel_scale: sigma_x, deviation of a pixel.
      scale_floor: what sigma_ij, deviation of the pose of a child, stays above:
        the bound on log p(x) has none otherwise.
      off_scale: sigma_off, deviation of the pose of a child that is not there.
      dummy_scale: sigma_0, deviation of the pose of a child without parent.
      top_scale: sigma_top, deviation of poses at the top.
      dummy_affinity: rho_0 of the dummy parent.
      rngs: its `params` stream draws the parameters.

    Raises:
      ValueError: if there is no layer, one is empty, or a scale is not above 0.

    Differs from paper: its numbers are lost; these are ours.
    """
    if not num_capsules or min(num_capsules) < 1:
      raise ValueError(
        f"num_capsules={tuple(num_capsules)}; give at least one layer of at "
        "least one."
      )
    selection.check_scales(
      temperature, pixel_scale, scale_floor, off_scale, dummy_scale, top_scale,
      dummy_affinity,
    )  # fmt: skip
    *size, channels = image_shape
    self.image_shape = tuple(image_shape)
    self.num_capsules = tuple(num_capsules)
    shape = (num_capsules[0], template_size, template_size)
    self.colours = nnx.Param(
      _LOGIT * jax.random.normal(rngs.params(), (*shape, channels))
    )
    self.alphas = nnx.Param(
      _LOGIT * jax.random.normal(rngs.params(), (*shape, 1))
    )
    self.relations = nnx.List(
      Relations(
        children,
        parents,
        scale_floor=scale_floor,
        dummy_affinity=dummy_affinity,
        rngs=rngs,
      )
      for children, parents in itertools.pairwise(num_capsules)
    )
    self.top_presences = nnx.Param(jnp.zeros(num_capsules[-1]))
    self.temperature = temperature
    self.pixel_scale = pixel_scale
    self.top_scale = top_scale
    self.wide_scales = {"off_scale": off_scale, "dummy_scale": dummy_scale}

  @property
  def templates(self) -> compositing.Picture:
    """The templates [I U V C], premultiplied, and their alphas."""
    alphas = jax.nn.sigmoid(self.alphas[...])
    colours = jax.nn.sigmoid(self.colours[...])
    return compositing.Picture(colours * alphas, alphas)

  def draw(self, parts: Capsules) -> Float[Array, "B H W C"]:
    """Draws the parts of each image over one another, on black.

    Args:
      parts: of the lowest layer, with a leading batch axis; the last is drawn
        on top, and alphas are weighted by presences (section 2.1).
    """
    return jax.vmap(self._draw, (None, 0))(self.templates, parts)

  def log_joint(
    self, layers: Layers, images: Float[Array, "B H W C"]
  ) -> Float[Array, " B"]:
    """The log p(x, t, A) of images and all their capsules, s summed out; nats.

    A density in pixels, logits of presences, and the numbers of poses.

    Args:
      layers: from the parts up, each with a leading batch axis.
      images: x.
    """
    means = self.draw(layers[0])
    likelihood = selection.gaussian(
      images.reshape(len(images), -1),
      means.reshape(len(images), -1),
      jnp.full(1, self.pixel_scale),
    )
    return likelihood + self.log_prior(layers)

  def log_prior(self, layers: Layers) -> Float[Array, " B"]:
    """The log p(t, A) of all layers, s summed out; as for `log_joint`."""
    total = jnp.sum(self._top_densities(layers[-1]), axis=-1)
    for selected in self.select(layers):
      total += jnp.sum(selected.log_densities, axis=-1)
    return total

  def select(self, layers: Layers) -> list[selection.Selection]:
    """Densities of each layer but the top given the next, and routing.

    Args:
      layers: from the parts up, each with a leading batch axis.

    Returns:
      From the parts up, log densities [B I] and routing [B I 1+J], the
      posterior of the selections s.
    """

    def one(relations, children, parents):
      return selection.select(
        children,
        parents,
        relations,
        temperature=self.temperature,
        **self.wide_scales,
      )

    return [
      jax.vmap(one, (None, 0, 0))(relations(), children, parents)
      for relations, (children, parents) in zip(
        self.relations, itertools.pairwise(layers), strict=True
      )
    ]

  def _top_densities(self, top: Capsules) -> Float[Array, "B J"]:
    presences = selection.binary_concrete(
      top.logits, self.top_presences[...], temperature=self.temperature
    )
    scale = jnp.full(1, self.top_scale)
    return presences + selection.gaussian(top.poses, jnp.zeros(6), scale)

  def _draw(self, templates, parts):
    canvas, size = self.image_shape[:2], templates.alphas.shape[1:3]
    # The whole template is one unit wide; at the identity a pixel is a pixel.
    units = geometry.pixel_units(*size) / geometry.pixel_units(*canvas)
    poses = selection.pose_matrix(parts.poses) * jnp.asarray(units, jnp.float32)
    stacked = jnp.concatenate(templates, axis=-1)
    drawn = jax.vmap(lambda *both: rendering.warp(*both, canvas))(
      stacked, poses
    )
    drawn *= jax.nn.sigmoid(parts.logits)[:, None, None, None]
    pictures = compositing.Picture(drawn[..., :-1], drawn[..., -1:])
    return compositing.composite_over(pictures).colours


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
    images: observed; None to draw `num_images`.
    num_images: B, where `images` is None.
    summed: leaves out the selections, which `numpyro.factor` sums out by the
      kernel; it then has a density and cannot be drawn from. Otherwise they
      can be enumerated, as `TraceEnum_ELBO` does.
  """
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
  means = numpyro.deterministic("mean_image", capsules.draw(parents))
  with plates:
    numpyro.sample(
      "image",
      dist.Normal(means[:, None], capsules.pixel_scale).to_event(3),
      obs=None if images is None else images[:, None],
    )


def _sample_children(capsules, layer, parents):
  """Draws s, then t and A of a layer."""
  relations = capsules.relations[layer - 1]()
  off_scale, dummy_scale = capsules.wide_scales.values()
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
      **capsules.wide_scales,
    )

  selected = jax.vmap(one)(children, parents)
  numpyro.factor(f"children_{layer}", selected.log_densities)
  return children


def _relaxed(log_odds, temperature):
  """The logit of a relaxed Bernoulli variable."""
  return dist.Logistic(log_odds / temperature, 1 / temperature)
