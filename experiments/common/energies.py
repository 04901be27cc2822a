"""Suites for models with an energy: what they dream, know and find likely."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from sklearn import linear_model, pipeline, preprocessing

from capjax import boltzmann, data
from capjax.evaluation import likelihood
from experiments.common import energy_figures, runs, training
from experiments.common import task as tasks
from experiments.common.task import Options, Scores, Trained
from kernels import energy

_NUM_SAMPLES = 100
_NUM_SWEEPS = 1000  # the paper's
_PER_CLASS = 10  # images of each class whose spectra are drawn
_NUM_DECOMPOSED, _NUM_FIELDS_SHOWN = 10, 10
_NUM_TEMPERATURES = 10_000
_NUM_LIKELY = 1000  # images whose free energies are compared with samples'


def errors(run: runs.Run, trained: Trained, options: Options) -> Scores:
  """The reconstruction errors and free energies of test and validation."""
  del run, options
  return tasks.means(trained)


def samples(run: runs.Run, trained: Trained, options: Options) -> Scores:
  """Draws images by 1000 sweeps of block Gibbs sampling from random ones.

  Returns:
    Mean free energies of 100 samples and of 1000 test images, drawn as 0 and 1:
    of a good model they are alike.
  """
  del options
  model = trained.model
  start_key, key = jax.random.split(jax.random.key(0))
  shape = (_NUM_SAMPLES, *model.visible_shape)
  start = jax.random.uniform(start_key, shape)
  capsules, images = _dream(model, key, start)
  means = model.reconstruct(capsules)
  energy_figures.tiles(means, run.figure("samples"), columns=10)
  tests = _drawn(trained, jax.random.key(1))[:_NUM_LIKELY]
  return {
    "samples_free_energy": float(jnp.mean(model.free_energy(images))),
    "images_free_energy": float(jnp.mean(model.free_energy(tests))),
  }


def spectra(run: runs.Run, trained: Trained, options: Options) -> Scores:
  """Draws which capsules are active in ten images of each class.

  Of a plain RBM it is the hidden units. All are means of the exact posterior.
  What they say of the class is measured by logistic regression on those of
  training images, and, of units that are 0 or 1, by information.

  Returns:
    Accuracy of the regression on the test set, and the mutual information of
    unit and class in bits: the mean over units, and that of the best.
  """
  del options
  labels = trained.test.labels
  activities = _activities(trained, trained.test.images)
  shown = [
    np.flatnonzero(labels == c)[:_PER_CLASS]
    for c in range(trained.test.num_classes)
  ]
  energy_figures.spectra(
    [activities[rows] for rows in shown], run.figure("spectra")
  )
  train = data.load(runs.DATASET.value, "train", runs.DATA_DIR.value)
  probe = pipeline.make_pipeline(
    preprocessing.StandardScaler(),
    linear_model.LogisticRegression(max_iter=1000),
  )
  probe.fit(_activities(trained, train.images), train.labels)
  scores = {"probe_accuracy": float(probe.score(activities, labels))}
  if trained.model.switches is None and not _is_bernoulli(trained.model, 1):
    return scores
  bits = information(activities, labels)
  return {
    **scores,
    "mean_information": float(np.mean(bits)),
    "best_information": float(np.max(bits)),
  }


def fields(run: runs.Run, trained: Trained, options: Options) -> Scores:
  """Draws what each capsule alone makes of the image, and images in parts.

  The projective field of capsule k is the mean image with only its switch on,
  after 1000 sweeps over image and hidden units. An image is taken apart by what
  its most active capsules alone say, with the hidden units they have in it, by
  the exact posterior.

  Returns:
    The spread of the fields over capsules, a mean over pixels: 0 if all are
    alike.
  """
  del options
  model = trained.model
  if model.switches is None:
    alone = _single_units(model)
  else:
    alone = _projective_fields(model, jax.random.key(0))
    images, _ = tasks.first(trained, _NUM_DECOMPOSED)
    images = training.as_intensities(jnp.asarray(images))
    energy_figures.decompositions(
      images, *_decompose(model, images), run.figure("decompositions")
    )
  energy_figures.tiles(alone, run.figure("fields"), columns=10)
  return {"fields_spread": float(jnp.mean(jnp.std(alone, axis=0)))}


def log_likelihood(run: runs.Run, trained: Trained, options: Options) -> Scores:
  """Log-likelihood of test images, each pixel drawn as 0 or 1.

  log Z is estimated by annealed importance sampling, which on average is too
  low, and by the same path walked backwards, which is too high, as far as the
  chains it starts from have mixed: 1000 sweeps from training images.

  Returns:
    Nats of an image by either estimate, the standard errors, of log Z and of
    the mean over images, and the means of the log weights, between which log Z
    lies.

  Raises:
    ValueError: if pixels are not 0 or 1: the densities of others depend on how
      they were rounded.
  """
  del run
  model = trained.model
  if not _is_bernoulli(model, 0):
    raise ValueError("log_likelihood is for models with Bernoulli pixels only")
  train = data.load(runs.DATASET.value, "train", runs.DATA_DIR.value)
  train_images = training.as_intensities(jnp.asarray(train.images))
  base = boltzmann.independent_units("bernoulli", train_images)
  estimate = jax.jit(
    functools.partial(
      likelihood.log_partition, num_temperatures=_NUM_TEMPERATURES
    )
  )
  below = estimate(jax.random.key(0), model, base)
  images = _drawn(trained, jax.random.key(1))[: options.images]
  _, dreams = _dream(model, jax.random.key(2), train_images[:_NUM_SAMPLES])
  above = estimate(jax.random.key(3), model, base, backwards_from=dreams)
  energies = jax.jit(lambda model, x: model.free_energy(x))(model, images)
  mean = float(jnp.mean(energies))
  return {
    "log_likelihood": -mean - float(below.estimate),
    "log_likelihood_backwards": -mean - float(above.estimate),
    "log_likelihood_error": float(jnp.std(energies)) / len(images) ** 0.5,
    "log_partition": float(below.estimate),
    "log_partition_error": float(below.error),
    "log_partition_backwards": float(above.estimate),
    "log_partition_at_least": float(below.bound),
    "log_partition_at_most": float(above.bound),
    "temperatures": _NUM_TEMPERATURES,
    "num_images": len(images),
  }


SUITES = {
  "errors": errors,
  "samples": samples,
  "spectra": spectra,
  "fields": fields,
  "log_likelihood": log_likelihood,
}


def information(activities: np.ndarray, labels: np.ndarray) -> np.ndarray:
  """Mutual information of binary units with the class.

  Args:
    activities: [N K], the chance that each unit is on in each example.
    labels: [N].

  Returns:
    [K], in bits.
  """
  classes, counts = np.unique(labels, return_counts=True)
  given = np.stack([np.mean(activities[labels == c], axis=0) for c in classes])
  shares = counts / counts.sum()
  return _entropy(shares @ given) - shares @ _entropy(given)


def _entropy(chance: np.ndarray) -> np.ndarray:
  chance = np.clip(chance, 1e-12, 1 - 1e-12)
  off = 1 - chance
  return -(chance * np.log2(chance) + off * np.log2(off))


def _activities(trained: Trained, images: np.ndarray) -> np.ndarray:
  """[N K], the switches of images; the hidden units where there are none."""

  def measure(model, images, labels):
    del labels
    capsules = model.infer(images)
    if model.switches is None:
      return {"activity": capsules.active.reshape(len(images), -1)}
    return {"activity": capsules.switches}

  draw = training.draw_labelled(lambda key, image: image)
  evaluate = tasks.make_evaluate(measure, draw)
  labels = np.zeros(len(images), np.int32)
  return evaluate(trained.model, images, labels)["activity"]


def _is_bernoulli(model: boltzmann.CapsuleRBM, layer: int) -> bool:
  """Whether the visible (0) or the hidden (1) units are."""
  return model.families[layer] is boltzmann.FAMILIES["bernoulli"]


def _drawn(trained: Trained, key: jax.Array) -> jax.Array:
  """The test images with each pixel drawn as 0 or 1, if they are such units."""
  images = training.as_intensities(jnp.asarray(trained.test.images))
  if not _is_bernoulli(trained.model, 0):
    return images
  return jax.random.bernoulli(key, images).astype(images.dtype)


@jax.jit
def _dream(model: boltzmann.CapsuleRBM, key: jax.Array, images: jax.Array):
  """Capsules and images after many sweeps that start from these images."""
  start_key, chain_key = jax.random.split(key)

  def sweep(index, carry):
    key = jax.random.fold_in(chain_key, index)
    return model.sweep(key, carry[0], block=True)

  start = model.sample_capsules(start_key, images), images
  return jax.lax.fori_loop(0, _NUM_SWEEPS, sweep, start)


@jax.jit
def _projective_fields(model: boltzmann.CapsuleRBM, key: jax.Array):
  """[K H W C]."""
  alone = jnp.eye(len(model.switches[...]))

  def sweep(index, images):
    hidden_key, visible_key = jax.random.split(jax.random.fold_in(key, index))
    capsules = model.sample_hidden(hidden_key, images, alone)
    return model.sample_images(visible_key, capsules)

  images = jnp.zeros((len(alone), *model.visible_shape))
  images = jax.lax.fori_loop(0, _NUM_SWEEPS, sweep, images)
  return model.reconstruct(model.sample_hidden(key, images, alone))


@jax.jit
def _decompose(model: boltzmann.CapsuleRBM, images: jax.Array):
  """Reconstructions, and what the most active capsules alone draw.

  Returns:
    [N H W C], [N S H W C] from the most active capsule on, and the chances
    [N S] that they are.
  """
  capsules = model.infer(images)
  count = min(_NUM_FIELDS_SHOWN, capsules.switches.shape[1])
  chances, chosen = jax.lax.top_k(capsules.switches, count)

  def alone(capsule):
    mask = jax.nn.one_hot(capsule, capsules.switches.shape[1])
    return model.reconstruct(
      capsules._replace(
        switches=mask * capsules.switches,
        active=mask[:, :, None] * capsules.active,
      )
    )

  parts = jax.vmap(alone, 1, 1)(chosen)
  return model.reconstruct(capsules), parts, chances


def _single_units(model: boltzmann.CapsuleRBM) -> jax.Array:
  """[N H W C], the mean image when one hidden unit alone is on."""
  shape = model.hidden[...].shape[1:]
  size = shape[0] * shape[1]
  alone = jnp.eye(min(_NUM_SAMPLES, size), size)
  states = jax.vmap(
    lambda hidden: energy.state(
      hidden.reshape(shape), jnp.ones(shape[0]), hidden=model.families[1]
    )
  )(alone)
  return model.reconstruct(states)
