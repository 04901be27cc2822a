"""What devices send to each other in an update."""

import json
import math
import os
import subprocess
import sys

import compiling
import processes
import pytest

# Prints the shapes of all arrays that an update gathers, by model.
_CODE = r"""
import json, re
import jax, numpy as np, optax
from flax import nnx
import capjax
from capjax import layers
from capjax.layers import platforms
from capjax.specs import Spec
from experiments.tasks import capsnet, scae
from experiments.training import placing, train_step

def gathered(task, size):
  images = np.zeros((64, size, size, 1), np.uint8)
  labels = np.arange(64, dtype=np.int32) % 10
  mesh = placing.data_mesh(32)
  model = task.describe((size, size, 1), 10).make(nnx.Rngs(0))
  state = train_step.init(model, task.optimizer, jax.random.key(0))
  arrays = placing.replicate((state, images, labels), mesh)
  update = train_step.make_update(
    task.loss, task.optimizer, sample=task.sample, batch_size=32, mesh=mesh
  )
  state, *data = arrays
  lowered = update.add.lower(state, update.zeros(*arrays), *data, 1)
  text = lowered.compile().as_text()
  return shapes(text)

def shapes(text):
  found = re.findall(r"\w+\[([\d,]*)\]\S* all-gather(?:-start)?\(", text)
  return [[int(n) for n in x.split(",") if n] for x in found]

def gathered_by_transformed():
  mesh = placing.data_mesh(32)
  layer = layers.Conv(64, 256, 8, stride=2, rngs=nnx.Rngs(0))
  layer = placing.replicate(layers.transform_kernels(layer), mesh)
  images = jax.device_put(
    np.zeros((32, 16, 16, 64), np.float32),
    jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data")),
  )
  known = platforms.known("cpu", 2)
  lowered = jax.jit(known(lambda layer, x: layer(x))).lower(layer, images)
  compiled = lowered.compile()
  assert "f32[94,256,16]" in compiled.as_text()  # it multiplies 16 images
  return shapes(compiled.as_text())

adam = optax.adam(1e-3)
small = dict(num_parts=3, num_objects=4, template_size=4, encoder_features=8)
print(json.dumps({
  "devices": jax.device_count(),
  "transformed": gathered_by_transformed(),
  "scae": gathered(scae.make_task(Spec(capjax.SCAE, small), adam), 28),
  "capsnet": gathered(
    capsnet.make_task(
      Spec(capjax.CapsNet, dict(conv_features=16, num_types=2)), adam
    ),
    28,
  ),
}))
"""


@pytest.mark.long
def test_devices_keep_their_images_to_themselves():
  devices = "--xla_force_host_platform_device_count=2"
  done = subprocess.run(
    [sys.executable, "-c", _CODE],
    cwd=processes.ROOT,
    env=os.environ | {"XLA_FLAGS": f"{compiling.FLAGS} {devices}"},
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  gathered = json.loads(done.stdout.splitlines()[-1])
  assert gathered["devices"] == 2
  assert gathered["scae"] == gathered["transformed"] == []
  assert gathered["capsnet"], "the pattern finds no gathering"
  # Scores of the classes, for the accuracy; of no image, and of no capsule.
  assert all(math.prod(shape) <= 32 * 10 for shape in gathered["capsnet"])
