"""The constellation autoencoder: its loss by loops, and what it must not do."""

import functools
import inspect
from unittest import mock

import chex
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
import widths
from absl.testing import absltest, parameterized
from flax import nnx

from capjax.data.sources import constellations
from capjax.scae import constellation

_SIZES = {"width": 8, "num_blocks": 1, "num_heads": 2, "hidden": 6, "code": 5}


@functools.cache
def _model(seed=0):
  return constellation.ConstellationAutoencoder(**_SIZES, rngs=nnx.Rngs(seed))


@functools.cache
def _drawn(seed=0, count=6):
  keys = jax.random.split(jax.random.key(seed), count)
  return jax.jit(jax.vmap(constellations.sample))(keys)


@jax.jit
def _apply(model, points, presence, key=None):
  return model(points, presence, key=key)


@functools.cache
def _output(seed=0, noisy=False):
  drawn = _drawn(seed)
  key = jax.random.key(9) if noisy else None
  return _apply(_model(seed), drawn.points, drawn.presence, key)


def _explain_oracle(points, presence, votes, scales, weights):
  """Log p and posterior [K N M] of one image, a point and a vote at a time."""
  dummy = 10.0**-2
  total = dummy + weights.sum()
  log_prob, posterior = 0.0, np.zeros((*weights.shape, len(points)))
  for m, point in enumerate(points):
    for k, n in np.ndindex(*weights.shape):
      square = np.sum((point - votes[k, n]) ** 2) / scales[k, n] ** 2
      density = np.exp(-square / 2) / (2 * np.pi * scales[k, n] ** 2)
      posterior[k, n, m] = weights[k, n] / total * density
    evidence = posterior[..., m].sum() + dummy / total * 10.0**-2
    posterior[..., m] /= evidence
    log_prob += presence[m] * np.log(evidence)
  return log_prob, posterior


def check_explains_like_the_oracle(explain):
  random = np.random.default_rng(0)
  for _ in range(3):
    points, votes = random.normal(size=(5, 2)), random.normal(size=(3, 4, 2))
    presence = np.array([1, 0, 1, 0.5, 1])
    scales, weights = random.uniform(0.2, 1, (2, 3, 4))
    got = explain(
      *(jnp.float32(x) for x in (points, presence, votes, scales)),
      jnp.float32(np.log(weights)),
    )
    log_prob, posterior = _explain_oracle(
      points, presence, votes, scales, weights
    )
    np.testing.assert_allclose(got.log_prob, log_prob, rtol=1e-4)
    np.testing.assert_allclose(
      got.posterior.reshape(posterior.shape), posterior, atol=1e-5
    )


def _explain_broken(points, presence, votes, scales, log_weights, *, fault):
  if fault == "absent_points_count":
    presence = jnp.ones_like(presence)
  elif fault == "votes_of_other_objects":
    votes = votes.swapaxes(0, 1).reshape(votes.shape)
  elif fault == "not_normalised":
    return constellation.vote_mixture.explain_parts(
      points,
      presence,
      *(
        jnp.repeat(x.reshape(12, 1, *x.shape[2:]), len(points), axis=1)
        for x in (votes, scales, log_weights)
      ),
    )
  elif fault == "unit_scales":
    scales = jnp.ones_like(scales)
  return constellation.explain_points(
    points, presence, votes, scales, log_weights
  )


def _loss_oracle(output, presence, num_classes):
  """The terms of the loss, in float64 and by loops."""
  there = np.float64(presence)
  prior = np.max(np.float64(output.presence), axis=-1)
  num_images, num_objects = prior.shape
  within = between = activity = 0.0
  for b in range(num_images):
    within += (prior[b].sum() - num_objects / num_classes) ** 2 / num_images
    wins = [0.0] * num_objects
    for m in range(there.shape[1]):
      best = np.max(np.float64(output.posterior[b, :, :, m]), axis=1)
      wins[int(np.argmax(best))] += there[b, m]
    for k in range(num_objects):
      chance = 1 / (1 + np.exp(-np.float64(output.logits[b, k])))
      if wins[k] > 1:
        activity -= np.log(chance) / num_images
      elif wins[k] == 1:
        activity -= np.log(1 - chance) / num_images
  for k in range(num_objects):
    between += (prior[:, k].sum() - num_images / num_classes) ** 2 / num_objects
  return {
    "log_prob": np.mean(output.log_prob),
    "prior_within": within,
    "prior_between": between,
    "activity_loss": activity,
    "deformation_loss": np.sum(np.float64(output.deformations) ** 2)
    / (2 * num_images),
  }


def check_loss_matches_oracle(loss):
  for seed, num_classes in ((0, 2), (1, 3)):
    output, presence = _output(seed, noisy=True), _drawn(seed).presence
    want = _loss_oracle(output, presence, num_classes)
    for weights in ((1.0, 1.0, 10.0, 10.0), (0.5, 2.0, 3.0, 7.0)):
      names = ("within", "between", "activity", "deformation")
      value, got = loss(
        output,
        presence,
        sparsity_of="soft",
        num_classes=num_classes,
        **dict(zip(names, weights, strict=True)),
      )
      terms = [want[n] for n in list(want)[1:]]
      total = np.dot(weights, terms) - want["log_prob"]
      for name, expected in want.items():
        np.testing.assert_allclose(got[name], expected, rtol=1e-4, err_msg=name)
      np.testing.assert_allclose(value, total, rtol=1e-4)
      np.testing.assert_allclose(got["loss"], total, rtol=1e-4)


def _broken_loss(output, presence, *, fault, **weights):
  if fault == "one_weight_for_both":  # as the authors' code has it
    weights["between"] = weights["within"]
  elif fault == "between_is_subtracted":
    weights["between"] = -weights["between"]
  elif fault == "absent_points_win":
    presence = jnp.ones_like(presence)
  elif fault == "mean_presence":
    presence_ = jnp.mean(output.presence, -1, keepdims=True)
    output = output._replace(
      presence=jnp.broadcast_to(presence_, output.presence.shape)
    )
  return constellation.constellation_loss(output, presence, **weights)


def _largest_gradient(sparsity_of):
  """Of the loss by the presences of votes, which sparsity alone reads."""
  output, presence = _output(noisy=True), _drawn().presence

  def of_presence(x):
    return constellation.constellation_loss(
      output._replace(presence=x), presence, sparsity_of=sparsity_of
    )[0]

  return np.abs(jax.grad(of_presence)(output.presence)).max()


class LossTest(parameterized.TestCase):
  def test_points_are_explained_like_the_oracle(self):
    check_explains_like_the_oracle(constellation.explain_points)

  def test_loss_matches_oracle(self):
    check_loss_matches_oracle(constellation.constellation_loss)

  def test_soft_sparsity_has_a_gradient_and_hard_has_none(self):
    self.assertGreater(_largest_gradient("soft"), 0.01)
    self.assertEqual(_largest_gradient("hard"), 0)

  @pytest.mark.long
  def test_hard_presences_are_above_the_weight_of_the_dummy(self):
    """The vote that is most present decides."""
    output = _output()
    presence = jnp.full(output.presence.shape, 0.0099)
    presence = presence.at[:, 1, 2].set(0.0101)
    changed = output._replace(presence=presence)
    num_images, num_objects = presence.shape[:2]
    want = np.zeros((num_images, num_objects))
    want[:, 1] = 1
    np.testing.assert_array_equal(changed.hard_presence(), want)
    _, terms = constellation.constellation_loss(
      changed, _drawn().presence, sparsity_of="hard"
    )
    # One object of three where 3 / 2 are expected; the second in all 6 images.
    self.assertAlmostEqual(float(terms["prior_within"]), 0.25, places=5)
    self.assertAlmostEqual(float(terms["prior_between"]), 9.0, places=4)

  @parameterized.parameters(
    "absent_points_count",
    "votes_of_other_objects",
    "not_normalised",
    "unit_scales",
  )
  def test_broken_explanation_fails(self, fault):
    broken = functools.partial(_explain_broken, fault=fault)
    check_explains_like_the_oracle(functools.partial(broken, fault=None))
    with self.assertRaises(AssertionError):
      check_explains_like_the_oracle(broken)

  @parameterized.parameters(
    "one_weight_for_both",
    "between_is_subtracted",
    "absent_points_win",
    "mean_presence",
  )
  @widths.samples_of_float32
  @pytest.mark.long
  def test_broken_loss_fails(self, fault):
    with self.assertRaises(AssertionError):
      check_loss_matches_oracle(functools.partial(_broken_loss, fault=fault))


class AutoencoderTest(chex.TestCase):
  def test_votes_are_similarities_of_parts(self):
    """Objects turn and scale their parts about their own place."""
    output, model = _output(), _model()
    self.assertGreater(np.std(output.poses[..., 0, 2]), 0)
    raw = np.float64(model.voters.relations[...] + output.deformations)
    parts = np.tanh(5 * raw[..., 4:])
    for b, k in np.ndindex(*output.logits.shape):
      pose = np.float64(output.poses[b, k])
      scale = np.hypot(pose[0, 0], pose[1, 0])
      turn = pose[:2, :2] / scale
      np.testing.assert_allclose(turn @ turn.T, np.eye(2), atol=1e-5)
      want = parts[b, k] @ pose[:2, :2].T + pose[:2, 2]
      np.testing.assert_allclose(output.votes[b, k], want, atol=1e-5)

  def test_noise_is_of_training_alone(self):
    drawn, model = _drawn(), _model()
    quiet = _output()
    again = _apply(model, drawn.points, drawn.presence)
    chex.assert_trees_all_equal(quiet, again)
    noisy = [
      _apply(model, drawn.points, drawn.presence, jax.random.key(n))
      for n in range(20)
    ]
    moves = np.stack([x.logits - quiet.logits for x in noisy])
    self.assertBetween(moves.min(), -2.001, -1.8)
    self.assertBetween(moves.max(), 1.8, 2.001)
    # Nothing else is moved but through presence.
    np.testing.assert_allclose(noisy[0].votes, quiet.votes, atol=1e-6)

  def test_order_of_points_is_nothing(self):
    drawn, model = _drawn(), _model()
    order = np.random.default_rng(0).permutation(11)
    want = _output()
    got = _apply(model, drawn.points[:, order], drawn.presence[:, order])
    np.testing.assert_allclose(got.votes, want.votes, atol=1e-4)
    np.testing.assert_allclose(got.log_prob, want.log_prob, rtol=1e-3)
    np.testing.assert_allclose(
      got.posterior, want.posterior[..., order], atol=1e-3
    )

  def test_absent_points_are_nothing(self):
    drawn, model = _drawn(), _model()
    want = _output()
    moved = jnp.where(drawn.presence[..., None] > 0, drawn.points, 0.7)
    got = _apply(model, moved, drawn.presence)
    np.testing.assert_allclose(got.votes, want.votes, atol=1e-4)
    np.testing.assert_allclose(got.log_prob, want.log_prob, rtol=1e-3)

  def test_objects_are_dead_that_have_no_point(self):
    """Whatever their presence, which rests above zero."""
    output = _output()
    batch, num_objects, _, num_points = output.posterior.shape
    winners = jnp.zeros((batch, num_points), int).at[:, 0].set(1)
    presence = jnp.ones((batch, num_points)).at[:, -1].set(0.0)
    won = output._replace(winners=winners).shares_won(presence)
    want = np.zeros(num_objects)
    want[:2] = [(num_points - 2) / (num_points - 1), 1 / (num_points - 1)]
    np.testing.assert_allclose(won, np.tile(want, (batch, 1)), rtol=1e-6)
    none = output.shares_won(jnp.zeros((batch, num_points)))
    np.testing.assert_array_equal(none, 0)

  def test_no_objects_are_finite(self):
    """With gradients, in training, for float32 and bfloat16 points."""
    graph, parameters = nnx.split(_model())

    def loss(parameters, points, presence):
      model = nnx.merge(graph, parameters)
      output = model(points, presence, key=jax.random.key(0))
      return constellation.constellation_loss(
        output, presence, sparsity_of="soft"
      )[0]

    gradient = jax.jit(jax.value_and_grad(loss))
    nothing = jnp.zeros((2, 11))
    for dtype in (jnp.float32, jnp.bfloat16):
      points = jnp.zeros((2, 11, 2), dtype)
      chex.assert_tree_all_finite(gradient(parameters, points, nothing))
      same = jnp.ones((2, 11))
      chex.assert_tree_all_finite(gradient(parameters, points, same))

  def test_presences_are_of_the_points(self):
    loss = inspect.unwrap(constellation.active_objects_loss)
    for shape in ((6,), (1, 11), (6, 1)):
      with self.assertRaisesRegex(ValueError, "presence is"):
        loss(_output(), jnp.ones(shape))

  def test_no_gradient_through_who_wins(self):
    """The activity loss moves presences, not votes."""
    output, presence = _output(noisy=True), _drawn().presence

    def of(votes, posterior, logits):
      changed = output._replace(votes=votes, posterior=posterior, logits=logits)
      return jnp.sum(constellation.active_objects_loss(changed, presence))

    gradients = jax.grad(of, argnums=(0, 1, 2))(
      output.votes, output.posterior, output.logits
    )
    np.testing.assert_array_equal(gradients[0], 0)
    np.testing.assert_array_equal(gradients[1], 0)
    self.assertGreater(np.abs(gradients[2]).max(), 0)

  def test_the_loss_falls(self):
    """A few steps of plain descent on one batch."""
    drawn = _drawn()
    graph, parameters = nnx.split(_model())

    def loss(parameters):
      model = nnx.merge(graph, parameters)
      output = model(drawn.points, drawn.presence)
      return constellation.constellation_loss(
        output, drawn.presence, sparsity_of="soft"
      )[0]

    @jax.jit
    def step(parameters):
      value, gradient = jax.value_and_grad(loss)(parameters)
      move = jax.tree.map(lambda x, g: x - 3e-4 * g, parameters, gradient)
      return value, move

    values = []
    for _ in range(30):
      value, parameters = step(parameters)
      values.append(float(value))
    self.assertLess(values[-1], values[0] - 1)


def _with_encoder(encoder):
  def make():
    return constellation.ConstellationAutoencoder(
      **_SIZES, encoder=encoder, rngs=nnx.Rngs(0)
    )

  return jax.jit(make)()


@pytest.mark.parametrize("encoder", ["slots", "invariant_slots"])
def test_slots_find_objects_in_sets_of_points(encoder):
  drawn, model = _drawn(), _with_encoder(encoder)
  output = _apply(model, drawn.points, drawn.presence)
  order = np.random.default_rng(0).permutation(drawn.points.shape[1])
  again = _apply(model, drawn.points[:, order], drawn.presence[:, order])
  np.testing.assert_allclose(again.votes, output.votes, atol=1e-4)
  np.testing.assert_allclose(
    again.posterior, output.posterior[..., order], atol=1e-3
  )


def test_votes_move_with_the_points_in_the_frames_of_slots():
  """Points that are enlarged alike and moved, seen from the same frames."""
  model, drawn = _with_encoder("invariant_slots"), _drawn()
  some = np.asarray(drawn.presence).any(axis=1)
  factor, shift = 0.5, jnp.array([0.3, -0.2])

  @jax.jit
  def votes(points, factor, shift):
    found = model.voters.transformer
    contents, frames = found.slots.start(len(points))
    frames = frames._replace(
      positions=factor * frames.positions + shift, scales=factor * frames.scales
    )
    start = mock.Mock(return_value=(contents, frames))
    with mock.patch.object(type(found.slots), "start", start):
      return model.voters(points, drawn.presence).votes[..., :2, 2]

  before = votes(drawn.points, 1.0, jnp.zeros(2))
  after = votes(factor * drawn.points + shift, factor, shift)
  np.testing.assert_allclose(
    after[some], factor * before[some] + shift, atol=1e-4
  )


def test_unknown_encoders_are_refused():
  jaxtyping.config.update("jaxtyping_disable", True)
  try:
    with pytest.raises(ValueError, match="encoder='cnn'; pass 'set_trans"):
      _with_encoder("cnn")
  finally:
    jaxtyping.config.update("jaxtyping_disable", False)


def test_points_of_other_shapes_are_named():
  call = inspect.unwrap(constellation.ConstellationAutoencoder.__call__)
  drawn = _drawn()
  with pytest.raises(ValueError, match="points is .*; give .* 2"):
    call(_model(), jnp.ones((6, 11, 3)), drawn.presence)
  with pytest.raises(ValueError, match="presence is"):
    call(_model(), drawn.points, drawn.presence[:, 1:])


if __name__ == "__main__":
  absltest.main()
