"""Templates of which some are copies, and reconstructions that are exact."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.evaluation import generative_rotations, models


def _templates(*pictures):
  colours = jnp.stack([jnp.float32(x)[..., None] for x in pictures])
  templates = SimpleNamespace(colours=colours)
  return SimpleNamespace(
    model=SimpleNamespace(capsules=SimpleNamespace(templates=templates))
  )


def _stroke(row, column, height, width, size=11):
  picture = np.zeros((size, size))
  picture[row : row + height, column : column + width] = 1
  return picture


@pytest.mark.parametrize("is_copy", [True, False])
def test_a_copy_is_near_and_another_picture_is_not(run, is_copy):
  stroke, ring = _stroke(2, 4, 7, 2), _stroke(1, 1, 9, 9)
  ring[3:8, 3:8] = 0
  flat = np.full_like(stroke, 0.5)
  given = _templates(stroke, stroke if is_copy else ring, flat, flat, flat)
  scores = generative_rotations.duplicates(run, given, models.Options())
  assert scores["patterned_templates"] == 2
  assert scores["flat_templates"] == pytest.approx(0.6)
  if is_copy:
    assert scores["near_duplicates"] == 1
    assert scores["nearest_residual"] < 1e-3
  else:
    assert scores["near_duplicates"] == 0
    assert scores["nearest_residual"] > 0.1
  assert scores["strokes_nearest_residual"] > 1e-3  # no picture is its own
