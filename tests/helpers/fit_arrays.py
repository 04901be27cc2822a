"""Trains a small network on arrays by `fitting.fit`, without any flag.

It runs in a process of its own, by `processes.Running("fit_arrays", WORKDIR,
OPTIONS, package="")`. OPTIONS is a JSON object with fields of `LoopConfig` and
these keys:

- `count`: the number of training images, by default 60.
- `task`: `capsnet`, the default; any other name is a transforming auto-encoder.
- `optimizer`: a name in optax, by default `adam`.
- `stop_at`: the number of the validation at which the process is killed.
- `fails`: whether the first update raises an error.
- `suite_fails`: whether the suites after training raise an error.
- `start_from`: the folder of a run from whose weights this one starts.
"""

import json
import os
import signal
import sys

import numpy as np
import optax

import capjax
from capjax import specs
from experiments import fitting, pipeline
from experiments.evaluation import suites
from experiments.tasks import capsnet, transforming

_NETWORK = specs.Spec(
  capjax.CapsNet,
  dict(
    conv_features=4, conv_kernel=3, num_types=2, primary_kernel=3,
    decoder_features=(8,),
  ),
)  # fmt: skip
OPTIONS = {"num_steps": 4, "batch_size": 16, "eval_every": 2, "log_every": 2}
CLASS_NAMES = ("upper", "lower")


def arrays(count, seed=0):
  """Images [N 8 8] with a bright half, and labels: 0 upper, 1 lower half."""
  rng = np.random.default_rng(seed)
  labels = np.arange(count) % 2
  images = rng.integers(0, 100, (count, 8, 8), np.uint8)
  images[labels == 0, :4] += 150
  images[labels == 1, 4:] += 150
  return images, labels


def task(name="capsnet", optimizer="adam", rate=1e-3):
  optimizer = getattr(optax, optimizer)(rate)
  if name == "capsnet":
    return capsnet.make_task(_NETWORK, optimizer)
  spec = specs.Spec(capjax.TransformingAutoencoder, {"num_capsules": 2})
  movements = transforming.Movements(max_jitter=1, max_shift=1)
  return transforming.make_task(spec, optimizer, movements=movements)


def _kill_at(count):
  summarise, calls = pipeline.tasks.summarise, []

  def counted(measures):
    calls.append(None)
    if len(calls) == count:
      os.kill(os.getpid(), signal.SIGKILL)
    return summarise(measures)

  pipeline.tasks.summarise = counted


def _failing(*arguments):
  raise RuntimeError("the first update fails")


def _fail_in_suites():
  def failing(*arguments):
    raise RuntimeError("the suite fails")

  suites.SUITES = dict.fromkeys(suites.SUITES, failing)


def main(workdir, options):
  options = OPTIONS | options
  count, name = options.pop("count", 60), options.pop("task", "capsnet")
  if stop_at := options.pop("stop_at", 0):
    _kill_at(stop_at)
  if options.pop("suite_fails", False):
    _fail_in_suites()
  if source := options.pop("start_from", ""):
    options["start_from"] = capjax.load(source)
  made = task(name, options.pop("optimizer", "adam"))
  if options.pop("fails", False):
    made = made._replace(loss=_failing)
  trained = fitting.fit(
    made,
    workdir=workdir,
    train=arrays(count),
    test=arrays(20, seed=1),
    class_names=CLASS_NAMES,
    **options,
  )
  print(f"fitted {trained.card['sha256']}")


if __name__ == "__main__":
  main(sys.argv[1], json.loads(sys.argv[2]))
