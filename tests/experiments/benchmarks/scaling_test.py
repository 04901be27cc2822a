"""Counts of operations between devices, and the table of what they cost."""

import jax
import optax
import pytest

import capjax
from capjax.specs import Spec
from experiments.benchmarks import scaling
from experiments.records import scaling as table
from experiments.tasks import capsnet

_TEXT = """
  %all-gather.27 = s32[8,4]{1,0} all-gather(%fusion), channel_id=4
  %all-reduce.15 = u8[8,1,8,8,1]{4,3,2,1,0} all-reduce(%fusion.1), to_apply=%x
  %all-reduce.17 = (f32[10,16]{1,0}, /*index=1*/bf16[3]{0}, f32[]) all-reduce()
  %dot.1 = f32[99]{0} dot(%all-reduce.15, %b)
"""


def test_bytes_between_devices_are_those_of_their_results():
  found = scaling.collective_bytes(_TEXT)
  assert found == 4 * 32 + 512 + 4 * 160 + 2 * 3 + 4


def test_a_ring_sends_each_sum_almost_twice():
  counts = {"gradient_bytes": 1000, "batch": 4, "row_bytes": 25}
  assert table.sent(counts, 1) == 0
  assert table.sent(counts, 2) == 1000 + 2 * 100
  assert table.sent(counts, 100) == pytest.approx(1.98 * (1000 + 100 * 100))


def test_without_a_record_there_is_no_table():
  assert table.table({}) == ""
  counts = {
    "parameters": 1234, "batch": 2, "operations": 5e9, "bytes": 4e9,
    "temporary_bytes": 1e9, "gradient_bytes": 4e6, "row_bytes": 1e6,
  }  # fmt: skip
  metrics = {
    f"{name}_{key}": value
    for name in ("capsnet", "matrix_capsules", "scae")
    for key, value in counts.items()
  }
  lines = table.table({"scaling": [{"metrics": metrics}]}).splitlines()
  assert len(lines) == 5
  assert lines[2] == (
    "| CapsNet, MNIST | 1,234 | 2 | 15 | 4.0 | 1.0 | 0.0 | 35.0 | 259.9 "
    "| 1028.0 |"
  )


@pytest.mark.long
def test_a_step_is_counted_without_running(monkeypatch):
  model = Spec(
    capjax.CapsNet,
    dict(conv_features=4, conv_kernel=3, num_types=2, primary_kernel=3),
  )
  case = scaling.Case(
    lambda: capsnet.make_task(model, optax.sgd(0.1)), (8, 8, 1), 10, 4
  )
  monkeypatch.setattr(scaling, "DEVICES", len(jax.devices()))
  found = scaling.costs(case)
  network = model.with_arguments(image_shape=(8, 8, 1), num_classes=10)
  leaves = jax.tree.leaves(network.shapes())
  assert found["parameters"] == sum(x.size for x in leaves)
  assert found["gradient_bytes"] == 4 * found["parameters"]
  assert found["row_bytes"] == 68 and found["batch"] == 4
  # Two for each weight of the convolution at each of 36 places, and more.
  assert found["operations"] > 2 * 4 * 36 * 36
  assert found["flops"] > 0 and found["bytes"] > found["gradient_bytes"]
