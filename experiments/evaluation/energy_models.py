"""Suites for energy models: samples, receptive fields and likelihoods."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from capjax.energy import helmholtz, rbm, units
from capjax.evaluation import likelihood
from capjax.kernels import energy

from ..figures import energy_models
from ..run import directory
from ..training import contrastive_divergence, train_step
from . import latents, models
from .models import Options, Scores, Trained
from .suite import suite

_NUM_SAMPLES = 100
_NUM_SWEEPS = 1000  # as in the paper
_NUM_DECOMPOSED, _NUM_FIELDS_SHOWN = 10, 10
_NUM_TEMPERATURES = 10_000
_NUM_LIKELY = 1000  # images whose free energies are compared with samples'
_DREAMS = {
  "ancestral": "each layer given the one above",
  "gibbs": "after 1000 rounds up and down from random images",
}
_SANE = (-1.0, 2.0)  # range of mean pixels of samples; images are in [0, 1]


@suite(counts={"samples_": 0})
def samples(run: directory.Run, trained: Trained, options: Options) -> Scores:
  """Plots images sampled by 1000 Gibbs sweeps; compares free energies.

  Block Gibbs sampling starts from random images.

  Returns:
    The mean free energies of 100 samples and of 1000 binarised test images,
    which are close to each other for a good model.
  """
  del options
  model = trained.model
  start_key, key = jax.random.split(jax.random.key(0))
  shape = (_NUM_SAMPLES, *model.image_shape)
  start = jax.random.uniform(start_key, shape)
  capsules, images = dream(model, key, start)
  means = model.reconstruct(capsules)
  energy_models.tiles(
    means,
    run.figure("samples"),
    columns=10,
    title=f"mean pixels of {_NUM_SAMPLES} chains after {_NUM_SWEEPS} Gibbs "
    "sweeps from random images",
  )
  if latents.has_gaussian_pixels(model):
    tests = train_step.as_intensities(jnp.asarray(trained.test.images))
  else:
    tests = latents.binary_images(trained, jax.random.key(1))
  tests = tests[:_NUM_LIKELY]
  return {
    "num_images": len(tests),
    "samples_free_energy": float(jnp.mean(model.free_energy(images))),
    "images_free_energy": float(jnp.mean(model.free_energy(tests))),
  }


@suite()
def fields(run: directory.Run, trained: Trained, options: Options) -> Scores:
  """Plots the image of each capsule alone, and images split into capsules.

  The projective field of capsule k is the mean image with only its switch on,
  after 1000 sweeps over image and hidden units. An image is split into the mean
  images of its most active capsules alone, with the hidden units that they have
  for that image under the exact posterior.

  Returns:
    The standard deviation of the fields over capsules, averaged over pixels: 0
    if all fields are equal.
  """
  del options
  model = trained.model
  if model.switches is None:
    alone = _single_units(model)
  else:
    alone = projective_fields(model, jax.random.key(0))
    images, _ = models.first(trained, _NUM_DECOMPOSED)
    images = train_step.as_intensities(jnp.asarray(images))
    energy_models.decompositions(
      images, *_decompose(model, images), path=run.figure("decompositions")
    )
  what = "hidden units" if model.switches is None else "capsules"
  energy_models.tiles(
    alone,
    run.figure("fields"),
    columns=10,
    title=f"mean images of {len(alone)} {what}, each with only itself on",
  )
  return {
    "fields_spread": float(jnp.mean(jnp.std(alone, axis=0))), "num_images": 0
  }  # fmt: skip


@suite("images", counts={"log_partition": 0, "mean_log_weight": 0})
def log_likelihood(
  run: directory.Run, trained: Trained, options: Options
) -> Scores:
  """Estimates the log-likelihood of binarised test images by AIS.

  Each pixel is sampled as 0 or 1. Not for Gaussian pixels: densities depend on
  how intensities were rounded, and with Gaussian hidden units Z need not be
  finite.

  log Z is estimated by annealed importance sampling (AIS), which is too low on
  average, and by the same path in reverse, which is too high on average if the
  chains that it starts from have mixed: 1000 sweeps from training images.

  Returns:
    The log-likelihood of an image in nats by both estimates; the standard
    errors of log Z and of the mean over images; and the means of the log
    weights, which estimate a lower and an upper bound of log Z.
  """
  del run
  model = trained.model
  train_images = contrastive_divergence.first_intensities(
    trained.load_train().images
  )
  base = units.independent_units("bernoulli", train_images)
  estimate = jax.jit(
    functools.partial(
      likelihood.log_partition, num_temperatures=_NUM_TEMPERATURES
    )
  )
  below = estimate(jax.random.key(0), model, base)
  images = latents.binary_images(trained, jax.random.key(1))
  images = images[: options.images]
  _, dreams = dream(model, jax.random.key(2), train_images[:_NUM_SAMPLES])
  above = estimate(jax.random.key(3), model, base, backwards_from=dreams)
  energies = jax.jit(lambda model, x: model.free_energy(x))(model, images)
  energy = np.asarray(energies)
  backwards = float(np.mean(-energy)) - float(above.estimate)
  return {
    **models.mean_and_error("log_likelihood", -energy - float(below.estimate)),
    "log_likelihood_backwards": backwards,
    "log_partition": float(below.estimate),
    "log_partition_standard_error": float(below.error),
    "log_partition_backwards": float(above.estimate),
    "log_partition_backwards_standard_error": float(above.error),
    "mean_log_weight": float(below.mean_log_weight),
    "mean_log_weight_backwards": float(above.mean_log_weight),
    "temperatures": _NUM_TEMPERATURES,
    "num_images": len(images),
  }


@suite(counts={"ancestral_": 0, "gibbs_": 0})
def dreams(run: directory.Run, trained: Trained, options: Options) -> Scores:
  """Plots images sampled from a Helmholtz machine in two ways.

  First by ancestral sampling: the top layer from its prior, then each layer
  given the one above. Second by 1000 rounds from random images: upwards by the
  recognition model, downwards by the generative model.

  Returns:
    For both ways, the share of samples whose mean pixels are all finite and in
    [-1, 2], and the mean pixel of those samples, to compare with that of test
    images. The other samples diverged: with Gaussian units each round can
    increase the activities.
  """
  del options
  model = trained.model
  start_key, key = jax.random.split(jax.random.key(0))
  shape = (_NUM_SAMPLES, *model.image_shape)
  start = jax.random.uniform(start_key, shape)
  kinds = {
    "ancestral": _ancestral(model, key),
    "gibbs": _loops(model, key, start),
  }
  low, high = _SANE
  tests = np.asarray(trained.test.images)
  scores = {"images_mean": float(np.mean(tests)) / 255}
  for name, images in kinds.items():
    energy_models.tiles(
      images,
      run.figure(f"dreams_{name}"),
      columns=10,
      title=f"{len(images)} samples, {_DREAMS[name]}",
    )
    sane = np.all((low <= images) & (images <= high), axis=(1, 2, 3))
    scores[f"{name}_sane"] = float(np.mean(sane))
    if sane.any():
      scores[f"{name}_mean"] = float(np.mean(images[sane]))
  return scores


SUITES = (
  samples,
  fields,
  log_likelihood,
  dreams,
)


@jax.jit
def dream(model: rbm.CapsuleRBM, key: jax.Array, images: jax.Array):
  """Samples capsules and images by 1000 Gibbs sweeps.

  Args:
    model: the model.
    key: random key.
    images: [B H W C], the start of each chain.

  Returns:
    The last capsules and images of each chain.
  """
  start_key, chain_key = jax.random.split(key)

  def sweep(index, carry):
    key = jax.random.fold_in(chain_key, index)
    return model.sweep(key, carry[0], block=True)

  start = model.sample_capsules(start_key, images), images
  return jax.lax.fori_loop(0, _NUM_SWEEPS, sweep, start)


@jax.jit
def _ancestral(model: helmholtz.CapsuleHM, key: jax.Array) -> jax.Array:
  """Mean images given capsules that are sampled from the prior."""
  top_key, key = jax.random.split(key)
  top = model.sample_top(top_key, _NUM_SAMPLES)
  return model.reconstruct(model.sample_downwards(key, top))


@jax.jit
def _loops(model: helmholtz.CapsuleHM, key: jax.Array, images: jax.Array):
  """Mean images after many rounds of wake and sleep."""
  loop_key, last_key = jax.random.split(key)

  def asleep(sleep_key, images):
    up_key, down_key = jax.random.split(sleep_key)
    top = model.sample_upwards(up_key, images)
    return model.sample_downwards(down_key, top)

  def loop(index, images):
    round_key = jax.random.fold_in(loop_key, index)
    sleep_key, image_key = jax.random.split(round_key)
    return model.sample_images(image_key, asleep(sleep_key, images))

  images = jax.lax.fori_loop(0, _NUM_SWEEPS, loop, images)
  return model.reconstruct(asleep(last_key, images))


@jax.jit
def projective_fields(model: rbm.CapsuleRBM, key: jax.Array):
  """Samples the projective field of each capsule; see `fields`.

  Args:
    model: an RBM with switches.
    key: random key.

  Returns:
    [K H W C], mean images after 1000 Gibbs sweeps with one capsule switched on.
  """
  alone = jnp.eye(len(model.switches[...]))
  sweep_key, last_key = jax.random.split(key)

  def sweep(index, images):
    index_key = jax.random.fold_in(sweep_key, index)
    hidden_key, visible_key = jax.random.split(index_key)
    capsules = model.sample_hidden(hidden_key, images, alone)
    return model.sample_images(visible_key, capsules)

  images = jnp.zeros((len(alone), *model.image_shape))
  images = jax.lax.fori_loop(0, _NUM_SWEEPS, sweep, images)
  return model.reconstruct(model.sample_hidden(last_key, images, alone))


@jax.jit
def _decompose(model: rbm.CapsuleRBM, images: jax.Array):
  """Reconstructions, and the mean images of the most active capsules alone.

  Returns:
    Reconstructions [N H W C]; mean images [N S H W C], the most active capsule
    first; and the probability [N S] that each of these capsules is active.
  """
  capsules = model.infer(images)
  count = min(_NUM_FIELDS_SHOWN, capsules.switches.shape[1])
  probabilities, chosen = jax.lax.top_k(capsules.switches, count)

  def alone(capsule):
    mask = jax.nn.one_hot(capsule, capsules.switches.shape[1])
    return model.reconstruct(
      capsules._replace(
        switches=mask * capsules.switches,
        active=mask[:, :, None] * capsules.active,
      )
    )

  parts = jax.vmap(alone, 1, 1)(chosen)
  return model.reconstruct(capsules), parts, probabilities


def _single_units(model: rbm.CapsuleRBM) -> jax.Array:
  """The mean images [N H W C] when a single hidden unit is on."""
  shape = model.hidden[...].shape[1:]
  size = shape[0] * shape[1]
  alone = jnp.eye(min(_NUM_SAMPLES, size), size)
  states = jax.vmap(
    lambda hidden: energy.state(
      hidden.reshape(shape), jnp.ones(shape[0]), hidden=model.families[1]
    )
  )(alone)
  return model.reconstruct(states)
