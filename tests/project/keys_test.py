"""A random key that numbers are folded into is given to nothing else.

`jax.random.fold_in(key, i)` is `jax.random.split(key, n)[i]`: code that folds
and splits one key, here or in what it calls, draws the same numbers twice.
"""

import ast
import collections

import jax
import processes

ROOT = processes.ROOT
SOURCES = sorted(
  path
  for package in ("kernels", "capjax", "experiments")
  for path in (ROOT / package).rglob("*.py")
)


def used_twice(source: str) -> list[str]:
  """Names that some outermost function folds and gives to another call too."""
  found = []
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Module | ast.ClassDef):
      found += [_mixed(x) for x in node.body if isinstance(x, ast.FunctionDef)]
  return [name for names in found for name in names]


def _mixed(function: ast.FunctionDef) -> list[str]:
  uses = collections.defaultdict(set)
  for call in ast.walk(function):
    if isinstance(call, ast.Call):
      folds = ast.unparse(call.func).endswith("fold_in")
      given = call.args[:1] if folds else call.args
      for argument in (*given, *(x.value for x in call.keywords)):
        if isinstance(argument, ast.Name | ast.Attribute):
          uses[ast.unparse(argument)].add(folds)
  return [
    f"{function.name}: {x}" for x, kinds in uses.items() if len(kinds) > 1
  ]


def test_children_of_both_kinds_are_the_same():
  key = jax.random.key(0)
  split, folded = jax.random.split(key, 3)[2], jax.random.fold_in(key, 2)
  assert (jax.random.key_data(split) == jax.random.key_data(folded)).all()


def test_keys_are_used_one_way():
  found = {
    str(path.relative_to(ROOT)): names
    for path in SOURCES
    if (names := used_twice(path.read_text("utf-8")))
  }
  assert not found


def test_keys_that_are_used_both_ways_are_found():
  source = """
class A:
  def draw(self, key):
    def step(index):
      return jax.random.fold_in(key, index)
    return step(0), sample(key)
"""
  assert used_twice(source) == ["draw: key"]
  assert used_twice(source.replace("(key)", "(key=key)")) == ["draw: key"]
  assert not used_twice(source.replace("(key)", "(other)"))
