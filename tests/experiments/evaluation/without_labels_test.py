"""Probes and clusters of constructed models, whose presences are known."""

import itertools
from types import SimpleNamespace
from typing import NamedTuple

import golden_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from capjax import data
from experiments.evaluation import linear_probes, models, scae
from experiments.training import train_step

SIDE = 9
# Of a dot to the right, below, to the left, above.
PLACES = ((4, 7), (7, 4), (4, 1), (1, 4))


class Sides(nnx.Module):
  """Objects are the sides of an image; one is present as it has ink."""

  def __call__(self, images):
    ink = jax.lax.reduce_window(
      images[..., 0], 0.0, jax.lax.add, (1, 3, 3), (1, 1, 1), "SAME"
    )
    ink = jnp.stack([ink[:, *place] for place in PLACES], axis=1)
    objects = SimpleNamespace(
      prior_presence=lambda: ink, posterior_presence=lambda: ink
    )
    return SimpleNamespace(objects=objects)


def dots(count=40):
  """Images of one dot, as often on each side, which is the label."""
  labels = np.arange(count, dtype=np.int32) % len(PLACES)
  images = np.zeros((count, SIDE, SIDE, 1), np.uint8)
  for image, label in zip(images, labels, strict=True):
    image[PLACES[label]] = 255
  return data.Dataset(images, labels, len(PLACES), {})


def unchanged(key, index, images, labels):
  del key
  return train_step.as_intensities(images[index]), labels[index]


@pytest.fixture
def trained():
  found = golden_cases.classifier(dots(), Sides())
  task = found.task._replace(
    sample_test=unchanged,
    features=lambda model, images: linear_probes.features(
      model(images).objects.prior_presence(), jnp.zeros((len(images), 1, 6))
    ),
    options={"placement": SimpleNamespace(max_rotation=0.0)},
  )
  config = found.config._replace(num_validation=0)
  return found._replace(task=task, config=config, load_train=dots)


@pytest.mark.parametrize("turned", [True, False])
def test_probes_are_tested_on_each_kind_of_images(
  run, trained, monkeypatch, turned
):
  """One kind is upside down, where each side is taken for the opposite one."""
  names = ("_turn", "_see") if turned else ("_see", "_turn")
  monkeypatch.setattr(linear_probes, names[0], lambda _, x: x[::-1, ::-1])
  monkeypatch.setattr(linear_probes, names[1], lambda _, x: x)
  scores = linear_probes.linear(run, trained, models.Options())
  for name in ("presence", "presence_and_pose"):
    assert scores[f"{name}_accuracy"] == 1
    assert scores[f"rotated_{name}_accuracy"] == (not turned)
    assert scores[f"affnist_like_{name}_accuracy"] == turned
  assert scores["num_images"] == 40 and scores["num_rows"] == SIDE
  assert not any(name.startswith("validation_") for name in scores)


def test_rotations_are_by_any_angle():
  image = jnp.float32(dots(1).images[0]) / 255  # to the right
  keys = jax.random.split(jax.random.key(0), 400)
  turned = jax.vmap(linear_probes._turn, (0, None))(keys, image)
  across = np.arange(SIDE) - SIDE // 2
  x = jnp.einsum("bhwc, w -> b", turned, across)
  y = jnp.einsum("bhwc, h -> b", turned, across)
  angles = np.degrees(np.arctan2(y, x))
  counts, _ = np.histogram(angles, np.linspace(-180, 180, 9))
  # Of 50 in each eighth the standard deviation is 6.6.
  assert counts.min() > 24 and counts.max() < 76


def test_labels_go_with_the_views_of_their_images(run, trained, monkeypatch):
  monkeypatch.setattr(models, "sample_affine_view", lambda trained: unchanged)
  monkeypatch.setattr(
    scae.scae, "shares_won", lambda objects: objects.prior_presence()
  )
  options = models.Options(views=3, images=6)
  scores = scae.affnist_like_clusters(run, trained, options)
  for kind in ("prior", "posterior"):
    assert scores[f"affnist_like_{kind}_match_accuracy"] == 1
  assert (scores["views"], scores["num_images"]) == (3, 6)


class Explained(NamedTuple):
  mean: jax.Array
  coefficients: jax.Array


class Negative(nnx.Module):
  """Its target of an image is the negative of it."""

  decoder = SimpleNamespace(templates=lambda: None)

  def targets(self, images):
    return 1 - images


def test_errors_are_of_the_targets_by_objects(run, trained, monkeypatch):
  """Which differ by 1/4 and by -1/2, where parts differ by 1."""

  def reconstruct(model, images):
    change = jnp.where(jnp.arange(SIDE) < 3, 0.25, -0.5)[:, None]
    targets = model.targets(images)
    return Explained(targets + 1, images), Explained(targets + change, images)

  monkeypatch.setattr(scae.scae, "reconstruct", reconstruct)
  monkeypatch.setattr(scae.scae, "flat_templates", lambda model: 0.5)
  for name in ("templates", "reconstructions"):
    monkeypatch.setattr(scae.object_figures, name, lambda *_: None)
  scores = scae.explanations(run, trained._replace(model=Negative()))
  want = (3 * 0.25 + 6 * 0.5) / 9
  assert scores["object_error"] == pytest.approx(want, rel=1e-5)
  assert (scores["flat_templates"], scores["num_images"]) == (0.5, 20)


def test_objects_that_win_nowhere_are_idle(run, trained, monkeypatch):
  won = np.tile([[1.0, 0, 0], [0, 0.5, 0]], (20, 1))
  prior = np.tile([[1.0, 1, 0], [1, 0, 0]], (20, 1))
  found = {"won": won, "prior": prior, "posterior": prior}
  monkeypatch.setattr(scae, "_features", lambda *_: found)
  monkeypatch.setattr(scae.embedding, "embed", lambda x: x[:, :2])
  scores = scae.objects(run, trained, models.Options())
  assert scores["idle_objects"] == pytest.approx(1 / 3)
  assert scores["present_objects"] == 1.5


def test_clusters_are_matched_on_what_they_name(run, trained, monkeypatch):
  """For turned test images, only clusters fitted on them are right."""
  calls = itertools.count()

  def upside_down(trained, sample, images, **options):
    seen = images if next(calls) == 0 else images[:, ::-1, ::-1]
    ink = trained.model(jnp.float32(seen) / 255).objects.prior_presence()
    return dict.fromkeys(("prior", "posterior"), np.asarray(ink))

  monkeypatch.setattr(scae, "_features", upside_down)
  scores = scae.clusters(run, trained, models.Options())
  for kind in ("prior", "posterior"):
    assert scores[f"{kind}_match_accuracy"] == 0
    assert scores[f"{kind}_probe_accuracy"] == 0
    assert scores[f"{kind}_refit_accuracy"] == 1


def test_clusters_are_of_their_own_kind_of_presence(run, trained, monkeypatch):
  """Prior presences name other objects in the test set than in training."""
  calls = itertools.count()

  def shuffled(trained, sample, images, **options):
    ink = trained.model(jnp.float32(images) / 255).objects.prior_presence()
    ink = np.asarray(ink)
    prior = np.roll(ink, 1, axis=1) if next(calls) == 0 else ink
    return {"prior": prior, "posterior": ink}

  monkeypatch.setattr(scae, "_features", shuffled)
  scores = scae.clusters(run, trained, models.Options())
  assert scores["prior_match_accuracy"] == 0
  assert scores["posterior_match_accuracy"] == 1


def test_few_labels_read_posterior_presences(run, trained, monkeypatch):
  def half_known(trained, sample, images, **options):
    ink = trained.model(jnp.float32(images) / 255).objects.prior_presence()
    noise = np.random.default_rng(len(images)).random((len(images), 4))
    return {"prior": np.float32(noise), "posterior": np.asarray(ink)}

  monkeypatch.setattr(scae, "_features", half_known)
  scores = scae.label_curve(run, trained, models.Options())
  for name in ("linear", "clusters"):
    assert scores[f"{name}_accuracy"][-1] == 1
    assert scores[f"{name}_accuracy_sd"][-1] == 0


def _measured(model, degrees, presence, both):
  """A run with these accuracies of its probes."""
  scores = {
    "max_rotation": degrees,
    "presence_accuracy": presence,
    "presence_and_pose_accuracy": both,
  }
  return SimpleNamespace(
    read_summary=lambda: {"experiment": f"train_{model}"},
    read_evaluation=lambda suite: {"linear": {"metrics": scores}}[suite],
    figure=lambda name: f"{name}.png",
  ), scores


def test_accuracies_are_means_over_seeds_of_a_rotation(monkeypatch):
  drawn = []
  monkeypatch.setattr(
    linear_probes.curves, "accuracy_curves", lambda *x: drawn.append(x)
  )
  own, scores = _measured("scae", 0.0, 0.5, 0.125)
  others = [
    _measured("scae", 0.0, 0.75, 0.25)[0],
    _measured("scae", 0.0, 1.0, 0.75)[0],
    _measured("scae", 45.0, 0.25, 0.5)[0],
    _measured("generative", 45.0, 0.0, 1.0)[0],
  ]
  options = models.Options(compare_with=others)
  linear_probes._plot_rotations(own, scores, options)
  (((panel,), path),) = drawn
  assert path == "rotations.png"
  assert panel.lines == {
    "scae, presence": {0.0: 0.75, 45.0: 0.25},
    "scae, presence and pose": {0.0: 0.375, 45.0: 0.5},
    "generative, presence": {45.0: 0.0},
    "generative, presence and pose": {45.0: 1.0},
  }
