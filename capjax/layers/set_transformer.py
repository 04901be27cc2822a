"""The set transformer: attention among the members of a set, with presences.

Axes: B batch, N tokens (members of the set), F features, Q queries, K outputs.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from capjax.kernels import checks
from capjax.layers.attention import Masking, MultiHeadAttention, norm
from capjax.layers.dense import Linear

_KERNEL_INIT = nnx.initializers.lecun_normal()


class SAB(nnx.Module):
  """Set attention block: tokens attend to each other (Lee et al., 2019).

  x = norm(d (x + attention(x, x))), then norm(x + MLP(x)), where d are the
  presences. Permuting the tokens permutes the results.

  Differs from paper: the presences; the MLP has a hidden layer, as in the SCAE
  authors' code.
  """

  def __init__(
    self,
    width: int,
    *,
    num_heads: int,
    hidden: int | None = None,
    layer_norm: bool = True,
    masking: Masking = "log_presence",
    kernel_init: nnx.Initializer = _KERNEL_INIT,
    rngs: nnx.Rngs,
  ):
    """Initialises the parameters.

    Args:
      width: F, length of a token.
      num_heads: heads of the attention.
      hidden: units of the MLP's hidden layer; 2 width by default.
      layer_norm: whether tokens are normalised after either step.
      masking: as for `MultiHeadAttention`.
      kernel_init: as for `MultiHeadAttention`.
      rngs: its `params` stream initialises the parameters.
    """
    self.attention = MultiHeadAttention(
      width,
      width,
      num_heads=num_heads,
      masking=masking,
      kernel_init=kernel_init,
      rngs=rngs,
    )
    self.finish = _Finish(width, hidden, layer_norm, kernel_init, rngs)

  def __call__(
    self, tokens: Float[Array, "B N F"], presence: Float[Array, "B N"]
  ) -> Float[Array, "B N F"]:
    """Returns the tokens after one block, in float32.

    Args:
      tokens: members of each set, in any order.
      presence: in [0, 1], the presence of each member.
    """
    read = self.attention(tokens, tokens, presence)
    return self.finish(tokens, read, presence)


class ISAB(nnx.Module):
  """Induced set attention block: attention in time O(N) (Lee et al., 2019).

  Learned queries, the inducing points, attend to the tokens; then the tokens
  attend to the results of the inducing points. The rest is as in `SAB`.

  Differs from paper: as `SAB`; the first attention is no complete block: it has
  no residual and no MLP, as in the SCAE authors' code.
  """

  def __init__(
    self,
    width: int,
    *,
    num_inducing: int,
    num_heads: int,
    hidden: int | None = None,
    layer_norm: bool = True,
    masking: Masking = "log_presence",
    kernel_init: nnx.Initializer = _KERNEL_INIT,
    rngs: nnx.Rngs,
  ):
    """Initialises the parameters.

    Args:
      width: as for `SAB`.
      num_inducing: inducing points, at least 1.
      num_heads: as for `SAB`.
      hidden: as for `SAB`.
      layer_norm: as for `SAB`.
      masking: as for `SAB`.
      kernel_init: as for `SAB`.
      rngs: its `params` stream initialises the parameters.

    Raises:
      ValueError: if `num_inducing` is below 1.
    """
    checks.counts(num_inducing=num_inducing)
    self.inducing = nnx.Param(_initial_seeds(rngs, num_inducing, width))
    self.gather, self.scatter = (
      MultiHeadAttention(
        width,
        width,
        num_heads=num_heads,
        masking=masking,
        kernel_init=kernel_init,
        rngs=rngs,
      )
      for _ in range(2)
    )
    self.finish = _Finish(width, hidden, layer_norm, kernel_init, rngs)

  def __call__(
    self, tokens: Float[Array, "B N F"], presence: Float[Array, "B N"]
  ) -> Float[Array, "B N F"]:
    """Returns the tokens after one block, in float32.

    Args:
      tokens: members of each set, in any order.
      presence: in [0, 1], the presence of each member.
    """
    induced = self.gather(self.inducing[...], tokens, presence)
    all_present = jnp.ones(induced.shape[:2], presence.dtype)
    read = self.scatter(tokens, induced, all_present)
    return self.finish(tokens, read, presence)


class PMA(nnx.Module):
  """Pooling by attention from learned seeds (Lee et al., 2019).

  The result does not depend on the order of the tokens.

  Differs from paper: attention alone, without residual and MLP, as in the SCAE
  authors' code.
  """

  def __init__(
    self,
    features: int,
    *,
    num_seeds: int,
    num_heads: int,
    masking: Masking = "log_presence",
    kernel_init: nnx.Initializer = _KERNEL_INIT,
    rngs: nnx.Rngs,
  ):
    """Initialises the parameters.

    Args:
      features: length of tokens, seeds and results.
      num_seeds: K, results, at least 1.
      num_heads: as for `MultiHeadAttention`.
      masking: as for `MultiHeadAttention`.
      kernel_init: as for `MultiHeadAttention`.
      rngs: its `params` stream initialises the parameters.

    Raises:
      ValueError: if `num_seeds` is below 1.
    """
    checks.counts(num_seeds=num_seeds)
    self.seeds = nnx.Param(_initial_seeds(rngs, num_seeds, features))
    self.attention = MultiHeadAttention(
      features,
      features,
      num_heads=num_heads,
      masking=masking,
      kernel_init=kernel_init,
      rngs=rngs,
    )

  def __call__(
    self,
    tokens: Float[Array, "B N in"],
    presence: Float[Array, "B N"],
    *,
    widen: Linear | None = None,
  ) -> Float[Array, "B K F"]:
    """Pools tokens, after the dense layer `widen` if it is given.

    Args:
      tokens: members of each set, in any order.
      presence: in [0, 1], the presence of each member.
      widen: from `in` to F numbers; None where tokens have F numbers.

    Returns:
      K vectors of each set, in float32.
    """
    seeds = self.seeds[...]
    if widen is None:
      return self.attention(seeds, tokens, presence)
    return self.attention.pool(seeds, tokens, presence, widen=widen)


class SetTransformer(nnx.Module):
  """Turns a set into a few vectors (Lee et al., 2019; Kosiorek et al., 2019).

  Tokens go through a linear map, blocks and another linear map; learned seeds
  pool them.
  """

  def __init__(
    self,
    in_features: int,
    *,
    width: int,
    num_blocks: int,
    num_heads: int,
    num_outputs: int,
    out_features: int,
    hidden: int | None = None,
    num_inducing: int | None = None,
    layer_norm: bool = True,
    masking: Masking = "log_presence",
    kernel_init: nnx.Initializer = _KERNEL_INIT,
    rngs: nnx.Rngs,
  ):
    """Initialises the parameters.

    Args:
      in_features: F, numbers of a token.
      width: numbers of a token within the blocks.
      num_blocks: number of `SAB`s or `ISAB`s.
      num_heads: heads of every attention.
      num_outputs: K, seeds of the pooling.
      out_features: length of each result.
      hidden: units of the MLPs' hidden layer; 2 width by default.
      num_inducing: inducing points of `ISAB`s; None for `SAB`s.
      layer_norm: whether blocks normalise.
      masking: as for `MultiHeadAttention`.
      kernel_init: as for `MultiHeadAttention`.
      rngs: its `params` stream initialises the parameters.

    Raises:
      TypeError: if a count is not a whole number, or `rngs` not `nnx.Rngs`.
      ValueError: if a count is below 1, or `num_blocks` is below 0.
    """
    checks.rngs(rngs)
    checks.counts(
      in_features=in_features,
      width=width,
      num_outputs=num_outputs,
      out_features=out_features,
      hidden=1 if hidden is None else hidden,
    )
    checks.counts(at_least=0, num_blocks=num_blocks)
    options: dict[str, Any] = {
      "num_heads": num_heads,
      "hidden": hidden,
      "layer_norm": layer_norm,
      "masking": masking,
      "kernel_init": kernel_init,
      "rngs": rngs,
    }
    self.embed, self.widen = (
      Linear(*size, kernel_init=kernel_init, rngs=rngs)
      for size in ((in_features, width), (width, out_features))
    )
    self.blocks = nnx.List(
      SAB(width, **options)
      if num_inducing is None
      else ISAB(width, num_inducing=num_inducing, **options)
      for _ in range(num_blocks)
    )
    self.pool = PMA(
      out_features,
      num_seeds=num_outputs,
      num_heads=num_heads,
      masking=masking,
      kernel_init=kernel_init,
      rngs=rngs,
    )

  def __call__(
    self, tokens: Float[Array, "B N F"], presence: Float[Array, "B N"]
  ) -> Float[Array, "B K out"]:
    """Pools the tokens of each set.

    Args:
      tokens: members of the sets, in any order.
      presence: in [0, 1], the presence of each member.

    Returns:
      K vectors of each set, in float32; finite, with finite gradients, also if
      all tokens are absent.

    Raises:
      TypeError: if tokens or presences are not floats.
      ValueError: if their shapes do not fit, or a known presence is outside of
        [0, 1].
    """
    checks.arrays(
      {"tokens": (tokens, "B N F"), "presence": (presence, "B N")},
      F=self.embed.in_features,
    )
    checks.values(0.0, 1.0, presence=presence)
    hidden = self.embed(tokens)
    for block in self.blocks:
      hidden = block(hidden, presence)
    return self.pool(hidden, presence, widen=self.widen)


class _Finish(nnx.Module):
  """The rest of a block after attention: residuals, presences, norms, MLP."""

  def __init__(self, width, hidden, layer_norm, kernel_init, rngs):
    hidden = 2 * width if hidden is None else hidden
    self.hidden, self.output = (
      Linear(*size, kernel_init=kernel_init, rngs=rngs)
      for size in ((width, hidden), (hidden, width))
    )
    self.norms = nnx.List(norm(width, rngs) for _ in range(2 * layer_norm))

  def __call__(self, tokens, read, presence):
    tokens = (tokens + read) * presence[..., None]
    first, second = self.norms or (lambda x: x,) * 2
    tokens = first(tokens)
    return second(tokens + self.output(jax.nn.relu(self.hidden(tokens))))


def _initial_seeds(rngs, count, width):
  init = nnx.initializers.glorot_uniform()
  return init(rngs.params(), (count, width), jnp.float32)
