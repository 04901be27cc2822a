"""Times an iteration of the capsule RBM against loops over capsules in NumPy.

  python -m experiments.benchmarks.boltzmann

Both do the computations of the authors' script on MNIST, on noise, in float32:
mean field on 100 images, their reconstruction, 20 sweeps of 100 persistent
chains, the gradients and an update (Li and Zhu, 2019).
"""

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import flags
from flax import nnx
from scipy import special

from capjax.energy import contrastive, rbm

from ..flags import limits
from ..training import placing, train_step
from . import harness, rows

_BATCH = flags.DEFINE_integer(
  "batch", 100, "Number of images and of chains.", lower_bound=1
)
_ITERATIONS = flags.DEFINE_integer(
  "iterations", 10, "Iterations of mean field.", lower_bound=1
)
_SWEEPS = flags.DEFINE_integer(
  "sweeps", 20, "Sweeps of Gibbs sampling.", lower_bound=1
)
_STEPS = flags.DEFINE_integer(
  "steps",
  50,
  "Number of timed iterations; NumPy runs a tenth of them.",
  lower_bound=10,
)
_M, _K, _J = 784, 40, 16
_RATE = 0.01


def ours(positive: str, sweep: str) -> Callable[[int], float]:
  """Makes `number of iterations -> seconds of one` for our implementation."""
  model = rbm.CapsuleRBM(num_chains=_BATCH.value, rngs=nnx.Rngs(0))
  optimizer = optax.sgd(_RATE)

  def loss(model, images, labels, key, step):
    del labels, step
    value, learned = contrastive.contrastive_loss(
      model,
      images,
      key,
      num_iterations=_ITERATIONS.value if positive == "mean field" else None,
      num_sweeps=_SWEEPS.value,
      block=sweep == "block",
    )
    model.set_chains(learned.chains)
    return value, {"error": jnp.mean(learned.errors)}

  mesh = placing.data_mesh(_BATCH.value)
  update = train_step.make_update(
    loss,
    optimizer,
    sample=train_step.sample_labelled(lambda key, image: image),
    batch_size=_BATCH.value,
    mesh=mesh,
  )
  random = np.random.default_rng(0)
  # One epoch: the first iteration, which compiles, and three rounds.
  count = _BATCH.value * (3 * _STEPS.value + 1)
  images = random.integers(0, 256, (count, 28, 28, 1), np.uint8)
  labels = np.zeros(count, np.int32)
  state = train_step.init(model, optimizer, jax.random.key(0))
  state, images, labels = placing.replicate((state, images, labels), mesh)
  zeros = update.zeros(state, images, labels)
  # The first iteration compiles, and starts the chains.
  state, _ = update.add(state, zeros, images, labels, 1)

  def run(steps):
    nonlocal state
    start = time.perf_counter()
    state, metrics = update.add(state, zeros, images, labels, steps)
    jax.block_until_ready(metrics)
    return (time.perf_counter() - start) / steps

  return run


def numpy_loops(steps: int) -> float:
  """Seconds of an iteration in NumPy, with a loop over the capsules."""
  random = np.random.default_rng(0)
  batch = _BATCH.value
  single = np.float32
  a, b, c = (np.zeros(n, single) for n in (_M, (_K, _J), _K))
  weights = [
    0.001 * random.standard_normal((_M, _J), single) for _ in range(_K)
  ]
  images = random.random((batch, _M), single)
  h = [np.zeros((batch, _J), single) for _ in range(_K)]
  z = np.zeros((batch, _K), single)

  def sample(probability):
    return (random.random(probability.shape, single) < probability).astype(
      single
    )

  start = time.perf_counter()
  for _ in range(steps):
    noise = 0.1 * random.standard_normal((batch, _K), single)
    mean_z = special.expit(c + noise)
    mean_h = [None] * _K
    # Mean field changes neither the images nor their input to the capsules.
    drives = [images @ weights[k] for k in range(_K)]
    for _ in range(_ITERATIONS.value):
      for k in range(_K):
        mean_h[k] = special.expit(b[k] + mean_z[:, k, None] * drives[k])
        met = np.sum(drives[k] * mean_h[k], axis=1)
        mean_z[:, k] = special.expit(c[k] + met)
    natural = np.tile(a, (batch, 1))
    for k in range(_K):
      natural += mean_z[:, k, None] * (mean_h[k] @ weights[k].T)
    np.mean(np.abs(special.expit(natural) - images))
    for _ in range(_SWEEPS.value):
      natural = np.tile(a, (batch, 1))
      for k in range(_K):
        natural += z[:, k, None] * (h[k] @ weights[k].T)
      x = sample(special.expit(natural))
      for k in range(_K):
        drive = x @ weights[k]
        z[:, k] = sample(special.expit(c[k] + np.sum(drive * h[k], axis=1)))
        h[k] = sample(special.expit(b[k] + z[:, k, None] * drive))
    a += _RATE * (np.mean(images, 0) - np.mean(x, 0))
    c += _RATE * (np.mean(mean_z, 0) - np.mean(z, 0))
    for k in range(_K):
      b[k] += _RATE * (np.mean(mean_h[k], 0) - np.mean(h[k], 0))
      data = images.T @ (mean_z[:, k, None] * mean_h[k])
      dreams = x.T @ (z[:, k, None] * h[k])
      weights[k] += _RATE * (data - dreams) / batch
  return (time.perf_counter() - start) / steps


def main() -> None:
  flops_rate, _ = harness.rates()
  # Two products in each sweep, from x to the capsules and back; three for
  # learning, and one for the reconstruction.
  products = 2 * _SWEEPS.value + 4
  floor = 2 * products * _BATCH.value * _M * _K * _J / flops_rate
  forms = {
    (positive, sweep): ours(positive, sweep)
    for positive in ("mean field", "exact")
    for sweep in ("gibbs", "block")
  }
  numpy_loops(1)  # warms up
  theirs = min(numpy_loops(_STEPS.value // 10) for _ in range(3))
  print(f"NumPy, capsule by capsule: {1e3 * theirs:.1f} ms an iteration")
  for (positive, sweep), run in forms.items():
    own = min(run(_STEPS.value) for _ in range(3))
    setting = f"batch {_BATCH.value}, {positive}, {sweep} sweeps"
    # The other forms compute something else than the script.
    same = (positive, sweep) == ("mean field", "gibbs")
    textbook = theirs if same else None
    rows.note(rows.Row("capsule RBM, step", setting, own, textbook, floor))
    print(
      f"ours, {positive}, {sweep} sweeps: {1e3 * own:.1f} ms an iteration, "
      + (f"{theirs / own:.1f}x faster; " if same else "")
      + f"floor {1e3 * floor:.1f} ms (flops)"
    )


if __name__ == "__main__":
  limits.run(main)
