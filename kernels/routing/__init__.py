"""Routings: how the capsules of one layer choose parents in the next.

EM routing over windows of an image is `em_convolution.em_convolution`.
"""

from . import (
  attention,
  controls,
  dynamic,
  em,
  em_convolution,
  grid,
  linear_votes,
  variational,
  windows,
)
from .attention import (
  inverted_attention_routing,
  self_attention_routing,
  self_routing,
)
from .controls import (
  top1_routing,
  uniform_routing,
)
from .dynamic import (
  dynamic_routing,
  transform_and_route,
)
from .em import (
  EMOutput,
  em_routing,
)
from .grid import (
  grid_routing,
)
from .heinsen import (
  compose_credit,
  credit,
  heinsen_em_routing,
  heinsen_vector_routing,
)
from .linear_votes import (
  LinearVotes,
)
from .orthogonal import (
  sparse_attention_routing,
)
from .output import (
  RoutingOutput,
)
from .prototypes import (
  prototype_routing,
  shared_prototype_routing,
)
from .sinkhorn import (
  sinkhorn_routing,
)
from .slots import (
  Frames,
  SlotOutput,
  relative_points,
  slot_attention,
  slot_frames,
)
from .variational import (
  variational_routing,
)

__all__ = [
  "orthogonal",
  "sparse_attention_routing",
  "prototypes",
  "prototype_routing",
  "shared_prototype_routing",
  "heinsen",
  "compose_credit",
  "credit",
  "heinsen_em_routing",
  "heinsen_vector_routing",
  "sinkhorn",
  "sinkhorn_routing",
  "slots",
  "Frames",
  "SlotOutput",
  "relative_points",
  "slot_attention",
  "slot_frames",
  "EMOutput",
  "LinearVotes",
  "RoutingOutput",
  "attention",
  "controls",
  "dynamic",
  "dynamic_routing",
  "em",
  "em_convolution",
  "em_routing",
  "grid",
  "grid_routing",
  "inverted_attention_routing",
  "linear_votes",
  "self_attention_routing",
  "self_routing",
  "top1_routing",
  "transform_and_route",
  "uniform_routing",
  "variational",
  "variational_routing",
  "windows",
]
