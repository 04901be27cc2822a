"""Suites: how well a model distinguishes another data set from its own."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from capjax import baselines, predictions, scae
from capjax.energy import helmholtz, rbm
from capjax.evaluation import detection
from capjax.generative import guides, inference

from ..figures import curves
from ..run import directory
from ..training import task as tasks
from ..training import train_step
from . import latents
from .models import Options, Scores, Trained
from .suite import Main, suite

_KEPT = tuple(np.linspace(0.05, 1, 20).round(2))  # shares of test images
# Scores that are low for familiar images.
_LOW = ("reconstruction_error", "free_energy", "nonzero_pixels")
_NUM_SAMPLES = 10  # of each bound
_NUM_COUNTED = 10_000  # training images, of the control
# The other data set, where the user names none.
_OTHERS = {"mnist": "fashion_mnist", "fashion_mnist": "mnist"}


def _other_data(run: directory.Run, options: Options) -> str:
  """Returns `--other_data`, or the default for the data set of the run."""
  name = options.other_data or _OTHERS.get(run.flags().get("dataset"))
  if name is None:
    raise ValueError(
      "out_of_distribution needs another data set; give its name or path as "
      "--other_data"
    )
  return name


def _font_letters(run: directory.Run, options: Options) -> str:
  del run, options
  return "font_letters"


def _require(name):
  """Returns a check of the other data: they load, and have the right shape."""
  return lambda run, trained, options: other_images(trained, name(run, options))


@suite(
  "images",
  "other_data",
  main=Main(
    "reconstruction_error_auroc", "AUROC of another data set, by reconstruction"
  ),
  other_data=_other_data,
  counts={"*_other_mean": "num_other"},
  require=_require(_other_data),
)
def out_of_distribution(
  run: directory.Run, trained: Trained, options: Options
) -> Scores:
  """Measures how well scores distinguish test images from those of other data.

  The other data set is Fashion-MNIST for MNIST and the reverse, or that of
  `--other_data`. Its test images are prepared as the model's own, and must have
  their shape.

  Returns:
    For each score of an image, AUROC and the share of other images that pass at
    the threshold that 95% of the test images pass (`detection.Detection`).
    Low values count as familiar for `reconstruction_error`, the squared error
    summed over the image, and for `free_energy` of an RBM; high ones for all
    others: `largest_activation` of class capsules, `largest_probability` of a
    softmax, `bound` on the log density, with 10 importance samples, of models
    that have one, and `image_log_prob` and `part_log_prob` of a stacked capsule
    autoencoder, given its parts and its objects. `nonzero_pixels` is a control
    without a model: how far the number of pixels that are not black is from its
    mean over the first 10,000 training images.
  """
  name = _other_data(run, options)
  return _detect(run, "out_of_distribution", name, trained, options)


@suite(
  "images",
  main=Main(
    "reconstruction_error_auroc", "AUROC of letters, by reconstruction"
  ),
  other_data=_font_letters,
  counts={"*_other_mean": "num_other"},
  require=_require(_font_letters),
)
def letters(run: directory.Run, trained: Trained, options: Options) -> Scores:
  """Measures how well scores distinguish test images from letters.

  Letters of many fonts (`capjax.data.sources.font_letters`) consist of strokes,
  as digits do, and are harder to distinguish from digits than clothes; O, I, l,
  Z and S look like digits.

  Returns:
    As `out_of_distribution`.
  """
  name = _font_letters(run, options)
  return _detect(run, "letters", name, trained, options)


def other_images(trained: Trained, name: str) -> np.ndarray:
  """The test images of another data set, uint8 [N H W C].

  Raises:
    ValueError: if their shape is not that of the model's images, or the data
      set cannot be loaded.
  """
  images = trained.load_other(name).images
  shape = trained.test.images.shape[1:]
  if images.shape[1:] != shape:
    found, wanted = ("x".join(map(str, x)) for x in (images.shape[1:], shape))
    raise ValueError(
      f"images of {name} are {found}, those of the run {wanted}; give a data "
      f"set of images of {wanted}, as --other_data"
    )
  return images


def _detect(
  run: directory.Run,
  figure: str,
  name: str,
  trained: Trained,
  options: Options,
) -> Scores:
  """Compares the test images of the model's data with those of other data."""
  images = trained.test.images[: options.images]
  others = other_images(trained, name)[: options.images]
  familiar = trained.load_train().images[:_NUM_COUNTED]
  usual = np.mean(_nonzero_pixels(familiar))
  own, foreign = (
    _scores(trained, x) | {"nonzero_pixels": abs(_nonzero_pixels(x) - usual)}
    for x in (images, others)
  )
  scores: Scores = {"num_images": len(images), "num_other": len(others)}
  lines = {"random": {0.0: 0.0, 100.0: 1.0}}
  for score, values in own.items():
    sign = -1 if score in _LOW else 1
    both = detection.detection(sign * values, sign * foreign[score])
    scores[f"{score}_auroc"] = both.auroc
    scores[f"{score}_false_positive_rate"] = both.false_positive_rate
    scores[f"{score}_mean"] = float(np.mean(values))
    scores[f"{score}_other_mean"] = float(np.mean(foreign[score]))
    found = {
      kept: detection.detection(
        sign * values, sign * foreign[score], kept=kept
      ).false_positive_rate
      for kept in _KEPT
    }
    lines[score.replace("_", " ")] = {
      100 * x: kept for kept, x in found.items()
    }
  axes = "other images that pass (%)", "own test images that pass (%)"
  curves.accuracy_curves([curves.Panel("", *axes, lines)], run.figure(figure))
  return scores


SUITES = out_of_distribution, letters


def _nonzero_pixels(images: np.ndarray) -> np.ndarray:
  """How many pixels of each image [N H W C] have a channel that is not 0."""
  return np.count_nonzero(np.any(images, axis=3), axis=(1, 2))


def _scores(trained: Trained, images: np.ndarray) -> dict[str, np.ndarray]:
  """Every score [N] that the model has for images."""
  steps = trained.task.steps(images.shape[1:])
  kinds = rbm.CapsuleRBM, helmholtz.CapsuleHM, baselines.ConvVAE
  binary = isinstance(trained.model, kinds) and not latents.has_gaussian_pixels(
    trained.model
  )

  def sample(key, index, images, labels):
    del labels
    image = steps.prepare(train_step.as_intensities(images[index]))
    pixel_key, noise_key = jax.random.split(key)
    drawn = jax.random.bernoulli(pixel_key, image) if binary else image
    inputs = steps.normalise(image), drawn.astype(image.dtype)
    return inputs, noise_key

  num_labels = 1 if trained.test.is_labelled else 0

  def of_inputs(model, inputs, keys):
    return measure(model, *inputs, keys, num_labels=num_labels)

  evaluate = tasks.make_evaluate(of_inputs, sample, trained.config.batch_size)
  return evaluate(trained.model, images, np.zeros(len(images), np.int32))


def measure(
  model: nnx.Module,
  images: jax.Array,
  drawn: jax.Array,
  keys: jax.Array,
  *,
  num_labels: int = 1,
) -> dict[str, jax.Array]:
  """The scores of images, by name.

  Args:
    model: the model.
    images: [B H W C], its input.
    drawn: the same images, for a free energy or a bound; their pixels are 0 or
      1 if the visible units of the model are.
    keys: [B], random keys for the samples of a bound.
    num_labels: as for `predictions.outputs`.

  Returns:
    Arrays [B].
  """
  scores = {}
  if getattr(model, "decoder", None) is not None and hasattr(model, "decode"):
    output = model(images)  # class capsules with a decoder
    classes = jnp.argmax(output.activations, axis=1)
    found = {
      "activations": output.activations,
      "reconstructions": model.decode(output.poses, classes),
    }
  else:
    found = predictions.outputs(model, images, num_labels=num_labels)
  for name, score in (
    ("activations", "largest_activation"),
    ("probabilities", "largest_probability"),
  ):
    if name in found:
      scores[score] = jnp.max(found[name], axis=1)
  if "reconstructions" in found:
    squares = jnp.square(found["reconstructions"] - images)
    scores["reconstruction_error"] = jnp.sum(squares, axis=(1, 2, 3))
  if isinstance(model, rbm.CapsuleRBM):
    scores["free_energy"] = model.free_energy(drawn)
  return scores | _log_densities(model, images, drawn, keys)


def _log_densities(
  model: nnx.Module, images: jax.Array, drawn: jax.Array, keys: jax.Array
) -> dict[str, jax.Array]:
  """Bounds on the log density of images, or its terms; empty without either."""
  if isinstance(model, (helmholtz.CapsuleHM, baselines.ConvVAE)):

    def bound(key, image):
      return model.bound(key, image[None], _NUM_SAMPLES).importance[0]

    return {"bound": jax.vmap(bound)(keys, drawn)}
  if isinstance(model, guides.AmortisedCapsules):
    if not model.guide.has_scales:
      return {}

    def importance_bound(key, image):
      found = inference.importance_bound(
        model.capsules, model.guide, image[None], key, num_samples=_NUM_SAMPLES
      )
      return found.bounds[0]

    return {"bound": jax.vmap(importance_bound)(keys, images)}
  if isinstance(model, scae.SCAE):
    output = model(images)
    targets = model.targets(images)
    return {
      "image_log_prob": model.decoder.log_prob(targets, output.parts),
      "part_log_prob": output.objects.log_prob,
    }
  return {}
