"""Scores of samples, of fields, and of dreams, of which some have diverged."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import capjax
from capjax import data
from experiments.evaluation import energy_models, models
from experiments.figures import energy_models as figures
from experiments.run import directory

_DIM, _BRIGHT = 0.25, 0.75


def _scores(monkeypatch, folder, **dreams):
  """Of a machine with these dreams: [N H W C] of each kind."""
  for name, images in dreams.items():
    monkeypatch.setattr(energy_models, name, lambda *_, images=images: images)
  test = data.Dataset(np.full((2, 3, 3, 1), 51, np.uint8), np.zeros(2), 1, {})
  model = types.SimpleNamespace(image_shape=(3, 3, 1))
  trained = models.Trained(None, None, model, 0, {}, test, {})
  scores = energy_models.dreams(
    directory.Run(str(folder)), trained, models.Options()
  )
  figures = {path.stem for path in (folder / "figures").iterdir()}
  assert figures == {"dreams_ancestral", "dreams_gibbs"}
  return scores


@pytest.mark.parametrize("diverged", [-5.65e20, 2.5, -1.5, np.inf, np.nan])
def test_means_are_of_the_sane_dreams(monkeypatch, tmp_path, diverged):
  gibbs = np.full((20, 3, 3, 1), _BRIGHT, np.float32)
  gibbs[:5, 1, 2] = diverged  # by one pixel
  ancestral = np.full_like(gibbs, _DIM)
  ancestral[0, 0, 0], ancestral[1, 0, 0] = -1, 2  # just within the range
  scores = _scores(monkeypatch, tmp_path, _ancestral=ancestral, _loops=gibbs)
  assert scores == pytest.approx(
    {
      "images_mean": 0.2,
      "ancestral_sane": 1.0,
      "ancestral_mean": _DIM + (1 - 2 * _DIM) / 180,
      "gibbs_sane": 0.75,
      "gibbs_mean": _BRIGHT,
    }
  )


def test_without_sane_dreams_there_is_no_mean(monkeypatch, tmp_path):
  lost = np.full((20, 3, 3, 1), 1e30, np.float32)
  scores = _scores(monkeypatch, tmp_path, _ancestral=0 * lost, _loops=lost)
  assert scores["gibbs_sane"] == 0 and "gibbs_mean" not in scores
  assert (scores["ancestral_sane"], scores["ancestral_mean"]) == (1, 0)


@pytest.mark.parametrize("empty", [0, 1])
def test_a_class_without_test_images_leaves_its_strip_white(tmp_path, empty):
  classes = [np.full((2, 3), 0.5), np.full((2, 3), 0.25)]
  classes[empty] = np.zeros((0, 3))
  for name, plot, given in (
    ("spectra", figures.spectra, classes),
    ("compared", figures.compared_spectra, {"a": classes, "b": classes}),
  ):
    path = tmp_path / f"{name}.png"
    assert plot(given, ["a", "b"], path).exists()


@pytest.fixture
def drawn(monkeypatch):
  """The images of each figure, by its name."""
  found = {}

  def keep(*images, path, **options):
    found[path.stem] = images

  monkeypatch.setattr(
    energy_models.energy_models,
    "tiles",
    lambda images, path, **options: keep(images, path=path),
  )
  monkeypatch.setattr(energy_models.energy_models, "decompositions", keep)
  return found


def _trained(model, images):
  labels = np.zeros(len(images), np.int32)
  test = data.Dataset(images, labels, 1, {})
  return models.Trained(None, None, model, 0, {}, test, {})


def test_free_energies_are_of_the_samples_and_of_test_images(
  monkeypatch, run, drawn
):
  samples = np.full((2, 2, 3, 1), 0.25)
  samples[1, 0, 1] = 1
  means = samples / 2
  monkeypatch.setattr(energy_models, "dream", lambda *_: (means, samples))
  images = np.zeros((3, 2, 3, 1), np.uint8)
  images[0], images[1, 0] = 255, 255  # 6 and 3 pixels
  model = types.SimpleNamespace(
    image_shape=(2, 3, 1),
    reconstruct=lambda capsules: capsules,
    free_energy=lambda images: jnp.sum(images, axis=(1, 2, 3)) - 10,
  )
  assert energy_models.samples(run, _trained(model, images)) == {
    "num_images": 3,
    "samples_free_energy": pytest.approx((6 * 0.25 + 5 * 0.25 + 1) / 2 - 10),
    "images_free_energy": pytest.approx((6 + 3 + 0) / 3 - 10),
  }
  np.testing.assert_array_equal(drawn["samples"][0], means)


def test_fields_spread_as_far_as_capsules_differ(monkeypatch, run, drawn):
  """In one pixel of four by a standard deviation of 0.2, of others by 0."""
  fields = np.full((2, 2, 2, 1), 0.5)
  fields[:, 0, 1, 0] = 0.5, 0.9
  fields[:, 1] = 0.1
  split = [np.full((1, 2, 2, 1), value) for value in (0.2, 0.3, 0.4)]
  monkeypatch.setattr(energy_models, "projective_fields", lambda *_: fields)
  monkeypatch.setattr(energy_models, "_decompose", lambda *_: split)
  images = np.full((1, 2, 2, 1), 51, np.uint8)
  model = types.SimpleNamespace(switches=1)
  scores = energy_models.fields(run, _trained(model, images))
  assert scores["fields_spread"] == pytest.approx(0.2 / 4)
  np.testing.assert_array_equal(drawn["fields"][0], fields)
  np.testing.assert_allclose(drawn["decompositions"][0], 0.2)
  np.testing.assert_array_equal(drawn["decompositions"][1:], split)


def test_the_field_of_a_capsule_is_bright_where_its_weights_are():
  """Capsules of one, two and three pixels, which are dark otherwise."""
  owners = np.array([1, 2, 0, 2, 1, 2])
  model = capjax.CapsuleRBM(
    (2, 3, 1), num_capsules=3, capsule_size=2, rngs=nnx.Rngs(0)
  )
  model.visible[...] = jnp.full((1, 6), -6.0)
  model.hidden[...] = jnp.full((1, 3, 2), 6.0)
  weights = 6.0 * (owners[:, None] == np.arange(3))
  model.weights[...] = jnp.repeat(jnp.float32(weights)[..., None], 2, axis=2)
  found = energy_models.projective_fields(model, jax.random.key(0))
  want = (owners == np.arange(3)[:, None]).reshape(3, 2, 3, 1)
  np.testing.assert_allclose(found, want, atol=0.02)
