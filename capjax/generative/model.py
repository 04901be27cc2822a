"""The probabilistic generative model of capsules (Smith et al., 2020).

A capsule has a presence and a pose. Each capsule selects a parent in the layer
above, on which its presence and pose depend; the capsules of the lowest layer,
the parts, have templates, which are rendered one over another. A tuple of
layers has the parts first and the top last.

Axes: B batch, I children, J parents, H W C image; a last axis of 1 + J has the
dummy parent first. The paper's i is our j, and its j our i.
"""

import functools
import itertools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from capjax.kernels import checks, geometry, rendering
from capjax.kernels.matching import selection
from capjax.kernels.matching.selection import Capsules, Temperature
from capjax.kernels.rendering import compositing
from capjax.layers import platforms

Layers = tuple[Capsules, ...]

# Initial values: standard deviations of random offsets and logits, and the
# scale of poses above the floor.
_OFFSET, _LOGIT, _SCALE = 0.3, 0.1, 0.3
# The numerical floor of scales that have a prior instead of a floor.
_LEAST_SCALE = 1e-6

_normal = functools.partial(jax.random.normal, dtype=jnp.float32)


class Relations(nnx.Module):
  """Learned parameters between a layer of parents and its children."""

  def __init__(
    self,
    num_children: int,
    num_parents: int,
    *,
    scale_floor: float,
    dummy_affinity: float,
    rngs: nnx.Rngs,
  ):
    """Initialises the parameters.

    Args:
      num_children: I.
      num_parents: J, without the dummy.
      scale_floor: lower limit of sigma.
      dummy_affinity: rho of the dummy, > 0, not learned; rho of the parents
        starts near 1.
      rngs: its `params` stream initialises the parameters.
    """
    shape = (num_children, num_parents)
    self.affinities = nnx.Param(_LOGIT * _normal(rngs.params(), shape))
    self.presences = nnx.Param(
      _LOGIT * _normal(rngs.params(), (num_children, 1 + num_parents))
    )
    self.offsets = nnx.Param(_OFFSET * _normal(rngs.params(), (*shape, 6)))
    start = math.log(math.expm1(_SCALE))
    self.scales = nnx.Param(jnp.full(shape, start, jnp.float32))
    self.scale_floor = scale_floor
    self.dummy_affinity = dummy_affinity

  def __call__(self) -> selection.Relations:
    """Returns the relations, as `selection.select` takes them.

    Returns:
      Log affinities [I 1+J], presence logits [I 1+J], offsets [I J 6] and
      scales [I J] of at least `scale_floor`.
    """
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
  """The parameters of the model; priors and floors are fixed.

  A part whose pose is the identity is rendered at the size of its template in
  the middle of the image: pixel for pixel if the sizes of image and template
  are both even or both odd; else between pixels, as means of four.
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
    scale_prior: float | None = None,
    off_scale: float = 2.0,
    dummy_scale: float = 2.0,
    top_scale: float = 1.0,
    dummy_affinity: float = 0.01,
    rngs: nnx.Rngs,
  ):
    """Initialises the parameters.

    Args:
      image_shape: height, width and channels.
      num_capsules: capsules of each layer, from the parts up; without dummies.
      template_size: rows and columns of a template.
      temperature: tau of the relaxed presences.
      pixel_scale: sigma_x, standard deviation of a pixel.
      scale_floor: lower limit of sigma_ij, the standard deviation of the pose
        of a child; without it, bounds with point estimates of poses grow
        without limit.
      scale_prior: standard deviation of log sigma_ij about log `scale_floor`,
        which then is not a floor. The caller adds `log_scale_prior` to the
        objective: no bound and no NumPyro program includes it. None for the
        floor.
      off_scale: sigma_off, standard deviation of the pose of an absent child;
        see `absence_cost`.
      dummy_scale: sigma_0, standard deviation of the pose of a child without
        parent.
      top_scale: sigma_top, standard deviation of poses of the top layer.
      dummy_affinity: rho_0 of the dummy parent.
      rngs: its `params` stream initialises the parameters.

    Raises:
      ValueError: if there is no layer, one is empty, or a scale is not above 0.

    Differs from paper: its numerical values were not available to us; these are
    ours.
    """
    checks.rngs(rngs)
    checks.sequences(num_capsules=num_capsules)
    if not len(num_capsules):
      raise ValueError("num_capsules is empty; give one number for each layer.")
    checks.counts(template_size=template_size)
    checks.positive(
      temperature=temperature,
      pixel_scale=pixel_scale,
      scale_floor=scale_floor,
      off_scale=off_scale,
      dummy_scale=dummy_scale,
      top_scale=top_scale,
      dummy_affinity=dummy_affinity,
      **({} if scale_prior is None else {"scale_prior": scale_prior}),
    )
    checks.image_shape(image_shape)
    channels = image_shape[2]
    self.image_shape = tuple(image_shape)
    self.num_capsules = tuple(num_capsules)
    shape = (num_capsules[0], template_size, template_size)
    self.colours = nnx.Param(
      _LOGIT * _normal(rngs.params(), (*shape, channels))
    )
    self.alphas = nnx.Param(_LOGIT * _normal(rngs.params(), (*shape, 1)))
    self.relations = nnx.List(
      Relations(
        children,
        parents,
        scale_floor=scale_floor if scale_prior is None else _LEAST_SCALE,
        dummy_affinity=dummy_affinity,
        rngs=rngs,
      )
      for children, parents in itertools.pairwise(num_capsules)
    )
    self.top_presences = nnx.Param(jnp.zeros(num_capsules[-1], jnp.float32))
    self.temperature = temperature
    self.pixel_scale = pixel_scale
    self.top_scale = top_scale
    self.scale_floor = scale_floor
    self.scale_prior = scale_prior
    self.off_scale = off_scale
    self.dummy_scale = dummy_scale

  @property
  def templates(self) -> compositing.Picture:
    """The templates [I U V C], premultiplied, and their alphas."""
    alphas = jax.nn.sigmoid(self.alphas[...])
    colours = jax.nn.sigmoid(self.colours[...])
    return compositing.Picture(colours * alphas, alphas)

  def render(self, parts: Capsules) -> Float[Array, "B H W C"]:
    """Renders the parts of each image over one another, on black.

    Args:
      parts: capsules of the lowest layer, with a leading batch axis; the last
        part is on top, and alphas are weighted by presences (section 2.1).
    """
    pictures = self._place(parts)
    return jax.vmap(compositing.composite_over)(pictures).colours

  def shares(self, parts: Capsules) -> Float[Array, "B I H W C"]:
    """The contribution of each part to the image, where others do not hide it.

    Args:
      parts: as for `render`, which returns the sum over I.
    """
    return jax.vmap(compositing.contributions)(self._place(parts))

  def log_joint(
    self,
    layers: Layers,
    images: Float[Array, "B H W C"],
    *,
    temperature: Temperature | None = None,
  ) -> Float[Array, " B"]:
    """The log p(x, t, A) of images and all their capsules, s summed out; nats.

    A density with respect to pixels, logits of presences, and entries of poses.

    Args:
      layers: from the parts up, each with a leading batch axis.
      images: x.
      temperature: temperature of relaxed presences; None for the model's own.

    Raises:
      TypeError: if the images hold integers.
      ValueError: if the images have another shape, values that are known and
        not finite, or another batch size than the layers.
    """
    checks.images(images, self.image_shape)
    means = self.render(layers[0])
    checks.same_shape(means.shape, images=images)
    likelihood = selection.gaussian(
      images.reshape(len(images), -1),
      means.reshape(len(images), -1),
      jnp.full(1, self.pixel_scale),
    )
    return likelihood + self.log_prior(layers, temperature=temperature)

  def log_prior(
    self, layers: Layers, *, temperature: Temperature | None = None
  ) -> Float[Array, " B"]:
    """The log p(t, A) of all layers, s summed out; as for `log_joint`.

    Args:
      layers: as for `log_joint`.
      temperature: as for `log_joint`.

    Returns:
      Log densities in nats.
    """
    if temperature is None:
      temperature = self.temperature
    top = layers[-1]
    logs = selection.binary_concrete(
      top.logits, self.top_presences[...], temperature=temperature
    )
    scale = jnp.full(1, self.top_scale)
    logs += selection.gaussian(top.poses, jnp.zeros(6), scale)
    total = jnp.sum(logs, axis=-1)
    for selected in self.select(layers, temperature=temperature):
      total += jnp.sum(selected.log_densities, axis=-1)
    return total

  def log_scale_prior(self) -> Float[Array, ""]:
    """The log density of all sigma_ij, for the bound of each image; nats.

    log sigma_ij ~ N(log `scale_floor`, `scale_prior`^2), as a density of
    log sigma, whose mode is the median; 0 without `scale_prior`. The paper has
    floors and names hyperpriors as the better way (appendix B).

    Training adds it to the bound of every image, not once for all N images: the
    scales then maximise the posterior under a prior with standard deviation
    `scale_prior` / sqrt(N). A prior that counts once would be too weak. If a
    parent explains a child exactly in every image, the bound of each image
    grows by 6 nats for each factor e by which sigma decreases; this prior stops
    the decrease at exp(-6 `scale_prior`^2) of the median, for any N.
    """
    if self.scale_prior is None:
      return jnp.zeros(())
    median = jnp.full(1, math.log(self.scale_floor))
    spread = jnp.full(1, self.scale_prior)
    total = jnp.zeros(())
    for relations in self.relations:
      logs = jnp.log(relations().scales)[..., None]
      total += jnp.sum(selection.gaussian(logs, median, spread))
    return total

  def absence_cost(self) -> list[Float[Array, "I J"]]:
    """The cost of absence for a child at the pose its parent expects; nats.

    6 log(sigma_off / sigma_ij), by which the log density of the six numbers of
    the pose decreases if `off_scale` replaces sigma_ij. With point estimates of
    poses a child follows its parent exactly, present or not. So every child
    gains this much by being present, for any image it renders: 11.5 nats at
    sigma_off = 2 and the median scale of 0.292 of a trained model, in which
    15.999 of 16 parts are present on average. Gaussian poses can be as wide as
    `off_scale`; their entropy then compensates this cost.

    Returns:
      From the parts up, for each layer but the top.
    """
    return [6 * jnp.log(self.off_scale / x().scales) for x in self.relations]

  def select(
    self, layers: Layers, *, temperature: Temperature | None = None
  ) -> list[selection.Selection]:
    """Densities of each layer given the next, and routing; not for the top.

    Args:
      layers: from the parts up, each with a leading batch axis.
      temperature: temperature of relaxed presences; None for the model's own.

    Returns:
      From the parts up, log densities [B I] and routing [B I 1+J], the
      posterior of the selections s.
    """
    if temperature is None:
      temperature = self.temperature

    def one(relations, children, parents):
      return selection.select(
        children,
        parents,
        relations,
        temperature=temperature,
        off_scale=self.off_scale,
        dummy_scale=self.dummy_scale,
      )

    return [
      jax.vmap(one, (None, 0, 0))(relations(), children, parents)
      for relations, (children, parents) in zip(
        self.relations, itertools.pairwise(layers), strict=True
      )
    ]

  def _place(self, parts):
    """Renders the templates in their poses: pictures [B I]."""
    cpu, default = (
      jax.vmap(functools.partial(self._place_one, gradient), (None, 0))
      for gradient in ("scatter", "products")
    )
    return platforms.choose(self.templates, parts, cpu=cpu, default=default)

  def _place_one(self, gradient, templates, parts):
    canvas, size = self.image_shape[:2], templates.alphas.shape[1:3]
    # At the identity, template pixels are as large as image pixels.
    units = geometry.pixel_units(*size) / geometry.pixel_units(*canvas)
    poses = selection.identity_plus(parts.poses)
    poses *= jnp.asarray(units, jnp.float32)
    stacked = jnp.concatenate(templates, axis=-1)
    warp = functools.partial(
      rendering.warp, canvas=canvas, template_gradient=gradient
    )
    rendered = jax.vmap(warp)(stacked, poses)
    rendered *= jax.nn.sigmoid(parts.logits)[:, None, None, None]
    return compositing.Picture(rendered[..., :-1], rendered[..., -1:])
