"""Arguments of evaluations that would be misread silently, or deep inside."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from capjax.evaluation import (
  alignment,
  attacks,
  clustering,
  diagnostics,
  segmentation,
)

_FEATURES = np.random.default_rng(0).random((20, 2))
_LABELS = np.arange(20) % 2
_PICTURE = jnp.linspace(0, 1, 16).reshape(4, 4, 1)


pytestmark = pytest.mark.usefixtures("as_a_user")


def _loss(images, labels):
  del labels
  return jnp.sum(images, axis=(1, 2, 3))


def _attack(images=None, **options):
  images = jnp.full((3, 4, 4, 3), 0.5) if images is None else images
  options = {"eps": 0.1} | options
  return attacks.bim(_loss, images, jnp.arange(3), num_steps=2, **options)


def _targets(labels, num_classes=3):
  return attacks.random_targets(jax.random.key(0), labels, num_classes)


def _align(picture=_PICTURE, **counts):
  counts = {"num_turns": 1, "num_steps": 1} | counts
  return alignment.align(picture, _PICTURE, **counts)


@pytest.mark.parametrize(
  ("call", "kind", "words"),
  [
    (lambda: segmentation.score([0, 1], [0, 1], [1, 1]), ValueError, "B N"),
    (
      lambda: _attack(targeted=jnp.array([True, False, True])),
      ValueError,
      r"targeted is \[3\]; give \[3 1 1 1\]",
    ),
    (lambda: _attack(eps=[0.1]), ValueError, r"eps is \[1\]; give"),
    (lambda: _attack(eps=(0.1,)), ValueError, r"eps is \[1\]; give"),
    (lambda: _attack([[[[0.5]]]]), TypeError, "images is a list"),
    (
      lambda: _attack(jnp.ones((3, 4, 4, 1), jnp.uint8)),
      TypeError,
      "such as capjax.data.as_intensities",
    ),
    (lambda: _targets(jnp.array([3])), ValueError, r"hold 3; give 0\.\.2"),
    (lambda: _targets(np.ones(3)), TypeError, "labels hold float64"),
    (lambda: _targets(jnp.array([0]), 3.0), TypeError, "num_classes is 3.0"),
    (lambda: _targets(jnp.array([0]), 1), ValueError, "give at least 2"),
    (lambda: _align(num_turns=0), ValueError, "num_turns is 0"),
    (lambda: _align(num_steps=-1), ValueError, "num_steps is -1"),
    (lambda: _align(num_turns=2.5), TypeError, "num_turns is 2.5"),
    (lambda: _align(jnp.nan * _PICTURE), ValueError, "picture has NaN"),
    (
      lambda: clustering.match_accuracy(
        _FEATURES, _LABELS, np.ones((2, 3)), [0, 1]
      ),
      ValueError,
      r"features are \[20, 2\] and \[2, 3\]",
    ),
    (
      lambda: clustering.fit_means(_FEATURES, 0),
      ValueError,
      "num_clusters is 0",
    ),
    (
      lambda: clustering.match(np.array([0, 1]), np.array([1, 2, 3])),
      ValueError,
      r"labels is \[3\]; give \[2\]",
    ),
    (
      lambda: clustering.few_label_accuracy(
        _FEATURES, _LABELS, _FEATURES, _LABELS, counts=iter([100])
      ),
      ValueError,
      r"counts are \(100,\), of 20 train_labels; give a count of at most 20",
    ),
    (
      lambda: diagnostics.image_information(jnp.full((3, 4), 0.25)),
      ValueError,
      r"coefficients is \[3 4\]",
    ),
  ],
)
def test_slips_are_named(call, kind, words):
  with pytest.raises(kind, match=words):
    call()


def test_no_images_send_nothing():
  assert diagnostics.image_information(jnp.zeros((0, 4, 5))) == 0


@pytest.mark.parametrize("kind", [jnp.asarray, np.ndarray.tolist])
def test_each_image_may_be_targeted(kind):
  images = jnp.full((3, 4, 4, 3), 0.5)
  each = kind(np.array([True, False, True]).reshape(3, 1, 1, 1))
  moved = _attack(images, targeted=each) - images
  ways = np.sign(moved)
  np.testing.assert_array_equal(ways[0], -1)
  np.testing.assert_array_equal(ways[1], 1)
  np.testing.assert_array_equal(ways[2], -1)


def test_lists_of_labels_are_taken():
  given = _FEATURES, list(_LABELS), _FEATURES, list(_LABELS)
  arrays = _FEATURES, _LABELS, _FEATURES, _LABELS
  options = {"counts": (4,), "repeats": 2}
  got = clustering.few_label_accuracy(*given, **options)
  want = clustering.few_label_accuracy(*arrays, **options)
  for name in want:
    np.testing.assert_array_equal(got[name].mean, want[name].mean)
  assert set(np.asarray(_targets([0, 1], 2))) == {0, 1}
