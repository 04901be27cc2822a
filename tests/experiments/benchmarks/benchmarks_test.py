"""The benchmarks run; their figures are for a quiet machine, not for tests."""

import contextlib
import functools
import io
import itertools
import pathlib
import re
import subprocess
import sys
import tempfile
import types
from unittest import mock

import calling
import jax
import jax.numpy as jnp
import numpy as np
import processes
import pytest
from absl.testing import absltest, parameterized
from flax import nnx

import capjax
from capjax.evaluation import operations
from capjax.layers import routers
from experiments.benchmarks import (
  capsnet,
  harness,
  rows,
  step_cost,
  textbook,
)

_ROOT = processes.ROOT


def _call(benchmark, name, *arguments):
  """A function of another benchmark, in a process of its own."""
  module = f"experiments.benchmarks.{benchmark}"
  return step_cost.in_process(calling.call, module, name, *arguments)


class BenchTest(parameterized.TestCase):
  @pytest.mark.long
  def test_a_step_is_timed(self):
    form = functools.partial(capjax.CapsNet, conv_features=4, num_types=1)
    cost = capsnet.time_step(form, 2, 1)
    self.assertGreater(cost.seconds, 0)
    self.assertGreater(cost.temporary_bytes, 0)
    self.assertGreater(cost.peak_bytes, cost.temporary_bytes)

  def test_a_form_that_is_too_large_does_not_run(self):
    forms = (lambda x: jnp.sort(x) @ x, lambda x: x @ x)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
      harness.race(
        "here",
        7,
        forms,
        [jnp.ones(99)],
        system="a sort",
        floors=lambda _: (0.1, 0.2),
        memory=0,
      )
    rows = printed.getvalue().splitlines()
    self.assertLen(rows, 2)
    for row, name in zip(rows, ("forward", r"fwd\+grad"), strict=True):
      self.assertRegex(row, rf"^here +7 {name} +too large .* 100.0  200.0 ms$")

  @parameterized.parameters(
    (0.01, "aaabbb" + 2 * "aabb"), (1.0, "ab" + 2 * "ab")
  )
  def test_short_calls_follow_one_of_the_same_function(self, seconds, want):
    calls, clock = [], itertools.count(0.0, seconds)

    def compiled(name):
      run = mock.Mock(side_effect=lambda x: calls.append(name))
      run.memory_analysis().temp_size_in_bytes = 0
      return mock.Mock(**{"lower.return_value.compile.return_value": run})

    time = types.SimpleNamespace(perf_counter=lambda: next(clock))
    with (
      mock.patch.object(harness, "time", time),
      mock.patch.object(harness.jax, "jit", compiled),
    ):
      harness.measure_all("ab", jnp.ones(3), rounds=2)
    self.assertEqual("".join(calls), want)

  def test_the_median_or_the_shortest_time_is_taken(self):
    times = iter([0, 9, 0, 5, 0, 1, 0, 3] * 2)  # the first call warms up
    clock = types.SimpleNamespace(perf_counter=lambda: next(times))
    with mock.patch.object(harness, "time", clock):
      taken = [
        harness.measure_all([jnp.sum], jnp.ones(3), rounds=3, shortest=short)
        for short in (False, True)
      ]
    self.assertEqual([cost.seconds for (cost,) in taken], [3, 1])

  def test_the_textbook_form_is_the_same_network(self):
    sizes = dict(
      conv_features=4, conv_kernel=3, num_types=2, primary_kernel=3,
    )  # fmt: skip
    ours, theirs = (
      form((8, 8, 1), **sizes, rngs=nnx.Rngs(0))
      for form in (capjax.CapsNet, capsnet.TextbookCapsNet)
    )
    images = jax.random.uniform(jax.random.key(0), (3, 8, 8, 1))
    np.testing.assert_allclose(
      theirs(images).poses, ours(images).poses, atol=1e-6
    )

  @pytest.mark.long
  def test_routings_are_timed(self):
    words = (
      "--dataset=digits", "--conv_features=2", "--conv_kernel=3",
      "--num_types=1", "--primary_kernel=3", "--primary_stride=3",
      "--reconstruction=none", "--batch_size=2", "--rounds=1",
    )  # fmt: skip
    done = subprocess.run(
      [sys.executable, "-m", "experiments.measure_routings", *words],
      cwd=_ROOT, capture_output=True, text=True,
    )  # fmt: skip
    self.assertEqual(done.returncode, 0, done.stderr)
    rows = done.stdout.splitlines()
    self.assertEqual(
      [row.partition(":")[0] for row in rows], list(routers.NAMES)
    )
    for row in rows:
      numbers = map(float, re.findall(r"([\d.]+) (?:ms|MB)", row))
      self.assertGreater(min(numbers), -1)
      self.assertRegex(row, r"ms, .* MB, with gradient .* ms, .* MB$")

  @parameterized.parameters(
    ("routing", ("--batches=1", "--num_parts=16"), 2),
    (
      "scae",
      (
        "--batch=2",
        "--canvas=23",
        "--num_parts=2",
        "--num_objects=2",
        "--encoder_features=2",
      ),
      6,
    ),
    ("em", ("--steps=0", "--batches=1", "--layers=5:2:3:2"), 2),
    ("row_sums", (), 3),
    (
      "boltzmann",
      ("--batch=2", "--sweeps=1", "--iterations=1", "--steps=10"),
      5,
    ),
  )
  @pytest.mark.long
  def test_forms_race(self, name, words, num_rows):
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    path = pathlib.Path(folder.name, "rows.json")
    # In processes of their own: benchmarks share names of flags.
    done = subprocess.run(
      [
        sys.executable,
        "-m",
        f"experiments.benchmarks.{name}",
        f"--json={path}",
        *words,
      ],
      cwd=_ROOT,
      capture_output=True,
      text=True,
    )
    self.assertEqual(done.returncode, 0, done.stderr)
    (machine,), found = rows.read(str(path))
    self.assertGreater(machine.flops, 0)
    # One line is no row, and steps of the SCAE are no line in milliseconds.
    expected = num_rows - (name in ("boltzmann", "scae"))
    if name == "scae":
      expected += len(step_cost.cpu_divisions(2))
    self.assertLen(found, expected)
    self.assertGreater(min(row.ours for row in found), 0)
    lines = [line for line in done.stdout.splitlines() if " ms" in line]
    self.assertLen(lines, num_rows)

  @pytest.mark.long
  def test_a_step_of_a_preset_is_timed(self):
    cost, batch = _call(
      "systems", "time_step", "vae", "vae_quick", (8, 8, 1), 1
    )
    self.assertGreater(batch, 1)
    row = cost.row("a step", "here")
    for x in (row.ours, row.compile_seconds, row.peak_bytes):
      self.assertGreater(x, 0)

  @pytest.mark.long
  def test_starts_are_timed(self):
    found = _call("start_up", "measure", 1)
    self.assertLen(found, 3)
    help_, cold, warm = found.values()
    self.assertLess(help_, cold)
    self.assertLess(warm, cold)
    told = "ended too early:\n(.*\n)*.*=no_such: give"
    with self.assertRaisesRegex(ValueError, told):
      _call("start_up", "measure", 1, "no_such")

  def test_a_call_is_timed(self):
    cost = step_cost.time_call(lambda x: jnp.sort(x) @ x, jnp.ones(99))
    self.assertGreater(cost.seconds, 0)
    self.assertGreater(cost.compile_seconds, cost.seconds)
    self.assertGreater(cost.peak_bytes, 10**8)

  @pytest.mark.long
  def test_floors_of_a_step_are_those_of_its_layers(self):
    """Of the network of 310K: 14, 6 and 4 positions along a side."""
    pairs = 6**2 * 9 * 32 * 32, 4**2 * 9 * 32 * 32, 4**2 * 32 * 5
    for_each = 2 * 4 + 1 + 4 * 3 + 4 * 2
    want = 3 * 16 * sum(pairs) * 16 * for_each
    flops, transfer = _call("em", "step_floors", "310K", (1.0, 1e30))
    self.assertEqual(flops, want)
    self.assertGreater(transfer, 0)
    # One window of 3x3 with 8 types and 16 parents.
    poses, *arrays = map(
      jnp.ones,
      ((1, 3, 3, 8, 4, 4), (1, 3, 3, 8), (3, 3, 8, 16, 4, 4), 16, 16),
    )
    form = functools.partial(
      textbook.em_convolution, inverse_temperatures=(1.0, 1.0, 1.0)
    )
    count = operations.count(form, poses, *arrays)
    floor = 9 * 8 * 16 * 16 * for_each
    self.assertLess(floor, count)
    self.assertGreater(floor, 0.8 * count)

  def test_no_floor_is_above_the_operations_of_the_textbook(self):
    shape = 20, 10, 8, 16
    count = operations.count(
      textbook.dynamic_routing, jnp.ones((1, 20, 8)), jnp.ones(shape)
    )
    products = 2 * textbook.num_products(shape, num_iterations=3)
    self.assertLess(products, count)
    self.assertGreater(products, 0.9 * count)

  @pytest.mark.long
  def test_training_from_files_is_timed(self):
    words = ("--steps=2", "--batch=2", "--features=2", "--types=1")
    done = subprocess.run(
      [sys.executable, "-m", "experiments.benchmarks.streaming", *words],
      cwd=_ROOT,
      capture_output=True,
      text=True,
    )
    self.assertEqual(done.returncode, 0, done.stderr)
    rates = re.findall(r"([\d,]+) (?:images/s|from files)", done.stdout)
    self.assertLen(rates, 5)
    self.assertGreater(min(int(x.replace(",", "")) for x in rates), 0)


if __name__ == "__main__":
  absltest.main()
