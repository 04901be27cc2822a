"""Dynamic routing of votes and of transforms, compiled as its tests need it."""

import functools

import jax
import jax.numpy as jnp

from kernels import routing


def through_transforms(votes, *, chunk_size, **options):
  """Votes as the product u_i W_ij of two-dimensional poses and matrices."""
  poses = jnp.tile(jnp.asarray([0.5, -0.5], votes.dtype), (len(votes), 1))
  transforms = jnp.stack([votes, -votes], axis=2)
  return routing.transform_and_route(
    poses, transforms, chunk_size=chunk_size, **options
  )


# 3 divides neither the 7 parts nor the 4 parents of most tests.
FORMS = {
  "votes": routing.dynamic_routing,
  "transforms": functools.partial(through_transforms, chunk_size=3),
  "transforms_in_groups": functools.partial(
    through_transforms, chunk_size=3, parents_at_once=3
  ),
  "transforms_at_once": functools.partial(
    through_transforms, chunk_size=3, parents_at_once=100
  ),
}


def compiled(form):
  """A form under `jax.jit`, with every option given, to compile it once."""
  jitted = jax.jit(form, static_argnames=("num_iterations", "leaky"))

  def route(votes, *, num_iterations=3, bias=None, leaky=False):
    bias = jnp.zeros(votes.shape[1:], votes.dtype) if bias is None else bias
    return jitted(votes, num_iterations=num_iterations, bias=bias, leaky=leaky)

  return route


ROUTES = {name: compiled(form) for name, form in FORMS.items()}


def energy(route):
  """Makes a function that returns a number, the outputs and gradients.

  The number depends on every output of the routing.
  """

  def energy(votes, bias, leaky):
    outputs = route(votes, bias=bias, leaky=leaky)
    return sum(jnp.sum(jnp.cos(x)) for x in outputs), outputs

  return jax.jit(
    jax.value_and_grad(energy, (0, 1), has_aux=True), static_argnums=2
  )


ENERGIES = {name: energy(form) for name, form in FORMS.items()}
