"""Suites on constructed models, whose scores are known."""

import functools

import golden_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from capjax import baselines, data
from capjax.data.transforms.preprocessing import Preprocessing
from experiments.evaluation import (
  calibration,
  classifiers,
  generative_rotations,
  latents,
  models,
  multimnist,
  viewpoints,
)
from experiments.training import pairs, task, train_step

SIDE = 9
RIGHT, BOTTOM, LEFT, TOP = range(4)
PLACES = {RIGHT: (4, 7), BOTTOM: (7, 4), LEFT: (4, 1), TOP: (1, 4)}


class WhereIsInk(nnx.Module):
  """Classifies on which side of an image its ink is."""

  def __call__(self, images):
    ink = jax.lax.reduce_window(
      images[..., 0], 0.0, jax.lax.add, (1, 3, 3), (1, 1, 1), "SAME"
    )
    return jnp.stack([ink[:, *place] for place in PLACES.values()], axis=1)


def dots(*places, label):
  """Images of a dot in each place, as test set; all have the same label."""
  images = np.zeros((len(places), SIDE, SIDE, 1), np.uint8)
  for image, place in zip(images, places, strict=True):
    image[PLACES[place]] = 255
  return data.Dataset(images, np.full(len(places), label, np.int32), 4, {})


def at(scores, axis, value):
  return dict(zip(scores[axis], scores[f"{axis}_accuracy"], strict=True))[value]


def test_positive_rotations_are_clockwise_and_shifts_go_right(run):
  test = dots(RIGHT, RIGHT, label=BOTTOM)
  scores = classifiers.views(run, golden_cases.classifier(test, WhereIsInk()))
  assert at(scores, "rotation", 90) == 1 and at(scores, "rotation", -90) == 0
  assert at(scores, "rotation", 0) == 0
  test = dots(RIGHT, RIGHT, label=LEFT)
  scores = classifiers.views(run, golden_cases.classifier(test, WhereIsInk()))
  assert at(scores, "shift", -6) == 1 and at(scores, "shift", 6) == 0
  assert at(scores, "scale", 1.0) == 0


def test_scales_above_one_enlarge(run):
  """What is one pixel below the middle is farther below."""
  test = dots(RIGHT, RIGHT, label=BOTTOM)
  test.images[...] = np.roll(
    dots(RIGHT, RIGHT, label=0).images, (1, -3), (1, 2)
  )
  scores = classifiers.views(run, golden_cases.classifier(test, WhereIsInk()))
  assert at(scores, "scale", 1.5) == 1
  assert at(scores, "scale", 1.0) == at(scores, "scale", 0.5) == 0


def test_each_affine_view_of_an_image_is_another(run):
  test = dots(RIGHT, label=RIGHT)
  some = golden_cases.classifier(
    test, WhereIsInk(), steps=lambda shape: Preprocessing(canvas=(20, 20))
  )._replace(measures={"accuracy": np.ones(1)})
  scores = classifiers.affnist_like(run, some, models.Options(views=16))
  assert 0 < scores["affnist_like_accuracy"] < 1
  assert scores["views"] == 16 and scores["num_images"] == 1


@pytest.mark.parametrize(
  ("names", "canvas", "words"),
  [
    (("shirt", "boot"), (40, 40), "does not take grey digits"),
    (tuple("0123456789"), (20, 20), "this model takes 20x20"),
  ],
)
def test_affnist_is_left_out_where_it_does_not_fit(
  run, tmp_path, capsys, names, canvas, words
):
  (tmp_path / "affnist").mkdir()
  images = np.zeros((2, 8, 8, 1), np.uint8)
  test = data.Dataset(images, np.zeros(2, np.int32), 2, {}, names)
  some = golden_cases.classifier(
    test,
    golden_cases.Brightness(),
    steps=lambda shape: Preprocessing(canvas=canvas),
  )._replace(data_dir=str(tmp_path), measures={"accuracy": np.ones(2)})
  scores = classifiers.affnist_like(run, some, models.Options(views=1))
  assert words in capsys.readouterr().out
  assert "affnist_accuracy" not in scores


def test_affnist_that_cannot_be_read_is_said_before_views_are(
  run, tmp_path, monkeypatch
):
  (tmp_path / "affnist").mkdir()
  names = tuple("0123456789")
  images = np.zeros((2, 8, 8, 1), np.uint8)
  test = data.Dataset(images, np.zeros(2, np.int32), 10, {}, names)
  some = golden_cases.classifier(
    test,
    golden_cases.Brightness(),
    steps=lambda shape: Preprocessing(canvas=(40, 40)),
  )._replace(data_dir=str(tmp_path), measures={"accuracy": np.ones(2)})
  monkeypatch.setattr(classifiers, "_evaluator", None)  # it would be called
  with pytest.raises(FileNotFoundError, match="affnist"):
    classifiers.affnist_like(run, some, models.Options(views=1))


def test_attacks_succeed_from_the_distance_of_the_boundary_on(run):
  images = np.full((2, 4, 4, 1), 158, np.uint8)  # 0.62: by 0.12 above
  test = data.Dataset(images, np.zeros(2, np.int32), 2, {})
  scores = classifiers.attacks(
    run, golden_cases.classifier(test, golden_cases.Brightness())
  )
  want = [float(eps < 0.12) for eps in scores["eps"]]
  for name in ("fgsm", "bim"):
    assert scores[f"{name}_accuracy"] == want
    assert scores[f"{name}_targeted_success"] == [1 - x for x in want]
  assert scores["num_images"] == 2


class Unsure(baselines.CapsNetBaseline):
  """Says that every image is of class 1, by a probability of 3/4."""

  def __init__(self):
    self.logits = nnx.Variable(jnp.log(jnp.array([0.25, 0.75])))

  def __call__(self, images):
    return jnp.broadcast_to(self.logits[...], (len(images), 2))


@pytest.mark.parametrize("num_right", [3, 1])
def test_calibration_is_the_distance_of_confidence_from_accuracy(
  run, num_right
):
  labels = np.int32(np.arange(4) < num_right)
  images = np.zeros((4, 4, 4, 1), np.uint8)
  test = data.Dataset(images, labels, 2, {})
  scores = calibration.calibration(run, golden_cases.classifier(test, Unsure()))
  assert scores["mean_confidence"] == pytest.approx(0.75)
  assert scores["accuracy"] == num_right / 4
  error = scores["expected_calibration_error"]
  assert error == pytest.approx(0.75 - num_right / 4, abs=1e-6)
  assert scores["confidence_share"] == [1.0] and scores["num_images"] == 4
  brier = 2 * (num_right * 0.25**2 + (4 - num_right) * 0.75**2) / 4
  assert scores["brier_score"] == pytest.approx(brier)


def test_novel_viewpoints_are_those_that_are_not_familiar(run):
  test = dots(RIGHT, RIGHT, RIGHT, RIGHT, label=RIGHT)
  factors = {
    "label_azimuth": np.array([0, 2, 4, 6]),
    "label_elevation": np.array([0, 0, 1, 1]),
  }
  some = golden_cases.classifier(
    test._replace(factors=factors), WhereIsInk(),
    familiar=lambda factors: factors["label_azimuth"] < 4,
  )._replace(measures={"accuracy": np.array([1.0, 1.0, 1.0, 0.0])})  # fmt: skip
  scores = viewpoints.viewpoints(run, some)
  assert scores["num_familiar"] == scores["num_novel"] == 2
  assert scores["test_familiar_accuracy"] == 1
  assert scores["test_novel_accuracy"] == 0.5
  assert scores["novel_error_percent"] == 50
  scores |= {"num_familiar": 3, "num_novel": 1}
  num_images = models.images_of(some, scores, viewpoints.viewpoints.counts)
  for name in ("test_familiar_accuracy", "familiar_error_percent"):
    assert num_images[name] == 3
  for name in ("test_novel_accuracy", "novel_error_percent"):
    assert num_images[name] == 1
  assert num_images["novel_gap_percent"] == 4
  assert scores["azimuth_accuracy"] == [1, 1, 1, 0]
  assert scores["elevation_accuracy"] == [1, 0.5]
  assert np.diff(scores["azimuth"]).tolist() == [20 * 2] * 3


class MiddlePixel(nnx.Module):
  """Scores of 1 for class 0, and of the middle pixel for class 1."""

  def __call__(self, images):
    middle = 20 * images[:, 16, 16, 0]
    return jnp.stack([jnp.ones(len(images)), middle], axis=1)


@pytest.mark.parametrize("crop_last", [False, True])
def test_scores_of_crops_are_averaged(run, crop_last):
  """The middle of 13 crops shows a dot that only one of them has there."""
  images = np.zeros((5, 48, 48, 1), np.uint8)
  images[[0, 4], 24, 24] = 255  # of 20, for a mean above 1
  images[[1, 2], 24, 24] = 51  # of 4
  images[3, 27, 27] = 255  # in the last crop, which is not that of the centre
  test = data.Dataset(
    images, np.ones(5, np.int32), 2, {"label_azimuth": np.arange(5)}
  )
  steps = Preprocessing(downsample=48, crop=32, crop_last=crop_last)
  some = golden_cases.classifier(
    test, MiddlePixel(), familiar=lambda factors: factors["label_azimuth"] > 3,
    steps=lambda shape: steps,
    scores=lambda model, images: model(jax.vmap(steps.normalise)(images)),
  )  # fmt: skip
  assert viewpoints.multi_crop(run, some) == {
    "multi_crop_accuracy": 2 / 4,
    "centre_crop_accuracy": 3 / 4,
    "num_images": 4,
  }


def test_information_needs_two_images_of_a_class():
  values = np.random.default_rng(0).normal(size=(6, 3))
  for labels, known in ((np.arange(6), False), (np.arange(6) // 2, True)):
    scores = latents._knowledge(values, labels % 3, values, labels)
    assert ("mean_information" in scores) == known
    assert "probe_accuracy" in scores


def test_estimated_information_is_in_bits_too():
  labels = np.arange(200) % 2
  values = np.random.default_rng(0).normal(size=(200, 2))
  values[:, 0] += 20 * labels
  scores = latents._knowledge(values, labels, values, labels)
  assert scores["best_information"] == pytest.approx(1, abs=0.05)
  assert scores["mean_information"] == pytest.approx(0.5, abs=0.1)


def test_information_is_in_bits():
  labels = np.array([0, 0, 1, 1])
  tells, silent, half = np.array([0, 0, 1, 1.0]), np.zeros(4), np.full(4, 0.5)
  some = np.array([0, 0, 0.5, 0.5])  # H(1/4) - H(1/2) / 2
  got = latents.information(np.stack([tells, silent, half, some], 1), labels)
  want = -(0.25 * np.log2(0.25) + 0.75 * np.log2(0.75)) - 0.5
  np.testing.assert_allclose(got, [1, 0, 0, want], atol=1e-6)
  quarters = np.eye(4)[:, :1]
  got = latents.information(quarters, np.arange(4))
  np.testing.assert_allclose(got, [2 - 0.75 * np.log2(3)], atol=1e-6)


def test_standard_errors_are_of_the_mean_over_images():
  bounds = np.arange(8.0)

  class Constant(nnx.Module):
    def bound(self, key, images, num_samples):
      return jnp.asarray(bounds), jnp.asarray(bounds) + 1

  scores = latents._bounds(Constant(), jnp.zeros((8, 1)), "_of")
  want = np.std(bounds, ddof=1) / np.sqrt(8)
  assert scores["elbo_of"] == 3.5 and scores["importance_bound_of"] == 4.5
  for name in ("elbo", "importance_bound"):
    assert scores[f"{name}_of_standard_error"] == pytest.approx(want)
  # One image has no spread.
  bounds = bounds[:1]
  scores = latents._bounds(Constant(), jnp.zeros((1, 1)), "_of")
  assert scores.keys() == {"elbo_of", "importance_bound_of"}


@pytest.mark.parametrize("degrees", [30.0, -30.0, 90.0])
@pytest.mark.long_after_first
def test_owners_of_pixels_are_turned_back(monkeypatch, degrees):
  """Halves of a disc, each of one part, keep their parts when it is turned."""
  y, x = np.mgrid[-7:8, -7:8]
  disc = (x**2 + y**2 <= 36).astype(np.float32)
  halves = np.stack([disc * (x < 0), disc * (x >= 0)], axis=-1)
  image = jnp.asarray(halves[None])
  rotate = jax.vmap(generative_rotations.views.rotate, (0, None))
  both = image, rotate(image, degrees)
  monkeypatch.setattr(generative_rotations, "_intensities", lambda _, x: x)

  def share(angle):
    counts = generative_rotations._owners(None, both, jnp.array([angle]))
    assert int(counts["inked"][0]) > 80
    return float(counts["kept"][0] / counts["inked"][0])

  assert share(degrees) > 0.93 and share(-degrees) < 0.75


def test_multimnist_counts_both_classes_and_each():
  scores = jnp.array([[0.9, 0.8, 0.1], [0.9, 0.1, 0.8], [0.1, 0.9, 0.8]])
  labels = jnp.array([[0, 1], [0, 1], [1, 0]])
  verdict = pairs.verdict(scores, labels)
  np.testing.assert_array_equal(verdict["accuracy"], [1, 0, 0])
  np.testing.assert_allclose(verdict["found"], [1, 0.5, 0.5])


def test_a_class_that_is_shown_as_absent_is_never_in_the_image():
  """With few classes it may be predicted."""
  labels = jnp.array([[0, 1], [0, 2], [0, 1]])
  predictions = jnp.array([[0, 1], [1, 2], [2, 0]])
  absent = functools.partial(multimnist.absent_classes, labels, predictions)
  np.testing.assert_array_equal(absent(3), [2, 1, 2])
  np.testing.assert_array_equal(absent(4), [2, 3, 3])


def test_draws_of_a_view_and_of_the_test_set_have_the_same_keys():
  test = dots(RIGHT, TOP, label=RIGHT)

  def sample(key, index, images, labels):
    noise = jax.random.uniform(key, ())
    return train_step.as_intensities(images[index]) + noise, labels[index]

  some = golden_cases.classifier(test, WhereIsInk())
  drawn, _ = models.make_examples(some, sample, np.arange(2))

  def measure(model, images, labels):
    return {"mean": jnp.mean(images, axis=(1, 2, 3))}

  evaluate = task.make_evaluate(measure, sample, 2)
  seen = evaluate(some.model, test.images, test.labels)["mean"]
  np.testing.assert_allclose(np.mean(drawn, axis=(1, 2, 3)), seen, rtol=1e-5)
