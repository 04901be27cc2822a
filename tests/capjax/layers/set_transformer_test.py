"""The set transformer against loops, with absent and reordered tokens."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized
from flax import nnx

from capjax.layers import attention, dense, set_transformer

_MASKINGS = ("log_presence", "near_hard")
_FORMS = {
  "plain": {"num_blocks": 2},
  "bare": {"layer_norm": False, "num_heads": 4, "hidden": 5},
  "induced": {"num_inducing": 3},
}
_run = jax.jit(lambda model, *arguments: model(*arguments))


def _model(seed=0, **options):
  """Of 4 outputs of length 7, all of whose numbers are moved from the first."""
  options = {
    "width": 6,
    "num_blocks": 1,
    "num_heads": 2,
    "num_outputs": 4,
    "out_features": 7,
    **options,
  }
  model = set_transformer.SetTransformer(3, **options, rngs=nnx.Rngs(seed))
  random = np.random.default_rng(seed)

  def move(leaf):
    return leaf + jnp.float32(0.3 * random.normal(size=leaf.shape))

  return jax.tree.map(move, model)


def _set(seed=0, num_tokens=5):
  """Tokens, the third of which is absent and the others more or less there."""
  random = np.random.default_rng(seed)
  tokens = jnp.float32(random.normal(size=(2, num_tokens, 3)))
  presence = jnp.float32(random.uniform(0.1, 1, (2, num_tokens)))
  return tokens, presence.at[:, 2].set(0)


def _linear(layer, x):
  return x @ np.float64(layer.kernel[...]) + np.float64(layer.bias[...])


def _attention_oracle(module, queries, tokens, presence):
  """One set, a query, a head and a token at a time."""
  q, k = _linear(module.query, queries), _linear(module.key, tokens)
  v, heads = _linear(module.value, tokens), module.num_heads
  size, value_size = q.shape[1] // heads, v.shape[1] // heads
  read = np.zeros((len(queries), v.shape[1]))
  for i, s in np.ndindex(len(queries), heads):
    part = slice(s * size, (s + 1) * size)
    products = [np.dot(q[i, part], k[n, part]) for n in range(len(tokens))]
    weights = np.zeros(len(tokens))
    for n, product in enumerate(products):
      if module.masking == "log_presence":
        weights[n] = presence[n] * np.exp(product / size**0.5)
      elif presence[n] == max(presence):
        # Below 1 the mask swallows the product.
        swallowed = max(presence) < 1
        weights[n] = np.exp(0 if swallowed else product / size**0.5)
    if weights.sum():
      weights /= weights.sum()
    part = slice(s * value_size, (s + 1) * value_size)
    for n in range(len(tokens)):
      read[i, part] += weights[n] * v[n, part]
  return _linear(module.output, read)


def _norm_oracle(layer, x):
  centred = x - x.mean(-1, keepdims=True)
  scale = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
  return centred * scale * layer.scale[...] + layer.bias[...]


def _block_oracle(block, x, presence):
  if hasattr(block, "inducing"):
    seeds = np.float64(block.inducing[...])
    induced = _attention_oracle(block.gather, seeds, x, presence)
    read = _attention_oracle(block.scatter, x, induced, np.ones(len(seeds)))
  else:
    read = _attention_oracle(block.attention, x, x, presence)
  finish = block.finish
  x = (x + read) * presence[:, None]
  if len(finish.norms):
    x = _norm_oracle(finish.norms[0], x)
  x = x + _linear(finish.output, np.maximum(0, _linear(finish.hidden, x)))
  return _norm_oracle(finish.norms[1], x) if len(finish.norms) else x


def _oracle(model, tokens, presence):
  """[B K out], in float64."""
  outputs = []
  for x, d in zip(np.float64(tokens), np.float64(presence), strict=True):
    x = _linear(model.embed, x)
    for block in model.blocks:
      x = _block_oracle(block, x, d)
    x = _linear(model.widen, x)
    seeds = np.float64(model.pool.seeds[...])
    outputs.append(_attention_oracle(model.pool.attention, seeds, x, d))
  return np.array(outputs)


def check_matches_oracle(run, seed=0, **options):
  model = _model(seed, **options)
  tokens, presence = _set(seed)
  if options.get("masking") == "near_hard":
    # The other set has none that is wholly there.
    presence = presence.at[1, jnp.array([0, 3])].set(1)
  got = run(model, tokens, presence)
  np.testing.assert_allclose(got, _oracle(model, tokens, presence), atol=2e-4)


def check_order_is_nothing(run, seed=0, **options):
  model, (tokens, presence) = _model(seed, **options), _set(seed)
  order = np.random.default_rng(seed).permutation(tokens.shape[1])
  want = run(model, tokens, presence)
  got = run(model, tokens[:, order], presence[:, order])
  np.testing.assert_allclose(got, want, atol=2e-5)


def check_absent_is_nothing(run, seed=0, **options):
  """Neither the values of an absent token matter nor that it is listed."""
  model, (tokens, presence) = _model(seed, **options), _set(seed)
  want = run(model, tokens, presence)
  moved = tokens.at[:, 2].set(50)
  np.testing.assert_allclose(run(model, moved, presence), want, atol=2e-5)
  left = _listed(tokens, presence)
  np.testing.assert_allclose(run(model, *left), want, atol=2e-5)


def check_absence_is_gradual(run, seed=0, **options):
  """A token twice at half its presence is a token once."""
  model, (tokens, presence) = _model(seed, **options), _set(seed)
  tokens = model.widen(model.embed(tokens))
  halves = presence.at[:, 1].divide(2)
  got = run(
    model.pool,
    jnp.append(tokens, tokens[:, 1:2], axis=1),
    jnp.append(halves, halves[:, 1:2], axis=1),
  )
  want = run(model.pool, tokens, presence)
  np.testing.assert_allclose(got, want, atol=2e-5)


def _listed(tokens, presence):
  """Without the absent."""
  return jnp.delete(tokens, 2, axis=1), jnp.delete(presence, 2, axis=1)


def _broken(fault):
  """The forward pass with an error in it."""

  def weigh(products, presence, scale):
    if fault == "presence_ignored":
      presence = jnp.ones_like(presence)
    elif fault == "presence_of_queries" and products.shape[1] == len(presence):
      return right(products, jnp.ones_like(presence), scale) * presence
    elif fault == "added_without_logarithm":
      presence = jnp.exp(presence)
    elif fault == "not_scaled":
      scale = 1.0
    elif fault == "position":
      products = products + jnp.arange(len(presence), dtype=jnp.float32)
    elif fault == "heads_mixed":
      products = products[::-1]
    return right(products, presence, scale)

  right = attention._weigh

  @jax.jit
  def run(model, *arguments):
    attention._weigh = weigh
    try:
      return model(*arguments)
    finally:
      attention._weigh = right

  return run


class SetTransformerTest(chex.TestCase):
  @parameterized.product(form=tuple(_FORMS), masking=_MASKINGS)
  def test_matches_oracle(self, form, masking):
    for seed in (0, 1):
      check_matches_oracle(_run, seed, masking=masking, **_FORMS[form])

  @parameterized.product(form=tuple(_FORMS), masking=_MASKINGS)
  def test_order_is_nothing(self, form, masking):
    check_order_is_nothing(_run, masking=masking, **_FORMS[form])

  @parameterized.parameters(*_FORMS)
  @pytest.mark.long
  def test_absent_is_nothing(self, form):
    check_absent_is_nothing(_run, **_FORMS[form])

  @pytest.mark.long
  def test_absence_is_gradual(self):
    check_absence_is_gradual(_run)

  @parameterized.parameters(
    (check_matches_oracle, "presence_ignored"),
    (check_matches_oracle, "presence_of_queries"),
    (check_matches_oracle, "added_without_logarithm"),
    (check_matches_oracle, "not_scaled"),
    (check_matches_oracle, "heads_mixed"),
    (check_order_is_nothing, "position"),
    (check_absent_is_nothing, "presence_ignored"),
    (check_absent_is_nothing, "added_without_logarithm"),
    (check_absence_is_gradual, "presence_ignored"),
    (check_absence_is_gradual, "added_without_logarithm"),
  )
  @pytest.mark.long_after_first
  def test_broken_copy_fails(self, check, fault):
    with self.assertRaises(AssertionError):
      check(_broken(fault))

  @parameterized.product(kind=("SAB", "ISAB"), masking=_MASKINGS)
  def test_blocks_keep_the_order(self, kind, masking):
    induced = {"num_inducing": 2} if kind == "ISAB" else {}
    make = getattr(set_transformer, kind)
    block = make(3, num_heads=2, masking=masking, **induced, rngs=nnx.Rngs(0))
    tokens, presence = _set()
    order = np.array([3, 0, 4, 2, 1])
    want = _run(block, tokens, presence)[:, order]
    got = _run(block, tokens[:, order], presence[:, order])
    np.testing.assert_allclose(got, want, atol=2e-5)
    self.assertGreater(np.ptp(want, axis=1).max(), 0.1)

  @parameterized.parameters(*_FORMS)
  def test_no_gradient_goes_to_the_absent(self, form):
    model, (tokens, presence) = _model(**_FORMS[form]), _set()
    gradient = jax.grad(lambda x: jnp.sum(jnp.sin(_run(model, x, presence))))
    moved = gradient(tokens)
    np.testing.assert_array_equal(moved[:, 2], 0)
    self.assertGreater(np.abs(moved[:, 0]).max(), 0)

  @parameterized.product(masking=_MASKINGS, dtype=(jnp.float32, jnp.bfloat16))
  @pytest.mark.long_after_first
  def test_is_finite(self, masking, dtype):
    """Also where nothing is there, and for tokens that are large."""
    model, (tokens, there) = _model(masking=masking, num_inducing=2), _set()

    def energy(parameters, tokens, presence):
      model = nnx.merge(graph, parameters)
      return jnp.sum(jnp.sin(model(tokens, presence.astype(dtype))))

    graph, parameters = nnx.split(model)
    gradient = jax.jit(jax.value_and_grad(energy, argnums=(0, 1, 2)))
    for scale in (0.0, 1e-38, 1e-6, 1.0):
      for presence in (jnp.full(there.shape, scale), there * scale):
        large = jnp.array(100 * tokens, dtype)
        chex.assert_tree_all_finite(gradient(parameters, large, presence))

  def test_gradient_is_the_derivative(self):
    with jax.enable_x64(True):
      model = jax.tree.map(lambda x: jnp.float64(x), _model())
      there = _listed(*(jnp.float64(x) for x in _set()))
      jax.test_util.check_grads(
        jax.jit(lambda *x: model(*x)), there, 1, modes=("rev",), atol=1e-4
      )

  def test_near_hard_attends_to_the_most_present_alone(self):
    """The mask of the authors' code is hard although presences are soft."""
    module = attention.MultiHeadAttention(
      3, 3, num_heads=1, masking="near_hard", rngs=nnx.Rngs(0)
    )
    tokens, presence = _set()
    got = _run(module, tokens, tokens, presence)
    best = np.argmax(presence, axis=1)
    alone = tokens[np.arange(2), best][:, None]
    want = module.output(module.value(alone))
    np.testing.assert_allclose(got, np.repeat(want, 5, axis=1), atol=1e-5)
    module.masking = "log_presence"
    changed = np.abs(_run(module, tokens, tokens, presence) - got).max()
    self.assertGreater(changed, 0.01)

  @parameterized.product(masking=_MASKINGS, num_heads=(1, 2))
  def test_pooling_narrow_tokens_is_pooling_widened_ones(
    self, masking, num_heads
  ):
    model = _model(masking=masking, num_heads=num_heads)
    tokens, presence = _set()
    narrow = model.embed(tokens)

    def pool(narrow, *, at_once):
      widen = model.widen
      if at_once:
        return model.pool(narrow, presence, widen=widen)
      return model.pool(widen(narrow), presence)

    def slopes(narrow, *, at_once):
      return jnp.sum(jnp.sin(pool(narrow, at_once=at_once)))

    for function in (pool, jax.grad(slopes)):
      got, want = (function(narrow, at_once=x) for x in (True, False))
      np.testing.assert_allclose(got, want, atol=2e-5)
    # Sets of none are pooled to what their absence gives in both forms.
    absent = jnp.zeros_like(presence)
    np.testing.assert_allclose(
      model.pool(narrow, absent, widen=model.widen),
      model.pool(model.widen(narrow), absent),
      atol=2e-5,
    )

  def test_tokens_may_be_widened_without_a_bias(self):
    model, (tokens, presence) = _model(), _set()
    narrow = model.embed(tokens)
    widen = dense.Linear(
      narrow.shape[-1], model.widen.out_features, use_bias=False,
      rngs=nnx.Rngs(1),
    )  # fmt: skip
    np.testing.assert_allclose(
      model.pool(narrow, presence, widen=widen),
      model.pool(widen(narrow), presence),
      atol=2e-5,
    )

  def test_each_set_is_on_its_own(self):
    model, (tokens, presence) = _model(), _set()
    want = [
      model(x[None], d[None])[0] for x, d in zip(tokens, presence, strict=True)
    ]
    got = _run(model, tokens, presence)
    np.testing.assert_allclose(got, np.stack(want), atol=1e-5)

  def test_heads_need_not_divide_the_width(self):
    model = jax.eval_shape(lambda: _model(num_heads=4))
    self.assertEqual(model.pool.attention.query.out_features, 8)

  @parameterized.parameters(
    ({"num_heads": 0}, "num_heads is 0"),
    ({"num_outputs": 0}, "num_outputs is 0"),
    ({"num_inducing": 0}, "num_inducing is 0"),
  )
  def test_bad_sizes_are_refused(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      _model(**options)


if __name__ == "__main__":
  absltest.main()
