"""Diagnostics of routing: entropy, capsule starvation, parsing.

Pure functions of coefficients and activations. Axes: N examples, I parts below,
J parents above, T types of parts; `...` any leading axes, such as the batch.
Values are in [0, 1], except `kappa`. Meaningless routing can have a good value
of any single number: read them together.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from capjax.kernels import checks, numerics


def routing_entropy(
  coefficients: Float[Array, "*batch I J"],
) -> Float[Array, "*batch"]:
  """Computes how undecided the parts are: 1 is uniform, 0 one parent each.

  The mean over parts of H(c_i) / log J, H(c_i) = -sum_j c_ij log c_ij. Networks
  with uniform coefficients classify as well (Paik et al., 2019), so that an
  accuracy alone does not say whether routing does anything.

  Args:
    coefficients: c_ij. Negative ones, which learned priors can make, count as
      0; then those of each part are scaled to sum to 1. So the share of an
      orphan parent (leaky routing) is ignored.

  Returns:
    The mean over the parts that send anything to a parent; 0 where none does.

  Raises:
    ValueError: if there are fewer than two parents to choose from.
  """
  shares, sends = _shares(coefficients)
  entropies = -jnp.sum(shares * numerics.safe_log(shares), axis=-1)
  mean = jnp.sum(entropies, axis=-1) / jnp.maximum(jnp.sum(sends, axis=-1), 1)
  return mean / math.log(coefficients.shape[-1])


def image_information(coefficients: Float[Array, "N I J"]) -> Float[Array, ""]:
  """Computes how much the parents of parts depend on the image.

  With the shares of part i in image n as probabilities of its parent, the mean
  over parts of the mutual information of image and parent,
    (H(mean_n c_ni) - mean_n H(c_ni)) / log J.
  A parse tree that is made for each image (Sabour et al., 2017) needs it: it is
  0 where every part has the same shares in all images, even or decided.

  Args:
    coefficients: c_nij of all images; negative ones, which learned priors can
      make, count as 0, then those of each part are scaled to sum to 1.

  Returns:
    In [0, 1]; 1 if each part sends all to one parent in each image, and to each
    parent in the same number of images. Images in which a part sends nothing do
    not count for it, and parts that send nothing in any image do not count; 0
    if no part counts.

  Raises:
    ValueError: if there are fewer than two parents to choose from.
  """
  return information_of_sums(share_sums(coefficients))


class ShareSums(NamedTuple):
  """Sums over images, which may be added up over batches.

  Attributes:
    shares: [I J], of the shares of each part.
    entropies: [I], of their entropies in nats.
    images: [I], the images in which a part sends anything.
  """

  shares: Float[Array, "I J"]
  entropies: Float[Array, " I"]
  images: Float[Array, " I"]


def share_sums(coefficients: Float[Array, "N I J"]) -> ShareSums:
  """Computes the sums over some images that `image_information` needs.

  Args:
    coefficients: c_nij, as for `image_information`.

  Raises:
    TypeError: if the coefficients are no floats.
    ValueError: if they are not [N I J], or there are fewer than two parents to
      choose from.
  """
  checks.arrays({"coefficients": (coefficients, "N I J")}, empty="N I")
  shares, sends = _shares(coefficients)
  return ShareSums(
    jnp.sum(shares, axis=0),
    -jnp.sum(shares * numerics.safe_log(shares), axis=(0, -1)),
    jnp.sum(sends.astype(shares.dtype), axis=0),
  )


def information_of_sums(sums: ShareSums) -> Float[Array, ""]:
  """Computes `image_information` of all images whose sums were added up.

  Args:
    sums: of one or more batches; see `share_sums`.

  Returns:
    In [0, 1], as `image_information`.
  """
  images = jnp.maximum(sums.images, 1)
  mean = sums.shares / images[:, None]
  of_mean = -jnp.sum(mean * numerics.safe_log(mean), axis=-1)
  information = jnp.sum(of_mean - sums.entropies / images)
  num_sending = jnp.maximum(jnp.sum(sums.images > 0), 1)
  return information / num_sending / math.log(sums.shares.shape[-1])


def peak_activations(activations: Float[Array, "N J"]) -> Float[Array, " J"]:
  """Finds the largest activation that each parent reaches on any example.

  Args:
    activations: a_nj over a set large enough to activate every parent that
      works.

  Returns:
    max_n a_nj. For any range of activations, a value far below the others shows
    a starved parent.

  Raises:
    ValueError: if there are no examples.
  """
  if not len(activations):
    raise ValueError("no examples: every parent would be dead; give some.")
  return jnp.max(activations, axis=0)


def dead_parents(
  activations: Float[Array, "N J"], *, threshold: float = 0.01
) -> Float[Array, ""]:
  """Computes the share of parents that no example activates.

  A parent is dead if max_n a_nj < threshold. Gradients vanish at such capsules,
  so that they stay dead: capsule starvation (Mitterreiter et al., 2023).

  Args:
    activations: as for `peak_activations`.
    threshold: in (0, 1]. `squash` maps a total input of length 0.1 to a length
      of 0.01. Logistic activations (inverted attention, variational) and
      shares of 1 (self-routing) are hardly ever so low, even for starved
      parents: look at their `peak_activations`.

  Returns:
    In [0, 1]; NaN if an activation is NaN.

  Raises:
    ValueError: if there are no examples, or `threshold` lies outside (0, 1].

  Differs from paper: the threshold is ours.
  """
  if not 0 < threshold <= 1:
    raise ValueError(f"threshold={threshold}; pass a number in (0, 1].")
  peaks = peak_activations(activations)
  share = jnp.mean(peaks < threshold, dtype=jnp.float32)
  return jnp.where(jnp.any(jnp.isnan(peaks)), jnp.nan, share)


class ParseAgreement(NamedTuple):
  """The agreement of the parses of two views.

  Attributes:
    agreement: [...] in [0, 1], the share of parts whose parent is the same.
    chance: [...] in [0, 1], the expected agreement if the parents of one view
      were shuffled among its parts; 1 if all parts of both views choose the
      same parent.
    kappa: [...] in [-1, 1], (agreement - chance) / (1 - chance): 1 for the same
      parse, 0 for agreement as expected by chance; also 0 where chance is 1.
  """

  agreement: Float[Array, "*batch"]
  chance: Float[Array, "*batch"]
  kappa: Float[Array, "*batch"]


def parse_agreement(
  coefficients_a: Float[Array, "*batch I J"],
  coefficients_b: Float[Array, "*batch I J"],
  *,
  num_types: int | None = None,
) -> ParseAgreement:
  """Compares the parents that parts choose in two views of the same image.

  Under a parse tree a nose belongs to the same face wherever it is. In another
  view it is found at another position, by another capsule: so capsules of one
  type are pooled over positions, m_tj = sum_p c_tpj, and type t chooses
  argmax_j m_tj. With w_t the smaller of both views' masses sum_j m_tj, scaled
  to sum to 1,
    agreement = sum_t w_t [choice_a(t) = choice_b(t)],
    chance = sum_j (sum_t w_t [choice_a(t) = j]) (sum_t w_t [choice_b(t) = j]),
  and kappa is Cohen's (1960), of two raters that sort types into parents.

  Agreement alone is misleading: routing that sends every part to the predicted
  class agrees fully between any two views of that class. Then chance is 1, and
  kappa 0.

  Args:
    coefficients_a: c_ij of the first view; negative ones, which learned priors
      can make, count as 0.
    coefficients_b: coefficients of the second, from the same network.
    num_types: T; part i has type i mod T, as `layers.PrimaryCaps` orders them.
      By default every part is a type of its own, for parts without position.

  Returns:
    Agreement, chance and kappa; all 0 where no type has mass in both views.
    Equal masses choose the parent of the lower index.

  Raises:
    ValueError: if the views differ in shape, or `num_types` does not divide the
      number of parts.
  """
  if coefficients_a.shape != coefficients_b.shape:
    raise ValueError(
      f"coefficients are {coefficients_a.shape} and {coefficients_b.shape}; "
      "give two views through the same network."
    )
  num_parts, num_parents = coefficients_a.shape[-2:]
  num_types = num_parts if num_types is None else num_types
  if num_types < 1 or num_parts % num_types:
    raise ValueError(
      f"num_types={num_types} does not divide {num_parts} parts; give the "
      "number of capsules at each position."
    )

  def choose(coefficients):
    sent = jnp.maximum(numerics.widen(coefficients), 0)
    shape = (*sent.shape[:-2], -1, num_types, num_parents)
    masses = jnp.sum(sent.reshape(shape), axis=-3)
    choices = jax.nn.one_hot(jnp.argmax(masses, axis=-1), num_parents)
    return choices, jnp.sum(masses, axis=-1)

  choices_a, masses_a = choose(coefficients_a)
  choices_b, masses_b = choose(coefficients_b)
  weights = jnp.minimum(masses_a, masses_b)
  total = jnp.sum(weights, axis=-1, keepdims=True)
  weights /= jnp.where(total > 0, total, 1)
  agreement = numerics.einsum(
    "...t,...tj,...tj->...", weights, choices_a, choices_b
  )
  shares_a = numerics.einsum("...t,...tj->...j", weights, choices_a)
  shares_b = numerics.einsum("...t,...tj->...j", weights, choices_b)
  chance = jnp.sum(shares_a * shares_b, axis=-1)
  # If all parts choose one parent, 1 - chance is 0 up to rounding.
  is_one = 1 - chance <= 1e-5
  kappa = (agreement - chance) / jnp.where(is_one, 1, 1 - chance)
  return ParseAgreement(agreement, chance, jnp.where(is_one, 0, kappa))


def _shares(coefficients):
  """Shares that sum to 1 over the parents, and which parts send anything."""
  num_parents = coefficients.shape[-1]
  if num_parents < 2:
    raise ValueError(
      f"{num_parents} parent(s): nothing to choose; give coefficients of a "
      "layer with at least 2."
    )
  sent = jnp.maximum(numerics.widen(coefficients), 0)
  total = jnp.sum(sent, axis=-1, keepdims=True)
  return sent / jnp.where(total > 0, total, 1), total[..., 0] > 0
