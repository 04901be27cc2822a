"""The suite of objects' masks on models whose scores are known."""

import golden_cases
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from capjax import data, specs
from capjax.data.transforms.preprocessing import Preprocessing
from capjax.slot_autoencoder import SlotAutoencoder
from experiments.evaluation import models, multimnist, object_masks
from experiments.tasks import scenes, slots

_CANVAS = (16, 16)
# Bright and dark objects, which a threshold tells apart.
_DARK, _BRIGHT = 155, 255


def _dataset():
  images = np.zeros((24, 8, 8, 1), np.uint8)
  images[::2, 2:6, 1:4] = _DARK
  images[1::2, 1:7, 3:6] = _BRIGHT
  return data.Dataset(images, np.arange(24, dtype=np.int32) % 2, 2, {})


def _by_brightness(model, images):
  del model
  bright = images[..., 0] > 0.8
  return images, jnp.stack([bright, ~bright], axis=1).astype(jnp.float32)


def _in_one(model, images):
  means, masks = _by_brightness(model, images)
  return means, masks.at[:, 0].set(2.0)


def _in_stripes(model, images):
  """Objects that have nothing to do with the image, which is left black."""
  del model
  is_odd = jnp.broadcast_to(jnp.arange(16) % 2, images.shape[:3])
  masks = jnp.stack([is_odd, 1 - is_odd], axis=1).astype(jnp.float32)
  return 0 * images, masks


def _scores(run, explain, dataset=None, model=None):
  trained = golden_cases.classifier(
    dataset or _dataset(),
    model or nnx.Module(),
    explain=explain,
    steps=lambda shape: Preprocessing(canvas=_CANVAS),
  )
  return object_masks.object_masks(run, trained)


def test_objects_that_are_told_apart_are_right(run):
  scores = _scores(run, _by_brightness)
  assert scores["multimnist_rand_index"] == pytest.approx(1)
  assert scores["multimnist_pixel_accuracy"] == 1
  assert scores["multimnist_perfect"] == 1
  assert scores["affnist_like_rand_index"] > 0.2  # ink is dark at its border
  assert scores["multimnist_reconstruction_error"] == 0
  assert scores["num_images"] == 24
  for name in ("multimnist", "affnist_like"):
    assert run.figure(f"object_masks_{name}").exists()


class _Edges(nnx.Module):
  """Explains the negatives of images."""

  def targets(self, images):
    return 1 - images


def test_reconstructions_are_compared_with_the_targets_of_the_model(run):
  def explain(model, images):
    means, masks = _by_brightness(model, images)
    return 1 - means, masks

  scores = _scores(run, explain, model=_Edges())
  assert scores["multimnist_reconstruction_error"] == pytest.approx(0, abs=1e-6)


def test_images_that_show_one_object_alone_do_not_count(run):
  dataset = _dataset()
  dataset.images[:12:2] //= 4  # too dark to be in a pixel

  def explain(model, images):
    """Right where both objects can be seen."""
    means, masks = _by_brightness(model, images)
    bright = images[..., 0] > 0.8
    dark = (images[..., 0] > 0.5) & ~bright
    both = jnp.any(bright, axis=(1, 2)) & jnp.any(dark, axis=(1, 2))
    _, wrong = _in_stripes(model, images)
    return means, jnp.where(both[:, None, None, None], masks, wrong)

  scores = _scores(run, explain, dataset)
  assert scores["multimnist_rand_index"] == pytest.approx(1)
  some = golden_cases.classifier(dataset, nnx.Module())
  counts = models.images_of(some, scores, object_masks.object_masks.counts)
  assert counts["multimnist_rand_index"] == scores["multimnist_num_images"] < 24
  assert counts["multimnist_reconstruction_error"] == 24


def test_one_object_and_any_objects_score_nothing(run):
  scores = _scores(run, _in_one)
  for name in ("multimnist", "affnist_like"):
    assert scores[f"{name}_rand_index"] == pytest.approx(0)
  scores = _scores(run, _in_stripes)
  for name in ("multimnist", "affnist_like"):
    assert abs(scores[f"{name}_rand_index"]) < 0.15
    assert scores[f"{name}_reconstruction_error"] > 0.03


@pytest.mark.parametrize(
  ("scene", "want"),
  [
    (scenes.Scene("affnist_like", canvas=13), (2, 2)),
    (scenes.Scene(pad=3, max_shift=1), (3, 1)),
  ],
)
def test_slots_are_scored_on_the_scenes_of_their_training(scene, want):
  spec = specs.Spec(SlotAutoencoder, {})
  task = slots.make_task(spec, optax.sgd(0.1), scene=scene)
  trained = golden_cases.classifier(_dataset(), nnx.Module())
  _, *found = multimnist.overlaid(trained._replace(task=task), whole=True)
  assert tuple(found) == want


@pytest.mark.parametrize(
  ("canvas", "options", "want"),
  [
    ((16, 16), {}, (4, 4)),
    ((12, 12), {}, (2, 2)),
    ((13, 15), {}, (2, 2)),  # an odd margin, and a wider one
    ((26, 26), {"scene": scenes.Scene(pad=9, max_shift=9)}, (9, 9)),
    ((16, 16), {"scene": scenes.Scene(pad=4, max_shift=1)}, (4, 1)),
    ((40, 40), {"scene": scenes.Scene("affnist_like")}, (16, 4)),
    ((14, 14), {"pad": 3, "max_shift": 3}, (3, 3)),
  ],
)
def test_images_are_overlaid_as_in_training(canvas, options, want):
  trained = golden_cases.classifier(
    _dataset(),
    nnx.Module(),
    steps=lambda shape: Preprocessing(canvas=canvas),
    options=options,
  )
  sample, *found = multimnist.overlaid(trained, whole=True)
  assert tuple(found) == want
  image, objects = sample(
    jax.random.key(0), 0, *map(jnp.asarray, trained.test[:2])
  )
  assert image.shape == (*canvas, 1)
  assert objects.parts.shape == (2, *canvas, 1)
  for n, part in enumerate(objects.parts):  # none is cut
    alone = trained.test.images[n] / 255
    np.testing.assert_allclose(part.sum(), alone.sum(), rtol=1e-6)
