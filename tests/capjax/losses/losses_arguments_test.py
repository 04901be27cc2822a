"""Arguments of losses that would be misread silently, or deep inside."""

import chex
import jax.numpy as jnp
import jaxtyping
import pytest

from capjax import losses


@pytest.fixture(autouse=True)
def _as_a_user():
  """Without the checks of annotations, which only tests make."""
  jaxtyping.config.update("jaxtyping_disable", True)
  yield
  jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.parametrize(
  ("options", "words"),
  [
    ({"upper": 0.1, "lower": 0.9}, "upper is 0.1; give a number from 0.9 to 1"),
    ({"absent_weight": -1}, "absent_weight is -1"),
    ({"upper": float("nan")}, "upper is nan"),
    ({"present": 5 * jnp.eye(3)[:2]}, "present has values from 0 to 5"),
  ],
)
def test_margins_that_teach_nothing_are_refused(options, words):
  options = {"present": jnp.eye(3)[:2]} | options
  with pytest.raises(ValueError, match=words):
    losses.margin_loss(jnp.full((2, 3), 0.5), **options)


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
