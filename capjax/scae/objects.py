"""Object capsules: which objects the parts of an image belong to.

The object capsule autoencoder of Kosiorek et al. (2019), section 2.3. Axes:
B batch, K objects, M parts.
"""

import functools
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from capjax.kernels import checks
from capjax.kernels.matching import vote_mixture
from capjax.layers import attention
from capjax.scae import voting

Encoding = Literal["set_transformer", "mlp"]
POSE = 6  # entries of a pose that are not constant


class Objects(NamedTuple):
  """The objects of images, and how they explain the parts.

  Attributes:
    poses: [B K 3 3], from objects to canvas.
    votes: [B K M 3 3], the pose that each object expects of each part.
    scales: [B K M], standard deviations of the parts around the votes.
    presence: [B K M] in (0, 1), a_k a_km: object and part are both
      present.
    dynamics: [B K M 6], raw, the image-dependent term of object-part relations;
      0 without deformations.
    log_prob: [B], log-likelihood of the parts, in nats.
    posterior: [B K M], the probability that part m belongs to object k.
    winners: [B M], the object that explains each part best.
  """

  poses: Float[Array, "B K 3 3"]
  votes: Float[Array, "B K M 3 3"]
  scales: Float[Array, "B K M"]
  presence: Float[Array, "B K M"]
  dynamics: Float[Array, "B K M 6"]
  log_prob: Float[Array, " B"]
  posterior: Float[Array, "B K M"]
  winners: Int[Array, "B M"]

  def prior_presence(self) -> Float[Array, "B K"]:
    """Returns, for each object, the largest presence of its parts."""
    return jnp.max(self.presence, axis=-1)

  def posterior_presence(self) -> Float[Array, "B K"]:
    """Returns the share of all parts that each object explains."""
    return jnp.mean(self.posterior, axis=-1)


class ObjectCapsules(nnx.Module):
  """A set transformer over the parts, then a small network for each object.

  For comparison, `encoder="mlp"` is a network with one hidden layer that reads
  all parts in their order. Without `deformations` the relations of an object to
  its parts are the same in all images. The size of the MLP is our choice.
  """

  def __init__(
    self,
    token_size: int,
    num_parts: int,
    num_objects: int,
    *,
    kind: Literal["affine", "similarity"] = "affine",
    normalise: Literal["none", "votes", "all"] = "none",
    masking: attention.Masking = "log_presence",
    encoder: Encoding = "set_transformer",
    deformations: bool = True,
    width: int = 16,
    num_blocks: int = 3,
    num_heads: int = 1,
    summary: int = 256,
    code: int = 32,
    hidden: int = 128,
    rngs: nnx.Rngs,
  ):
    """Initialises the parameters.

    Args:
      token_size: length of the vector that describes a part.
      num_parts: M.
      num_objects: K.
      kind: kind of all poses of objects and relations.
      normalise: of the weights of votes, as for `vote_mixture.explain_parts`.
      masking: how absent parts are ignored, as for `SetTransformer`; an MLP
        does not ignore them.
      encoder: how the parts are read, see the class.
      deformations: whether relations depend on the image.
      width: length of the tokens in the set transformer.
      num_blocks: number of self-attention blocks.
      num_heads: heads of each attention.
      summary: length of the set transformer's output for an object.
      code: length of an object's code c_k.
      hidden: hidden units of the networks of an object.
      rngs: its `params` stream initialises the parameters.

    Raises:
      TypeError: as `voting.Voters`.
      ValueError: as `voting.Voters`, or if an option is unknown.
    """
    checks.choice(vote_mixture.NORMALISATIONS, normalise=normalise)
    if encoder not in ("set_transformer", "mlp"):
      raise ValueError(
        f"object_encoder={encoder!r}; pass 'set_transformer' or 'mlp'."
      )
    self.voters = voting.Voters(
      token_size,
      num_objects=num_objects,
      num_votes=num_parts,
      kind=kind,
      width=width,
      num_blocks=num_blocks,
      num_heads=num_heads,
      summary=summary,
      code=code,
      hidden=hidden,
      masking=masking,
      deformations=deformations,
      num_members=num_parts if encoder == "mlp" else None,
      rngs=rngs,
    )
    self.normalise = normalise

  def __call__(
    self,
    tokens: Float[Array, "B M T"],
    poses: Float[Array, "B M 3 3"],
    presence: Float[Array, "B M"],
    *,
    key: PRNGKeyArray | None = None,
  ) -> Objects:
    """Explains the parts.

    Args:
      tokens: vectors that describe the parts, for the set transformer.
      poses: poses of the parts, to be explained.
      presence: presences of the parts, in [0, 1].
      key: samples the noise of training on the logits of presence; None for
        none.
    """
    found = self.voters(tokens, presence, key=key)
    explain = functools.partial(
      vote_mixture.explain_parts, normalise=self.normalise
    )
    explanation = jax.vmap(explain)(
      entries(poses),
      presence,
      entries(found.votes),
      found.scales,
      found.log_presence,
    )
    return Objects(
      found.poses,
      found.votes,
      found.scales,
      jnp.exp(found.log_presence),
      found.dynamics,
      explanation.log_prob,
      explanation.posterior,
      explanation.winner,
    )


def entries(poses: Float[Array, "*batch 3 3"]) -> Float[Array, "*batch 6"]:
  """Returns the entries of poses that are not constant.

  Args:
    poses: affine matrices; their third rows are not read.

  Returns:
    The first two rows, one after the other.
  """
  return poses[..., :2, :].reshape(*poses.shape[:-2], POSE)
