"""Pictures with transparency, one over another (Porter and Duff, 1984).

Colours are premultiplied by alpha, so that no division is needed.
In float32 values and gradients are finite for colours of magnitude up to 1e30.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import checks, numerics, sharding


class Picture(NamedTuple):
  """A partly transparent picture.

  Attributes:
    colours: [... H W C], premultiplied: in [0, alpha] for colours in [0, 1].
    alphas: [... H W 1], in [0, 1]; 1 hides everything behind.
  """

  colours: Float[Array, "*pictures H W C"]
  alphas: Float[Array, "*pictures H W 1"]


def over(front: Picture, back: Picture) -> Picture:
  """Composites one picture over another.

  With alpha = alpha_f + alpha_b (1 - alpha_f),
    C = (C_f alpha_f + C_b alpha_b (1 - alpha_f)) / alpha,
  or with premultiplied c = C alpha: c = c_f + c_b (1 - alpha_f). The operation
  is associative.

  Args:
    front: the picture in front.
    back: the picture behind, of the same shape.

  Returns:
    Both as one picture.

  Raises:
    TypeError: if they hold no floating-point numbers.
    ValueError: if their shapes differ, or a known alpha is outside of [0, 1].
  """
  checks.floats(
    {"colours": front.colours, "alphas": front.alphas}
    | {"colours behind": back.colours, "alphas behind": back.alphas}
  )
  checks.same_shape(front.colours.shape, **{"colours behind": back.colours})
  checks.same_shape((*front.colours.shape[:-1], 1), alphas=front.alphas)
  checks.same_shape(front.alphas.shape, **{"alphas behind": back.alphas})
  checks.values(
    0.0, 1.0, **{"alphas": front.alphas, "alphas behind": back.alphas}
  )
  shows = 1 - front.alphas
  return Picture(
    front.colours + shows * back.colours, front.alphas + shows * back.alphas
  )


def composite_over(pictures: Picture) -> Picture:
  """Composites a stack of pictures (Smith et al., 2020, section 2.1).

  Args:
    pictures: M pictures along the first axis, each over those before it, so
      that the last is in front; M may be 0.

  Returns:
    One picture in the dtype of `pictures`. Its colours are the image on black;
    on another background B the image is colours + (1 - alphas) B.

  Raises:
    ValueError: if a known alpha is outside of [0, 1].

  Differs from paper: nothing; the paper prints colours that are not
  premultiplied: `colours / alphas` where alphas are above 0.
  """
  colours, alphas = pictures
  checks.arrays(
    {"colours": (colours, "M H W C"), "alphas": (alphas, "M H W 1")}, empty="M"
  )
  checks.values(0.0, 1.0, alphas=alphas)
  dtype = jnp.result_type(colours)
  accumulation = numerics.accumulation_dtype(colours, alphas)
  pictures = jax.tree.map(lambda x: x.astype(accumulation), pictures)
  blank = jax.tree.map(lambda x: jnp.zeros(x.shape[1:], x.dtype), pictures)
  blank = sharding.vary_alike(blank, pictures)

  def add(canvas, picture):
    return over(picture, canvas), None

  canvas, _ = jax.lax.scan(add, blank, pictures)
  return jax.tree.map(lambda x: x.astype(dtype), canvas)


def contributions(pictures: Picture) -> Float[Array, "M H W C"]:
  """The contribution of each picture to the image of all of them.

  c_m prod_{k > m} (1 - alpha_k), whose sum over m is `composite_over`.

  Args:
    pictures: M pictures along the first axis, the last in front; M may be 0.

  Returns:
    Colours, in the dtype of `pictures`.

  Raises:
    ValueError: if a known alpha is outside of [0, 1].
  """
  colours, alphas = pictures
  checks.arrays(
    {"colours": (colours, "M H W C"), "alphas": (alphas, "M H W 1")}, empty="M"
  )
  checks.values(0.0, 1.0, alphas=alphas)
  dtype = jnp.result_type(colours)
  accumulation = numerics.accumulation_dtype(colours, alphas)
  shows = 1 - alphas.astype(accumulation)
  # Transparency of all pictures in front of each; 1 for the last.
  in_front = jnp.flip(jnp.cumprod(jnp.flip(shows, axis=0), axis=0), axis=0)
  in_front = jnp.concatenate([in_front[1:], jnp.ones_like(shows[:1])])
  return (colours * in_front[: len(colours)]).astype(dtype)
