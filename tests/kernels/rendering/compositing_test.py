"""Pictures drawn over one another, against the paper's formula in a loop."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jax.test_util import check_grads

from kernels.rendering import compositing

_SEEDS = (0, 1)


def _pictures(seed, count=5, shape=(3, 4), channels=2, dtype=jnp.float32):
  colour_key, alpha_key = jax.random.split(jax.random.key(seed))
  alphas = jax.random.uniform(alpha_key, (count, *shape, 1), dtype)
  colours = jax.random.uniform(colour_key, (count, *shape, channels), dtype)
  return compositing.Picture(colours * alphas, alphas)


def _oracle(pictures):
  """C_o = (C_a alpha_a + C_b alpha_b (1 - alpha_a)) / alpha_o, per pixel."""
  premultiplied, alphas = (np.float64(x) for x in pictures)
  count, height, width, channels = premultiplied.shape
  colours, opacities = (
    np.zeros((height, width, channels)),
    np.zeros((height, width, 1)),
  )
  for h in range(height):
    for w in range(width):
      colour, alpha = np.zeros(channels), 0.0
      for m in range(count):
        alpha_a = alphas[m, h, w, 0]
        if alpha_a == 0:
          continue
        colour_a = premultiplied[m, h, w] / alpha_a
        total = alpha_a + alpha * (1 - alpha_a)
        colour = (colour_a * alpha_a + colour * alpha * (1 - alpha_a)) / total
        alpha = total
      colours[h, w], opacities[h, w] = colour, alpha
  return colours, opacities


def _textbook(pictures, fault=None):
  """A plain loop, and ways to get it wrong."""
  colours, alphas = pictures
  if fault == "front_first":
    colours, alphas = colours[::-1], alphas[::-1]
  if fault == "multiplied_twice":
    colours = colours * alphas
  colour, alpha = jnp.zeros(colours.shape[1:]), jnp.zeros(alphas.shape[1:])
  for m in range(len(colours)):
    shows = 1 - (alpha if fault == "wrong_alpha" else alphas[m])
    if fault == "added":
      shows = 1.0
    colour = colours[m] + shows * colour
    alpha = alphas[m] + shows * alpha
  return compositing.Picture(colour, alpha)


def check_matches_oracle(composite, seed=0):
  pictures = _pictures(seed)
  pictures = compositing.Picture(
    *(x.at[2].set(0.0).at[3, 0].set(0.0) for x in pictures)
  )
  colours, alphas = _oracle(pictures)
  got = composite(pictures)
  np.testing.assert_allclose(got.alphas, alphas, atol=1e-6)
  np.testing.assert_allclose(got.colours, colours * alphas, atol=1e-6)


def check_the_last_hides_the_others(composite, seed=0):
  pictures = _pictures(seed)
  pictures = pictures._replace(alphas=jnp.ones_like(pictures.alphas))
  got = composite(pictures)
  np.testing.assert_allclose(got.colours, pictures.colours[-1], atol=1e-6)
  np.testing.assert_allclose(got.alphas, 1, atol=1e-6)


def check_nothing_shows_nothing(composite, seed=0):
  """Invisible pictures leave no trace, wherever they are put."""
  pictures = _pictures(seed)
  blank = jax.tree.map(lambda x: jnp.zeros_like(x[:1]), pictures)
  chex.assert_trees_all_close(
    composite(blank), jax.tree.map(lambda x: x[0], blank)
  )
  for place in range(6):

    def insert(x, y, place=place):
      return jnp.concatenate([x[:place], y, x[place:]])

    more = jax.tree.map(insert, pictures, blank)
    chex.assert_trees_all_close(composite(more), composite(pictures), atol=1e-6)


def check_order_matters(composite, seed=0):
  """The front one of two opaque pictures is seen, and not the sum."""
  pictures = _pictures(seed, count=2)
  opaque = pictures._replace(alphas=jnp.ones_like(pictures.alphas))
  swapped = jax.tree.map(lambda x: x[::-1], opaque)
  np.testing.assert_allclose(
    composite(swapped).colours, pictures.colours[0], atol=1e-6
  )


def check_alphas_stay_in_range(composite, seed=0):
  got = composite(_pictures(seed, count=40))
  for x in got:
    assert np.min(x) >= 0 and np.max(x) <= 1 + 1e-6
  assert np.all(got.colours <= got.alphas + 1e-6)


_CHECKS = (
  check_matches_oracle,
  check_the_last_hides_the_others,
  check_nothing_shows_nothing,
  check_order_matters,
  check_alphas_stay_in_range,
)


class CompositingTest(chex.TestCase):
  @parameterized.product(check=_CHECKS, seed=_SEEDS)
  def test_property(self, check, seed):
    check(compositing.composite_over, seed=seed)

  def test_textbook_form_is_right(self):
    for check in _CHECKS:
      check(_textbook)

  @parameterized.parameters(
    (check_matches_oracle, "front_first"),
    (check_matches_oracle, "multiplied_twice"),
    (check_matches_oracle, "wrong_alpha"),
    (check_the_last_hides_the_others, "front_first"),
    (check_the_last_hides_the_others, "added"),
    (check_nothing_shows_nothing, "wrong_alpha"),
    (check_order_matters, "front_first"),
    (check_order_matters, "added"),
    (check_alphas_stay_in_range, "added"),
  )
  def test_broken_copy_fails(self, check, fault):
    with self.assertRaises(AssertionError):
      check(functools.partial(_textbook, fault=fault))

  @parameterized.parameters(*_SEEDS)
  def test_over_is_associative(self, seed):
    a, b, c = (
      jax.tree.map(lambda x, n=n: x[n], _pictures(seed)) for n in range(3)
    )
    over = compositing.over
    chex.assert_trees_all_close(
      over(over(c, b), a), over(c, over(b, a)), atol=1e-6
    )
    together = jax.tree.map(lambda *x: jnp.stack(x), a, b, c)
    chex.assert_trees_all_close(
      compositing.composite_over(together), over(c, over(b, a)), atol=1e-6
    )

  @parameterized.parameters(*_SEEDS)
  def test_contributions_are_what_taking_colours_away_takes(self, seed):
    pictures = _pictures(seed)
    got = compositing.contributions(pictures)
    whole = _oracle(pictures)[0] * _oracle(pictures)[1]
    np.testing.assert_allclose(np.sum(got, axis=0), whole, atol=1e-6)
    for m in range(len(got)):
      # As opaque as before, but black.
      colours = pictures.colours.at[m].set(0.0)
      colour, alpha = _oracle(pictures._replace(colours=colours))
      np.testing.assert_allclose(got[m], whole - colour * alpha, atol=1e-6)

  def test_no_pictures_are_nothing(self):
    assert not compositing.contributions(_pictures(0, count=0)).size
    got = compositing.composite_over(_pictures(0, count=0))
    np.testing.assert_array_equal(got.colours, np.zeros((3, 4, 2)))

  @parameterized.parameters(0.0, 0.3, 1.0)
  def test_gradients(self, alpha):
    with jax.enable_x64(True):
      pictures = _pictures(0, count=3, shape=(2, 2), dtype=jnp.float64)
      pictures = pictures._replace(alphas=jnp.full_like(pictures.alphas, alpha))
      check_grads(compositing.composite_over, (pictures,), 1)

  def test_bfloat16(self):
    pictures = _pictures(0, count=40)
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), pictures)
    got = compositing.composite_over(half)
    assert got.colours.dtype == got.alphas.dtype == jnp.bfloat16
    want = compositing.composite_over(pictures)
    chex.assert_trees_all_close(jax.tree.map(jnp.float32, got), want, atol=1e-2)

  @chex.variants(with_jit=True, without_jit=True)
  def test_vmap_is_a_loop(self):
    composite = self.variant(compositing.composite_over)
    batch = jax.tree.map(lambda *x: jnp.stack(x), _pictures(0), _pictures(1))
    want = [composite(_pictures(seed)) for seed in (0, 1)]
    want = jax.tree.map(lambda *x: jnp.stack(x), *want)
    chex.assert_trees_all_close(jax.vmap(composite)(batch), want, atol=1e-6)


if __name__ == "__main__":
  absltest.main()
