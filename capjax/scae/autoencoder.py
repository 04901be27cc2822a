"""The stacked capsule autoencoder (Kosiorek et al., 2019), and its loss.

An image is explained by parts, and the parts by objects. Axes: B batch,
M parts, K objects, H W C image, N classes.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from capjax import layers, losses
from capjax.data.transforms import augment
from capjax.kernels import checks, numerics, rendering
from capjax.kernels.matching import sparsity
from capjax.scae import objects as object_capsules
from capjax.scae import parts as part_capsules
from capjax.scae import templates as part_templates
from capjax.scae import voting

_FLAT = 0.1  # intensity range below which a template counts as flat


class SCAEOutput(NamedTuple):
  """The parts and objects of images, and the classes by linear probes.

  Attributes:
    parts: poses, presences and features of the parts.
    objects: the objects, and how they explain the parts.
    prior_logits: [B N], class logits of a linear probe on the prior presences.
    posterior_logits: [B N], class logits of a linear probe on the posterior
      presences.
  """

  parts: part_capsules.Parts
  objects: object_capsules.Objects
  prior_logits: Float[Array, "B N"]
  posterior_logits: Float[Array, "B N"]


class SCAE(nnx.Module):
  """Part capsules and, on top of them, object capsules.

  Gradients of the objects reach the part encoder through the special features
  alone: poses, presences and templates are constants to them (section 2.3).
  """

  def __init__(
    self,
    image_shape: Sequence[int] = (28, 28, 1),
    num_classes: int = 10,
    *,
    num_parts: int = 40,
    num_objects: int = 32,
    template_size: int = 11,
    num_features: int = 16,
    encoder_features: int = 128,
    nonlinearity: Literal["sigmoid", "relu1"] = "sigmoid",
    mixing: Literal["alpha", "coupled"] = "alpha",
    kind: Literal["affine", "similarity"] = "affine",
    normalise: Literal["none", "votes", "all"] = "none",
    masking: Literal["log_presence", "near_hard"] = "log_presence",
    part_encoder: part_capsules.Encoding = "attention",
    object_encoder: object_capsules.Encoding = "set_transformer",
    deformations: bool = True,
    edges: bool = False,
    dtype: jax.typing.DTypeLike = jnp.float32,
    rngs: nnx.Rngs,
  ):
    """Initialises the parameters.

    Args:
      image_shape: (H, W, C) of the images, H and W at least 23 (any size for
        `part_encoder="pixels"`); MNIST on a canvas of (40, 40, 1) in the paper.
      num_classes: N, classes of the probes, which alone learn from labels.
      num_parts: M.
      num_objects: K.
      template_size: pixels along each side of a template.
      num_features: special features of a part; with 0 templates have no
        colours, and the part encoder learns nothing from the objects.
      encoder_features: channels of the part encoder.
      nonlinearity: that of templates, as for `part_templates.Templates`.
      mixing: mixing of parts in an image, as for `part_templates.Templates`.
      kind: kind of the poses of objects, as for `geometry.pose_matrix`.
      normalise: how weights of votes are normalised, as for
        `vote_mixture.explain_parts`.
      masking: how absent parts are ignored, as for
        `set_transformer.SetTransformer`; an MLP does not ignore them.
      part_encoder: how parts are found, as for `part_capsules.PartEncoder`.
      object_encoder: how objects are found, as for
        `object_capsules.ObjectCapsules`.
      deformations: whether the relations of an object to its parts depend on
        the image.
      edges: whether parts explain the edges of images instead of the images;
        for photographs.
      dtype: dtype of the products of dense layers and convolutions, as for
        `layers.dense.set_dtype`; poses, rendering and likelihoods are in
        float32.
      rngs: its `params` stream initialises the parameters.

    Raises:
      ValueError: if a count is too small or an option is unknown.
    """
    checks.rngs(rngs)
    checks.image_shape(image_shape)
    checks.counts(
      num_classes=num_classes,
      num_parts=num_parts,
      num_objects=num_objects,
      template_size=template_size,
      encoder_features=encoder_features,
    )
    checks.counts(at_least=0, num_features=num_features)
    self.image_shape = tuple(image_shape)
    self.encoder = part_capsules.PartEncoder(
      image_shape,
      num_parts,
      num_features=num_features,
      width=encoder_features,
      kind=part_encoder,
      rngs=rngs,
    )
    self.decoder = part_templates.Templates(
      image_shape,
      num_parts,
      size=template_size,
      num_features=num_features,
      nonlinearity=nonlinearity,
      mixing=mixing,
      rngs=rngs,
    )
    template = template_size**2 * image_shape[-1]
    self.objects = object_capsules.ObjectCapsules(
      object_capsules.POSE + 1 + num_features + template,
      num_parts,
      num_objects,
      kind=kind,
      normalise=normalise,
      masking=masking,
      encoder=object_encoder,
      deformations=deformations,
      rngs=rngs,
    )
    self.prior_probe, self.posterior_probe = (
      layers.Linear(
        num_objects,
        num_classes,
        kernel_init=voting.kernel_initializer(),
        rngs=rngs,
      )
      for _ in range(2)
    )
    self.edges = edges
    layers.dense.set_dtype(self, dtype)

  def targets(self, images: Float[Array, "B H W C"]) -> Float[Array, "B H W C"]:
    """Returns the targets of the parts: the images or their edges.

    Args:
      images: in [0, 1].

    Returns:
      Of the shape of the images.
    """
    return jax.vmap(augment.edges)(images) if self.edges else images

  def __call__(
    self,
    images: Float[Array, "B H W C"],
    *,
    key: PRNGKeyArray | None = None,
  ) -> SCAEOutput:
    """Explains images.

    Args:
      images: in [0, 1].
      key: samples the noise of training; None for none.

    Raises:
      TypeError: if the images hold integers.
      ValueError: if the images have another shape or, where values are known
        (not under jit), intensities outside of [0, 1].
    """
    checks.images(images, self.image_shape, intensities=True)
    keys = (None, None) if key is None else jax.random.split(key)
    parts = self.encoder(images, key=keys[0])
    colors = self.decoder.colors(parts.features)[:, :, None, None]
    appearance = lax.stop_gradient(self.decoder.templates() * colors)
    poses, presence = lax.stop_gradient((parts.poses, parts.presence))
    tokens = [
      object_capsules.entries(poses),
      1 - presence[..., None],
      parts.features,
      appearance.reshape(*presence.shape, -1),
    ]
    objects = self.objects(
      jnp.concatenate(tokens, axis=-1), poses, presence, key=keys[1]
    )
    return SCAEOutput(
      parts,
      objects,
      self.prior_probe(lax.stop_gradient(objects.prior_presence())),
      # The probe reads sums, as in the authors' code. Means are so small that a
      # probe learns from them more slowly.
      self.posterior_probe(lax.stop_gradient(jnp.sum(objects.posterior, -1))),
    )


class Weights(NamedTuple):
  """Weights of the terms of `loss` besides the log-likelihood of the image.

  The defaults are those of the authors' script for MNIST.

  Attributes:
    parts: weight of the log-likelihood of the parts.
    dynamics: weight of half the squares of the raw dynamic relations.
    prior_within: weight of `sparsity.prior_within`.
    prior_between: weight of `sparsity.prior_between`.
    posterior_within: weight of `sparsity.posterior_within`.
    posterior_between: weight of `sparsity.posterior_between`, which is
      maximised.
  """

  parts: float = 1.0
  dynamics: float = 10.0
  prior_within: float = 2.0
  prior_between: float = 0.35
  posterior_within: float = 0.7
  posterior_between: float = 0.2


SCRIPT_WEIGHTS = Weights()


def loss(
  model: SCAE,
  images: Float[Array, "B H W C"],
  labels: Int[Array, "B ..."] | None,
  key: PRNGKeyArray | None,
  *,
  weights: Weights = SCRIPT_WEIGHTS,
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
  """The loss of a batch: likelihoods, sparsity (section 2.4), and probes.

  For images of L objects, which the paper does not train on, the prior sparsity
  expects L times as many objects.

  Args:
    model: the autoencoder.
    images: in [0, 1].
    labels: [B], or [B L] of L different classes in each image; only the probes
      learn from them. None leaves the probes out. L counts in the sparsity of
      prior presences.
    key: samples the noise of training; None for none.
    weights: weights of the terms.

  Returns:
    The loss, which includes the losses of the probes, and its terms by name.
    Among these, "loss" leaves the probes out.

  Raises:
    ValueError: if an image has a class twice, where labels are known (not under
      jit).

  Differs from paper: its constant of the sparsity of presences within an image,
  4.3 in the authors' script, is not read by their code, which uses K / C as
  here.
  """
  if labels is not None:
    labels = jnp.asarray(labels)
    labels = labels.reshape(len(labels), -1)
    _check_several(labels)
  output = model(images, key=key)
  objects = output.objects
  num_labels = 1 if labels is None else labels.shape[1]
  num_classes = output.prior_logits.shape[-1] / num_labels
  prior, posterior = objects.prior_presence(), objects.posterior_presence()
  log_probs = model.decoder.log_prob(model.targets(images), output.parts)
  image_log_prob = jnp.mean(log_probs)
  part_log_prob = jnp.mean(objects.log_prob)
  dynamics = jnp.sum(jnp.square(objects.dynamics)) / (2 * len(images))
  terms = {
    "prior_within": sparsity.prior_within(prior, num_classes),
    "prior_between": sparsity.prior_between(prior, num_classes),
    "posterior_within": sparsity.posterior_within(posterior),
    "posterior_between": -sparsity.posterior_between(posterior),
  }
  probes = jnp.zeros(())
  if labels is not None:
    for logits in (output.prior_logits, output.posterior_logits):
      repeated = jnp.repeat(logits[:, None], num_labels, axis=1)
      probes += jnp.mean(losses.cross_entropy(repeated, labels))
  value = (
    -image_log_prob
    - weights.parts * part_log_prob
    + weights.dynamics * dynamics
    + sum(getattr(weights, name) * term for name, term in terms.items())
  )
  return value + probes, {
    "loss": value,
    "image_log_prob": image_log_prob,
    "part_log_prob": part_log_prob,
    "dynamics": dynamics,
    "probe_loss": probes,
    **terms,
  }


def shares_won(objects: object_capsules.Objects) -> Float[Array, "B K"]:
  """The share of parts that each object explains better than all others.

  Args:
    objects: what the object capsules found in B images.

  Returns:
    In [0, 1].
  """
  num_objects = objects.posterior.shape[1]
  return jnp.mean(jax.nn.one_hot(objects.winners, num_objects), axis=1)


def flat_templates(model: SCAE) -> Float[Array, ""]:
  """The share of templates whose brightest and darkest pixel hardly differ.

  Args:
    model: the autoencoder.

  Returns:
    In [0, 1].
  """
  templates = model.decoder.templates().reshape(len(model.decoder.raw[...]), -1)
  return jnp.mean(jnp.ptp(templates, axis=1) < _FLAT, dtype=jnp.float32)


def reconstruct(
  model: SCAE, images: Float[Array, "B H W C"]
) -> tuple[rendering.ImageMixture, rendering.ImageMixture]:
  """Renders images from their parts, and from the parts that objects predict.

  In the second image each part has the pose and the presence that its most
  probable object predicts.

  Args:
    model: the autoencoder.
    images: in [0, 1].

  Returns:
    See `rendering.ImageMixture`, with a leading axis B: `mean` is the
    reconstruction [B H W C].

  Raises:
    TypeError: if the images hold integers.
    ValueError: if a known intensity is outside of [0, 1].
  """
  output = model(images)
  objects, targets = output.objects, model.targets(images)
  winners = objects.winners[:, None]  # [B 1 M]
  poses = jnp.take_along_axis(objects.votes, winners[..., None, None], axis=1)
  presence = jnp.take_along_axis(objects.presence, winners, axis=1)
  expected = part_capsules.Parts(
    poses[:, 0], presence[:, 0], output.parts.features
  )
  return (
    model.decoder.explain(targets, output.parts),
    model.decoder.explain(targets, expected),
  )


def object_masks(
  model: SCAE, images: Float[Array, "B H W C"]
) -> tuple[Float[Array, "B H W C"], Float[Array, "B K H W"]]:
  """Reconstructs images from their parts, and assigns pixels to objects.

  Each part belongs to the object that explains it best. Its share of a pixel is
  its coefficient in the mixture of parts; the rest belongs to the background.

  Args:
    model: the autoencoder.
    images: in [0, 1].

  Returns:
    Reconstructions, and masks [B K H W] in [0, 1], which sum to at most 1 over
    objects.

  Raises:
    TypeError: if the images hold integers.
    ValueError: if a known intensity is outside of [0, 1].
  """
  output = model(images)
  explained = model.decoder.explain(model.targets(images), output.parts)
  coefficients = jnp.mean(explained.coefficients, axis=-1)[:, :-1]
  num_objects = output.objects.posterior.shape[1]
  won = jax.nn.one_hot(output.objects.winners, num_objects, axis=1)
  masks = numerics.einsum("bkm,bmhw->bkhw", won, coefficients)
  return explained.mean, masks


def _check_several(labels):
  """Checks that the classes of each image differ, where they are known."""
  if not checks.are_known(labels):
    return
  for image, classes in enumerate(np.asarray(labels)):
    if len(set(classes.tolist())) < len(classes):
      raise ValueError(
        f"labels of image {image} are {classes.tolist()}; give different "
        "classes, one for each object, not marks of 0 and 1."
      )
