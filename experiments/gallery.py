"""Makes the pictures of the documentation from records and trained weights.

`python -m experiments.gallery --data_dir=DIR` writes all of docs/figures, where
`DIR/mnist` holds MNIST; with `--only=NAME,...` some of them.
"""

import functools
import json
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from capjax.kernels.rendering import compositing

from capjax import data, pretrained, scae
from capjax.data.viewpoint_solids import raytracing, solids, toys
from capjax.kernels import geometry, rendering, routing
from capjax.layers import routers

from .figures import concepts, curves, grids
from .figures import routings as figures
from .figures import scae as sketches
from .records import pages, tables
from .records import routings as table

_FOLDER = flags.DEFINE_string("folder", "docs/figures", "Where pictures go.")
_RESULTS = flags.DEFINE_string("results", "results", "Holds records/*.jsonl.")
_DATA_DIR = flags.DEFINE_string("data_dir", None, "Folder that holds mnist/.")
_ONLY = flags.DEFINE_list("only", [], "Names of pictures; without it, all.")

_NUM_SWEEPS = 1000
# Records by file name without seed, and the names of their models.
_VIEWED = {"mnist_cpu_scale_1": "CapsNet", "mnist_cpu_baseline": "CNN"}
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
  """Yields the metrics of each seed of `STEM-SEED.jsonl`."""
  folder = pathlib.Path(_RESULTS.value) / "records"
  for path in sorted(folder.glob(f"{stem}-[0-9]*.jsonl")):
    for line in path.read_text("utf-8").splitlines():
      record = json.loads(line)
      if record.get("suite") == suite:
        yield record["metrics"]


def overview(path: pathlib.Path) -> None:
  """Samples, parts, dimensions of a pose and viewpoints, one panel each."""
  samples, fields = _rbm_images()
  panels = {
    "samples of a capsule RBM": samples[:25].reshape(5, 5, 28, 28, 1),
    "capsules, each alone": fields[:25].reshape(5, 5, 28, 28, 1),
    "a digit in other poses": _posed(),
    "one toy, many viewpoints": _viewpoints(5, 5),
  }
  concepts.overview(panels, path)


def dimensions(path: pathlib.Path) -> None:
  """Reconstructions as each dimension of a class capsule changes."""
  offsets = np.linspace(-0.25, 0.25, 11)
  grids.perturbations(_perturbed([3, 8], offsets), offsets, [3, 8], path)


def agreement(path: pathlib.Path) -> None:
  """Dynamic routing of 12 parts, of which 9 agree about parent 0."""
  noise = np.random.default_rng(0).normal(size=(12, 2, 2))
  centres = np.array([[[0.8, 0.3], [-0.2, 0.5]]])
  votes = centres + noise * np.array([[[0.12], [0.6]]])
  votes[9:, 0] = noise[9:, 0] * 0.6
  votes[9:, 1] = [-0.6, -0.7] + 0.1 * noise[9:, 1]
  votes = jnp.asarray(2 * votes, jnp.float32)
  found = [
    routing.dynamic_routing(votes, num_iterations=n) for n in (1, 2, 3, 5)
  ]
  poses = np.stack([x.poses for x in found])
  shares = np.stack([x.coefficients for x in found])
  concepts.agreement(votes, poses, shares, path)


def em(path: pathlib.Path) -> None:
  """EM routing of 20 parts, whose votes agree for one parent alone."""
  noise = np.random.default_rng(1).normal(size=(20, 2, 2))
  votes = np.array([[[1.0, 1.0], [-1.0, -0.5]]]) + noise * [[[0.15], [0.8]]]
  votes = jnp.asarray(votes, jnp.float32)
  found = [
    routing.em_routing(
      votes,
      jnp.ones(20),
      jnp.zeros(2),
      jnp.ones(2),
      inverse_temperatures=[0.1, 0.2, 0.3][:n],
    )
    for n in (1, 2, 3)
  ]
  concepts.clusters(
    votes,
    np.stack([x.poses for x in found]),
    np.stack([x.variances for x in found]),
    np.stack([x.activations for x in found]),
    path,
  )


def parts(path: pathlib.Path) -> None:
  """An object of three parts in three poses, and each part alone."""
  bar = np.zeros((9, 9, 1), np.float32)
  bar[3:6] = 1
  blob = np.asarray(geometry.grid(9, 9))
  blob = np.float32(np.sum(blob**2, axis=-1, keepdims=True) < 0.8)
  ring = blob.copy()
  ring[3:6, 3:6] = 0
  templates = jnp.asarray(np.stack([bar, blob, ring]))
  shades = jnp.array([0.55, 1.0, 0.8]).reshape(3, 1, 1, 1)
  relations = jnp.stack(
    [
      geometry.affine_matrix(0.55, 0.35, 0.0, 0.0, 0.0, 0.1),
      geometry.affine_matrix(0.2, 0.2, 0.0, 0.0, -0.3, 0.35),
      geometry.affine_matrix(0.22, 0.22, 0.0, 0.0, 0.3, 0.35),
    ]
  )

  def render(pose):
    poses = geometry.compose(pose, relations)
    alphas = jax.vmap(lambda t, p: rendering.warp(t, p, (48, 48)))(
      templates, poses
    )
    pictures = compositing.Picture(shades * alphas, alphas)
    whole = compositing.composite_over(pictures).colours
    return jnp.concatenate([whole[None], pictures.colours])

  poses = [
    geometry.affine_matrix(1.2, 1.2, 0.0, 0.0, 0.0, -0.2),
    geometry.affine_matrix(0.9, 0.9, 0.7, 0.0, 0.2, 0.0),
    geometry.affine_matrix(1.4, 0.7, -0.4, 0.3, -0.1, 0.0),
    geometry.affine_matrix(0.7, 0.7, 2.6, 0.0, 0.1, 0.1),
  ]
  images = np.stack([render(pose) for pose in poses], axis=1)
  names = ("object", "part 1", "part 2", "part 3")
  concepts.strips(dict(zip(names, images, strict=True)), path, inches=0.9)


def fields(path: pathlib.Path) -> None:
  """Samples of a capsule RBM, and the images of its capsules alone."""
  samples, alone = _rbm_images()
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
  model = pretrained.load("scae_mnist").model
  test = data.load("mnist", "test", _DATA_DIR.value)
  images = jnp.asarray(data.as_intensities(test.images[:16]))
  by_parts, by_objects = jax.jit(scae.reconstruct)(model, images)
  sketches.reconstructions(
    images,
    model.targets(images),
    by_parts.mean,
    by_parts.coefficients,
    by_objects.mean,
    path,
  )


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
  panel = curves.Panel("", "shift (pixels)", "error (% of not moving)", lines)
  curves.accuracy_curves([panel], path)


def few_labels(path: pathlib.Path) -> None:
  """Accuracy with few labels, from capsules and from pixels."""
  names = {"capsules": "outputs of capsules", "pixels": "principal components"}
  of = functools.partial(curve, "transforming_mnist", "few_labels")
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


PICTURES: dict[str, Callable[[pathlib.Path], None]] = {
  function.__name__: function
  for function in (
    overview, dimensions, agreement, em, parts, fields, moving, explained,
    attacks, views, unseen_shifts, few_labels, likelihood, routings, iterations,
  )
}  # fmt: skip


def _panel(suite, metric, axis, title, unit=None) -> curves.Panel:
  lines = {
    label: curve(stem, suite, axis, metric) for stem, label in _VIEWED.items()
  }
  return curves.Panel(title, unit or axis, "accuracy (%)", lines)


@functools.cache
def _rbm_images() -> tuple[np.ndarray, np.ndarray]:
  """Mean images of samples, and of each capsule alone, of the capsule RBM."""
  model = pretrained.load("boltzmann_mnist").model
  keys = jax.random.split(jax.random.key(0), 3)
  start = jax.random.uniform(keys[0], (100, *model.image_shape))

  @jax.jit
  def sample(model, key):
    capsules = model.sample_capsules(key, start)

    def sweep(capsules, key):
      return model.sweep(key, capsules, block=True)[0], None

    keys = jax.random.split(key, _NUM_SWEEPS)
    return model.reconstruct(jax.lax.scan(sweep, capsules, keys)[0])

  @jax.jit
  def alone(model, key):
    switches = jnp.eye(model.parameters.bias.switches.size)
    images = jax.random.uniform(key, (len(switches), *model.image_shape))

    def sweep(images, key):
      hidden_key, image_key = jax.random.split(key)
      capsules = model.sample_hidden(hidden_key, images, switches)
      return model.sample_images(image_key, capsules), None

    keys = jax.random.split(key, _NUM_SWEEPS)
    images = jax.lax.scan(sweep, images, keys)[0]
    return model.reconstruct(model.sample_hidden(key, images, switches))

  return tuple(
    np.asarray(f(model, key))
    for f, key in zip((sample, alone), keys[1:], strict=True)
  )


def _perturbed(classes: Sequence[int], offsets: np.ndarray) -> np.ndarray:
  """Reconstructions [K D S 8 8 1] of digits with one dimension changed."""
  model = pretrained.load("digits").model
  test = data.load("digits", "test")
  rows = [int(np.flatnonzero(test.labels == c)[1]) for c in classes]
  poses = model(data.as_intensities(test.images[rows])).poses
  size = poses.shape[-1]
  changes = jnp.asarray(offsets)[:, None, None] * jnp.eye(size)
  grid = []
  for pose, label in zip(poses, classes, strict=True):
    changed = jnp.broadcast_to(pose, (len(offsets), size, *pose.shape))
    changed = changed.at[:, :, label].add(changes)
    flat = changed.reshape(-1, *pose.shape)
    images = model.decode(flat, jnp.full(len(flat), label))
    images = images.reshape(len(offsets), size, *images.shape[1:])
    grid.append(np.asarray(images).swapaxes(0, 1))
  return np.stack(grid)


def _posed() -> np.ndarray:
  """A digit as its capsules render it, each row with another change of poses.

  Returns:
    [5 5 28 28 1]: rotations by up to 23 degrees, shears, sizes, and shifts by
    up to 4 pixels along x and y.
  """
  model = pretrained.load("transforming_mnist_affine").model
  test = data.load("mnist", "test", _DATA_DIR.value)
  (row,) = np.flatnonzero(test.labels == 4)[1:2]
  image = data.as_intensities(test.images[[row]])
  steps = np.linspace(-1, 1, 5)
  same = dict(scale_x=1.0, scale_y=1.0, theta=0.0, shear=0.0, tx=0.0, ty=0.0)
  changes = [
    *(dict(theta=0.4 * x) for x in steps),
    *(dict(shear=0.5 * x) for x in steps),
    *(dict(scale_x=1 + 0.3 * x, scale_y=1 + 0.3 * x) for x in steps),
    *(dict(tx=4 * x) for x in steps),
    *(dict(ty=4 * x) for x in steps),
  ]
  transforms = jnp.stack(
    [geometry.affine_matrix(**(same | change)) for change in changes]
  )
  images = model(jnp.repeat(image, len(changes), axis=0), transforms)
  return np.asarray(images).reshape(5, 5, *image.shape[1:])


def _viewpoints(rows: int, columns: int) -> np.ndarray:
  """The left eye's pictures of a toy: elevations in rows, azimuths along."""
  figure = toys.figure(1, 2, seed=0)
  heights = jnp.radians(jnp.linspace(30.0, 70.0, rows))

  @jax.jit
  def seen(azimuth):
    return raytracing.render(
      raytracing.turn(figure, azimuth), solids.lights(), heights, size=48
    )

  turns = jnp.radians(jnp.arange(columns) * 40.0)
  # [columns, rows, lightings, H, W, eyes]
  views = np.stack([seen(azimuth) for azimuth in turns])
  return views[:, :, 0, :, :, :1].swapaxes(0, 1)


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {argv[1:]}")
  unknown = set(_ONLY.value) - set(PICTURES)
  if unknown:
    sys.exit(f"no picture {', '.join(unknown)}; known: {', '.join(PICTURES)}.")
  for name in _ONLY.value or PICTURES:
    path = pathlib.Path(_FOLDER.value) / f"{name}.png"
    PICTURES[name](path)
    print(f"{path}: {path.stat().st_size / 1e3:.0f} kB", flush=True)


if __name__ == "__main__":
  app.run(main)
