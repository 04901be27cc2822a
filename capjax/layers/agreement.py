"""Dynamic routing in the fastest form for the batch and the platform.

Axes: I parts below, J objects above, C pose of a part, D pose of an object.
"""

import functools

import jax
from jaxtyping import Array, Float

from capjax.kernels import routing
from capjax.layers import platforms, routing_inputs

# Up to this many examples, a CPU is faster with stored votes.
_FEW_EXAMPLES = 8
# Up to this many, a CPU takes all at once, unless there is a gradient.
_FEW_OBJECTS = 16
# GPUs store votes of up to this many numbers on each, half a gigabyte in
# float32. With up to 94 million numbers, an H200 took 0.9 to 1 times as long
# without gradients, and 0.45 to 0.62 times with gradients.
_STORED_NUMBERS = 2**27


def route_by_agreement(
  poses: Float[Array, "I C"],
  transforms: Float[Array, "I J C D"],
  *,
  bias: Float[Array, "J D"] | None = None,
  num_iterations: int = 3,
  leaky: bool = False,
  gradient: str = "all",
  batch_size: int,
) -> routing.RoutingOutput:
  """Dynamic routing of one example, in the fastest form for batch and platform.

  On a CPU, the votes of a few examples are stored. Those of more are computed
  in chunks that fit its cache, for all objects at once if they are few and no
  gradient is computed, else for one object at a time. On GPUs, votes are stored
  if those of a batch take at most 0.5 GB on each. In all other cases they are
  computed in few, large steps.

  Args:
    poses: as for `routing.transform_and_route`.
    transforms: as for `routing.transform_and_route`.
    bias: as for `routing.transform_and_route`.
    num_iterations: as for `routing.transform_and_route`.
    leaky: as for `routing.transform_and_route`.
    gradient: as for `routing.transform_and_route`.
    batch_size: examples that this is `vmap`ped over; decides the form only.

  Returns:
    As `routing.transform_and_route`.
  """
  options = {
    "num_iterations": num_iterations,
    "leaky": leaky,
    "gradient": gradient,
  }

  def store_votes(poses, transforms, bias):
    votes = routing_inputs.stored_votes(poses, transforms)
    output = routing.dynamic_routing(votes, bias=bias, **options)
    # The dtype of the other forms, also if transforms are wider than poses.
    return jax.tree.map(lambda x: x.astype(poses.dtype), output)

  def in_pieces(poses, transforms, bias, **pieces):
    return routing.transform_and_route(
      poses, transforms, bias=bias, **pieces, **options
    )

  num_parts, num_objects = transforms.shape[:2]
  all_objects = functools.partial(in_pieces, parents_at_once=num_objects)
  in_one_piece = functools.partial(all_objects, chunk_size=num_parts)

  def on_cpu(*arguments):
    if batch_size <= _FEW_EXAMPLES:
      return store_votes(*arguments)
    if num_objects > _FEW_OBJECTS:
      return in_pieces(*arguments)
    return platforms.choose_by_gradient(
      *arguments, without=all_objects, differentiated=in_pieces
    )

  def on_gpu(*arguments):
    numbers = batch_size * num_parts * num_objects * transforms.shape[3]
    are_few = numbers <= _STORED_NUMBERS * platforms.num_devices()
    form = store_votes if are_few else in_one_piece
    return form(*arguments)

  return platforms.choose(
    poses, transforms, bias, cpu=on_cpu, gpu=on_gpu, default=in_one_piece
  )
