"""The likelihood of images under parts, and its gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from capjax.kernels import checks
from capjax.layers import platforms
from capjax.scae import parts as part_capsules
from capjax.scae import templates as part_templates
from kernels import rendering


def _case(mixing="alpha", channels=1, seed=0):
  """A function of an array of all numbers that decide a likelihood."""
  random = np.random.default_rng(seed)
  shape, num_parts = (9, 8, channels), 3
  decoder = part_templates.Templates(
    shape, num_parts, size=4, num_features=2, mixing=mixing, rngs=nnx.Rngs(0)
  )
  graph, parameters = nnx.split(decoder)
  parameters = jax.tree.map(
    lambda x: x + jnp.float32(0.1 * random.normal(size=x.shape)), parameters
  )
  poses = random.normal(size=(2, num_parts, 3, 3)) / 4 + np.eye(3) / 2
  parts = part_capsules.Parts(
    jnp.float32(poses),
    jnp.float32(random.uniform(0.2, 1, (2, num_parts))),
    jnp.float32(random.normal(size=(2, num_parts, 2))),
  )
  images = jnp.float32(random.uniform(size=(2, *shape)))
  numbers, unravel = jax.flatten_util.ravel_pytree((parameters, images, parts))

  def log_probs(numbers, *, stored):
    parameters, images, parts = unravel(numbers)
    decoder = nnx.merge(graph, parameters)
    if stored:
      return decoder.explain(images, parts).log_prob
    return decoder.log_prob(images, parts)

  return log_probs, numbers


def _weighted(log_probs, *, stored):
  weights = jnp.array([0.5, -2.0])
  return lambda numbers: log_probs(numbers, stored=stored) @ weights


@pytest.mark.parametrize("mixing", ["alpha", "coupled"])
@pytest.mark.parametrize("channels", [1, 3])
def test_derivatives_are_those_of_the_mixture(mixing, channels):
  log_probs, numbers = _case(mixing, channels)
  direction = jnp.cos(jnp.arange(len(numbers), dtype=numbers.dtype))

  def derivatives(numbers, *, stored):
    function = _weighted(log_probs, stored=stored)
    slope = jax.grad(function)
    return (
      *jax.value_and_grad(function)(numbers),
      *jax.jvp(function, (numbers,), (direction,)),
      jax.jvp(slope, (numbers,), (direction,))[1],
    )

  got, want = (
    jax.jit(derivatives, static_argnames="stored")(numbers, stored=stored)
    for stored in (False, True)
  )
  for x, y in zip(got, want, strict=True):
    assert np.abs(y).max() > 0
    np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4 * np.abs(y).max())


@pytest.mark.parametrize(("stored", "times"), [(False, 1), (True, 2)])
def test_images_are_rendered_once_for_value_and_gradient(stored, times):
  log_probs, numbers = _case()
  with platforms.known("cpu"):
    traced = jax.make_jaxpr(
      jax.value_and_grad(_weighted(log_probs, stored=stored))
    )(numbers)
  # Each rendering has one gather: the operation, not the word in its options.
  assert str(traced).count("= gather[") == times


@pytest.mark.parametrize("stored", [False, True])
def test_accelerators_find_the_same_without_a_scatter(stored):
  log_probs, numbers = _case(channels=3)

  def derivatives(numbers):
    # Traced anew for each platform, since a new function.
    function = _weighted(log_probs, stored=stored)
    return jax.value_and_grad(lambda numbers: function(numbers))(numbers)

  found = {}
  for name in ("cpu", "gpu"):
    with platforms.known(name):
      lowered = jax.jit(lambda x: derivatives(x)).lower(numbers)
    scatters = lowered.as_text().count('"stablehlo.scatter"(')
    found[name] = scatters, lowered.compile()(numbers)
  (on_cpu, want), (elsewhere, got) = found["cpu"], found["gpu"]
  assert on_cpu > 0 and elsewhere == 0
  for x, y in zip(got, want, strict=True):
    assert np.abs(y).max() > 0
    np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4 * np.abs(y).max())


@pytest.mark.parametrize("mixing", ["alpha", "coupled"])
def test_drawings_follow_parts_and_no_image(mixing):
  decoder = part_templates.Templates(
    (9, 8, 2), 1, size=4, num_features=0, mixing=mixing, rngs=nnx.Rngs(0)
  )
  pose = jnp.array([[0.4, 0.0, -0.2], [0.0, 0.4, 0.1], [0.0, 0.0, 1.0]])
  parts = part_capsules.Parts(
    pose[None, None], jnp.full((1, 1), 0.9), jnp.zeros((1, 1, 0))
  )
  drawn = decoder.render(parts)
  images = jax.random.uniform(jax.random.key(0), (1, 9, 8, 2))
  np.testing.assert_array_equal(drawn, decoder.explain(images, parts).mean)
  # Centres of the first and the last of 8 pixels are 2 apart.
  moved = pose.at[0, 2].add(2 / 7)
  right = decoder.render(parts._replace(poses=moved[None, None]))
  np.testing.assert_allclose(right[:, :, 1:], drawn[:, :, :-1], atol=1e-5)
  absent = decoder.render(parts._replace(presence=jnp.zeros((1, 1))))
  assert (
    np.ptp(absent, axis=(1, 2)).max() == 0 < np.ptp(drawn, axis=(1, 2)).min()
  )


@pytest.mark.parametrize("name", ["explain", "log_prob"])
def test_images_of_another_size_are_refused(name):
  decoder = part_templates.Templates((9, 8, 1), 1, size=4, rngs=nnx.Rngs(0))
  parts = part_capsules.Parts(
    jnp.eye(3)[None, None], jnp.ones((1, 1)), jnp.zeros((1, 1, 16))
  )
  with pytest.raises(checks.ImageShapeError, match="give .B 9 8 1."):
    getattr(decoder, name)(jnp.zeros((1, 8, 9, 1)), parts)


def _softplus(x):
  return np.log1p(np.exp(x))


@pytest.mark.parametrize("mixing", ["alpha", "coupled"])
@pytest.mark.parametrize("nonlinearity", ["sigmoid", "relu1"])
def test_the_mixture_is_that_of_the_raw_parameters(mixing, nonlinearity):
  random = np.random.default_rng(0)
  decoder = part_templates.Templates(
    (5, 4, 2), 3, size=3, num_features=2, mixing=mixing,
    nonlinearity=nonlinearity, rngs=nnx.Rngs(0),
  )  # fmt: skip
  parameters = jax.tree.map(
    lambda x: x + jnp.float32(0.4 * random.normal(size=x.shape)),
    nnx.state(decoder, nnx.Param),
  )
  nnx.update(decoder, parameters)
  raw = jax.tree.map(np.float64, nnx.to_pure_dict(parameters))
  parts = part_capsules.Parts(
    jnp.float32(random.normal(size=(1, 3, 3, 3)) / 4 + np.eye(3) / 2),
    jnp.float32(random.uniform(0.2, 1, (1, 3))),
    jnp.float32(random.normal(size=(1, 3, 2))),
  )

  def squash(x):
    if nonlinearity == "sigmoid":
      return 1 / (1 + np.exp(-x))
    return np.clip(x, 0, 1)

  hidden = parts.features[0] @ raw["hidden"]["kernel"] + raw["hidden"]["bias"]
  colours = np.maximum(hidden, 0) @ raw["color"]["kernel"]
  colours += raw["color"]["bias"]
  colours = squash(colours + (0.99 if nonlinearity == "relu1" else 0))
  background = np.full(2, 1 / (1 + np.exp(-raw["background"])))

  def render(templates):
    return jnp.stack(
      [
        rendering.warp(jnp.float32(x), pose, (5, 4))
        for x, pose in zip(templates, parts.poses[0], strict=True)
      ]
    )

  rendered = render(squash(raw["raw"])) * colours[:, None, None]
  if mixing == "alpha":
    logits, beyond = render(raw["alphas"]), _softplus(raw["background_logit"])
  else:
    temperature = _softplus(raw["temperature"] + 0.5) + 1e-4
    logits, beyond = rendered / temperature, background / temperature
  image = jnp.float32(random.uniform(size=(5, 4, 2)))
  want = rendering.explain_image(
    image,
    jnp.float32(rendered),
    jnp.float32(logits),
    parts.presence[0],
    jnp.float32(background),
    jnp.float32(beyond),
  )
  got = decoder.explain(image[None], parts)
  np.testing.assert_allclose(got.log_prob[0], want.log_prob, rtol=1e-5)
  np.testing.assert_allclose(got.mean[0], want.mean, rtol=1e-4, atol=1e-5)
