"""Suites for transforming auto-encoders: what their coordinates encode."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from etils import epy

from capjax import losses
from capjax.evaluation import clustering, factor_analysers, views
from capjax.kernels import geometry, rendering

from ..figures import curves, transforming
from ..run import directory
from ..training import task as tasks
from ..training import train_step
from ..training.movements import Moved, as_transforms
from . import models, pixels
from .models import Options, Scores, Trained
from .suite import suite

with epy.lazy_imports():  # these take seconds, and --help needs none
  from sklearn import linear_model, preprocessing

# Entries of a movement [3 3]: the position, and the linear part.
_PLACE = {"x": (0, 2), "y": (1, 2)}
_STRETCH = {"xx": (0, 0), "xy": (0, 1), "yx": (1, 0), "yy": (1, 1)}
_NUM_IMAGES = 10_000  # to which regressions and analysers are fitted
_NUM_MOVED = 1000  # images moved to each place
_BEYOND = 3  # pixels beyond the largest shift in training
_NUM_SHOWN = 4  # images in figures
_NUM_ANALYSERS = 25
_NUM_FACTORS = 10


@suite("images", require=models.enough(at_least=2))
def coordinates(
  run: directory.Run, trained: Trained, options: Options
) -> Scores:
  """Measures how well the position of an input follows from the capsules.

  Linear regression predicts the shift of an input in pixels; for affine poses
  also its matrix. It is fitted on the first training images, moved, including
  those for validation. Plots the predictions for test images, and, as in the
  paper's figure 2, the coordinate of one capsule after a shift against its
  coordinate before the shift.

  Returns:
    R^2 of x and of y on test images: `r2` from the coordinates and presences of
    all capsules and their products; `r2_coordinates` from coordinates alone;
    `r2_weighted` from the mean coordinate, weighted by presence; `r2_capsules`
    from the coordinate of each capsule alone, in falling order of R^2 on the
    training images; `r2_mass` from the centre of mass of the image, as a
    baseline without capsules. `slope_capsules`, in the order of `r2_capsules`:
    the change of a capsule's coordinate for each pixel of shift, which is 1 for
    a capsule that stays on the same entity. For affine poses also `r2` of the
    matrix.
  """
  learnt = _outputs(trained, _train_images(trained), trained.task.sample_test)
  images = trained.test.images[: options.images]
  tested = _outputs(trained, images, trained.task.sample_test)
  names = _PLACE
  if trained.model.pose == "affine":
    names = {**_PLACE, **_STRETCH}
  distance = trained.task.options["movements"].max_shift or 1
  scores, panels = {"num_images": len(images)}, []
  for name, entry in names.items():
    truth, seen = (x["place"][:, *entry] for x in (learnt, tested))
    readout, scores[f"r2_{name}"] = _regress(
      _products(learnt), truth, _products(tested), seen
    )
    if name not in _PLACE:
      continue
    of_one, best = _by_capsules(name, learnt, tested, truth, seen)
    scores |= of_one
    still, shifted = (
      _coordinate(
        _outputs(trained, images, _sample_shifted(trained, name, far)), name
      )
      for far in (0, distance)
    )
    others = _coordinate(tested, name)
    panels.append(
      transforming.Axis(
        name, seen, readout, others[:, best], still[:, best], shifted[:, best]
      )
    )
  transforming.coordinates(panels, distance, run.figure("coordinates"))
  return scores


@suite("images")
def unseen_shifts(
  run: directory.Run, trained: Trained, options: Options
) -> Scores:
  """Measures the error for shifts larger than those in training.

  Centred test images are shifted left, right, up and down. Plots the outputs
  for four images, and the error against the distance.

  Returns:
    For each distance in pixels, the squared error divided by the sum of squares
    of the target, of the model's output and of the unshifted image; the means
    of the first over the distances in training and over larger ones.
  """
  movements = trained.task.options["movements"]
  known, jitter = movements.max_shift, movements.max_jitter
  side = min(models.canvas(trained)[:2])
  distances = np.arange(min(known + jitter + _BEYOND, side - 1) + 1)
  images = trained.test.images[: options.images or _NUM_MOVED]
  directions = np.array([(1, 0), (-1, 0), (0, 1), (0, -1)], np.float32)
  error, unmoved = _shift_errors(
    trained, images, distances[:, None, None] * directions
  )
  transforming.errors(
    distances,
    {"shifted by the model": error, "not shifted": unmoved},
    {"shifts trained": known, "places trained": known + jitter},
    run.figure("unseen_shifts"),
  )
  _plot_shifts(run, trained, distances[-1])
  beyond = distances > known
  return {
    "num_images": len(images),
    "distance": distances.tolist(),
    "relative_error": error.tolist(),
    "relative_error_unmoved": unmoved.tolist(),
    "seen_relative_error": float(np.mean(error[~beyond])),
    "unseen_relative_error": float(np.mean(error[beyond])),
  }


@suite("images", labelled=True)
def few_labels(
  run: directory.Run, trained: Trained, options: Options
) -> Scores:
  """Measures accuracy of classification with few labels, by factor analysers.

  A mixture of 25 factor analysers is fitted, without labels, to the outputs of
  the capsules for the first training images, centred, including those for
  validation. A few labels give each analyser a class, and
  a test image takes the class of its most probable analyser. Slides of a talk
  on capsules (E. Mintun) mention about 25 labels; they give neither the numbers
  of analysers and factors nor how the labels were chosen. For comparison, the
  same is done with as many principal components of the pixels, which are the
  same in all runs (see `pixels.components`), and with logistic regression.

  Returns:
    Accuracies on test images for each number of labels, sampled evenly from the
    classes: from `capsules` and from `pixels`, by `analysers` and by `linear`;
    their standard deviations over ten samples. `central`: with the labels of
    the 25 training images that are most probable under each analyser.
  """
  train = trained.load_train()
  first = slice(None, _NUM_IMAGES)
  images, labels = train.images[first], train.labels[first]
  tests, test_labels = models.first(trained, options.images)
  learnt, tested = (
    _outputs(trained, x, _sample_shifted(trained, "x", 0))
    for x in (images, tests)
  )
  own, others = _flat(learnt), _flat(tested)
  scaler = preprocessing.StandardScaler().fit(own)
  known, seen = (x.reshape(len(x), -1) / 255 for x in (images, tests))
  features = {
    "capsules": (scaler.transform(own), scaler.transform(others)),
    "pixels": pixels.components(known, seen, min(own.shape)),
  }
  scores = {}
  for name, (own, others) in features.items():
    given = own, labels, others, test_labels
    scores |= {f"{key}_{name}": x for key, x in _few_labels(*given).items()}
  return {
    "num_images": len(tests),
    "num_labels": scores["counts_capsules"],
    **{n: x for n, x in scores.items() if not n.startswith("counts")},
  }


SUITES = (
  coordinates,
  unseen_shifts,
  few_labels,
)


def _by_capsules(
  name: str,
  learnt: dict[str, np.ndarray],
  tested: dict[str, np.ndarray],
  truth: np.ndarray,
  seen: np.ndarray,
) -> tuple[Scores, int]:
  """R^2 of a coordinate from simpler readouts, and from each capsule alone.

  Args:
    name: of the coordinate, one of `_PLACE`.
    learnt: outputs for training images.
    tested: outputs for test images.
    truth: [N], the shifts of the training images.
    seen: [M], those of the test images.

  Returns:
    The scores, and the capsule with the highest R^2 on training images.
  """
  own, others = (_coordinate(x, name) for x in (learnt, tested))
  weighted = [
    np.average(x, axis=1, weights=output["presences"] + 1e-6)[:, None]
    for x, output in ((own, learnt), (others, tested))
  ]
  alone = np.array(
    [
      _regress(own[:, [n]], truth, others[:, [n]], seen)[1]
      for n in range(own.shape[1])
    ]
  )
  axis = [list(_PLACE).index(name)]
  masses = learnt["mass"][:, axis], truth, tested["mass"][:, axis], seen
  learnt_alone = [
    _regress(own[:, [n]], truth, own[:, [n]], truth)[1]
    for n in range(own.shape[1])
  ]
  order = np.argsort(-np.array(learnt_alone))
  slopes = np.polyfit(seen, others, 1)[0]
  scores = {
    f"r2_coordinates_{name}": _regress(own, truth, others, seen)[1],
    f"r2_weighted_{name}": _regress(weighted[0], truth, weighted[1], seen)[1],
    f"r2_mass_{name}": _regress(*masses)[1],
    f"r2_capsules_{name}": alone[order].tolist(),
    f"slope_capsules_{name}": slopes[order].tolist(),
  }
  return scores, order[0]


def _few_labels(features, labels, tests, test_labels) -> Scores:
  """Accuracies by analysers, by regression, and with one label an analyser."""
  mixture = factor_analysers.fit_factor_analysers(
    features,
    num_analysers=min(_NUM_ANALYSERS, len(features)),
    num_factors=min(_NUM_FACTORS, features.shape[1] - 1),
  )
  joint, test_joint = map(mixture.log_joint, (features, tests))

  def by_analysers(rows, shown):
    return clustering.spread_labels(joint[rows], shown, test_joint)

  def by_regression(rows, shown):
    probe = linear_model.LogisticRegression(max_iter=1000)
    return probe.fit(features[rows], shown).predict(tests)

  ways = {"analysers": by_analysers, "linear": by_regression}
  scores = {}
  for name, predict in ways.items():
    curve = clustering.few_label_curve(predict, labels, test_labels)
    scores["counts"] = list(curve.counts)
    scores[f"{name}_accuracy"] = curve.mean.tolist()
    scores[f"{name}_accuracy_sd"] = curve.sd.tolist()
  central = np.argmax(joint, axis=0)
  found = by_analysers(central, labels[central])
  scores["central_accuracy"] = float(np.mean(found == test_labels))
  return scores


def _train_images(trained: Trained) -> np.ndarray:
  train = trained.load_train()
  return train.images[:_NUM_IMAGES]


def _outputs(trained, images, sample) -> dict[str, np.ndarray]:
  """Poses, presences and places for images that are sampled."""

  def measure(model, inputs, targets):
    del targets
    poses, presences = model.recognise(inputs.image)
    return {
      "poses": poses,
      "presences": presences,
      "place": inputs.place,
      "mass": jax.vmap(_centre_of_mass)(inputs.image),
    }

  evaluate = tasks.make_evaluate(measure, sample, trained.config.batch_size)
  return evaluate(trained.model, images, np.zeros(len(images), np.int32))


def _centre_of_mass(image: jax.Array) -> jax.Array:
  """(x, y) of an image's centre of mass, in pixels from its centre."""
  offsets = geometry.pixel_offsets(*image.shape[:2])
  ink = jnp.mean(image, axis=-1, keepdims=True)
  total = jnp.maximum(jnp.sum(ink), 1e-6)
  return jnp.sum(ink * offsets, axis=(0, 1)) / total


def _sample_shifted(trained, name, distance) -> train_step.Sample:
  """Makes images that are all shifted to one place."""
  shift = distance * jnp.array([name == "x", name == "y"], jnp.float32)
  place = jnp.eye(3).at[:2, 2].set(shift)

  def sample(key, index, images, labels):
    del key, labels
    image = _prepared(trained, images[index])
    image = views.translate(image, *shift)
    return Moved(image, jnp.eye(3), place), image

  return sample


def _shift_errors(trained, images, shifts) -> tuple[np.ndarray, np.ndarray]:
  """Relative squared errors [S] for shifts [S directions 2] of centred images.

  Returns the errors of images that the model shifts, and of unshifted images.
  """

  def measure(model, inputs, targets):
    rendered = model(inputs.image, as_transforms(model, inputs.movement))
    return {
      "error": losses.reconstruction_loss(rendered, targets),
      "unmoved": losses.reconstruction_loss(inputs.image, targets),
      "target": jnp.sum(jnp.square(targets), axis=(1, 2, 3)),
    }

  def sample(key, index, images, labels, shift):
    del key, labels
    image = _prepared(trained, images[index])
    movement = jnp.eye(3).at[:2, 2].set(shift)
    return Moved(image, movement, jnp.eye(3)), views.translate(image, *shift)

  evaluate = tasks.make_evaluate(measure, sample, trained.config.batch_size)
  labels = np.zeros(len(images), np.int32)
  shares = []
  for shift in shifts.reshape(-1, 2).astype(np.float32):
    squares = train_step.means(evaluate(trained.model, images, labels, shift))
    target = max(squares["target"], 1e-8)
    shares.append((squares["error"] / target, squares["unmoved"] / target))
  shares = np.reshape(shares, (*shifts.shape[:2], 2))
  return tuple(np.moveaxis(shares.mean(axis=1), -1, 0))


def _plot_shifts(run, trained, farthest) -> None:
  """Plots targets above outputs, with shifts from left to right."""
  known = trained.task.options["movements"].max_shift
  shifts = np.unique(np.linspace(-farthest, farthest, 9).round().astype(int))
  images = _shown_images(trained)
  shift = jax.jit(lambda model, x, moves: model(x, as_transforms(model, moves)))
  rows = []
  for image in images:
    movements = np.tile(np.eye(3, dtype=np.float32), (len(shifts), 1, 1))
    movements[:, 0, 2] = shifts
    stack = jnp.broadcast_to(image, (len(shifts), *image.shape))
    rows.append(jax.vmap(rendering.transform)(stack, jnp.asarray(movements)))
    rows.append(shift(trained.model, stack, jnp.asarray(movements)))
  names = [f"{x:+d}" if abs(x) <= known else f"{x:+d} unseen" for x in shifts]
  curves.contact_sheet(
    np.stack(rows),
    ["target", "output"] * len(images),
    names,
    run.figure("shifted"),
  )


def _shown_images(trained) -> jax.Array:
  """A test image of each of a few classes; without labels the first few."""
  test = trained.test
  rows = np.arange(min(_NUM_SHOWN, len(test.labels)))
  if test.is_labelled:
    rows = np.sort(np.unique(test.labels, return_index=True)[1])[:_NUM_SHOWN]
  images = test.images[rows]
  return jax.vmap(functools.partial(_prepared, trained))(jnp.asarray(images))


def _prepared(trained, image) -> jax.Array:
  """An image [H W C] in [0, 1] in the middle of the model's canvas."""
  return trained.task.prepare(train_step.as_intensities(image))


def _coordinate(outputs, name) -> np.ndarray:
  """[N I], x or y of each capsule."""
  poses, axis = outputs["poses"], list(_PLACE).index(name)
  return poses[..., axis] if poses.ndim == 3 else poses[..., axis, 2]


def _flat(outputs) -> np.ndarray:
  """[N F], all outputs of the capsules, with all rows of their matrices."""
  poses, presences = outputs["poses"], outputs["presences"]
  return np.concatenate([poses.reshape(len(poses), -1), presences], axis=1)


def _products(outputs) -> np.ndarray:
  """Coordinates, presences and their products, [N F].

  If only one capsule is present, the place is nearly a linear function of them.
  """
  poses, presences = outputs["poses"], outputs["presences"]
  poses = poses.reshape(*presences.shape, -1)
  weighted = poses * presences[..., None]
  parts = [poses, weighted, presences[..., None]]
  return np.concatenate(parts, axis=-1).reshape(len(poses), -1)


def _regress(features, truth, tests, seen) -> tuple[np.ndarray, float]:
  """The predictions of linear regression on test examples, and their R^2."""
  model = linear_model.LinearRegression().fit(features, truth)
  return model.predict(tests), float(model.score(tests, seen))
