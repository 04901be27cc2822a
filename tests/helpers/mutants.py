"""Small faults put into the code, each of which a test must find.

  make mutants                              all of them
  python tests/helpers/mutants.py routing   those whose path or test has a word

Each mutant is applied to a copy of the tracked files, and the test file that is
named beside it runs there. A mutant that survives, or whose line is no longer
in the code, makes the command fail.
"""

import functools
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import NamedTuple

import processes


class Mutant(NamedTuple):
  """One fault.

  Attributes:
    path: of the file, from the root.
    line: a piece of code that occurs in the file once.
    fault: the code that replaces it.
    test: the test file that finds it, from `tests`.
  """

  path: str
  line: str
  fault: str
  test: str

  def applied(self) -> str:
    """The source with the fault.

    Raises:
      ValueError: if the line is not in the file exactly once.
    """
    source = (processes.ROOT / self.path).read_text()
    if (count := source.count(self.line)) != 1:
      raise ValueError(f"{self.path} has {count} times {self.line!r}, not once")
    return source.replace(self.line, self.fault)


_DYNAMIC = "kernels/routing/dynamic.py", "kernels/routing/dynamic_test.py"
_EM = "kernels/routing/em.py", "kernels/routing/em_test.py"
_SLOTS = "kernels/routing/slots.py", "kernels/routing/slots_test.py"
_GEOMETRY = "kernels/geometry.py", "kernels/geometry_test.py"
_WARP = "kernels/rendering/warping.py", "kernels/rendering/warping_test.py"
_VOTES = (
  "kernels/matching/vote_mixture.py", "kernels/matching/vote_mixture_test.py"
)  # fmt: skip
_ENERGY = "kernels/energy/capsules.py", "kernels/energy/capsules_test.py"
_TILES = (
  "capjax/layers/tile_transforms.py", "capjax/layers/tile_transforms_test.py",
)  # fmt: skip
_TRANSFORMED = "capjax/layers/inference.py", "capjax/layers/inference_test.py"
_PRODUCTS = "capjax/layers/tile_products.py", _TRANSFORMED[1]
_LOSSES = "capjax/losses/classification.py", "capjax/losses/losses_test.py"
_ATTACKS = "capjax/evaluation/attacks.py", "capjax/evaluation/attacks_test.py"
_SUITES = "experiments/evaluation", "experiments/evaluation/golden_test.py"
_PROBES = "experiments/evaluation/without_labels_test.py"
_STEP = (
  "experiments/training/train_step.py",
  "experiments/training/train_step_test.py",
)
_ORDER = "experiments/training/order.py", _STEP[1]
_PROTOCOL = "experiments/training/protocol_test.py"
_RESUMING = "experiments/training/resuming_test.py"
_DAMAGE = (
  "experiments/training/checkpoint_series.py",
  "experiments/training/checkpoints_damage_test.py",
)


def _of(where: tuple[str, str], *faults: tuple[str, str]) -> list[Mutant]:
  path, test = where
  return [Mutant(path, line, fault, test) for line, fault in faults]


MUTANTS = [
  *_of(
    _TILES,
    ("(-1) ** (first[0] * y + first[1] * x)", "(-1) ** (first[0] * y)"),
    ("a + b, b, a]", "a - b, b, a]"),
    ("waves[order < conjugate]", "waves[order <= conjugate]"),
    ("np.linalg.inv(values(tile)).T", "np.linalg.inv(values(tile))"),
  ),
  *_of(
    _TRANSFORMED,
    ("Frozen(layer.kernel[...])", "nnx.Param(layer.kernel[...])"),
    ("or layer.transformed is not None", ""),
  ),
  *_of(_PRODUCTS, ("return sums.swapaxes(1, 2)", "return sums")),
  *_of(
    _DYNAMIC,
    ("for _ in range(num_iterations - 1):", "for _ in range(num_iterations):"),
    ("    consensus += poses\n", "    consensus = poses\n"),
    ("squash(total_input(consensus) + bias)", "squash(total_input(consensus))"),
    ("(len(sum_of_votes) + leaky)", "len(sum_of_votes)"),
    ('"ijd,jd->ij", votes, consensus)', '"ijd,jd->ij", votes, -consensus)'),
  ),
  *_of(
    _EM,
    ("distances / 2)", "distances)"),
    ("weights = shares * activations[:, None]", "weights = shares"),
    ("parents.log_weights() - distances", "-distances"),
    ("(form.beta_a_scale * beta_a - cost)", "(form.beta_a_scale * beta_a)"),
    ("squares += jnp.square(shift)", "squares -= jnp.square(shift)"),
    ("cost *= form.cost_scale * mass", "cost *= form.cost_scale"),
    ("means *= 1 - form.damping", "means *= 1 + form.damping"),
  ),
  *_of(
    _SLOTS,
    ("queries / math.sqrt(sizes", "queries / (sizes"),
    ("numerics.softmax(scores, 1)", "numerics.softmax(scores, 0)"),
    ("shares = coefficients + epsilon", "shares = coefficients"),
    ("jnp.sum(shares, axis=0)", "jnp.sum(coefficients, axis=0)"),
    ("jnp.sqrt(jnp.clip(variances", "(jnp.clip(variances"),
    ("points[:, None] - positions) /", "points[:, None] + positions) /"),
  ),
  *_of(
    _GEOMETRY,
    ("scale_y * cos - scale_x * sin", "scale_y * cos + scale_x * sin"),
    ("(b * ty - d * tx) / det", "(b * ty + d * tx) / det"),
    ("theta = 2 * jnp.pi * raw[..., 2]", "theta = jnp.pi * raw[..., 2]"),
    ("a[..., :, :, None] * b[..., None, :, :]",
     "b[..., :, :, None] * a[..., None, :, :]"),
  ),
  *_of(
    _WARP,
    ("corner, (y - top, x - left))", "corner, (x - left, y - top))"),
    ("places == at + 1, beyond, 0.0", "places == at + 1, 0.0, beyond"),
    ("geometry.invert(pose.astype(dtype))", "pose.astype(dtype)"),
    ("ratios = template_units[:, None]", "ratios = template_units[None]"),
  ),
  *_of(
    _VOTES,
    ("- 0.5 * jnp.sum(jnp.square(errors), -1)",
     "- jnp.sum(jnp.square(errors), -1)"),
    ("constant = size *", "constant ="),
    ("presence.astype(dtype) * log_parts", "log_parts"),
    ("dummy = dummy + dummy_log_density", "dummy = dummy - dummy_log_density"),
  ),
  *_of(
    _ENERGY,
    ("return -alone - met", "return -alone + met"),
    ("share * on + (1 - share) * off", "share * on + share * off"),
    ("_visible_energy(visible, parameters, below) - log_partition(",
     "_visible_energy(visible, parameters, below) - 0.5 * log_partition("),
  ),
  *_of(
    ("kernels/energy/annealing.py", "kernels/energy/annealing_test.py"),
    ("return log_density(state, hot) - log_density(state, cold)",
     "return log_density(state, cold) - log_density(state, hot)"),
    ("transition(key, state, hot))\n    return",
     "transition(key, state, cold))\n    return"),
  ),
  *_of(
    ("kernels/rendering/compositing.py",
     "kernels/rendering/compositing_test.py"),
    ("return over(picture, canvas), None",
     "return over(canvas, picture), None"),
  ),
  *_of(
    ("kernels/matching/sparsity.py", "kernels/matching/sparsity_test.py"),
    ("jnp.sum(presence, axis=1) - target",
     "jnp.mean(presence, axis=1) - target"),
    ("return jnp.mean(_entropy(mass))", "return -jnp.mean(_entropy(mass))"),
  ),
  *_of(
    _LOSSES,
    ("jax.nn.relu(upper - activations)", "jax.nn.relu(activations - upper)"),
    ("absent_weight * (1 - present)", "absent_weight * present"),
    ("jax.nn.relu(margin - (true - activations))",
     "jax.nn.relu(margin + (true - activations))"),
    ("0.2 + 0.79 * jax.nn.sigmoid", "0.2 + 0.7 * jax.nn.sigmoid"),
  ),
  *_of(
    _ATTACKS,
    ("jnp.where(targeted, -step, step)", "jnp.where(targeted, step, -step)"),
    ("jnp.minimum(start + eps, 1)", "start + eps"),
    ("labels.shape, 1, num_classes", "labels.shape, 0, num_classes"),
  ),
  *_of(
    ("capjax/evaluation/diagnostics.py",
     "capjax/evaluation/diagnostics_test.py"),
    ("jnp.mean(peaks < threshold", "jnp.mean(peaks > threshold"),
  ),
  *_of(
    (f"{_SUITES[0]}/generative_rotations.py", _SUITES[1]),
    ("jax.vmap(views.rotate)(after, -degrees)",
     "jax.vmap(views.rotate)(after, degrees)"),
  ),
  *_of(
    (f"{_SUITES[0]}/models.py", _SUITES[1]),
    ("ddof=1) / len(values) ** 0.5", "ddof=1)"),
  ),
  *_of(
    (f"{_SUITES[0]}/latents.py", _SUITES[1]),
    ("_entropy(shares @ given) - shares", "_entropy(shares @ given) + shares"),
  ),
  *_of(
    (f"{_SUITES[0]}/classifiers.py", _SUITES[1]),
    ("viewing.translate(image, x, 0)", "viewing.translate(image, -x, 0)"),
    ('("accuracy", jnp.asarray(labels), False)',
     '("accuracy", jnp.asarray(labels), True)'),
  ),
  *_of(
    (f"{_SUITES[0]}/viewpoints.py", _SUITES[1]),
    ('"test_novel_accuracy": float(np.mean(right[~known]))',
     '"test_novel_accuracy": float(np.mean(right[known]))'),
    ("jnp.mean(scores, axis=0)", "scores[-1]"),
  ),
  *_of(
    (f"{_SUITES[0]}/transforming.py",
     "experiments/evaluation/transforming_test.py"),
    ("polyfit(seen, others, 1)[0]", "polyfit(seen, others, 1)[1]"),
    ("(1, 0), (-1, 0), (0, 1), (0, -1)", "(1, 0), (1, 0), (0, 1), (0, 1)"),
  ),
  *_of(
    (f"{_SUITES[0]}/diagnostics.py",
     "experiments/evaluation/diagnostics_test.py"),
    ("views.rotate(image, angle)", "image"),
    ("weights * is_class", "weights * ~is_class"),
  ),
  *_of(
    (f"{_SUITES[0]}/energy_models.py",
     "experiments/evaluation/energy_models_test.py"),
    ("jnp.std(alone, axis=0)", "jnp.std(alone, axis=1)"),
  ),
  *_of(
    ("experiments/figures/concepts.py", "experiments/figures/concepts_test.py"),
    ("s=90 * shares[number,", "s=90 * shares[0,"),
  ),
  *_of(
    ("experiments/figures/object_masks.py",
     "experiments/figures/object_masks_test.py"),
    ("np.argmax(masks, axis=1)", "np.argmin(masks, axis=1)"),
  ),
  *_of(
    (f"{_SUITES[0]}/scae.py", _PROBES),
    ("np.repeat(labels, options.views)", "np.tile(labels, options.views)"),
    ('features["won"].max(axis=0)', 'features["won"].min(axis=0)'),
  ),
  *_of(
    (f"{_SUITES[0]}/linear_probes.py", _PROBES),
    ('("rotated_", _moved(trained, _turn)',
     '("rotated_", _moved(trained, _see)'),
    ("minval=-180.0, maxval=180.0", "minval=-18.0, maxval=18.0"),
  ),
  *_of(
    (f"{_SUITES[0]}/sceptics.py", "experiments/evaluation/sceptics_test.py"),
    ("after != classes", "after != labels"),
  ),
  *_of(
    (f"{_SUITES[0]}/transfer.py", "experiments/evaluation/transfer_test.py"),
    ("normalise(images)", "images"),
  ),
  *_of(
    ("capjax/evaluation/views.py", "capjax/evaluation/views_test.py"),
    ("theta = jnp.deg2rad(degrees)", "theta = -jnp.deg2rad(degrees)"),
  ),
  *_of(
    _STEP,
    ("lambda total: total / num_steps", "lambda total: total"),
  ),
  *_of(
    _ORDER,
    ("jax.random.fold_in(order_key, epoch)", "order_key"),
    ("jax.random.fold_in(step_key, step)", "step_key"),
  ),
  Mutant(
    _STEP[0], "return math.expm1(log) / jnp.expm1(step * log)",
    "return -math.expm1(log)", _PROTOCOL,
  ),
  Mutant(
    "experiments/training/task.py", "scores = metrics[task.chosen_by], -loss",
    "scores = metrics[task.chosen_by], loss", _PROTOCOL,
  ),
  Mutant(
    "experiments/training/loop.py",
    "minutes = 0.0 if self._restart else self._config",
    "minutes = self._config", _RESUMING,
  ),
  Mutant(
    "kernels/routing/em_convolution.py",
    "sums_of(*sharding.vary_alike(arguments), layout, last)",
    "sums_of(*arguments, layout, last)", "kernels/shard_map_test.py",
  ),
  *_of(
    _DAMAGE,
    ('hashlib.file_digest(file, "sha256").hexdigest()', '"0"'),
  ),
  *_of(
    ("capjax/weights.py", "experiments/run/directory_files_test.py"),
    ("    partial.replace(path)\n",
     "    path.write_bytes(partial.read_bytes())\n"),
  ),
]  # fmt: skip


def survives(mutant: Mutant) -> bool:
  """Whether the test passes although the code has the fault.

  Raises:
    RuntimeError: if the test does not run, or fails without the fault too.
  """
  if not passes(mutant.test):
    raise RuntimeError(f"{mutant.test} fails in a copy without a fault")
  return _passes(mutant.test, {mutant.path: mutant.applied()})


@functools.cache
def passes(test: str) -> bool:
  """Whether a test passes in a copy of the code as it is."""
  return _passes(test, {})


def _passes(test: str, changed: Mapping[str, str]) -> bool:
  """Whether a test passes in a copy of the code with other texts of files."""
  with tempfile.TemporaryDirectory() as folder:
    listed = subprocess.run(
      ["git", "-C", processes.ROOT, "ls-files"],
      check=True, capture_output=True, text=True,
    ).stdout.splitlines()  # fmt: skip
    for name in listed:
      copy = pathlib.Path(folder, name)
      copy.parent.mkdir(parents=True, exist_ok=True)
      shutil.copyfile(processes.ROOT / name, copy)
    for path, text in changed.items():
      pathlib.Path(folder, path).write_text(text)
    # Runs record the commit of their code.
    for words in (
      ("init", "--quiet"), ("add", "--all"),
      ("-c", "user.name=test", "-c", "user.email=", "commit", "--quiet",
       "--message=copy"),
    ):  # fmt: skip
      subprocess.run(["git", "-C", folder, *words], check=True)
    done = subprocess.run(
      [sys.executable, "-m", "pytest", "-n", "0", "-x", "-m", "", "-p",
       "no:cacheprovider", f"tests/{test}"],
      cwd=folder, capture_output=True, text=True,
    )  # fmt: skip
  if done.returncode not in (0, 1):
    told = done.stdout + done.stderr
    raise RuntimeError(f"{test} did not run:\n{told}")
  return done.returncode == 0


def main(words: list[str]) -> None:
  """Prints the result of each mutant; fails if one survives."""
  chosen = [x for x in MUTANTS if all(w in f"{x.path} {x.test}" for w in words)]
  survivors = 0
  for mutant in chosen:
    started = time.monotonic()
    found = not survives(mutant)
    survivors += not found
    print(
      f"{'killed' if found else 'SURVIVES'} | {mutant.path} | "
      f"{mutant.fault.strip()!r} | {mutant.test} | "
      f"{time.monotonic() - started:.0f} s",
      flush=True,
    )
  print(f"{len(chosen)} mutants, {survivors} survive")
  sys.exit(survivors > 0)


if __name__ == "__main__":
  main(sys.argv[1:])
