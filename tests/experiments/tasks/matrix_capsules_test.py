"""Matrix capsules: stereo pairs, losses and their margin, and attacks."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import capjax
from capjax.data.transforms import stereo
from capjax.specs import Spec
from experiments.tasks import matrix_capsules
from experiments.training.augmentation import Placement

SPEC = Spec(
  capjax.MatrixCapsules,
  {"features": 3, "types": (2, 2, 3), "num_iterations": 1},
)


def make_task(dataset="viewpoint_solids", num_steps=40, **options):
  arguments = {} if dataset == "viewpoint_solids" else {"padding": "SAME"}
  return matrix_capsules.make_task(
    SPEC.with_arguments(**arguments),
    optax.adam(1e-3),
    dataset=dataset,
    num_steps=num_steps,
    **options,
  )


@pytest.mark.long
def test_attacks_have_slopes_to_follow():
  task = make_task()
  model = task.describe((48, 48, 2), 5).make(nnx.Rngs(0))
  model.eval()
  noise = jax.random.uniform(jax.random.key(0), (48, 48, 2))
  images = jnp.stack([noise, jnp.full_like(noise, 0.5)])
  images = jax.jit(jax.vmap(task.prepare))(images)

  def loss(images):
    losses = task.attack_loss(model, images, jnp.array([0, 1]))
    return jnp.sum(losses), losses

  slopes, losses = jax.jit(jax.grad(loss, has_aux=True))(images)
  assert losses.shape == (2,)
  assert np.isfinite(losses).all() and np.isfinite(slopes).all()
  assert np.abs(slopes[0]).max() > 0


def test_pairs_are_augmented_by_the_named_pipeline():
  random = np.random.default_rng(0)
  images = random.integers(0, 256, (1, 48, 48, 2), np.uint8)
  pairs = []
  for name in stereo.PIPELINES:
    task = make_task(pipeline=name)
    pair, _ = task.sample(jax.random.key(3), 0, jnp.array(images), np.zeros(1))
    want = stereo.augment(
      jax.random.key(3), jnp.float32(images[0]), pipeline=name
    )
    np.testing.assert_allclose(pair, want, atol=1e-3)
    pairs.append(np.asarray(pair))
  assert np.abs(pairs[0] - pairs[1]).max() > 0.1


@pytest.mark.parametrize("pipeline", stereo.PIPELINES)
def test_images_of_a_test_are_normalised_as_in_training(pipeline):
  """An object in the middle: the mean of its crop is above that of the pair."""
  image = np.full((48, 48, 2), 20, np.uint8)
  image[16:32, 16:32] = 200
  task = make_task(pipeline=pipeline)
  drawn = jax.vmap(
    lambda key: task.sample(key, 0, jnp.array([image]), np.zeros(1))[0]
  )(jax.random.split(jax.random.key(0), 400))
  tested, _ = task.sample_test(
    jax.random.key(0), 0, jnp.array([image]), np.zeros(1)
  )
  assert tested.shape == drawn.shape[1:] == (32, 32, 2)
  assert abs(float(jnp.mean(drawn)) - float(jnp.mean(tested))) < 0.15
  crop = stereo.centre_crop(stereo.standardise(jnp.float32(image)))
  want = crop if pipeline == "ibm" else stereo.standardise(crop)
  np.testing.assert_allclose(tested, want, atol=1e-3)
  np.testing.assert_allclose(
    task.steps(None)(jnp.float32(image) / 255), want, atol=1e-3
  )


def test_pipelines_are_known():
  with pytest.raises(ValueError, match="pipeline is 'paper'; give official or"):
    make_task(pipeline="paper")


def test_validation_does_not_depend_on_the_length_of_training():
  """So that checkpoints of a run that was lengthened can be compared."""
  images = jax.random.uniform(jax.random.key(0), (2, 8, 8, 1))
  losses = []
  for num_steps in (5, 1000):
    task = make_task("digits", num_steps=num_steps, margin_steps=5.0)
    model = task.describe((8, 8, 1), 3).make(nnx.Rngs(0))
    losses.append(task.measure(model, images, jnp.array([0, 2]))["loss"])
  np.testing.assert_array_equal(*losses)


@pytest.mark.long
def test_the_margin_grows_with_fractions_of_the_run():
  """As the authors': its time constant is 50,000 of 2,000,000 steps."""
  task = make_task("digits")
  model = task.describe((8, 8, 1), 3).make(nnx.Rngs(0))
  images = jax.random.uniform(jax.random.key(0), (2, 8, 8, 1))
  labels = jnp.array([0, 2])
  parameters = jax.tree.leaves(nnx.state(model, nnx.Param))
  decay = 1e-7 * sum(float(jnp.sum(x**2)) for x in parameters)

  @jax.jit
  def loss_at(model, step):
    return task.loss(model, images, labels, jax.random.key(0), step)[0]

  activations = jax.jit(lambda model: model(images).activations)(model)
  for step, margin in (
    (0, 0.2 + 0.79 / (1 + np.exp(4))), (4, 0.595), (40, 0.98996)
  ):  # fmt: skip
    want = 0.0
    for a, label in zip(np.asarray(activations), (0, 2), strict=True):
      others = [x for j, x in enumerate(a) if j != label]
      want += sum(max(0, margin - (a[label] - x)) ** 2 for x in others) / 2
    np.testing.assert_allclose(loss_at(model, step) - decay, want, rtol=1e-4)


ACTIVATIONS = [[0.8, 0.3, 0.7], [0.2, 0.35, 0.95], [0.6, 0.05, 0.4]]
LABELS = [0, 2, 1]


class Known(capjax.MatrixCapsules):
  """One of known activations, whose parameters have squares of sum 25."""

  def __init__(self):
    self.weights = nnx.Param(jnp.array([3.0, 4.0]))

  def __call__(self, images):
    parts = jnp.full((len(images), 2, 3), 1 / 3)
    return SimpleNamespace(
      activations=jnp.array(ACTIVATIONS), coefficients=parts
    )


def spread(activations, label, margin):
  true = activations[label]
  others = [a for j, a in enumerate(activations) if j != label]
  return sum(max(0, margin - (true - a)) ** 2 for a in others)


def margin(activations, label, _):
  losses = [0.5 * max(0, a - 0.1) ** 2 for a in activations]
  losses[label] = max(0, 0.9 - activations[label]) ** 2
  return sum(losses)


def cross_entropy(activations, label, _):
  return -np.log(activations[label] / sum(activations))


@pytest.mark.parametrize(
  ("oracle", "margin_steps"),
  [(spread, None), (spread, 1.5), (margin, None), (cross_entropy, None)],
)
def test_each_loss_of_activations_has_its_name(oracle, margin_steps):
  """The margin is halfway after four of its time constants, here 6 steps."""
  task = make_task(
    "digits", num_steps=60 if margin_steps is None else 40,
    kind=oracle.__name__, margin_steps=margin_steps, weight_decay=0.2,
  )  # fmt: skip
  batch = jnp.zeros((3, 8, 8, 1)), jnp.array(LABELS)
  halfway, largest = (
    [oracle(a, label, m) for a, label in zip(ACTIVATIONS, LABELS, strict=True)]
    for m in (0.595, 0.2 + 0.79 / (1 + np.exp(-10)))
  )
  value, metrics = task.loss(Known(), *batch, jax.random.key(0), 6)
  assert float(metrics["loss"]) == pytest.approx(np.mean(halfway), rel=1e-5)
  assert float(metrics["accuracy"]) == pytest.approx(2 / 3)
  assert float(value) == pytest.approx(np.mean(halfway) + 2.5, rel=1e-5)
  measures = task.measure(Known(), *batch)
  np.testing.assert_allclose(measures["loss"], largest, rtol=1e-5)
  np.testing.assert_array_equal(measures["prediction"], [0, 2, 0])
  np.testing.assert_array_equal(measures["accuracy"], [1, 1, 0])
  np.testing.assert_allclose(measures["routing_entropy"], 1, rtol=1e-6)


@pytest.mark.parametrize("viewpoints", ["azimuth", "elevation"])
def test_validation_is_on_the_viewpoints_of_training(viewpoints):
  numbers = np.arange(90, dtype=np.int32)
  factors = {
    "label_azimuth": numbers % 18, "label_elevation": numbers // 2 % 9
  }  # fmt: skip
  images = np.zeros((90, 1, 1, 2), np.uint8)
  whole = capjax.data.Dataset(images, numbers % 5, 5, factors)
  task = make_task(viewpoints=viewpoints)
  known = task.familiar(factors)
  assert known.sum() == 30
  for part in task.split(whole, whole):
    np.testing.assert_array_equal(part.labels, whole.labels[known])
  with pytest.raises(ValueError, match="does not tell viewpoints"):
    task.familiar({})
  assert make_task().split is None and make_task().familiar is None


@pytest.mark.parametrize(
  ("placement", "placed"),
  [(Placement(), True), (Placement(crop=20, max_shift=0), False),
   (Placement(downsample=14), False)],
)  # fmt: skip
def test_whole_images_are_placed_on_a_canvas(placement, placed):
  task = make_task("mnist", placement=placement)
  model = task.describe((28, 28, 1), 3).make(nnx.Rngs(0))
  assert ("affnist_like" in task.suites(model)) == placed
