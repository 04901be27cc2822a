"""Parameters of stacked capsule autoencoders start as in the authors' code."""

import functools

import jax
import numpy as np
import pytest
from flax import nnx

from capjax import scae
from capjax.scae import constellation, voting
from capjax.scae import templates as part_templates


@functools.cache
def _parameters(which):
  """Arrays by path, of a model large enough for statistics."""
  rngs = nnx.Rngs(0)
  if which == "scae":
    model = scae.SCAE(
      (24, 24, 1), 10, num_parts=12, num_objects=9, encoder_features=16,
      rngs=rngs,
    )  # fmt: skip
  else:
    model = constellation.ConstellationAutoencoder(width=32, rngs=rngs)
  state = nnx.to_flat_state(nnx.state(model, nnx.Param))
  return {path: np.asarray(leaf[...]) for path, leaf in state}


def _fan_in(path, kernel):
  """Inputs of a unit; networks of each object have an axis more."""
  of_each = kernel.ndim == 3
  return int(np.prod(kernel.shape[int(of_each) : -1]))


def check_kernels(parameters):
  """A normal of deviation 1 / sqrt(fan in), cut off at two of them."""
  kernels = [
    kernel.ravel() * _fan_in(path, kernel) ** 0.5
    for path, kernel in parameters.items()
    if path[-1] == "kernel"
  ]
  assert len(kernels) > 15
  for kernel in kernels:
    assert np.abs(kernel).max() <= 2.0001
    few = 4 / kernel.size**0.5
    assert np.std(kernel) == pytest.approx(0.88, abs=few + 0.01)
  assert np.std(np.concatenate(kernels)) == pytest.approx(0.8796, abs=0.01)


@pytest.mark.parametrize("which", ["scae", "constellation"])
@pytest.mark.long_after_first
def test_kernels_are_cut_off_normals(which):
  check_kernels(_parameters(which))


def test_kernels_of_flax_fail(monkeypatch):
  """Flax makes up for the cut."""
  monkeypatch.setattr(voting, "_LEFT", 1.0)
  with pytest.raises(AssertionError):
    check_kernels(_parameters.__wrapped__("constellation"))


def test_relations_and_seeds_are_glorot_uniform():
  for which, count, votes in (("scae", 9, 12), ("constellation", 3, 4)):
    parameters = _parameters(which)
    (relations,) = [x for p, x in parameters.items() if p[-1] == "relations"]
    assert relations.shape == (count, votes, 6)
    _check_uniform(relations, (6 / (count * (votes + 6))) ** 0.5)
    (seeds,) = [x for p, x in parameters.items() if p[-1] == "seeds"]
    _check_uniform(seeds, (6 / sum(seeds.shape)) ** 0.5)


def _check_uniform(x, bound):
  assert 0.85 * bound < np.abs(x).max() <= bound * 1.0001
  assert np.std(x) == pytest.approx(bound / 3**0.5, rel=0.2)


def test_a_code_has_a_bias_that_is_drawn():
  """The others, of which there are many, start at 0."""
  parameters = _parameters("scae")
  kernel = parameters["objects", "voters", "networks", 2, "kernel"]
  assert kernel.shape == (9, 33, 128)
  assert np.abs(kernel[:, -1]).min(axis=1).max() > 0
  biases = [x for path, x in parameters.items() if path[-1] == "bias"]
  assert len(biases) > 15 and not any(x.any() for x in biases)


@pytest.mark.parametrize("name", ["background", "temperature"])
def test_single_numbers_are_glorot_uniform(name):
  """In +-sqrt(3), one for all channels."""

  def draw(key):
    rngs = nnx.Rngs(params=key)
    mixing = "coupled" if name == "temperature" else "alpha"
    templates = part_templates.Templates(
      (8, 8, 3), 2, size=2, mixing=mixing, rngs=rngs
    )
    return getattr(templates, name)[...]

  keys = jax.random.split(jax.random.key(0), 200)
  drawn = jax.jit(jax.vmap(draw))(keys)
  assert drawn.shape == (200, 1)
  _check_uniform(drawn, 3**0.5)
  assert np.mean(drawn) == pytest.approx(0, abs=0.25)
