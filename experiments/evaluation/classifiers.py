"""Suites for classifiers: accuracy, also on images unlike those of training.

Each suite but `accuracy` plots into the run's folder, together with the curves
of the runs that the user compares with.
"""

import functools
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from capjax import data
from capjax.data.transforms import affnist
from capjax.evaluation import attacks as attacking
from capjax.evaluation import views as viewing

from ..figures import curves
from ..run import directory
from ..training import task as tasks
from ..training import train_step
from . import models, transfer
from .models import Options, Scores, Trained
from .suite import Main, suite

_EPSILONS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4)
_NUM_ATTACKED, _ATTACKED_AT_ONCE = 500, 100
_ATTACKS = {"fgsm": attacking.fgsm, "bim": attacking.bim}
_ANGLES = tuple(range(-90, 91, 15))
_MOVES = {
  "rotation (degrees)": (viewing.rotate, _ANGLES),
  "shift (pixels)": (
    lambda image, x: viewing.translate(image, x, 0),
    tuple(range(-8, 9, 2)),
  ),
  "scale": (viewing.scale, tuple(np.linspace(0.5, 1.5, 9))),
}
_NUM_SHOWN = 10  # images in each row of a sheet
_DIGITS = tuple("0123456789")  # the names of affNIST's classes
_SHOWN_VIEWS = 4  # rows of the sheet of affine views


@suite()
def accuracy(run: directory.Run, trained: Trained, options: Options) -> Scores:
  """Reports the mean scores on the test set and on the validation set."""
  del run, options
  scores = models.means(trained)
  return {**scores, "test_error_percent": 100 * (1 - scores["test_accuracy"])}


@suite(
  "images",
  "views",
  main=Main("affnist_like_accuracy", "affNIST-like views, {canvas} (%)", 100.0),
  counts={"affnist_accuracy": "num_affnist"},
)
def affnist_like(
  run: directory.Run, trained: Trained, options: Options
) -> Scores:
  """Measures accuracy on random affine views of the test images, as in affNIST.

  Sabour et al. (2017, section 5.2). The views are sampled from the distribution
  of affNIST's and placed on the model's canvas. Where the folder of data sets
  holds `affnist`, the images of affNIST are classified too, by a model of grey
  digits that takes images of 40x40.

  Returns:
    Accuracy on the views, and on the unchanged test images.
  """
  canvas = models.canvas(trained)[:2]
  official = _official(trained)
  sample = models.sample_affine_view(trained)
  images, labels = models.first(trained, options.images)
  evaluate = _evaluator(trained, sample)
  right = evaluate(trained.model, images, labels, views=options.views)
  scores = {
    "affnist_like_accuracy": float(np.mean(right["accuracy"])),
    "clean_accuracy": float(
      np.mean(trained.measures["accuracy"][: len(images)])
    ),
    "views": options.views,
    "num_images": len(images),
    "num_rows": canvas[0],
  }
  if official:
    evaluate = _evaluator(trained, train_step.sample_labelled(lambda _, x: x))
    right = evaluate(trained.model, official.images, official.labels)
    scores["affnist_accuracy"] = float(np.mean(right["accuracy"]))
    scores["num_affnist"] = len(official.images)
  # A column for each image; the rows are the first of the views scored above.
  columns = np.arange(len(images))[:_NUM_SHOWN]
  rows = np.arange(min(options.views, _SHOWN_VIEWS))
  numbers = (columns * options.views + rows[:, None]).ravel()
  keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(0), numbers)
  views, shown_labels = jax.vmap(sample, (0, 0, None, None))(
    keys, numbers // options.views, jnp.asarray(images), jnp.asarray(labels)
  )
  names = [f"view {n + 1}" for n in rows]
  _sheet(run, trained, "affnist_like", views, shown_labels, names)
  return scores


def _official(trained: Trained) -> data.Dataset | None:
  """The images of affNIST, if they are there and the model takes them."""
  folder = pathlib.Path(trained.data_dir or ".").expanduser() / "affnist"
  if not folder.exists():
    return None
  height, width, channels = models.canvas(trained)
  if channels != 1 or trained.test.class_names != _DIGITS:
    print(f"{folder} is left out: this model does not take grey digits")
    return None
  if (height, width) != (40, 40):
    print(
      f"{folder} is left out: its images are 40x40, and this model takes "
      f"{height}x{width}. Train with --canvas=40"
    )
    return None
  return affnist.read(folder)


@suite("images", compares=True)
def views(run: directory.Run, trained: Trained, options: Options) -> Scores:
  """Measures accuracy against rotation, shift and scale of the test images.

  Returns:
    For each of the three, its values and the accuracy at each value.
  """
  images, labels = models.first(trained, options.images)
  scores, shown, names, panels = {"num_images": len(images)}, [], [], []
  for axis, (move, values) in _MOVES.items():

    def sample(key, index, images, labels, value, move=move):
      del key
      image = trained.task.prepare(train_step.as_intensities(images[index]))
      return move(image, value), labels[index]

    evaluate = _evaluator(trained, sample)
    name = axis.partition(" ")[0]
    scores[name] = [float(value) for value in values]
    scores[f"{name}_accuracy"] = [
      float(
        np.mean(
          evaluate(trained.model, images, labels, np.float32(value))["accuracy"]
        )
      )
      for value in values
    ]
    panels.append((axis, name, f"{name}_accuracy"))
    for value in values[:: (len(values) - 1) // 4]:
      first, their_labels = images[:_NUM_SHOWN], labels[:_NUM_SHOWN]
      moved, _ = jax.vmap(sample, (None, 0, None, None, None))(
        None,
        jnp.arange(len(first)),
        jnp.asarray(first),
        jnp.asarray(their_labels),
        value,
      )
      shown.append(moved)
      names.append(f"{name} {value:g}")
  repeated = np.tile(labels[:_NUM_SHOWN], len(names))
  _sheet(run, trained, "views_sheet", jnp.concatenate(shown), repeated, names)
  lines = compared(run, options, "views", scores)
  curves.accuracy_curves(
    [
      curves.Panel(
        "", axis, "accuracy (%)", lines_of(lines, x, y), counts_of(lines)
      )
      for axis, x, y in panels
    ],
    run.figure("views"),
    chance=1 / trained.test.num_classes,
  )
  return scores


@suite("images", "source", compares=True)
def attacks(run: directory.Run, trained: Trained, options: Options) -> Scores:
  """Measures accuracy under FGSM and BIM attacks of increasing strength.

  White-box FGSM, and BIM with 10 steps, for several eps. Untargeted attacks
  raise the loss of the true class; targeted attacks lower the loss of another
  class, sampled at random (Hinton et al., 2018, section 6). The loss is that
  of the scores, also for capsule networks: see `attacks.log_odds_against`.

  With `--source` the same attacks are also made on the model of that run and
  then tried on this model: black-box attacks by transfer.

  Returns:
    For each attack, by eps, the accuracy under the untargeted attack, and the
    share of images classified as the target under the targeted attack; and the
    same of the attacks on the source (`transfer_`).
  """
  images, labels = models.first(trained, options.images or _NUM_ATTACKED)
  images = jax.vmap(trained.task.prepare)(
    train_step.as_intensities(jnp.asarray(images))
  )
  targets = attacking.random_targets(
    jax.random.key(0), jnp.asarray(labels), trained.test.num_classes
  )

  attack = _make_attack(trained)
  own = trained.task.attack_loss, trained.model
  sources = {"": own}
  if options.source is not None:
    sources["transfer_"] = transfer.source(
      options.source, images.shape[1:], trained.test
    )
  scores = {"eps": list(_EPSILONS), "num_images": len(images)}
  for prefix, source in sources.items():
    for name in _ATTACKS:
      for kind, aims, targeted in (
        ("accuracy", jnp.asarray(labels), False),
        ("targeted_success", targets, True),
      ):
        rate = functools.partial(
          _rate, attack, name, source, images, aims, targeted=targeted
        )
        scores[f"{prefix}{name}_{kind}"] = list(map(rate, _EPSILONS))
  _show_attacks(run, trained, attack, images, labels)
  _plot_attacks(run, scores, compared(run, options, "attacks", scores))
  return scores


SUITES = (
  accuracy,
  affnist_like,
  attacks,
  views,
)


def _evaluator(trained: Trained, sample: train_step.Sample):
  def measure(model, images, labels):
    classes = jnp.argmax(trained.task.scores(model, images), axis=-1)
    return {"accuracy": (classes == labels).astype(jnp.float32)}

  return tasks.make_evaluate(measure, sample, trained.config.batch_size)


def _make_attack(trained: Trained):
  """A compiled attack: `(name, (loss, model), images, aims, eps, targeted)`.

  It returns the changed images, and whether this model assigns each to its
  class in `aims`: the true class, or the target of the attack. The loss and its
  model may be those of another network.
  """

  @functools.partial(jax.jit, static_argnums=(0, 1))
  def compiled(name, losses, attacked, model, images, aims, eps, targeted):
    loss = functools.partial(losses, attacked)
    moved = _ATTACKS[name](loss, images, aims, eps, targeted=targeted)
    classes = jnp.argmax(trained.task.scores(model, moved), axis=-1)
    return moved, classes == aims

  def attack(name, source, images, aims, eps, targeted):
    eps = jnp.float32(eps)
    return compiled(name, *source, trained.model, images, aims, eps, targeted)

  return attack


def _rate(attack, name, source, images, aims, eps, *, targeted) -> float:
  """The share of attacked images that the model assigns to their `aims`."""
  hits = [
    attack(name, source, *batch, eps, targeted)[1]
    for batch in zip(_batches(images), _batches(aims), strict=True)
  ]
  return float(np.mean(np.concatenate(hits)))


def _show_attacks(
  run: directory.Run,
  trained: Trained,
  attack: Any,
  images: jax.Array,
  labels: np.ndarray,
) -> None:
  """Plots a few images after BIM, for each eps."""
  own = trained.task.attack_loss, trained.model
  # The same batch as before, which is compiled already.
  first = _batches(images)[0], _batches(jnp.asarray(labels))[0]
  shown = [
    attack("bim", own, *first, eps, False)[0][:_NUM_SHOWN] for eps in _EPSILONS
  ]
  names = [f"eps {eps:g}" for eps in _EPSILONS]
  _sheet(
    run,
    trained,
    "attacks_sheet",
    jnp.concatenate(shown),
    np.tile(labels[:_NUM_SHOWN], len(names)),
    names,
    title="BIM, untargeted; ",
  )


def _plot_attacks(
  run: directory.Run, scores: Scores, lines: dict[str, Scores]
) -> None:
  """Plots the scores of attacks against eps, beside those of other runs.

  Attacks that were made on another network are in a figure of their own.
  """
  axis = "eps (pixels in [0, 1])"
  panels = [
    curves.Panel(
      f"{name.upper()}, {'targeted' if 'target' in kind else 'untargeted'}",
      axis,
      "success (%)" if "target" in kind else "accuracy (%)",
      lines_of(lines, "eps", f"{name}_{kind}"),
      counts_of(lines),
    )
    for kind in ("accuracy", "targeted_success")
    for name in _ATTACKS
  ]
  curves.accuracy_curves(panels, run.figure("attacks"))
  if not any(name.startswith("transfer_") for name in scores):
    return
  made = {"own network": "", "other network": "transfer_"}
  transferred = [
    curves.Panel(
      f"{name.upper()}, made on",
      axis,
      "accuracy (%)",
      {
        text: dict(
          zip(_EPSILONS, scores[f"{prefix}{name}_accuracy"], strict=True)
        )
        for text, prefix in made.items()
      },
      dict.fromkeys(made, scores["num_images"]),
    )
    for name in _ATTACKS
  ]
  curves.accuracy_curves(transferred, run.figure("attacks_transfer"))


def _batches(array: jax.Array) -> list[jax.Array]:
  return [
    array[start : start + _ATTACKED_AT_ONCE]
    for start in range(0, len(array), _ATTACKED_AT_ONCE)
  ]


def _sheet(
  run: directory.Run,
  trained: Trained,
  name: str,
  images: jax.Array,
  labels: np.ndarray,
  row_labels: Sequence[str],
  title: str = "",
) -> None:
  """Plots rows of images with the predicted classes."""
  scores = jax.jit(trained.task.scores)(trained.model, images)
  shape = (len(row_labels), -1)
  curves.contact_sheet(
    np.reshape(images, (*shape, *images.shape[1:])),
    row_labels,
    [""] * (len(images) // len(row_labels)),
    run.figure(name),
    labels=trained.test.named(np.reshape(labels, shape)),
    predictions=trained.test.named(
      np.reshape(np.argmax(scores, axis=-1), shape)
    ),
    title=f"{title}red: label → prediction",
  )


def compared(
  run: directory.Run, options: Options, suite: str, scores: Scores
) -> dict[str, Scores]:
  """The scores of this run and of the runs compared with it, by label."""
  every = [run, *options.compare_with]
  labels = models.distinct_labels(
    [one.workdir for one in every], [_label(one) for one in every]
  )
  others = [x.read_evaluation(suite)["metrics"] for x in options.compare_with]
  return dict(zip(labels, [scores, *others], strict=True))


def _label(run: directory.Run) -> str:
  """The label of a run in figures: its model, and any non-default routing."""
  given = run.flags()
  routing = given.get("routing", "dynamic")
  if "model" not in given:  # of a run without flags
    return run.noted("model")["model"]["class"].rpartition(".")[2]
  if given["model"] == "capsnet" and routing != "dynamic":
    return f"capsnet, {routing.replace('_', ' ')}"
  return given["model"]


def counts_of(scores: dict[str, Scores]) -> dict[str, int]:
  """By label, the number of images that a suite measured."""
  return {
    label: int(values["num_images"])
    for label, values in scores.items()
    if "num_images" in values
  }


def lines_of(
  scores: dict[str, Scores], x: str, y: str
) -> dict[str, dict[float, float]]:
  return {
    label: dict(zip(values[x], values[y], strict=True))
    for label, values in scores.items()
  }
