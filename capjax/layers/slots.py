"""Slot attention: slots compete for the members of a set, in several rounds.

The slots of `SlotAttention` are exchangeable: permuting the initial slots
permutes the results. In its invariant form a slot has a frame of reference
(`routing.Frames`), and members have places only in the frames of the slots.

Axes: B batch, I members of the set (tokens), F features of a member, J slots,
D numbers of a slot.
"""

import functools
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from capjax.kernels import checks, routing
from capjax.layers import attention, set_transformer
from capjax.layers.dense import Linear

Start = Literal["sampled", "learned"]
_SCALE = 0.1  # of frames at the start, as in the authors' code
_NO_KEY = 0  # the seed of starts that are sampled without a key


class Slots(NamedTuple):
  """Slots, and the shares that they won in the last round of attention.

  Attributes:
    contents: [B J D].
    coefficients: [B I J], the share of a member that goes to a slot; sums to 1
      over slots.
    frames: positions and scales [B J 2]; None without frames.
  """

  contents: Float[Array, "B J D"]
  coefficients: Float[Array, "B I J"]
  frames: routing.Frames | None


class GRU(nnx.Module):
  """A gated recurrent unit (Cho et al., 2014).

  r, z = sigmoid(W x + U h + b), n = tanh(W' x + b' + r (U' h + c)), and the new
  state is (1 - z) n + z h.

  Differs from paper: r scales the product U' h; in the paper it scales h.
  """

  def __init__(self, in_features: int, size: int, *, rngs: nnx.Rngs):
    """Initialises the parameters.

    Args:
      in_features: length of an input x.
      size: length of the state h.
      rngs: its `params` stream initialises the parameters.
    """
    self.of_input = Linear(in_features, 3 * size, rngs=rngs)
    self.of_state = Linear(size, 3 * size, rngs=rngs)

  def __call__(
    self, state: Float[Array, "*batch D"], inputs: Float[Array, "*batch F"]
  ) -> Float[Array, "*batch D"]:
    """Returns the next state.

    Args:
      state: h, of any batch of `size` numbers.
      inputs: x, of the same batch.
    """
    given = jnp.split(self.of_input(inputs), 3, axis=-1)
    kept = jnp.split(self.of_state(state), 3, axis=-1)
    reset, update = (
      jax.nn.sigmoid(x + h) for x, h in zip(given[:2], kept[:2], strict=True)
    )
    candidate = jnp.tanh(given[2] + reset * kept[2])
    return (1 - update) * candidate + update * state


class SlotAttention(nnx.Module):
  """Slot attention (Locatello et al., 2020, algorithm 1).

  A round is `routing.slot_attention` from normalised slots to normalised
  members, a recurrent unit, and a residual network of one hidden layer.

  With `invariant` (Biza et al., 2023, algorithm 1) slot j has a frame, which is
  found anew in each round by `routing.slot_frames`. Its keys are
  f(k_i + g(x_ij)), with k_i the key of a member, x_ij its place in the frame, g
  linear, and f a network of one hidden layer; its values likewise. After the
  last round slots attend once more, which updates only the frames and the
  coefficients. If members carry no information on their places, moving or
  stretching all places and the initial frames does not change the contents, and
  moves or stretches the final frames in the same way.

  Differs from paper: slots may start as learned vectors, one each, as in the
  code of invariant slot attention. Without a key, sampled initial slots are the
  same for all sets. Of the frames, only positions are learned or sampled, in
  [-1, 1]; scales start at 0.1. Frames have no rotation.
  """

  def __init__(
    self,
    in_features: int,
    *,
    num_slots: int,
    size: int,
    hidden: int | None = None,
    num_iterations: int = 3,
    start: Start = "sampled",
    invariant: bool = False,
    rngs: nnx.Rngs,
  ):
    """Initialises the parameters.

    Args:
      in_features: F, length of a member.
      num_slots: J.
      size: D, length of a slot, of its queries, and of keys and values.
      hidden: units of the hidden layers; 2 size by default.
      num_iterations: rounds in which slots change, at least 1.
      start: "sampled" from one normal distribution, whose mean and scale are
        learned; or "learned", a vector for each slot.
      invariant: whether slots have frames.
      rngs: its `params` stream initialises the parameters.

    Raises:
      TypeError: if a count is no whole number, or `rngs` are no streams.
      ValueError: if a count is below 1 or `start` is neither of the two.
    """
    checks.rngs(rngs)
    hidden = 2 * size if hidden is None else hidden
    checks.counts(
      num_slots=num_slots,
      size=size,
      hidden=hidden,
      num_iterations=num_iterations,
    )
    if start not in ("sampled", "learned"):
      raise ValueError(f"start={start!r}; pass 'sampled' or 'learned'.")
    self.member_norm, self.slot_norm, self.hidden_norm = (
      attention.norm(width, rngs) for width in (in_features, size, size)
    )
    self.query, self.key, self.value = (
      Linear(width, size, use_bias=False, rngs=rngs)
      for width in (size, in_features, in_features)
    )
    self.gru = GRU(size, size, rngs=rngs)
    self.hidden, self.output = (
      Linear(*widths, rngs=rngs) for widths in ((size, hidden), (hidden, size))
    )
    shape = (num_slots, size) if start == "learned" else (1, size)
    init = nnx.initializers.glorot_uniform()
    self.mean = nnx.Param(init(rngs.params(), shape, jnp.float32))
    sampled = start == "sampled"
    self.log_scale = (
      nnx.Param(init(rngs.params(), shape, jnp.float32)) if sampled else None
    )
    self.place = Linear(2, size, rngs=rngs) if invariant else None
    self.seen_hidden = Linear(size, hidden, rngs=rngs) if invariant else None
    self.seen = Linear(hidden, size, rngs=rngs) if invariant else None
    self.position = (
      nnx.Param(_positions(rngs.params(), (num_slots, 2), jnp.float32))
      if invariant and not sampled
      else None
    )
    self.num_slots = num_slots
    self.num_iterations = num_iterations

  def __call__(
    self,
    members: Float[Array, "B I F"],
    presence: Float[Array, "B I"] | None = None,
    *,
    points: Float[Array, "B I 2"] | None = None,
    key: PRNGKeyArray | None = None,
  ) -> Slots:
    """Binds slots to the members of each set.

    Args:
      members: members of the sets, in any order.
      presence: in [0, 1], the presence of each member; None for 1.
      points: their places (x, y), mostly in [-1, 1]; needed for frames only.
      key: samples the initial slots; without it they are the same in all sets.

    Raises:
      TypeError: if the members are no floating-point numbers.
      ValueError: if the shapes do not fit, slots have frames but no points are
        given, or a known presence is outside of [0, 1].
    """
    self._check(members, presence, points)
    contents, frames = self.start(len(members), key=key)
    return self.refine(
      contents, members, presence, points=points, frames=frames
    )

  def _check(self, members, presence, points):
    checks.arrays(
      {
        "members": (members, "B I F"),
        "presence": (presence, "B I"),
        "points": (points, "B I 2"),
      },
      F=self.key.in_features,
    )
    checks.values(0.0, 1.0, presence=presence)

  def start(
    self, batch: int, *, key: PRNGKeyArray | None = None
  ) -> tuple[Float[Array, "B J D"], routing.Frames | None]:
    """Returns the slots before the first round, and their frames or None.

    Args:
      batch: B.
      key: as for the call.
    """
    keys = jax.random.split(jax.random.key(_NO_KEY) if key is None else key)
    copies = 1 if key is None else batch
    shape = (copies, self.num_slots)
    contents = jnp.broadcast_to(self.mean[...], (*shape, self.mean.shape[1]))
    if self.log_scale is not None:
      noise = jax.random.normal(keys[0], contents.shape, contents.dtype)
      contents += jnp.exp(self.log_scale[...]) * noise
    contents = jnp.broadcast_to(contents, (batch, *contents.shape[1:]))
    if self.place is None:
      return contents, None
    positions = (
      _positions(keys[1], (*shape, 2))
      if self.position is None
      else self.position[...]
    )
    positions = jnp.broadcast_to(positions, (batch, self.num_slots, 2))
    return contents, routing.Frames(positions, jnp.full_like(positions, _SCALE))

  def refine(
    self,
    contents: Float[Array, "B J D"],
    members: Float[Array, "B I F"],
    presence: Float[Array, "B I"] | None = None,
    *,
    points: Float[Array, "B I 2"] | None = None,
    frames: routing.Frames | None = None,
  ) -> Slots:
    """Runs all rounds, from given slots.

    Args:
      contents: the slots before the first round.
      members: as for the call.
      presence: as for the call.
      points: as for the call.
      frames: the frames before the first round, for slots that have frames.

    Raises:
      TypeError: as the call.
      ValueError: as the call.
    """
    self._check(members, presence, points)
    if presence is None:
      presence = jnp.ones(members.shape[:2], members.dtype)
    if self.place is not None and points is None:
      raise ValueError(
        "these slots have frames of reference; give points [B I 2], the places "
        "of the members."
      )
    if self.place is not None and frames is None:
      raise ValueError(
        "these slots have frames of reference; give frames, as `start` returns "
        "them."
      )
    members = self.member_norm(members)
    keys, values = self.key(members), self.value(members)

    def attend(contents, frames):
      seen = keys, values
      if self.place is not None:
        places = jax.vmap(routing.relative_points)(points, frames)
        seen = tuple(self._see(x, places) for x in seen)
      queries = self.query(self.slot_norm(contents))
      found = jax.vmap(_attend)(queries, *seen, presence)
      if self.place is not None:
        frames = jax.vmap(routing.slot_frames)(found.weights, points)
      return found, frames

    for _ in range(self.num_iterations):
      found, frames = attend(contents, frames)
      contents = self.gru(contents, found.means)
      hidden = jax.nn.relu(self.hidden(self.hidden_norm(contents)))
      contents = contents + self.output(hidden)
    if self.place is not None:
      found, frames = attend(contents, frames)
    return Slots(contents, found.coefficients, frames)

  def _see(self, x, places):
    """Keys or values [B I D] of members at places [B I J 2] of the slots."""
    x = x[:, :, None] + self.place(places)
    return self.seen(jax.nn.relu(self.seen_hidden(x)))


class PointSlots(nnx.Module):
  """Finds objects among points by slots that start as learned vectors.

  Without frames, points are embedded and attend to each other before slots
  attend to them, as in `set_transformer.SetTransformer`. With frames, all
  members are equal except for their places, which slots see in their frames.
  Results then depend on the position and size of the whole set only through
  the initial frames, which are fixed.
  """

  def __init__(
    self,
    *,
    num_slots: int,
    size: int,
    width: int,
    num_blocks: int,
    num_heads: int,
    num_iterations: int = 3,
    invariant: bool = False,
    masking: attention.Masking = "log_presence",
    kernel_init: nnx.Initializer = nnx.initializers.lecun_normal(),
    rngs: nnx.Rngs,
  ):
    """Initialises the parameters.

    Args:
      num_slots: J.
      size: D, length of a slot.
      width: length of a token.
      num_blocks: blocks of attention among tokens; none with frames.
      num_heads: heads of each block.
      num_iterations: as for `SlotAttention`.
      invariant: whether slots have frames.
      masking: how blocks ignore absent points, as for `SetTransformer`.
      kernel_init: initialiser of the embedding and of the blocks.
      rngs: its `params` stream initialises the parameters.
    """
    self.invariant = invariant
    self.embed = Linear(2, width, kernel_init=kernel_init, rngs=rngs)
    self.blocks = nnx.List(
      set_transformer.SAB(
        width,
        num_heads=num_heads,
        masking=masking,
        kernel_init=kernel_init,
        rngs=rngs,
      )
      for _ in range(0 if invariant else num_blocks)
    )
    self.slots = SlotAttention(
      width,
      num_slots=num_slots,
      size=size,
      num_iterations=num_iterations,
      start="learned",
      invariant=invariant,
      rngs=rngs,
    )

  def __call__(
    self, points: Float[Array, "B I 2"], presence: Float[Array, "B I"]
  ) -> Slots:
    """Binds slots to the points of each set.

    Args:
      points: in [-1, 1], in any order.
      presence: in [0, 1].
    """
    seen = jnp.zeros_like(points) if self.invariant else points
    tokens = self.embed(seen)
    for block in self.blocks:
      tokens = block(tokens, presence)
    return self.slots(tokens, presence, points=points)


def _attend(queries, keys, values, presence):
  return routing.slot_attention(queries, keys, values, presence=presence)


_positions = functools.partial(jax.random.uniform, minval=-1.0, maxval=1.0)
