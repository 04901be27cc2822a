"""Makes the pictures of the documentation from records and trained weights.

`python -m experiments.gallery --data_dir=DIR` writes all of docs/figures, where
`DIR/mnist` holds MNIST; with `--only=NAME,...` some of them.
"""

import functools
import pathlib
import statistics
import sys
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from PIL import Image

from capjax import data, pretrained, scae
from capjax.evaluation import embedding as embeddings
from capjax.kernels import geometry, rendering
from capjax.layers import routers

from .evaluation import diagnostics, generative_rotations, shipped_images
from .figures import concepts, curves, examples, grids
from .figures import iterations as iteration_figures
from .figures import routings as figures
from .figures import scae as sketches
from .flags import limits
from .records import pages, tables
from .records import routings as table

_FOLDER = flags.DEFINE_string("folder", "docs/figures", "Folder to write to.")
_RESULTS = flags.DEFINE_string("results", "results", "Holds records/*.jsonl.")
_DATA_DIR = flags.DEFINE_string("data_dir", None, "Folder that holds mnist/.")
_RUNS = flags.DEFINE_string(
  "runs", None, "Folder of runs, for pictures of unpublished weights."
)
_ONLY = flags.DEFINE_list("only", [], "Names of pictures; by default all.")
_OF_RECORDS = flags.DEFINE_bool(
  "of_records", False, "Make only the pictures that need no data but records."
)

# Records by file name without seed, and the names of their models.
_VIEWED = {"mnist_cpu_scale_1": "CapsNet", "mnist_cpu_baseline": "CNN"}
_CALIBRATED = {
  "mnist_full_cpu": "CapsNet, MNIST",
  "mnist_cpu_baseline": "CNN, MNIST",
  "fashion_quarter": "CapsNet, Fashion-MNIST",
}
_NUM_FOLLOWED, _NUM_EMBEDDED = 100, 2000
_ROTATED = {
  0: "poses_digits_generative",
  **{n: f"generative_digits_{n}" for n in (45, 90, 180)},
}
_LIKELY = {
  "vae_mnist": "variational auto-encoder (importance bound)",
  "rbm_mnist_paper": "Bernoulli RBM, rate 0.02",
  "boltzmann_mnist_exact": "capsule RBM, exact posterior, rate 0.02",
  "boltzmann_mnist_paper": "capsule RBM, mean field, rate 0.02",
  "rbm_mnist": "Bernoulli RBM, rate 0.01",
  "boltzmann_mnist": "capsule RBM, mean field, rate 0.01",
}


def curve(stem: str, suite: str, x: str, y: str) -> dict[float, float]:
  """One metric against another, both curves, as means over the seeds."""
  named = pages.read(_RESULTS.value)
  points = (tables.curve(named, stem, suite, metric) for metric in (x, y))
  return dict(zip(*points, strict=True))


def records(stem: str, suite: str | None) -> Iterator[dict]:
  """Yields the metrics of each seed; `suite` is None for those of training."""
  for record in pages.read(_RESULTS.value).get(stem, ()):
    if record.get("suite") == suite:
      yield record["metrics"]


def overview(path: pathlib.Path) -> None:
  """Samples, parts, dimensions of a pose and viewpoints, one panel each."""
  samples, fields = shipped_images.rbm_images()
  panels = {
    "samples of a capsule RBM": samples[:25].reshape(5, 5, 28, 28, 1),
    "capsules, each alone": fields[:25].reshape(5, 5, 28, 28, 1),
    "a digit in other poses": shipped_images.posed(_DATA_DIR.value),
    "one toy, many viewpoints": shipped_images.viewpoints(5, 5),
  }
  concepts.overview(panels, path)


def dimensions(path: pathlib.Path) -> None:
  """Reconstructions as each dimension of a class capsule changes."""
  offsets = np.linspace(-0.25, 0.25, 11)
  images = shipped_images.perturbed([5], offsets, _DATA_DIR.value)
  grids.perturbations(images, offsets, [5], path)
  with Image.open(path) as picture:
    fewer = picture.convert("L").quantize(32)  # grey levels, for a small file
  fewer.save(path, optimize=True)


def fields(path: pathlib.Path) -> None:
  """Samples of a capsule RBM, and the images of its capsules alone."""
  samples, alone = shipped_images.rbm_images()
  rows = {
    "samples": samples[:12],
    " ": samples[12:24],
    "capsules alone": alone[:12],
    "  ": alone[12:24],
  }
  concepts.strips(rows, path)


def moving(path: pathlib.Path) -> None:
  """A transforming auto-encoder moves digits by shifts that it is given."""
  model = pretrained.load("transforming_mnist").model
  test = data.load("mnist", "test", _DATA_DIR.value)
  images = data.as_intensities(test.images[[2, 1]])
  shifts = [-6, -4, -2, 0, 2, 4, 6]
  rows = {}
  for name, image in zip(("a 1", "a 2"), images, strict=True):
    stacked = jnp.repeat(image[None], len(shifts), axis=0)
    moves = jnp.array([[x, 0] for x in shifts], jnp.float32)
    true = [
      rendering.transform(image, geometry.affine_matrix(1, 1, 0, 0, x, 0))
      for x in map(float, shifts)
    ]
    rows[f"{name}, moved"] = np.stack(true)
    rows[f"{name}, by capsules"] = np.asarray(model(stacked, moves))
  concepts.strips(rows, path, inches=0.75)


def explained(path: pathlib.Path) -> None:
  """Digits as a stacked capsule autoencoder explains them, without labels."""
  trained = pretrained.load("scae_mnist")
  model = trained.model
  test = data.load("mnist", "test", _DATA_DIR.value)
  images = jnp.asarray(trained.preprocess(test.images[:16]))
  by_parts, by_objects = jax.jit(scae.reconstruct)(model, images)
  sketches.reconstructions(
    images,
    model.targets(images),
    by_parts.mean,
    by_parts.coefficients,
    by_objects.mean,
    path,
  )


def embedding(path: pathlib.Path) -> None:
  """Posterior presences of the same model's objects, by t-SNE."""
  trained = pretrained.load("scae_mnist")
  test = data.load("mnist", "test", _DATA_DIR.value)
  few = slice(None, _NUM_EMBEDDED)
  found = trained.predict(test.images[few]).outputs["objects"]
  points = embeddings.embed(np.asarray(found))
  names = test.named(np.arange(test.num_classes))
  sketches.embedding(points, test.labels[few], names, path)


def repair(path: pathlib.Path) -> None:
  """Rotated digits, before and after inference for each (Smith, figure 3)."""
  model, images = _generative(3)
  columns = [
    generative_rotations.infer_rotated(model, images, angle)
    for angle in generative_rotations.ANGLES
  ]
  generative_rotations.plot_repair(columns, path)


def swaps(path: pathlib.Path) -> None:
  """Which part shows each pixel, as digits are rotated (figures 5 and 7)."""
  generative_rotations.plot_swaps(*_generative(6), path=path)


def duplicates(path: pathlib.Path) -> None:
  """Templates, and the nearest other template after alignment (figure 6)."""
  model, _ = _generative(1)
  templates = generative_rotations.patterned_templates(model)
  generative_rotations.plot_duplicates(templates, path)


def rotations(path: pathlib.Path) -> bool:
  """Accuracy of probes against rotations in training (Smith, figure 4)."""
  found = {n: list(records(stem, None)) for n, stem in _ROTATED.items()}
  if not all(found.values()):
    print(f"{path} is left out: not all its runs have a record", flush=True)
    return False
  lines = {}
  for prefix, digits in (("", "digits as in training"), ("rotated_", "turned")):
    for probe in ("presence", "presence_and_pose"):
      label = f"{digits}, {probe.replace('_', ' ')}"
      lines[label] = {
        degrees: statistics.fmean(
          x[f"{prefix}{probe}_accuracy"] for x in of_one
        )
        for degrees, of_one in found.items()
      }
  panel = curves.Panel(
    "", "rotations in training (degrees)", "accuracy (%)", lines
  )
  curves.accuracy_curves([panel], path, chance=0.1)
  return True


def attacks(path: pathlib.Path) -> None:
  """Accuracy under FGSM and BIM against eps."""
  panels = [
    _panel("attacks", f"{name}_accuracy", "eps", title)
    for name, title in (("fgsm", "FGSM"), ("bim", "BIM"))
  ]
  curves.accuracy_curves(panels, path, chance=0.1)


def views(path: pathlib.Path) -> None:
  """Accuracy against rotation, shift and scale."""
  units = {"rotation": "degrees", "shift": "pixels", "scale": "factor"}
  panels = [
    _panel("views", f"{name}_accuracy", name, name, unit)
    for name, unit in units.items()
  ]
  curves.accuracy_curves(panels, path, chance=0.1)


def unseen_shifts(path: pathlib.Path) -> None:
  """Error of a transforming auto-encoder against the size of the shift."""
  names = {
    "transforming_mnist": "digits",
    "transforming_fashion": "clothes",
    "transforming_mnist_affine": "digits, affine poses",
  }
  lines = {
    label: curve(stem, "", "distance", "relative_error")
    for stem, label in names.items()
  }
  panel = curves.Panel(
    "", "shift (pixels)", "error (% of the target's squares)", lines
  )
  curves.accuracy_curves([panel], path)


def few_labels(path: pathlib.Path) -> None:
  """Accuracy of factor analysers with few labels, of capsules and of pixels."""
  of = functools.partial(curve, "transforming_mnist", "few_labels")
  names = {"capsules": "outputs of capsules", "pixels": "principal components"}
  lines = {
    label: of("num_labels", f"analysers_accuracy_{key}")
    for key, label in names.items()
  }
  panel = curves.Panel("", "labels", "accuracy (%)", lines)
  curves.accuracy_curves([panel], path, chance=0.1)


def likelihood(path: pathlib.Path) -> None:
  """Log-likelihood of test digits under each model, a dot for each seed."""
  values = {}
  for stem, name in _LIKELY.items():
    suite = "bound" if stem.startswith("vae") else "log_likelihood"
    metric = "importance_bound" if suite == "bound" else suite
    values[name] = [x[metric] for x in records(stem, suite)]
  concepts.bars(values, path, label="nats of a test image")


def routings(path: pathlib.Path) -> None:
  """Properties of one small network with each routing, seed by seed."""
  figures.properties(table.plotted(pages.read(_RESULTS.value)), path)


def iterations(path: pathlib.Path) -> None:
  """Accuracy against the iterations of routing, with the trained weights."""
  named = pages.read(_RESULTS.value)
  lines = {}
  for name in routers.NAMES:
    stem = table.STEM + name
    found = tables.curve(named, stem, "more_routing", "iteration_accuracy")
    if len(found) > 1:
      lines[name] = dict(enumerate(found, 1))
  panel = curves.Panel("", "iterations", "accuracy (%)", lines)
  curves.accuracy_curves([panel], path, chance=0.1)


def vote_distances(path: pathlib.Path) -> None:
  """Distances of votes by iteration of EM routing (Hinton et al., 2018)."""
  diagnostics.plot_distances(_followed("matrix_mnist"), path)


def logit_changes(path: pathlib.Path) -> None:
  """Change of a logit of dynamic routing by iteration (Sabour et al., 2017)."""
  changes = _followed("mnist_quarter").logit_changes
  iteration_figures.logit_changes(changes.tolist(), path)


def reliability(path: pathlib.Path) -> None:
  """Accuracy against the score of the predicted class."""
  lines = {}
  for stem, label in _CALIBRATED.items():
    first = next(records(stem, "calibration"), None)
    if first is None:
      continue
    # Of one seed: bins differ between seeds.
    pairs = zip(first["confidence"], first["confidence_accuracy"], strict=True)
    lines[label] = dict(pairs)
  lines["calibrated"] = {0.0: 0.0, 1.0: 1.0}
  panel = curves.Panel(
    "", "score of the predicted class", "accuracy (%)", lines
  )
  curves.accuracy_curves([panel], path)


def slots(path: pathlib.Path) -> bool:
  """Two digits in an image, as slots explain them."""
  return _copy("slots_quick-0", "object_masks_multimnist", path)


def slots_overlaid(path: pathlib.Path) -> bool:
  """Overlaid digits of MNIST, as invariant slots explain them."""
  run = "invariant_slots_multimnist_short-0"
  return _copy(run, "object_masks_multimnist", path)


def slots_moved(path: pathlib.Path) -> bool:
  """Digits moved as in affNIST, as invariant slots explain them."""
  run = "invariant_slots_affnist_like_short-0"
  return _copy(run, "object_masks_affnist_like", path)


def slots_points(path: pathlib.Path) -> bool:
  """Points of squares and triangles, as slots explain them."""
  return _copy("constellation_quick_slots-0", "segmentation", path)


def constellation(path: pathlib.Path) -> bool:
  """Points of shapes, as a constellation autoencoder explains them."""
  return _copy("constellation_short-2", "segmentation", path)


def scae_pairs(path: pathlib.Path) -> bool:
  """Two digits in an image, as a stacked capsule autoencoder explains them."""
  return _copy("scae_pairs_quick-0", "object_masks_multimnist", path)


# Pictures that need records only; made again whenever the records change.
OF_RECORDS = (
  rotations, attacks, views, unseen_shifts, few_labels, likelihood, routings,
  iterations, reliability,
)  # fmt: skip
PICTURES: dict[str, Callable[[pathlib.Path], bool | None]] = {
  function.__name__: function
  for function in (
    overview, dimensions, examples.agreement, examples.em, examples.parts,
    fields, moving, explained, embedding, repair, swaps, duplicates,
    *OF_RECORDS, vote_distances, logit_changes, slots, slots_overlaid,
    slots_moved, slots_points, constellation, scae_pairs,
  )
}  # fmt: skip


def _panel(suite, metric, axis, title, unit=None) -> curves.Panel:
  lines = {
    label: curve(stem, suite, axis, metric) for stem, label in _VIEWED.items()
  }
  return curves.Panel(title, unit or axis, "accuracy (%)", lines)


def _followed(name: str) -> diagnostics.Followed:
  """Follows test digits through the iterations of a trained network."""
  trained = pretrained.load(name)
  test = data.load("mnist", "test", _DATA_DIR.value)
  found = diagnostics.follow(
    trained.model,
    trained.preprocessing,
    test.images[:_NUM_FOLLOWED],
    test.labels[:_NUM_FOLLOWED],
  )
  assert found is not None, f"routing of {name} does not iterate"
  return found


def _generative(count: int):
  """The generative capsules that are shipped, and the first test digits."""
  trained = pretrained.load("generative_mnist")
  test = data.load("mnist", "test", _DATA_DIR.value)
  return trained.model, jnp.asarray(trained.preprocess(test.images[:count]))


def _copy(run: str, figure: str, path: pathlib.Path) -> bool:
  """Copies a figure from a run of a model whose weights are not published.

  Returns:
    Whether --runs is given and has the figure.
  """
  if _RUNS.value is None:
    print(f"{path} is left out: it needs --runs=DIR with DIR/{run}", flush=True)
    return False
  source = pathlib.Path(_RUNS.value) / run / "figures" / f"{figure}.png"
  if not source.exists():
    print(f"{path} is left out: there is no {source}", flush=True)
    return False
  path.write_bytes(source.read_bytes())
  return True


def main() -> None:
  unknown = set(_ONLY.value) - set(PICTURES)
  if unknown:
    sys.exit(f"no picture {', '.join(unknown)}; known: {', '.join(PICTURES)}.")
  of_records = [function.__name__ for function in OF_RECORDS]
  for name in _ONLY.value or (of_records if _OF_RECORDS.value else PICTURES):
    path = pathlib.Path(_FOLDER.value) / f"{name}.png"
    if PICTURES[name](path) is False:  # left out
      continue
    print(f"{path}: {path.stat().st_size / 1e3:.0f} kB", flush=True)


if __name__ == "__main__":
  limits.run(main, shared=())
