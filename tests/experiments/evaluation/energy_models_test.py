"""Scores of samples, fields, likelihoods and dreams; chains and their keys."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import capjax
from capjax import data
from capjax.energy import units
from capjax.evaluation import likelihood
from experiments.evaluation import energy_models, models
from experiments.figures import energy_models as figures
from experiments.run import directory
from experiments.training import train_step

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


def test_single_capsules_are_shown_from_the_most_active_down():
  """Ten of twelve; each has its own hidden units and its own switch."""
  random = np.random.default_rng(0)
  model = capjax.CapsuleRBM(
    (2, 3, 1),
    num_capsules=12,
    capsule_size=2,
    interaction=True,
    rngs=nnx.Rngs(0),
  )
  for name in ("visible", "hidden", "weights", "switches", "interaction"):
    value = getattr(model, name)
    value[...] = jnp.float32(random.normal(size=value[...].shape))
  images = jnp.float32(random.integers(0, 2, (4, 2, 3, 1)))
  means, parts, probabilities = energy_models._decompose(model, images)
  capsules = model.infer(images)
  for n, switches in enumerate(np.asarray(capsules.switches)):
    drives = np.einsum("mkj, kj -> km", model.weights[...], capsules.active[n])
    drives += switches[:, None] * model.interaction[...].T
    order = np.argsort(-switches)[:10]
    np.testing.assert_allclose(probabilities[n], switches[order], rtol=1e-5)
    drives = np.stack([drives.sum(axis=0), *drives[order]])
    want = 1 / (1 + np.exp(-np.asarray(model.visible[0]) - drives))
    found = np.stack([means[n], *parts[n]])
    np.testing.assert_allclose(found.reshape(11, 6), want, rtol=1e-4)


class _CountsInk(nnx.Module):
  """Takes the ink of an image for its energy."""

  image_shape = (2, 3, 1)
  families = units.FAMILIES["bernoulli"], units.FAMILIES["bernoulli"]

  def free_energy(self, images):
    return jnp.sum(images, axis=(1, 2, 3))


def _estimated(run, monkeypatch):
  """The scores by AIS of images with 6, 3 and 0 pixels, and the keys used.

  Log Z is 5 forwards, and 10 plus the mean pixel of the dreams backwards; the
  probability of a pixel where the path starts is added to both. Mean log
  weights are numbers drawn with the keys.
  """
  keys = []

  def log_partition(key, model, base, *, num_temperatures, backwards_from=None):
    value, error = 5 + jnp.mean(jax.nn.sigmoid(base)), jnp.float32(0.25)
    if backwards_from is not None:
      value, error = value + 5 + jnp.mean(backwards_from), 2 * error
    return likelihood.LogPartition(
      value, error, jax.random.uniform(key), jnp.zeros(1)
    )

  def dream(model, key, images):
    keys.append(key)
    return None, 3 * images

  def binary_images(trained, key):
    keys.append(key)
    return train_step.as_intensities(jnp.asarray(trained.test.images))

  monkeypatch.setattr(energy_models.likelihood, "log_partition", log_partition)
  monkeypatch.setattr(energy_models, "dream", dream)
  monkeypatch.setattr(energy_models.latents, "binary_images", binary_images)
  images = np.zeros((4, 2, 3, 1), np.uint8)
  images[[0, 3]], images[1, 0] = 255, 255
  trained = _trained(_CountsInk(), images)
  train = trained.test._replace(images=np.full((150, 2, 3, 1), 51, np.uint8))
  trained = trained._replace(load_train=lambda: train)
  scores = energy_models.log_likelihood(run, trained, models.Options(images=3))
  return scores, [float(jax.random.uniform(key)) for key in keys]


def test_both_estimates_take_the_log_partition_of_their_direction(
  run, monkeypatch
):
  scores, _ = _estimated(run, monkeypatch)
  for name in ("mean_log_weight", "mean_log_weight_backwards"):
    del scores[name]
  assert scores == pytest.approx(
    {
      "log_likelihood": -3 - 5.2,
      "log_likelihood_standard_error": 3 / 3**0.5,
      "log_likelihood_backwards": -3 - 10.8,
      "log_partition": 5.2,
      "log_partition_standard_error": 0.25,
      "log_partition_backwards": 10.8,
      "log_partition_backwards_standard_error": 0.5,
      "temperatures": 10_000,
      "num_images": 3,
    }
  )


def test_chains_dreams_and_images_are_drawn_with_different_keys(
  run, monkeypatch
):
  scores, drawn = _estimated(run, monkeypatch)
  for name in ("mean_log_weight", "mean_log_weight_backwards"):
    drawn.append(scores[name])
  assert len(set(drawn)) == len(drawn) == 4


class _KeepsKeys(nnx.Module):
  """Its states: how many keys it was given, and numbers drawn with each."""

  image_shape = (2,)

  def __init__(self, count):
    self.switches = nnx.Variable(jnp.zeros(count + 1))

  def start(self):
    return jnp.zeros((len(self.switches[...]), 2))

  def _keep(self, key, state, switches=None):
    number = state[0, 0] + 1
    drawn = jax.random.uniform(key, (2,))
    return state.at[jnp.int32(number)].set(drawn).at[0, 0].set(number)

  sample_upwards = sample_downwards = _keep
  sample_capsules = sample_hidden = sample_images = _keep

  def sample_top(self, key, count):
    return self._keep(key, self.start())

  def sweep(self, key, capsules, *, block):
    assert block
    return self._keep(key, capsules), self.start()

  def reconstruct(self, capsules):
    return capsules


@pytest.mark.parametrize(
  ("sample", "count"),
  [
    (lambda *x: energy_models.dream(*x)[0], 1 + 1000),
    (lambda model, key, _: energy_models._ancestral(model, key), 2),
    (energy_models._loops, 3 * 1000 + 2),
    (
      lambda model, key, _: energy_models.projective_fields(model, key),
      2 * 1000 + 1,
    ),
  ],
)
def test_each_step_of_a_chain_has_its_own_key(sample, count):
  model = _KeepsKeys(count)
  kept = sample(model, jax.random.key(0), model.start())
  assert kept[0, 0] == count
  assert len(np.unique(kept[1:], axis=0)) == count


def test_chains_start_from_noise_drawn_with_another_key(
  run, monkeypatch, drawn
):
  given = []

  def sample(model, key, images):
    given.append((key, images))
    return np.zeros(images.shape)

  monkeypatch.setattr(
    energy_models, "dream", lambda *x: (sample(*x), np.zeros((1, 2, 3, 1)))
  )
  monkeypatch.setattr(energy_models, "_loops", sample)
  monkeypatch.setattr(
    energy_models, "_ancestral", lambda *_: np.zeros((1, 2, 3, 1))
  )
  model = types.SimpleNamespace(
    image_shape=(2, 3, 1),
    reconstruct=lambda capsules: capsules,
    free_energy=lambda images: np.zeros(len(images)),
  )
  trained = _trained(model, np.zeros((1, 2, 3, 1), np.uint8))
  energy_models.samples(run, trained)
  energy_models.dreams(run, trained)
  assert len(given) == 2
  for key, images in given:
    assert images.shape == (100, 2, 3, 1)
    assert 0 <= images.min() < 0.1 and 0.9 < images.max() <= 1
    same = jax.random.uniform(key, images.shape)
    assert np.abs(images - same).max() > 0.1
