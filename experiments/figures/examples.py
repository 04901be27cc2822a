"""Small examples of routing and rendering, as the documentation shows them."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from capjax.kernels.rendering import compositing

from capjax.kernels import geometry, rendering, routing

from . import concepts


def agreement(path: pathlib.Path) -> None:
  """Dynamic routing of 12 parts, of which 9 agree about parent 0."""
  noise = np.random.default_rng(0).normal(size=(12, 2, 2))
  centres = np.array([[[0.8, 0.3], [-0.2, 0.5]]])
  votes = centres + noise * np.array([[[0.12], [0.6]]])
  votes[9:, 0] = noise[9:, 0] * 0.6
  votes[9:, 1] = [-0.6, -0.7] + 0.1 * noise[9:, 1]
  votes = jnp.asarray(2 * votes, jnp.float32)
  counts = 1, 2, 3, 5
  found = [routing.dynamic_routing(votes, num_iterations=n) for n in counts]
  poses = np.stack([x.poses for x in found])
  shares = np.stack([x.coefficients for x in found])
  concepts.agreement(votes, poses, shares, counts, path)


def em(path: pathlib.Path) -> None:
  """EM routing of 20 parts, whose votes agree for one parent alone."""
  noise = np.random.default_rng(1).normal(size=(20, 2, 2))
  votes = np.array([[[1.0, 1.0], [-1.0, -0.5]]]) + noise * [[[0.15], [0.8]]]
  votes = jnp.asarray(votes, jnp.float32)
  found = [
    routing.em_routing(
      votes,
      jnp.ones(20),
      jnp.zeros(2),
      jnp.ones(2),
      inverse_temperatures=[0.1, 0.2, 0.3][:n],
    )
    for n in (1, 2, 3)
  ]
  concepts.clusters(
    votes,
    np.stack([x.poses for x in found]),
    np.stack([x.variances for x in found]),
    np.stack([x.activations for x in found]),
    path,
  )


def parts(path: pathlib.Path) -> None:
  """An object of three parts in four poses, and each part alone."""
  bar = np.zeros((9, 9, 1), np.float32)
  bar[3:6] = 1
  blob = np.asarray(geometry.grid(9, 9))
  blob = np.float32(np.sum(blob**2, axis=-1, keepdims=True) < 0.8)
  ring = blob.copy()
  ring[3:6, 3:6] = 0
  templates = jnp.asarray(np.stack([bar, blob, ring]))
  shades = jnp.array([0.55, 1.0, 0.8]).reshape(3, 1, 1, 1)
  relations = jnp.stack(
    [
      geometry.affine_matrix(0.55, 0.35, 0.0, 0.0, 0.0, 0.1),
      geometry.affine_matrix(0.2, 0.2, 0.0, 0.0, -0.3, 0.35),
      geometry.affine_matrix(0.22, 0.22, 0.0, 0.0, 0.3, 0.35),
    ]
  )

  def render(pose):
    poses = geometry.compose(pose, relations)
    alphas = jax.vmap(lambda t, p: rendering.warp(t, p, (48, 48)))(
      templates, poses
    )
    pictures = compositing.Picture(shades * alphas, alphas)
    whole = compositing.composite_over(pictures).colours
    return jnp.concatenate([whole[None], pictures.colours])

  poses = [
    geometry.affine_matrix(1.2, 1.2, 0.0, 0.0, 0.0, -0.2),
    geometry.affine_matrix(0.9, 0.9, 0.7, 0.0, 0.2, 0.0),
    geometry.affine_matrix(1.4, 0.7, -0.4, 0.3, -0.1, 0.0),
    geometry.affine_matrix(0.7, 0.7, 2.6, 0.0, 0.1, 0.1),
  ]
  images = np.stack([render(pose) for pose in poses], axis=1)
  names = ("object", "part 1", "part 2", "part 3")
  concepts.strips(dict(zip(names, images, strict=True)), path, inches=0.9)
