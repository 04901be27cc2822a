"""Starts the processes of the tests of several processes, and is their program.

`python tests/helpers/hosts.py OUT TASKS [ADDRESS COUNT INDEX]` does three
updates for each task on all devices, and writes the losses to OUT.
"""

import json
import os
import pathlib
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

import compiling

ROOT = pathlib.Path(__file__).parents[2]
_BATCH = 8
_CHAINS = 16
# Tasks of nearly all binaries; examples of multimnist read two images.
NAMES = (
  "capsnet", "multimnist", "scae", "generative", "matrix_capsules",
  "constellation", "transforming", "boltzmann", "helmholtz", "vae",
)  # fmt: skip


def free_address() -> str:
  """An address of this machine with a free port."""
  with socket.socket() as some:
    some.bind(("127.0.0.1", 0))
    return f"127.0.0.1:{some.getsockname()[1]}"


def losses(
  folder: pathlib.Path, count: int, devices: int, names: Sequence[str] = NAMES
) -> dict:
  """Starts processes that train together, and returns their losses.

  Args:
    folder: for what they write and print.
    count: number of processes.
    devices: number of devices of each.
    names: the tasks; NAME/N divides transforms among N devices.
  """
  address, running = free_address(), []
  flag = f"--xla_force_host_platform_device_count={devices}"
  environment = os.environ | {
    "PYTHONPATH": str(ROOT), "XLA_FLAGS": f"{compiling.FLAGS} {flag}"
  }  # fmt: skip
  outs = [folder / f"{count}x{devices}_{index}" for index in range(count)]
  for index, out in enumerate(outs):
    words = [address, str(count), str(index)] if count > 1 else []
    with open(f"{out}.txt", "w") as printed:
      running.append(
        subprocess.Popen(
          [sys.executable, __file__, f"{out}.json", ",".join(names), *words],
          cwd=ROOT, stdout=printed, stderr=printed, env=environment,
        )
      )  # fmt: skip
  try:
    for process, out in zip(running, outs, strict=True):
      if process.wait(600):
        raise RuntimeError(pathlib.Path(f"{out}.txt").read_text())
  finally:
    for process in running:
      process.kill()
  found = [json.loads(pathlib.Path(f"{out}.json").read_text()) for out in outs]
  assert all(x == found[0] for x in found), found
  return found[0]


def _made(task, dataset, path):
  """A new model. The first process makes and saves it; later ones read it."""
  import jax
  import numpy as np

  from experiments.training import task as tasks

  if path.exists():
    model = task.describe(
      dataset.images.shape[1:], dataset.num_classes
    ).shapes()
    model.eval()
    with np.load(path) as arrays:
      return jax.tree.unflatten(
        jax.tree.structure(model),
        [arrays[f"{n}"] for n in range(len(arrays.files))],
      )
  model = tasks.make_model(task, dataset)
  task.begin(model, dataset, dataset)
  leaves = map(np.asarray, jax.tree.leaves(model))
  np.savez(path, **{f"{n}": x for n, x in enumerate(leaves)})
  return model


def _three_updates(name: str, folder: pathlib.Path) -> dict:
  import jax
  import numpy as np
  import optax
  from task_rows import TASKS, load

  from experiments.training import placing, train_step
  from experiments.training import task as tasks

  name, _, groups = name.partition("/")
  module, spec, options = TASKS[name]
  if name == "boltzmann":
    spec = spec.with_arguments(num_chains=_CHAINS)
  task = module.make_task(spec, optax.adam(1e-3), **options)
  dataset = load(name, 41)
  mesh = placing.data_mesh(_BATCH, model_parallel=int(groups or 1))
  model = _made(task, dataset, folder / f"{name}.npz")
  update = train_step.make_update(
    task.loss, task.optimizer, sample=task.sample, batch_size=_BATCH, mesh=mesh
  )
  state = train_step.init(model, task.optimizer, jax.random.key(0))
  state = placing.place_state(state, mesh)
  arrays = placing.divide((dataset.images, dataset.labels), mesh)
  totals = update.zeros(state, *arrays)
  seen = []
  for _ in range(3):
    state, totals = update.add(state, totals, *arrays, 1)
    seen.append({n: float(x) for n, x in totals.items()})
  found = {"updates": seen}
  if name == "capsnet":
    paths = jax.tree_util.tree_flatten_with_path(state)[0]
    found["transforms_here"] = [
      x.addressable_shards[0].data.shape[0]
      for path, x in paths
      if "transforms" in jax.tree_util.keystr(path)
    ]
  if name == "boltzmann":
    chains = state.model.fantasy.get_value().hidden
    found["chains_here"] = len(chains.addressable_shards[0].data)
  if name in ("capsnet", "multimnist"):
    evaluate = tasks.make_evaluate(task.measure, task.sample_test, _BATCH, mesh)
    measures = evaluate(state.model, dataset.images, dataset.labels)
    assert all(len(x) == 41 for x in measures.values())
    found["measures"] = {
      n: np.float64(x).reshape(41, -1).mean(axis=1).tolist()
      for n, x in measures.items()
      if n != "prediction"
    }
  return found


def _fetched_bytes() -> int:
  """Bytes that devices exchange to fetch a batch from 4001 rows of 64 bytes."""
  import jax
  import numpy as np
  from jax.sharding import NamedSharding
  from jax.sharding import PartitionSpec as P

  from experiments.benchmarks import scaling
  from experiments.training import placing

  mesh = placing.data_mesh(_BATCH)
  split = NamedSharding(mesh, P("data"))
  rows = np.arange(64 * 4001, dtype=np.uint8).reshape(4001, 64)
  indices = np.arange(4001 - _BATCH, 4001)

  @jax.jit
  def fetch(divided, indices):
    rows = placing.whole(divided)
    batch = jax.vmap(lambda index: rows[index])(indices)
    return jax.lax.with_sharding_constraint(batch, split)

  arguments = placing.divide(rows, mesh), indices
  for shard in fetch(*arguments).addressable_shards:
    np.testing.assert_array_equal(shard.data, rows[indices][shard.index])
  text = fetch.lower(*arguments).compile().as_text()
  return scaling.collective_bytes(text)


def main(out: str, names: str, *words: str) -> None:
  """Writes the losses of some tasks."""
  from experiments.run import processes

  if words:
    address, count, index = words
    processes.initialise(address, int(count), int(index))
  folder, found = pathlib.Path(out).parent, {"fetched": _fetched_bytes()}
  for name in names.split(","):
    print(name, time.process_time(), flush=True)
    found[name] = _three_updates(name, folder)
  pathlib.Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
  main(*sys.argv[1:])
