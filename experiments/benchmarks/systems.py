"""Times a training step of the systems that no other benchmark has.

  python -m experiments.benchmarks.systems

Each step is that of a preset for CPUs, on noise, with Adam, in a process of its
own. These systems have no textbook form here: the table has the time of a step,
the time of compilation, and the peak memory.
"""

import importlib

from absl import flags
from flax import nnx

from ..flags import limits, presets, runs
from ..training import task as tasks
from . import rows, step_cost

_STEPS = flags.DEFINE_integer("steps", 5, "Steps timed.", lower_bound=1)
_MNIST = (28, 28, 1)
# The system, its binary, its preset, and the shape of its images.
SYSTEMS = {
  "Efficient-CapsNet": ("capsnet", "efficient_mnist_cpu", _MNIST),
  "MultiMNIST CapsNet": ("multimnist", "multimnist_cpu", _MNIST),
  "capsule Helmholtz machine": ("helmholtz", "helmholtz_mnist", _MNIST),
  "variational auto-encoder": ("vae", "vae_mnist", _MNIST),
  "generative capsules": ("generative", "generative_mnist_cpu", _MNIST),
  "transforming auto-encoder": ("transforming", "transforming_mnist", _MNIST),
  "constellations": ("constellation", "constellation", ()),
  "slot attention": ("slots", "slots_multimnist", _MNIST),
}


def task_of(binary: str, preset: str) -> tuple[tasks.Task, int]:
  """The task and the batch size of a preset; call it once in a process.

  Args:
    binary: the training binary, without `train_`.
    preset: its preset.
  """
  name = f"train_{binary}"
  module = importlib.import_module(f"{__package__.partition('.')[0]}.{name}")
  words = presets.expand([name, f"--preset={preset}", "--workdir=nowhere"])
  flags.FLAGS(presets.inlined(words))
  return module.make_task(), runs.BATCH_SIZE.value


def time_step(
  binary: str, preset: str, image_shape: tuple[int, ...], num_steps: int
) -> tuple[step_cost.StepCost, int]:
  """Trains the model of a preset on noise, in a process that does nothing else.

  Args:
    binary: the training binary, without `train_`.
    preset: its preset.
    image_shape: [H W C] of the noise; empty where there are no images.
    num_steps: number of timed steps.

  Returns:
    The cost of a step, and the size of a batch.
  """
  task, batch = task_of(binary, preset)
  model = task.describe(image_shape, 10).make(nnx.Rngs(0))
  model.train()
  cost = step_cost.time_step(
    model,
    task.loss,
    task.sample,
    image_shape=image_shape,
    num_classes=10,
    batch=batch,
    num_steps=num_steps,
  )
  return cost, batch


def main() -> None:
  for system, (binary, preset, shape) in SYSTEMS.items():
    cost, batch = step_cost.in_process(
      time_step, binary, preset, shape, _STEPS.value
    )
    rows.note(cost.row(f"{system}, step", f"{preset}, batch {batch}"))
    print(f"{system}, {preset}: {cost.describe(batch)}", flush=True)


if __name__ == "__main__":
  limits.run(main, shared=["json"])
