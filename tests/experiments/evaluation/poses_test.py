"""Equivariance and detection on constructed models, whose scores are known."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from capjax import baselines, data, losses
from experiments.evaluation import (
  equivariance,
  models,
  out_of_distribution,
  sceptics,
  suites,
)
from experiments.training import task
from experiments.training.loop_config import LoopConfig

SIDE = 15


class Poses(NamedTuple):
  poses: object


class CentreOfMass(nnx.Module):
  """One capsule, whose pose is the centre of mass of the ink in pixels."""

  def __call__(self, images):
    ink = images[..., 0]
    axis = jnp.arange(SIDE) - SIDE // 2
    total = jnp.sum(ink, axis=(1, 2))
    x = jnp.sum(ink * axis, axis=(1, 2)) / total
    y = jnp.sum(ink * axis[:, None], axis=(1, 2)) / total
    return Poses(jnp.stack([x, y], axis=1)[:, None])


def dots(count, seed):
  """Images of one dot near the middle."""
  random = np.random.default_rng(seed)
  images = np.zeros((count, SIDE, SIDE, 1), np.uint8)
  places = SIDE // 2 + random.integers(-1, 2, (count, 2))
  images[np.arange(count), places[:, 0], places[:, 1]] = 255
  return data.Dataset(images, np.zeros(count, np.int32), 2, {})


def trained_on(model, test, **fields):
  config = LoopConfig(1, batch_size=len(test.labels))
  some = task.Task(*[None] * 8)
  return models.Trained(some, config, model, 0, {}, test, {}, **fields)


def test_a_pose_that_moves_with_the_image(run):
  fitted = dots(200, 0)
  some = trained_on(CentreOfMass(), dots(100, 1), load_train=lambda: fitted)
  scores = equivariance.equivariance(run, some)
  assert scores["shift_x_pixels_reach"] == 2 and scores["num_poses"] == 2
  for axis in "xy":
    name = f"shift_{axis}_pixels"
    # The place of the dot, uniform over three pixels, adds to the shift.
    assert scores[f"{name}_linear_r2"] == pytest.approx(2 / 3, abs=0.1)
    assert scores[f"{name}_equivariance_error"] < 1e-3
    # One pixel, against a variance of 2/3 along each of two axes.
    assert scores[f"{name}_invariance_error"] == pytest.approx(0.75, abs=0.15)
    # Two principal components predict less than the centre of mass.
    pixels = scores[f"{name}_pixels_linear_r2"]
    assert pixels < scores[f"{name}_linear_r2"] - 0.1
  assert scores["rotation_degrees_equivariance_error"] < 1e-2
  assert scores["rotation_degrees_linear_r2"] < 0.1


def test_components_of_pixels_keep_their_scales(run, monkeypatch):
  """Poses are standardised, which components of noise must not be."""
  given, readouts = [], equivariance.measuring.readouts

  def watched(*arguments, standardise):
    given.append((arguments[0].shape[1], standardise))
    return readouts(*arguments, standardise=standardise)

  monkeypatch.setattr(equivariance.measuring, "readouts", watched)
  some = trained_on(CentreOfMass(), dots(20, 1), load_train=lambda: dots(30, 0))
  equivariance.equivariance(run, some)
  assert given == [(2, True), (2, False)] * 4


def test_large_images_have_no_components_of_pixels(run, monkeypatch):
  monkeypatch.setattr(equivariance, "_MOST_PIXELS", SIDE**2 - 1)
  some = trained_on(CentreOfMass(), dots(50, 1), load_train=lambda: dots(50, 0))
  scores = equivariance.equivariance(run, some)
  assert "scale_factor_linear_r2" in scores
  assert not any("pixels_linear" in name for name in scores if "scale" in name)


def test_a_pose_that_stays(run, monkeypatch):
  """If images are not moved, nothing is predicted and nothing changes."""
  fitted = dots(200, 0)
  some = trained_on(CentreOfMass(), dots(100, 1), load_train=lambda: fitted)
  monkeypatch.setattr(
    equivariance,
    "_moves",
    lambda side: [equivariance._Move("none", lambda x, n: x, 0.0, 1.0)],
  )
  scores = equivariance.equivariance(run, some)
  assert scores["none_linear_r2"] < 0.1
  assert scores["none_invariance_error"] == 0


def test_an_image_on_grey_has_grey_around_it():
  grey = np.full((SIDE, SIDE, 2), 0.5, np.float32)
  grey[5, 6] = 1, 0
  for move in equivariance._moves(SIDE):
    value = move.middle + move.reach
    moved = equivariance.on_background(
      lambda x, m=move, v=value: m.move(x, v), jnp.asarray(grey)
    )
    np.testing.assert_allclose(moved[:2], 0.5, atol=1e-6)
    assert np.max(np.abs(moved - grey)) > 0.1
  black = jnp.asarray(grey).at[...].add(-0.5)
  np.testing.assert_array_equal(
    equivariance.on_background(lambda x: move.move(x, 1.1), black),
    move.move(black, 1.1),
  )


class Template(nnx.Module):
  """Reconstructs every image as one dot in the middle."""

  image_shape = (SIDE, SIDE, 1)


def test_detection_by_reconstruction_is_the_share_of_pairs(run, monkeypatch):
  test, other = dots(4, 0), dots(3, 1)
  bright = data.Dataset(255 - other.images, other.labels, 2, {})

  def outputs(model, images, num_labels):
    return {
      "reconstructions": 0 * images,
      "activations": jnp.mean(images, axis=(1, 2)),
    }

  monkeypatch.setattr(out_of_distribution.predictions, "outputs", outputs)
  some = trained_on(
    Template(),
    test,
    load_other={"fashion_mnist": bright}.get,
    load_train=lambda: dots(9, 2),
  )
  scores = out_of_distribution.out_of_distribution(run, some)
  assert scores["reconstruction_error_auroc"] == 1
  assert scores["reconstruction_error_false_positive_rate"] == 0
  assert scores["reconstruction_error_mean"] == pytest.approx(1)
  assert scores["reconstruction_error_other_mean"] == SIDE**2 - 1
  # Of one dot in each, as in training images, all pixels of others but one.
  assert scores["nonzero_pixels_auroc"] == 1
  assert scores["nonzero_pixels_mean"] == 0
  assert scores["nonzero_pixels_other_mean"] == SIDE**2 - 2
  # Brighter images have the larger activation: they look more familiar.
  assert scores["largest_activation_auroc"] == 0
  assert (scores["num_images"], scores["num_other"]) == (4, 3)
  assert (run.workdir / "figures" / "out_of_distribution.png").exists()


class _LikesDarkPixels(baselines.ConvVAE):
  """An encoder whose bound falls with every pixel that is not black."""

  pixel_scale = None

  def __init__(self):
    pass

  def bound(self, key, images, num_samples):
    del key
    assert num_samples > 1
    ink = jnp.sum(images, axis=(1, 2, 3))
    grey = jnp.sum((images > 0) & (images < 1), axis=(1, 2, 3))
    return losses.Bound(jnp.nan * ink, -ink - 1000.0 * grey)


def test_bounds_of_other_data_are_low(run, monkeypatch):
  monkeypatch.setattr(
    out_of_distribution.predictions,
    "outputs",
    lambda model, images, num_labels: {},
  )
  test, other = dots(4, 0), dots(3, 1)
  grey = data.Dataset(255 - other.images // 2, other.labels, 2, {})
  some = trained_on(
    _LikesDarkPixels(),
    test,
    load_other=lambda name: grey,
    load_train=lambda: test,
  )
  scores = out_of_distribution.out_of_distribution(run, some)
  assert scores["bound_auroc"] == 1
  assert scores["bound_false_positive_rate"] == 0
  # Each pixel is drawn as 0 or 1, so that none is grey.
  assert scores["bound_mean"] == pytest.approx(-1)
  assert -(SIDE**2) <= scores["bound_other_mean"] < 2 - SIDE**2


def test_bounds_of_images_do_not_depend_on_the_batch():
  model = baselines.ConvVAE(
    (SIDE, SIDE, 1), num_latents=2, features=(2, 2), rngs=nnx.Rngs(0)
  )
  test = dots(6, 0)
  some = trained_on(model, test)
  one, other = (
    out_of_distribution._scores(
      some._replace(config=some.config._replace(batch_size=size)), test.images
    )["bound"]
    for size in (2, 3)
  )
  np.testing.assert_allclose(one, other, rtol=1e-4)


def test_other_data_must_be_named_and_of_the_same_shape(run):
  small = data.Dataset(
    np.zeros((2, 8, 8, 1), np.uint8), np.zeros(2, np.int32), 2, {}
  )
  some = trained_on(Template(), dots(2, 0), load_other=lambda name: small)
  with pytest.raises(ValueError, match="fashion_mnist are 8x8x1.* 15x15x1; gi"):
    out_of_distribution.out_of_distribution(run, some)
  run.flags = lambda: {"dataset": "digits"}
  with pytest.raises(ValueError, match="as --other_data"):
    out_of_distribution.out_of_distribution(run, some)


def test_letters_are_compared_with_digits(run, monkeypatch):
  def outputs(model, images, num_labels):
    return {"activations": jnp.mean(images, axis=(1, 2))}

  monkeypatch.setattr(out_of_distribution.predictions, "outputs", outputs)
  test, other = dots(4, 0), dots(3, 1)
  bright = data.Dataset(255 - other.images, other.labels, 2, {})
  some = trained_on(
    Template(),
    test,
    load_other={"font_letters": bright}.get,
    load_train=lambda: test,
  )
  scores = out_of_distribution.letters(run, some)
  assert scores["largest_activation_auroc"] == 0
  assert (scores["num_images"], scores["num_other"]) == (4, 3)
  assert (run.workdir / "figures" / "letters.png").exists()


def test_suites_name_the_other_data_that_records_hold(run):
  """Also where it is not given; the run is of MNIST."""
  none, given = models.Options(), models.Options(other_data="digits")
  of_clothes = suites.SUITES["out_of_distribution"].other_data
  assert of_clothes(run, none) == "fashion_mnist"
  assert of_clothes(run, given) == "digits"
  assert suites.SUITES["letters"].other_data(run, given) == "font_letters"
  assert suites.SUITES["attacks"].other_data is None


def test_other_data_of_another_shape_are_found_before_a_suite(run):
  test, other = dots(4, 0), dots(3, 1)
  larger = data.Dataset(np.zeros((3, 40, 40, 1), np.uint8), other.labels, 2, {})
  some = trained_on(Template(), test, load_other={"fashion_mnist": larger}.get)
  with pytest.raises(ValueError, match="images of fashion_mnist are 40x40x1"):
    suites.SUITES["out_of_distribution"].check(run, some)
  suites.SUITES["accuracy"].check(run, some)


@pytest.mark.parametrize("name", ["coordinates", "equivariance", "moved"])
def test_one_image_is_found_before_a_suite_that_needs_two(run, name):
  suites.SUITES[name].check(run, trained_on(Template(), dots(2, 0)))
  with pytest.raises(ValueError, match="1 test images are too few"):
    suites.SUITES[name].check(run, trained_on(Template(), dots(1, 0)))


@pytest.mark.parametrize("name", ["multimnist", "crowding", "object_masks"])
def test_one_class_is_found_before_a_suite_of_pairs(run, name):
  one_class = trained_on(Template(), dots(4, 0))
  with pytest.raises(ValueError, match="are of one class"):
    suites.SUITES[name].check(run, one_class)
  two = dots(4, 0)
  two = data.Dataset(two.images, np.int32([0, 1, 0, 1]), 3, {})
  suites.SUITES[name].check(run, trained_on(Template(), two))
  with pytest.raises(ValueError, match="are of one class"):
    suites.SUITES[name].check(
      run, trained_on(Template(), two), models.Options(images=1)
    )


def test_the_remedy_for_few_images_is_one_that_helps():
  """The test set has four; more can be asked for where it has more."""
  some = trained_on(Template(), dots(4, 0))
  with pytest.raises(ValueError, match="2 test images .* 3; give more as --im"):
    models.first(some, 2, at_least=3)
  with pytest.raises(ValueError, match="4 test images .* 9; give another data"):
    models.first(some, None, at_least=9)
  for count, images in ((2, 2), (None, 4)):
    assert len(models.first(some, count, at_least=2)[0]) == images


def test_images_of_suites_are_moved_on_their_background():
  """A shift of a grey image shows no black."""
  grey = jnp.full((SIDE, SIDE, 1), 0.5)
  moved = sceptics._moved(grey, 30.0, 3.0)
  np.testing.assert_allclose(moved, 0.5, atol=1e-6)
