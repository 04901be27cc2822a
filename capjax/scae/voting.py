"""Objects found in a set, each of which votes for its parts.

Shared by the object capsules of images and of constellations (Kosiorek et al.,
2019, sections 2.1 and 2.3). Axes: B batch, M members of the set,
K objects, N votes of an object.
"""

import math
from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from capjax.kernels import checks, geometry, numerics, routing
from capjax.layers import attention, set_transformer, slots
from capjax.layers.dense import Einsum, Linear

Encoder = Literal["set_transformer", "slots", "invariant_slots"]
_REACH = 2.0  # unit of a slot's frame, in standard deviations of its members
_POSE = 6  # raw numbers of a pose
_NOISE = 2.0  # largest noise on the logits of presence in training
_SCALE = 0.01  # least standard deviation of votes
_LEFT = 0.87962566  # standard deviation of a normal truncated at 2


def kernel_initializer(**axes: int) -> nnx.Initializer:
  """The initialiser of kernels in the authors' code: that of Sonnet 1.

  A normal of standard deviation 1 / sqrt(fan in), truncated at two standard
  deviations, which leaves 0.88 of it; Flax's initialisers correct for this.

  Args:
    **axes: as for `jax.nn.initializers.variance_scaling`.
  """
  return nnx.initializers.variance_scaling(
    _LEFT**2, "fan_in", "truncated_normal", **axes
  )


class Votes(NamedTuple):
  """Objects, and the parts that they predict.

  Attributes:
    poses: [B K 3 3], from objects to the frame of the set.
    votes: [B K N 3 3], the poses that an object predicts for its parts.
    scales: [B K N], standard deviations around the votes.
    logits: [B K], of the presence a_k of an object.
    log_presence: [B K N], log a_k a_kn: object and part are both present.
    dynamics: [B K N 6], raw, the image-dependent term of the relations of an
      object to its parts; 0 without deformations.
  """

  poses: Float[Array, "B K 3 3"]
  votes: Float[Array, "B K N 3 3"]
  scales: Float[Array, "B K N"]
  logits: Float[Array, "B K"]
  log_presence: Float[Array, "B K N"]
  dynamics: Float[Array, "B K N 6"]


class Voters(nnx.Module):
  """A set transformer, or slot attention, then a small network for each object.

  Without `deformations` the relations of an object to its parts are the same
  in all images. With `num_members` a network with one hidden layer of `hidden`
  units reads all members at once, in their order and absent ones too, in place
  of the set transformer.

  The objects of invariant slots have poses in the frames of their slots: if all
  points are moved or enlarged together, so are poses and votes, as far as the
  fixed initial frames of the slots allow.
  """

  def __init__(
    self,
    in_features: int,
    *,
    num_objects: int,
    num_votes: int,
    kind: Literal["affine", "similarity"],
    width: int,
    num_blocks: int,
    num_heads: int,
    summary: int,
    code: int,
    hidden: int,
    masking: attention.Masking,
    deformations: bool = True,
    num_members: int | None = None,
    encoder: Encoder = "set_transformer",
    rngs: nnx.Rngs,
  ):
    """Initialises the parameters.

    Args:
      in_features: length of a member of the set.
      num_objects: K.
      num_votes: N.
      kind: kind of poses and relations, as for `geometry.pose_matrix`.
      width: length of tokens in the set transformer.
      num_blocks: blocks of the set transformer.
      num_heads: heads of its attentions.
      summary: length of its output for an object.
      code: length of an object's code c_k.
      hidden: hidden units of the networks of an object.
      masking: how absent members are ignored, as for `SetTransformer`.
      deformations: whether relations depend on the image.
      num_members: M, for a network without attention; None for `encoder`.
      encoder: how the objects are found; slots take points, with `in_features`
        of 2.
      rngs: its `params` stream initialises the parameters.

    Raises:
      TypeError: if a count is not a whole number, or `rngs` not `nnx.Rngs`.
      ValueError: if a count is below 1, `num_blocks` is below 0, or an option
        is unknown.
    """
    checks.rngs(rngs)
    checks.counts(
      in_features=in_features,
      num_objects=num_objects,
      num_votes=num_votes,
      width=width,
      num_heads=num_heads,
      summary=summary,
      code=code,
      hidden=hidden,
    )
    checks.counts(at_least=0, num_blocks=num_blocks)
    checks.choice(geometry.KINDS, kind=kind)
    checks.choice(get_args(attention.Masking), masking=masking)
    self.transformer: set_transformer.SetTransformer | slots.PointSlots | _OfAll
    if num_members is not None:
      self.transformer = _OfAll(
        num_members * in_features, hidden, (num_objects, summary), rngs=rngs
      )
    elif encoder == "set_transformer":
      self.transformer = set_transformer.SetTransformer(
        in_features,
        width=width,
        num_blocks=num_blocks,
        num_heads=num_heads,
        num_outputs=num_objects,
        out_features=summary,
        masking=masking,
        kernel_init=kernel_initializer(),
        rngs=rngs,
      )
    elif encoder in ("slots", "invariant_slots"):
      self.transformer = slots.PointSlots(
        num_slots=num_objects,
        size=summary,
        width=width,
        num_blocks=num_blocks,
        num_heads=num_heads,
        invariant=encoder == "invariant_slots",
        masking=masking,
        kernel_init=kernel_initializer(),
        rngs=rngs,
      )
    else:
      raise ValueError(
        f"encoder={encoder!r}; pass 'set_transformer', 'slots' or "
        "'invariant_slots'."
      )
    # A code ends with a 1, whose weights are a randomly initialised bias: in
    # the authors' code this 1 marks that no object was dropped.
    self.networks = nnx.List(
      [
        _of_each(num_objects, summary, hidden, rngs=rngs),
        _of_each(num_objects, hidden, code, rngs=rngs),
        _of_each(num_objects, code + 1, hidden, rngs=rngs),
      ]
    )
    # Without a bias, so that `relations` alone hold what all images share.
    self.vary = (
      _of_each(num_objects, hidden, num_votes * _POSE, bias=False, rngs=rngs)
      if deformations
      else None
    )
    # Pose, logits of presence of the object and its parts, scales.
    self.sizes = (_POSE, 1, num_votes, num_votes)
    self.describe = _of_each(num_objects, hidden, sum(self.sizes), rngs=rngs)
    self.relations = nnx.Param(
      nnx.initializers.glorot_uniform()(
        rngs.params(), (num_objects, num_votes, _POSE), jnp.float32
      )
    )
    self.kind = kind

  def __call__(
    self,
    members: Float[Array, "B M T"],
    presence: Float[Array, "B M"],
    *,
    key: PRNGKeyArray | None = None,
  ) -> Votes:
    """Finds the objects.

    Args:
      members: members of the sets, in any order.
      presence: presence of each member, in [0, 1].
      key: samples the noise of training, as for `jitter`; None for none.
    """
    first, second, third = self.networks
    found = self.transformer(members, presence)
    frames = None
    if isinstance(found, slots.Slots):
      frames, found = found.frames, found.contents
    codes = second(jax.nn.relu(first(found)))
    codes = jnp.pad(codes, ((0, 0), (0, 0), (0, 1)), constant_values=1.0)
    hidden = jax.nn.relu(third(codes))
    if self.vary is None:
      dynamics = jnp.zeros((len(hidden), *self.relations.shape), hidden.dtype)
    else:
      dynamics = self.vary(hidden).reshape(*hidden.shape[:2], -1, _POSE)
    pose, logits, part_logits, scales = jnp.split(
      self.describe(hidden), np.cumsum(self.sizes)[:-1].tolist(), axis=-1
    )
    poses = geometry.pose_matrix(pose, self.kind)
    if frames is not None:
      poses = geometry.compose(_from_frames(frames), poses)
    relations = geometry.pose_matrix(self.relations[...] + dynamics, self.kind)
    keys = (None, None) if key is None else jax.random.split(key)
    logits = jitter(logits, keys[0])
    part_logits = jitter(part_logits, keys[1])
    return Votes(
      poses,
      geometry.compose(poses[:, :, None], relations),
      jax.nn.softplus(scales + 0.5) + _SCALE,
      logits[..., 0],
      jax.nn.log_sigmoid(logits) + jax.nn.log_sigmoid(part_logits),
      dynamics,
    )


def jitter(
  logits: Float[Array, "*shape"], key: PRNGKeyArray | None
) -> Float[Array, "*shape"]:
  """Adds U(-2, 2) to logits of presence; without a key adds nothing.

  Args:
    logits: of any shape.
    key: samples the noise; None for none.

  Differs from the authors' code: it adds this noise at test time too.
  """
  if key is None:
    return logits
  return logits + jax.random.uniform(
    key, logits.shape, logits.dtype, -_NOISE, _NOISE
  )


class _OfAll(nnx.Module):
  """Two dense layers that read all members of a set at once, in order."""

  def __init__(self, in_features, hidden, shape, *, rngs):
    self.hidden, self.output = (
      Linear(*size, kernel_init=kernel_initializer(), rngs=rngs)
      for size in ((in_features, hidden), (hidden, math.prod(shape)))
    )
    self.shape = shape

  def __call__(
    self, members: Float[Array, "B M T"], presence: Float[Array, "B M"]
  ) -> Float[Array, "B K out"]:
    del presence  # an entry of each member says how far it is absent
    hidden = jax.nn.relu(self.hidden(members.reshape(len(members), -1)))
    return self.output(hidden).reshape(-1, *self.shape)


def _from_frames(frames: routing.Frames) -> Float[Array, "B K 3 3"]:
  """Similarities from the frames of slots to that of the set."""
  x, y = jnp.moveaxis(frames.positions, -1, 0)
  # One scale along both axes: the root of the mean of their squares.
  scale = _REACH * numerics.safe_norm(frames.scales) / 2**0.5
  return geometry.affine_matrix(scale, scale, 0.0, 0.0, x, y)


def _of_each(
  num_objects: int,
  in_features: int,
  features: int,
  *,
  bias: bool = True,
  rngs: nnx.Rngs,
) -> Einsum:
  """A dense layer of [B K in], a separate one for each object."""
  return Einsum(
    "bki,kio->bko",
    (num_objects, in_features, features),
    (num_objects, features) if bias else None,
    kernel_init=kernel_initializer(batch_axis=0),
    rngs=rngs,
  )
