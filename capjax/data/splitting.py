"""A seeded order that mixes the classes evenly, and a held-out part.

Both depend on the labels and the seed alone: they use uniform numbers of PCG64
and stable sorts, which are the same on every machine.
"""

import numpy as np
from jaxtyping import Bool, Int

_SHARE = 5  # one of this many examples is held out


def mixed_order(
  labels: Int[np.ndarray, "N ..."], *, seed: int = 0
) -> Int[np.ndarray, " N"]:
  """Computes an order whose first examples contain all classes evenly.

  The n examples of a class are put in a random order and spread evenly: the
  k-th of them has the random position (k + u) / n, with u uniform in [0, 1).
  Otherwise the first examples of data sorted by class would lack classes.

  Args:
    labels: [N]; or multi-hot, [N J], or none, [N 0], for which the order is
      random.
    seed: The seed of the random numbers.

  Returns:
    A permutation of 0..N-1.
  """
  rng = np.random.default_rng(seed)
  ranks, counts = _ranks(labels, rng)
  positions = (ranks + rng.random(len(labels))) / counts
  return np.argsort(positions, kind="stable")


def held_out(
  labels: Int[np.ndarray, "N ..."], *, seed: int = 0
) -> Bool[np.ndarray, " N"]:
  """Chooses a random fifth of each class for testing.

  Args:
    labels: [N]; or multi-hot, [N J], or none, [N 0]: then a random fifth of all
      examples is chosen.
    seed: The seed of the random numbers.

  Returns:
    Which examples are held out: of n examples of a class, n / 5 rounded, at
    least one, but none if n is 1.
  """
  ranks, counts = _ranks(labels, np.random.default_rng([seed, 1]))
  sizes = np.where(counts > 1, np.maximum((2 * counts + _SHARE) // 10, 1), 0)
  return ranks < sizes


def _ranks(
  labels: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
  """Returns each example's random rank in its class, and the class's size."""
  if labels.ndim > 1:
    labels = np.zeros(len(labels), np.int32)
  order = np.lexsort((rng.random(len(labels)), labels))
  _, starts, sizes = np.unique(
    labels[order], return_index=True, return_counts=True
  )
  ranks = np.empty(len(labels), np.int64)
  ranks[order] = np.arange(len(labels)) - np.repeat(starts, sizes)
  counts = np.empty(len(labels), np.int64)
  counts[order] = np.repeat(sizes, sizes)
  return ranks, counts
