"""What a run says of itself before it begins."""

import jax.numpy as jnp
import numpy as np
from flax import nnx

from capjax import data
from experiments.training import banner
from experiments.training.loop_config import LoopConfig


class Net(nnx.Module):
  def __init__(self):
    self.first = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    self.blocks = nnx.List([nnx.Linear(3, 3, rngs=nnx.Rngs(0))] * 1)
    self.scale = nnx.Param(jnp.ones(5))
    self.seen = nnx.BatchStat(jnp.ones(7))  # no parameter


def examples(count, shape=(4, 6, 1)):
  images = np.zeros((count, *shape), np.uint8)
  return data.Dataset(images, np.zeros(count, np.int32), 3, {})


def test_parameters_are_counted_by_layer():
  assert banner.parameters(Net()) == {"first": 9, "blocks.0": 12, "scale": 5}


def lines(shape=(4, 6, 1)):
  return banner.lines(
    device="CPU, 2 cores",
    model=Net(),
    name="Net",
    dataset="mine",
    train=examples(1200, shape),
    validation=examples(30),
    test=examples(40),
    config=LoopConfig(5000, 50),
  )


def test_what_deterministic_operations_cost_on_gpus_is_told(monkeypatch):
  monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_deterministic_ops=true")
  assert lines()[0] == "device: CPU, 2 cores"
  monkeypatch.setattr(banner.jax, "default_backend", lambda: "gpu")
  assert lines()[0].endswith("several times faster with --nodeterministic")
  monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_deterministic_ops=false")
  assert lines()[0] == "device: CPU, 2 cores"


def test_device_model_data_and_steps_are_told():
  device, model, dataset, training = lines()
  assert device == "device: CPU, 2 cores"
  assert model == "model: Net of 26 parameters: blocks.0 12, first 9, scale 5"
  assert dataset == (
    "data: mine, 1,200 images of 4x6x1 to train on, 30 for validation, 40 to "
    "test; 3 classes"
  )
  assert training == "training: 5,000 steps of 50, 24 steps an epoch"


def test_constellations_are_no_images():
  assert "1,200 examples to train on" in lines((1, 1, 1))[2]
