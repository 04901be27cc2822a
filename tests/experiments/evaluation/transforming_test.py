"""Coordinates and shifts of constructed models, whose answers are known."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import capjax
from capjax import data
from capjax.evaluation import views
from capjax.specs import Spec
from capjax.transforming import Recognised
from experiments.evaluation import models, transforming
from experiments.tasks import transforming as transforming_task
from experiments.training.loop_config import LoopConfig

SIDE = 13
DOT = {"x": 2, "y": -1}  # pixels from the middle
LIMITS = transforming_task.Movements(max_jitter=2, max_shift=2)


class TwoCapsules(nnx.Module):
  """One is absent and at random places, one is at the ink's centre of mass.

  Images are shifted without error.
  """

  pose = "shift"

  def recognise(self, images):
    axis = jnp.arange(SIDE) - SIDE // 2
    total = jnp.sum(images, axis=(1, 2, 3))
    x = jnp.einsum("bhwc, w -> b", images, axis) / total
    y = jnp.einsum("bhwc, h -> b", images, axis) / total
    centre = jnp.stack([x, y], axis=1)
    noise = 9 * jnp.sin(40 * centre + 70 * centre[:, ::-1])
    poses = jnp.stack([noise, centre], axis=1)
    return Recognised(poses, jnp.tile(jnp.array([0.0, 1.0]), (len(x), 1)))

  def __call__(self, images, shifts):
    return jax.vmap(lambda image, shift: views.translate(image, *shift))(
      images, shifts
    )


def trained_on(images, labels=None):
  if labels is None:
    labels = np.zeros(len(images), np.int32)
  spec = Spec(capjax.TransformingAutoencoder, {"num_capsules": 2})
  task = transforming_task.make_task(spec, optax.sgd(0.1), movements=LIMITS)
  test = data.Dataset(images, labels, int(labels.max()) + 1, {})
  return models.Trained(
    task, LoopConfig(1, batch_size=len(images)), TwoCapsules(), 0, {}, test, {},
    load_train=lambda: test,
  )  # fmt: skip


@pytest.fixture
def drawn(monkeypatch):
  """What figures are given, by their name."""
  found = {}
  for name in ("coordinates", "errors"):
    monkeypatch.setattr(
      transforming.transforming,
      name,
      lambda *arguments, name=name: found.update({name: arguments}),
    )
  return found


def test_a_capsule_at_the_centre_of_mass_has_the_coordinates(run, drawn):
  images = np.zeros((60, SIDE, SIDE, 1), np.uint8)
  images[:, SIDE // 2 + DOT["y"], SIDE // 2 + DOT["x"]] = 255
  scores = transforming.coordinates(run, trained_on(images))
  for axis in "xy":
    absent = scores[f"r2_capsules_{axis}"][1]
    assert scores[f"r2_capsules_{axis}"][0] == pytest.approx(1) and absent < 0.5
    assert scores[f"slope_capsules_{axis}"][0] == pytest.approx(1, abs=1e-4)
    # The mean is that of the capsules that are present.
    assert scores[f"r2_weighted_{axis}"] == pytest.approx(1, abs=1e-4)
  panels, distance, _ = drawn["coordinates"]
  assert distance == 2
  for panel in panels:
    dot = DOT[panel.name]
    np.testing.assert_allclose(panel.own, panel.truth + dot, atol=1e-4)
    np.testing.assert_allclose(panel.readout, panel.truth, atol=1e-3)
    np.testing.assert_allclose(panel.still, dot, atol=1e-4)
    np.testing.assert_allclose(panel.shifted, dot + 2, atol=1e-4)


def _unmoved(image, distance):
  """The error of an unmoved image, relative to it after each of four shifts."""
  wide = np.pad(image, distance)
  rows, columns = image.shape
  shares = []
  for row, column in ((0, 1), (2, 1), (1, 0), (1, 2)):
    moved = wide[row * distance :, column * distance :][:rows, :columns]
    shares.append(np.sum((moved - image) ** 2) / np.sum(moved**2))
  return np.mean(shares)


def test_errors_of_images_shifted_in_four_directions(run, drawn, monkeypatch):
  """Ink is wider than high, and leaves the image to the left first."""
  monkeypatch.setattr(transforming, "_plot_shifts", lambda *_: None)
  images = np.zeros((2, SIDE, SIDE, 1), np.uint8)
  images[:, 4:8, 1:8] = 255
  images[:, 5, 9] = 102
  scores = transforming.unseen_shifts(run, trained_on(images))
  assert scores["distance"] == list(range(2 + 2 + 3 + 1))
  np.testing.assert_allclose(scores["relative_error"], 0, atol=1e-6)
  want = [_unmoved(images[0, ..., 0] / 255, n) for n in range(8)]
  np.testing.assert_allclose(
    scores["relative_error_unmoved"], want, rtol=1e-4, atol=1e-6
  )
  distances, lines, ends, _ = drawn["errors"]
  np.testing.assert_array_equal(distances, scores["distance"])
  assert list(lines["not shifted"]) == scores["relative_error_unmoved"]
  assert ends == {"shifts trained": 2, "places trained": 4}


def test_targets_are_shown_above_outputs_from_left_to_right(run, monkeypatch):
  """Of the first image of each of at most four classes."""
  given = []
  monkeypatch.setattr(
    transforming.curves, "contact_sheet", lambda *x: given.extend(x)
  )
  labels = np.array([3, 1, 1, 0, 2, 4], np.int32)
  images = np.zeros((6, SIDE, SIDE, 1), np.uint8)
  images[np.arange(6), 4 + np.arange(6), SIDE // 2] = 255
  transforming._plot_shifts(run, trained_on(images, labels), 4)
  rows, names, shifts, path = given
  assert names == ["target", "output"] * 4
  assert shifts == [
    "-4 unseen", "-3 unseen", "-2", "-1", "+0", "+1", "+2", "+3 unseen",
    "+4 unseen",
  ]  # fmt: skip
  assert path == run.figure("shifted")
  # The places of the dots: the rows of images 0, 1, 3 and 4.
  want = [(row, SIDE // 2 + x) for row in (4, 5, 7, 8) for x in range(-4, 5)]
  for kind in (rows[::2], rows[1::2]):
    flat = kind.reshape(len(want), SIDE, SIDE)
    dots = [np.unravel_index(np.argmax(x), x.shape) for x in flat]
    assert [tuple(map(int, x)) for x in dots] == want
    np.testing.assert_allclose(flat.sum((1, 2)), 1, atol=1e-5)


def test_a_few_labels_name_groups_of_places(run):
  """Dots in two corners: the outputs of the capsules are two groups."""
  random = np.random.default_rng(0)
  labels = np.arange(200, dtype=np.int32) % 2
  images = np.zeros((200, SIDE, SIDE, 1), np.uint8)
  rows, columns = 2 + 8 * labels + random.integers(-1, 2, (2, 200))
  images[np.arange(200), rows, columns] = 255
  own = trained_on(images, labels)
  scores = transforming.few_labels(run, own)
  assert scores["num_images"] == 200 and scores["num_labels"][0] <= 25
  assert scores["central_accuracy_capsules"] == 1
  for way in ("analysers", "linear"):
    assert len(scores[f"{way}_accuracy_capsules"]) == len(scores["num_labels"])
    assert scores[f"{way}_accuracy_capsules"][-1] == 1
    assert scores[f"{way}_accuracy_sd_capsules"][-1] == 0
  # Labels of the training images are what is spread.
  swapped = data.Dataset(images, 1 - labels, 2, {})
  own = own._replace(load_train=lambda: swapped)
  assert transforming.few_labels(run, own)["central_accuracy_capsules"] == 0


def test_components_of_pixels_keep_their_scales(run, monkeypatch):
  """Outputs of capsules get one scale each; noise of pixels weighs little."""
  given = []

  def classify(features, *rest):
    del rest
    given.append(features)
    return {"counts": [2], "central_accuracy": 0.0}

  monkeypatch.setattr(transforming, "_few_labels", classify)
  random = np.random.default_rng(0)
  labels = np.arange(200, dtype=np.int32) % 2
  images = random.integers(0, 60, (200, SIDE, SIDE, 1), np.uint8)
  bright = (np.arange(SIDE) < SIDE // 2) == (labels[:, None] == 0)
  images += (90 * bright[:, None, :, None]).astype(np.uint8)
  transforming.few_labels(run, trained_on(images, labels))
  capsules, components = (x.std(axis=0) for x in given)
  np.testing.assert_allclose(capsules[capsules > 0.01], 1, rtol=1e-4)
  assert len(components) == len(capsules) > 2
  assert components[0] > 3 * components[1]


def test_coordinates_of_matrices_are_their_last_column():
  poses = np.zeros((1, 1, 3, 3))
  poses[0, 0, 0, 2], poses[0, 0, 1, 2] = 5, 7
  poses[0, 0, 2] = 3, 9, 1
  found = [transforming._coordinate({"poses": poses}, x)[0, 0] for x in "xy"]
  assert found == [5, 7]


def test_products_weight_coordinates_by_presence():
  outputs = {
    "poses": np.array([[[0.0, 1.0], [2.0, 3.0]]]),
    "presences": np.array([[0.5, 2.0]]),
  }
  np.testing.assert_array_equal(
    transforming._products(outputs)[0], [0, 1, 0, 0.5, 0.5, 2, 3, 4, 6, 2]
  )


def _line(x, y):
  """The least-squares line from x to y."""
  return np.polynomial.Polynomial.fit(x, y, 1)


def _share(predicted, truth):
  """R^2, the explained share of the variance."""
  return 1 - np.mean((predicted - truth) ** 2) / np.var(truth)


@pytest.mark.parametrize("name", ["x", "y"])
def test_capsules_are_ordered_by_what_they_tell_of_training_images(name):
  """The second is best there; on test images it is worse than the third."""
  random = np.random.default_rng(0)
  axis = "xy".index(name)
  noise = {"learnt": [3.0, 0.1, 1.0], "tested": [2.0, 4.0, 0.2]}
  outputs, shifts = {}, {}
  for kind, scales in noise.items():
    shift = random.normal(size=80)
    poses = random.normal(size=(80, 3, 2))
    poses[:, :, axis] *= scales
    poses[:, :, axis] += shift[:, None] * [1.0, -2.0, 0.5]
    mass = random.normal(size=(80, 2))
    mass[:, axis] += shift
    presences = random.uniform(size=(80, 3))
    outputs[kind] = {"poses": poses, "presences": presences, "mass": mass}
    shifts[kind] = shift
  scores, best = transforming._by_capsules(
    name, *outputs.values(), *shifts.values()
  )
  own, others = (x["poses"][:, :, axis] for x in outputs.values())
  truth, seen = shifts.values()
  lines = [_line(x, truth) for x in own.T]
  learnt = [_share(f(x), truth) for f, x in zip(lines, own.T, strict=True)]
  tested = [_share(f(x), seen) for f, x in zip(lines, others.T, strict=True)]
  order = [1, 2, 0]
  assert learnt[1] > learnt[2] > learnt[0] and tested[2] > tested[1]
  assert best == 1
  np.testing.assert_allclose(
    scores[f"r2_capsules_{name}"], np.array(tested)[order], rtol=1e-4
  )
  slopes = [_line(seen, x).convert().coef[1] for x in others.T]
  np.testing.assert_allclose(
    scores[f"slope_capsules_{name}"], np.array(slopes)[order], rtol=1e-4
  )
  weights = [x["presences"] for x in outputs.values()]
  for key, (one, other) in {
    "mass": [x["mass"][:, axis] for x in outputs.values()],
    "weighted": [
      np.sum(x * w, axis=1) / np.sum(w, axis=1)
      for x, w in zip((own, others), weights, strict=True)
    ],
  }.items():
    want = _share(_line(one, truth)(other), seen)
    assert scores[f"r2_{key}_{name}"] == pytest.approx(want, rel=1e-3)
  known, unknown = (
    np.pad(x, ((0, 0), (0, 1)), constant_values=1) for x in (own, others)
  )
  want = unknown @ np.linalg.lstsq(known, truth, rcond=None)[0]
  assert scores[f"r2_coordinates_{name}"] == pytest.approx(_share(want, seen))


def test_entries_of_matrices_have_the_names_of_their_rows_and_columns(
  run, drawn, monkeypatch
):
  """Each score is the mean of its entry, which counts them row by row."""
  spread = np.linspace(-1, 1, 5)[:, None, None]
  place = np.arange(9.0).reshape(3, 3) + spread
  outputs = {
    "poses": np.random.default_rng(0).normal(size=(5, 2, 3, 3)),
    "presences": np.ones((5, 2)),
    "place": place,
    "mass": np.zeros((5, 2)),
  }
  monkeypatch.setattr(transforming, "_outputs", lambda *_: outputs)
  monkeypatch.setattr(
    transforming, "_regress", lambda x, truth, y, seen: (seen, np.mean(seen))
  )
  trained = trained_on(np.zeros((5, SIDE, SIDE, 1), np.uint8))
  trained.model.pose = "affine"
  scores = transforming.coordinates(run, trained)
  names = {"xx": 0, "xy": 1, "x": 2, "yx": 3, "yy": 4, "y": 5}
  assert {name: scores[f"r2_{name}"] for name in names} == pytest.approx(names)
  assert [panel.name for panel in drawn["coordinates"][0]] == ["x", "y"]
