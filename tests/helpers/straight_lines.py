"""A model of one weight, and its data, for tests of the training loop."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from capjax import data
from experiments.run import directory
from experiments.training import (
  checkpoints,
  loop,
  placing,
  task,
  train_step,
)
from experiments.training.loop_config import LoopConfig

IMAGES = np.arange(20, dtype=np.uint8).reshape(-1, 1, 1, 1)
LABELS = np.arange(20, dtype=np.int32)
DATASET = data.Dataset(IMAGES, LABELS, 20, {})
EMPTY = data.select(DATASET, slice(0, 0))
BATCH_SIZE = 4


class Line(nnx.Module):
  """y = w x, where x is the normalised input."""

  def __init__(self):
    self.w = nnx.Param(jnp.float32(0.5))
    self.norm = nnx.BatchNorm(1, rngs=nnx.Rngs(0))
    self.eval()

  def __call__(self, images):
    return self.w[...] * self.norm(255 * images[:, 0, 0])[:, 0]


def loss(model, images, labels, key, step):
  del step
  errors = model(images) - labels + 0.1 * jax.random.normal(key)
  value = jnp.mean(jnp.square(errors))
  return value, {"loss": value}


def measure(model, images, labels):
  error = jnp.abs(model(images) - labels)
  return {"error": error, "accuracy": jnp.ones_like(error)}


def options():
  sample = train_step.sample_labelled(lambda key, image: image)
  mesh = placing.data_mesh(BATCH_SIZE)
  return {"sample": sample, "batch_size": BATCH_SIZE, "mesh": mesh}


def make(decay=0.0):
  """The initial state of a `Line`, and its update."""
  optimizer = optax.adam(0.1)
  state = train_step.init(
    Line(), optimizer, jax.random.key(0), average=bool(decay)
  )
  update = train_step.make_update(
    loss, optimizer, average_decay=decay, **options()
  )
  return placing.replicate(state, options()["mesh"]), update


def fit(
  workdir,
  num_steps,
  *,
  validation,
  decay=0.0,
  config=(),
  score=None,
  **changes,
):
  """Trains a `Line`; returns its state and its checkpoints."""
  workdir.mkdir(exist_ok=True)
  saved = checkpoints.Checkpoints(workdir / "checkpoints", score)
  state, update = make(decay)
  loop.fit(
    directory.Run(workdir),
    saved,
    state,
    update=update,
    evaluate=train_step.make_evaluate(measure, **options()),
    train=DATASET,
    validation=validation,
    mesh=options()["mesh"],
    config=LoopConfig(
      num_steps, BATCH_SIZE, **{"eval_every": 2, **dict(config)}
    ),
    **changes,
  )
  return saved.restore((make(decay)[0], 0.0))[0], saved


def score_of(metrics, chosen_by="accuracy"):
  """The score of metrics by which a task chooses its checkpoint."""
  some = task.Task(*[None] * 8, chosen_by=chosen_by)
  return task._score(some, metrics)
