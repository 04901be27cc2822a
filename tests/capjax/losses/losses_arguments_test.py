"""Arguments of losses that would be misread silently, or deep inside."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from capjax import losses

pytestmark = pytest.mark.usefixtures("as_a_user")


@pytest.mark.parametrize(
  ("options", "words"),
  [
    ({"upper": 0.1, "lower": 0.9}, "lower is 0.9 and upper 0.1; give margins"),
    ({"absent_weight": -1}, "absent_weight is -1"),
    ({"upper": float("nan")}, "upper is nan"),
    ({"present": 5 * jnp.eye(3)[:2]}, "present has values from 0 to 5"),
  ],
)
def test_margins_that_teach_nothing_are_refused(options, words):
  options = {"present": jnp.eye(3)[:2]} | options
  with pytest.raises(ValueError, match=words):
    losses.margin_loss(jnp.full((2, 3), 0.5), **options)


@pytest.mark.parametrize("name", ["upper", "lower", "absent_weight"])
def test_settings_may_be_arrays_from_outside_of_a_trace(name):
  lengths, present = jnp.full((2, 3), 0.5), jnp.eye(3)[:2]
  setting = {name: jnp.float32(0.5)}
  want = losses.margin_loss(lengths, present, **setting)
  got = jax.jit(lambda x: losses.margin_loss(x, present, **setting))(lengths)
  chex.assert_trees_all_close(got, want)
  with pytest.raises(TypeError, match=f"{name} is .*; give a number"):
    losses.margin_loss(lengths, present, **{name: jnp.full(3, 0.5)})


def test_equal_margins_of_two_dtypes_are_equal():
  lengths, present = jnp.full((2, 3), 0.5), jnp.eye(3)[:2]
  for lower in (0.1, np.float32(0.1), jnp.float32(0.1)):
    losses.margin_loss(lengths, present, upper=0.1, lower=lower)


def test_labels_of_64_bits_do_not_wrap():
  with jax.enable_x64(True):
    scores = jnp.array([[0.9, 0.8, 0.1]])
    for label, want in ((0, True), (2**32, False), (-(2**32), False)):
      labels = jnp.array([[label, 1]], jnp.int64)
      assert bool(jax.jit(losses.exact_set)(scores, labels)[0]) == want


@pytest.mark.parametrize("kind", [np.array, jnp.array])
def test_a_label_given_twice_is_refused_within_a_trace(kind):
  labels = kind([[0, 0], [1, 2]])
  with pytest.raises(ValueError, match="labels of an example hold 0 twice"):
    jax.jit(lambda x: losses.exact_set(x, labels))(jnp.ones((2, 3)))


def test_lists_of_labels_are_taken():
  scores = jnp.array([[0.9, 0.1, 0.2], [0.1, 0.8, 0.3]])
  for loss, labels in (
    (losses.classifier_loss, [0, 1]),
    (losses.multilabel_loss, [[0, 1], [1, 2]]),
    (losses.exact_set, [[0], [1]]),
  ):
    chex.assert_trees_all_equal(
      loss(scores, labels), loss(scores, jnp.array(labels))
    )


def test_labels_and_arrays_of_another_kind_are_refused():
  scores, images = jnp.eye(3)[:2], jnp.ones((2, 8, 8, 1))
  with pytest.raises(ValueError, match="labels hold 7; give 0..2"):
    losses.exact_set(scores, jnp.array([[7], [1]]))
  with pytest.raises(TypeError, match="reconstructions holds uint8"):
    losses.reconstruction_loss(images.astype(jnp.uint8), images)
  with pytest.raises(TypeError, match="log_weights is a list"):
    losses.likelihood_bound([1.0, 2.0])
  with pytest.raises(ValueError, match=r"log_weights is \[\]; give \[... S"):
    losses.likelihood_bound(jnp.float32(1))
