"""Kernels at random arguments of every magnitude, against float64.

  make fuzz

prints, for each kernel of `kernel_cases`, how many cases gave numbers that are
not finite though float64 on the same arguments gives finite ones in the range
of float32 ("avoidable"), how many where float64 does not either ("both"), and
how many differ from float64 ("differ") by more than rounding its arguments
explains. `fuzz_test` is the small form.
"""

import argparse
import sys
import time
from typing import NamedTuple

import compiling
import jax
import jax.numpy as jnp
import kernel_cases
import numpy as np

_MAGNITUDES = (0.0, 1e-30, 1e-15, 1e-5, 1.0, 1e2, 1e4, 1e9, 1e15, 1e20, 1e30)
_LARGEST = float(np.finfo(np.float32).max)
# The allowed error, as a share of the largest number of a result, in addition
# to the effect of rounding the arguments.
_TOLERANCES = {"float32": 1e-3, "bfloat16": 0.1}
_ROUNDINGS = 100  # times the effect of one rounding that are allowed too


class Form(NamedTuple):
  """How kernels are called: the dtype, and whether under `jax.jit`."""

  dtype: str = "float32"
  compiled: bool = True


class Counts(NamedTuple):
  """Numbers of cases, for values or for gradients; see the module."""

  cases: int = 0
  avoidable: int = 0
  both: int = 0
  differ: int = 0

  def __add__(self, other):
    return Counts(*map(sum, zip(self, other, strict=True)))


class Batch(NamedTuple):
  """Arguments in float64, stacked along the first axis.

  Attributes:
    arguments: by name.
    magnitudes: of the real numbers among them.
  """

  arguments: dict[str, np.ndarray]
  magnitudes: np.ndarray


def draw(case, seed: int, *, sizes=kernel_cases.SIZES, repeats=1) -> Batch:
  """Ordinary arguments, equal ones and ones with zeros, of each magnitude.

  Among the magnitudes is the edge of the kernel's range.
  """
  random = np.random.default_rng(seed)
  kinds = {n: kernel_cases.kind_of(x) for n, x in case.arguments.items()}

  def equal(x, kind):
    return np.broadcast_to(x[:1], x.shape) if x.ndim else x

  def sparse(x, kind):
    kept = random.uniform(size=x.shape) < 0.5
    return x if kind == "positive" else x * kept

  def mixed(x, kind):
    """Magnitudes from 1 to that of the row."""
    if kind != "real":
      return x
    size = np.maximum(np.abs(x), 1e-30)
    return np.sign(x) * size ** random.uniform(size=x.shape)

  def extreme(x, kind):
    if kind == "unit":
      return np.round(x)
    return np.sign(x) * np.max(np.abs(x)) if kind == "real" and x.size else x

  rows, magnitudes = [], []
  for magnitude in sorted({*_MAGNITUDES, case.largest}):
    for _ in range(repeats):
      drawn = kernel_cases.draw(case, random, sizes=sizes, magnitude=magnitude)
      for change in (None, equal, sparse, mixed, extreme):
        row = {
          name: change(x, kinds[name]) if change else x
          for name, x in drawn.items()
        }
        rows.append(row)
        magnitudes.append(magnitude)
  return Batch(
    {name: np.stack([row[name] for row in rows]) for name in rows[0]},
    np.array(magnitudes),
  )


def run(case, arguments, form: Form) -> dict[str, list[np.ndarray]]:
  """Values and gradients of each row, in float64.

  Gradients are those of a sum of the values with fixed random weights.
  """

  def function(arguments):
    leaves = jax.tree.leaves(case.function(**arguments))
    return [x for x in leaves if jnp.issubdtype(x.dtype, jnp.inexact)]

  def of_row(arguments):
    if not case.reverse:
      return {"values": function(arguments), "gradients": []}
    values, pull = jax.vjp(function, arguments)
    random = np.random.default_rng(0)
    weights = [
      jnp.asarray(random.normal(size=x.shape), x.dtype) for x in values
    ]
    return {"values": values, "gradients": jax.tree.leaves(pull(weights))}

  rows = jax.vmap(of_row)
  with jax.enable_x64(form.dtype == "float64"):
    given = {n: jnp.asarray(x, form.dtype) for n, x in arguments.items()}
    if form.compiled:
      found = jax.jit(rows)(given)
    else:
      with jax.disable_jit():
        found = rows(given)
    return jax.tree.map(np.float64, found)


def _rounded(arguments, dtype):
  return {
    name: np.float64(jnp.asarray(x, dtype)) for name, x in arguments.items()
  }


def _any(leaves, test) -> np.ndarray:
  """Which rows have a number for which the test holds in any result."""
  rows = [
    np.any(test(*arrays).reshape(len(arrays[0]), -1), axis=1)
    for arrays in zip(*leaves, strict=True)
  ]
  return np.any(rows, axis=0)


def compare(case, batch: Batch, form: Form) -> dict[str, dict[str, Counts]]:
  """Counts of rows {within or beyond the kernel's range: {values: ...}}."""
  arguments = _rounded(batch.arguments, form.dtype)
  got = run(case, arguments, form)
  spacing = float(jnp.finfo(form.dtype).eps)
  random = np.random.default_rng(1)
  nudged = {
    name: x * (1 + spacing * random.uniform(-1, 1, x.shape))
    if kernel_cases.kind_of(case.arguments[name]) != "flag"
    else x
    for name, x in arguments.items()
  }
  both = {n: np.concatenate([arguments[n], nudged[n]]) for n in arguments}
  exact = run(case, both, Form("float64"))
  count = len(batch.magnitudes)
  found = {"within": {}, "beyond": {}}
  for what in ("values", "gradients"):
    if not got[what]:
      continue
    want = [x[:count] for x in exact[what]]
    near = [x[count:] for x in exact[what]]

    def is_avoidable(x, y):
      return ~np.isfinite(x) & (np.abs(y) <= _LARGEST)

    def differs(x, y, z):
      axes = tuple(range(1, y.ndim))
      with np.errstate(invalid="ignore", over="ignore"):
        size = np.max(np.abs(y), axes, keepdims=True)
        change = np.max(np.abs(y - z), axes, keepdims=True)
        allowed = _TOLERANCES[form.dtype] * size + _ROUNDINGS * change
        allowed = np.maximum(allowed, 1e-30)
        return np.isfinite(x) & np.isfinite(y) & (np.abs(x - y) > allowed)

    avoidable = _any((got[what], want), is_avoidable)
    neither = _any((got[what],), lambda x: ~np.isfinite(x)) & ~avoidable
    wrong = _any((got[what], want, near), differs) & (not case.random)
    inside = batch.magnitudes <= case.largest
    for place, rows in (("within", inside), ("beyond", ~inside)):
      found[place][what] = Counts(
        int(rows.sum()),
        *(int(np.sum(x & rows)) for x in (avoidable, neither, wrong)),
      )
  return found


def sizes_of(case) -> list[dict[str, int]]:
  """Sizes of axes that a kernel is called with: few, more parts, one part."""
  every = [kernel_cases.SIZES, kernel_cases.SIZES | {"I": 7, "J": 3}]
  if case.children:
    every.append(kernel_cases.SIZES | {case.children: 1})
  return every


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--repeats", type=int, default=8)
  parser.add_argument("--only", default="", help="Part of a kernel's name.")
  given = parser.parse_args()
  forms = [
    Form(dtype, compiled)
    for dtype in ("float32", "bfloat16")
    for compiled in (True, False)
  ]
  print(
    "kernel | range | what | cases of each | "
    + " | ".join(
      f"{form.dtype}, {'jit' if form.compiled else 'no jit'}: "
      "avoidable, both, differ"
      for form in forms
    )
  )
  totals, start = {}, time.monotonic()
  for name, case in kernel_cases.CASES.items():
    if given.only not in name:
      continue
    table = {}
    for number, sizes in enumerate(sizes_of(case)):
      batch = draw(
        case, given.seed + number, sizes=sizes, repeats=given.repeats
      )
      for form in forms:
        for place, parts in compare(case, batch, form).items():
          for what, counts in parts.items():
            for rows, key in ((table, (place, what)), (totals, (place, what))):
              line = rows.setdefault(key, {})
              line[form] = line.get(form, Counts()) + counts
    _print(name, table, forms)
  _print("all", totals, forms)
  print(f"seed {given.seed}, {time.monotonic() - start:.0f} s")
  lost = [x.avoidable for (place, _), line in totals.items()
          for x in line.values() if place == "within"]  # fmt: skip
  return int(any(lost))


def _print(name, table, forms) -> None:
  for (place, what), line in table.items():
    counts = " | ".join("{1} {2} {3}".format(*line[form]) for form in forms)
    print(f"{name} | {place} | {what} | {line[forms[0]].cases} | {counts}",
          flush=True)  # fmt: skip


if __name__ == "__main__":
  compiling.compile_quickly()
  sys.exit(main())
