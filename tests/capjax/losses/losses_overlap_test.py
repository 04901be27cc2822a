"""Losses and the accuracy of overlapping objects against plain loops."""

import functools
import inspect
import itertools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from absl.testing import absltest, parameterized
from flax import nnx
from jax.test_util import check_grads

from capjax import capsnet, losses
from kernels import routing

_SHAPE = (3, 2, 2)
_CLASSES = 5


class _Poses(nnx.Module):
  """A model whose capsules are pictures: decoding shows the pose itself."""

  def __init__(self, poses):
    self.poses = poses

  def __call__(self, images):
    del images
    lengths = jnp.tanh(jnp.sum(self.poses, axis=-1) / 6)
    coefficients = jnp.zeros((len(self.poses), 1, _CLASSES), self.poses.dtype)
    return routing.RoutingOutput(self.poses, lengths, coefficients)

  def decode(self, poses, classes):
    mask = jax.nn.one_hot(classes, _CLASSES, dtype=poses.dtype)
    pixels = jnp.einsum("bjd,bj->bd", poses, mask)
    return pixels.reshape(-1, *_SHAPE)


def _batch(seed=0, num_objects=2, dtype=jnp.float32):
  """Poses [B J D], images, labels and parts; both classes right in a few."""
  keys = jax.random.split(jax.random.key(seed), 3)
  poses = jax.random.uniform(keys[0], (6, _CLASSES, math.prod(_SHAPE)), dtype)
  parts = jax.random.uniform(keys[1], (6, num_objects, *_SHAPE), dtype)
  orders = jax.vmap(lambda key: jax.random.permutation(key, _CLASSES))(
    jax.random.split(keys[2], 6)
  )
  labels = orders[:, :num_objects]
  rows = jnp.arange(2)[:, None]
  poses = poses.at[rows, labels[:2]].add(1.0)
  return poses, jnp.minimum(1, jnp.sum(parts, axis=1)), labels, parts


def _loss_oracle(poses, labels, parts, weight):
  """Sections 3, 4.1 and 6 of the paper, object by object, in float64."""
  poses, parts = np.float64(poses), np.float64(parts)
  margins, errors, hits = [], [], []
  for b, classes in enumerate(labels.tolist()):
    lengths = np.tanh(poses[b].sum(axis=1) / 6)
    margins.append(
      sum(
        max(0, 0.9 - lengths[j]) ** 2
        if j in classes
        else 0.5 * max(0, lengths[j] - 0.1) ** 2
        for j in range(_CLASSES)
      )
    )
    errors.append(
      sum(
        np.sum((poses[b, j] - part.reshape(-1)) ** 2)
        for j, part in zip(classes, parts[b], strict=True)
      )
    )
    longest = sorted(range(_CLASSES), key=lambda j: lengths[j])[::-1]  # noqa: B023
    hits.append(set(longest[: len(classes)]) == set(classes))
  return {
    "loss": np.mean(margins) + weight * np.mean(errors),
    "margin_loss": np.mean(margins),
    "reconstruction_loss": np.mean(errors),
    "accuracy": np.mean(hits),
  }


def check_overlap_loss(overlap_loss, seed=0, num_objects=2):
  poses, images, labels, parts = _batch(seed, num_objects)
  loss, metrics = overlap_loss(
    _Poses(poses), images, labels, parts, reconstruction_weight=0.01
  )
  want = _loss_oracle(poses, labels, parts, 0.01)
  assert 0 < want["accuracy"] < 1
  chex.assert_trees_all_close(metrics, want, rtol=1e-5)
  chex.assert_trees_all_equal(loss, metrics["loss"])


def check_reconstruction_loss(reconstruction_loss, seed=0):
  """For each image, also with the capsules of other classes."""
  poses, _, labels, parts = _batch(seed)
  labels = (labels + 1) % _CLASSES
  got = reconstruction_loss(_Poses(poses), poses, labels, parts)
  want = [
    sum(
      np.sum(
        (np.float64(poses[b, labels[b, k]]) - parts[b, k].reshape(-1)) ** 2
      )
      for k in range(2)
    )
    for b in range(len(poses))
  ]
  np.testing.assert_allclose(got, want, rtol=1e-5)


def check_exact_set(exact_set):
  """Every order of the scores of four classes, every pair of labels."""
  orders = np.array(list(itertools.permutations([-1.0, 0.0, 0.3, 0.8])))
  for pair in itertools.permutations(range(4), 2):
    labels = jnp.tile(jnp.array(pair), (len(orders), 1))
    got = exact_set(jnp.asarray(orders), labels)
    want = [set(np.argsort(row)[2:]) == set(pair) for row in orders]
    chex.assert_shape(got, (len(orders),))
    np.testing.assert_array_equal(got, want)


def check_multilabel_loss(multilabel_loss, seed=0):
  keys = jax.random.split(jax.random.key(seed))
  logits = 3 * jax.random.normal(keys[0], (6, _CLASSES))
  labels = _batch(seed)[2]
  want, hits = [], []
  for row, classes in zip(np.float64(logits), labels.tolist(), strict=True):
    total = 0.0
    for j, logit in enumerate(row):
      chance = 1 / (1 + np.exp(-logit))
      total -= np.log(chance if j in classes else 1 - chance)
    want.append(total)
    hits.append(set(np.argsort(row)[-2:]) == set(classes))
  loss, metrics = multilabel_loss(logits, labels)
  np.testing.assert_allclose(loss, np.mean(want), rtol=1e-5)
  want = {"loss": np.mean(want), "accuracy": np.mean(hits)}
  chex.assert_trees_all_close(metrics, want, rtol=1e-5)


def _both_losses(poses, logits, labels, parts):
  poses, logits = jnp.asarray(poses), jnp.asarray(logits)
  loss, _ = losses.overlap_loss(
    _Poses(poses), parts[:, 0], labels, parts, reconstruction_weight=0.1
  )
  return loss + losses.multilabel_loss(logits, labels)[0]


def _swapped_parts(model, images, labels, parts, **options):
  return losses.overlap_loss(model, images, labels, parts[:, ::-1], **options)


def _whole_image_drawn(model, images, labels, parts, **options):
  parts = jnp.broadcast_to(images[:, None], parts.shape)
  return losses.overlap_loss(model, images, labels, parts, **options)


def _mean_over_objects(*args, reconstruction_weight):
  return losses.overlap_loss(
    *args, reconstruction_weight=reconstruction_weight / 2
  )


def _another_second_class(model, images, labels, parts, **options):
  labels = labels.at[:, 1].set((labels[:, 0] + 1) % _CLASSES)
  return losses.overlap_loss(model, images, labels, parts, **options)


def _drawn_together(model, images, labels, parts, **options):
  """Decodes both capsules at once, against the whole image."""

  class Together(_Poses):
    def decode(self, poses, classes):
      del classes
      mask = losses.multi_hot(labels, _CLASSES)
      return jnp.einsum("bjd,bj->bd", poses, mask).reshape(-1, *_SHAPE)

  model = Together(model.poses)
  return _whole_image_drawn(model, images, labels, parts, **options)


def _same_capsule_for_both(model, poses, labels, parts):
  labels = labels.at[:, 1].set(labels[:, 0])
  return losses.overlap_reconstruction_loss(model, poses, labels, parts)


def _share_of_hits(scores, labels):
  predictions = jax.lax.top_k(scores, 2)[1]
  hits = jnp.any(predictions[:, None] == labels[..., None], axis=-1)
  return jnp.mean(hits, axis=-1)


def _any_hit(scores, labels):
  return _share_of_hits(scores, labels) > 0


def _in_order(scores, labels):
  return jnp.all(jax.lax.top_k(scores, 2)[1] == labels, axis=-1)


def _above_a_half(scores, labels):
  present = losses.multi_hot(labels, scores.shape[-1])
  return jnp.all((scores > 0.5) == (present > 0), axis=-1)


def _mean_over_classes(logits, labels):
  loss, metrics = losses.multilabel_loss(logits, labels)
  return loss / logits.shape[-1], metrics


def _softmax(logits, labels):
  present = losses.multi_hot(labels, logits.shape[-1])
  loss = jnp.mean(optax.softmax_cross_entropy(logits, present))
  return loss, losses.multilabel_loss(logits, labels)[1]


def _halved_targets(logits, labels):
  """What the authors' code has."""
  targets = losses.multi_hot(labels, logits.shape[-1]) / 2
  entropies = optax.sigmoid_binary_cross_entropy(logits, targets)
  metrics = losses.multilabel_loss(logits, labels)[1]
  return jnp.mean(jnp.sum(entropies, axis=-1)), metrics


class OverlapLossTest(chex.TestCase):
  def test_labels_are_sets(self):
    # Annotations are checked in tests alone.
    loss, exact = map(
      inspect.unwrap, (losses.multilabel_loss, losses.exact_set)
    )
    logits, labels = jnp.ones((3, 5)), jnp.arange(3)
    for function in (loss, exact):
      with self.assertRaisesRegex(
        ValueError, r"labels are \[3\]; give \[3, K\]"
      ):
        function(logits, labels)
      for rows in (1, 2):
        with self.assertRaisesRegex(ValueError, r"labels are \[., 3\]; give"):
          function(logits, jnp.tile(labels, (rows, 1)))

  @parameterized.product(seed=[0, 1], num_objects=[1, 2, 3])
  def test_overlap_loss(self, seed, num_objects):
    check_overlap_loss(losses.overlap_loss, seed, num_objects)

  @parameterized.parameters(0, 1)
  def test_reconstruction_loss(self, seed):
    check_reconstruction_loss(losses.overlap_reconstruction_loss, seed)

  @parameterized.parameters(0, 1)
  def test_multilabel_loss(self, seed):
    check_multilabel_loss(losses.multilabel_loss, seed)

  def test_exact_set(self):
    check_exact_set(losses.exact_set)

  @parameterized.parameters(
    (check_overlap_loss, _swapped_parts),
    (check_overlap_loss, _whole_image_drawn),
    (check_overlap_loss, _mean_over_objects),
    (check_overlap_loss, _another_second_class),
    (check_overlap_loss, _drawn_together),
    (check_reconstruction_loss, _same_capsule_for_both),
    (check_exact_set, _share_of_hits),
    (check_exact_set, _any_hit),
    (check_exact_set, _in_order),
    (check_exact_set, _above_a_half),
    (check_multilabel_loss, _mean_over_classes),
    (check_multilabel_loss, _softmax),
    (check_multilabel_loss, _halved_targets),
  )
  @pytest.mark.long_after_first
  def test_broken_copy_fails(self, check, broken):
    with self.assertRaises(AssertionError):
      check(broken)

  def test_multi_hot(self):
    labels = jnp.array([[[2, 0], [1, 1]], [[3, 2], [0, 3]]])
    want = np.zeros((2, 2, 4))
    for place in np.ndindex(2, 2):
      want[place][labels[place]] = 1
    np.testing.assert_array_equal(losses.multi_hot(labels, 4), want)

  def test_exact_set_of_one_label_is_the_highest_score(self):
    scores = jax.random.normal(jax.random.key(0), (4, 7, 5))
    scores = jnp.round(scores)  # with ties
    labels = jax.random.randint(jax.random.key(1), (4, 7, 1), 0, 5)
    want = np.argmax(scores, axis=-1) == labels[..., 0]
    got = losses.exact_set(scores, labels)
    np.testing.assert_array_equal(got, want)
    self.assertGreater(np.ptp(np.float32(got)), 0)

  def test_a_class_given_twice_is_refused_and_never_right_if_traced(self):
    scores, labels = jnp.array([[0.9, 0.8, 0.1]] * 2), [[0, 1], [2, 2]]
    for function in (losses.exact_set, losses.multilabel_loss):
      with self.assertRaisesRegex(ValueError, "hold 2 twice; give different"):
        function(scores, jnp.array(labels))
    traced = jax.jit(losses.exact_set)(scores, jnp.array(labels))
    np.testing.assert_array_equal(traced, [True, False])

  def test_without_reconstruction_nothing_is_drawn(self):
    poses, images, labels, parts = _batch()
    model = _Poses(poses)
    model.decode = None
    loss, metrics = losses.overlap_loss(
      model, images, labels, parts, reconstruction_weight=0.0
    )
    self.assertEqual(set(metrics), {"loss", "margin_loss", "accuracy"})
    chex.assert_trees_all_equal(loss, metrics["margin_loss"])

  def test_order_of_the_objects_does_not_matter(self):
    poses, images, labels, parts = _batch()
    want, got = (
      losses.overlap_loss(
        _Poses(poses), images, *pair, reconstruction_weight=0.01
      )
      for pair in [(labels, parts), (labels[:, ::-1], parts[:, ::-1])]
    )
    chex.assert_trees_all_close(got, want, rtol=1e-6)

  def test_gradients(self):
    with jax.enable_x64(True):
      poses, _, labels, parts = _batch(dtype=jnp.float64)
      loss = jax.jit(
        functools.partial(_both_losses, labels=labels, parts=parts)
      )
      arguments = (poses, poses[..., 0])
      check_grads(loss, arguments, order=1, modes=("fwd", "rev"))

  @parameterized.parameters(jnp.float32, jnp.bfloat16)
  def test_saturated_and_zero_outputs_are_finite(self, dtype):
    poses, _, labels, parts = _batch(dtype=dtype)
    loss = jax.jit(jax.value_and_grad(_both_losses, (0, 1)))
    for scale in (0.0, 1e-6, 1.0, 1e4):
      scaled = jnp.asarray(scale, dtype) * (poses - 0.5)
      chex.assert_type(scaled, dtype)
      chex.assert_tree_all_finite(loss(scaled, scaled[..., 0], labels, parts))

  def test_capsnet_draws_each_object_from_its_capsule(self, seed=0):
    """The network itself, compiled, and its gradient."""
    keys = jax.random.split(jax.random.key(seed))
    model = capsnet.CapsNet(
      (6, 6, 1),
      4,
      conv_features=3,
      conv_kernel=3,
      num_types=2,
      part_size=3,
      primary_kernel=3,
      pose_size=4,
      num_iterations=1,
      decoder_features=(5,),
      rngs=nnx.Rngs(seed),
    )
    images = jax.random.uniform(keys[0], (3, 6, 6, 1))
    parts = jax.random.uniform(keys[1], (3, 2, 6, 6, 1))
    labels = jnp.array([[0, 2], [3, 1], [2, 3]])

    @jax.jit
    def run(model):
      loss = functools.partial(losses.overlap_loss, reconstruction_weight=0.01)
      gradients, metrics = jax.grad(loss, has_aux=True)(
        model, images, labels, parts
      )
      poses = model(images).poses
      drawn = [model.decode(poses, labels[:, k]) for k in range(2)]
      return gradients, metrics, jnp.stack(drawn, axis=1)

    gradients, metrics, drawn = run(model)
    np.testing.assert_allclose(
      metrics["reconstruction_loss"],
      np.sum(np.square(np.float64(drawn) - parts)) / 3,
      rtol=1e-5,
    )
    for leaf in jax.tree.leaves(gradients):
      self.assertTrue(np.all(np.isfinite(leaf)))
      self.assertGreater(np.max(np.abs(leaf)), 0)


if __name__ == "__main__":
  absltest.main()
