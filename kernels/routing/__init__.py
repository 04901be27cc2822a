"""Routings: how the capsules of one layer choose parents in the next.

EM routing over windows of an image is `em_convolution.em_convolution`.
"""

from . import (
  attention,
  dynamic,
  em,
  em_convolution,
  variational,
  windows,
)
from .attention import (
  LinearVotes,
  inverted_attention_routing,
  self_attention_routing,
  self_routing,
)
from .dynamic import (
  dynamic_routing,
  transform_and_route,
)
from .em import (
  EMOutput,
  em_routing,
)
from .output import (
  RoutingOutput,
)
from .variational import (
  variational_routing,
)

__all__ = [
  "EMOutput",
  "LinearVotes",
  "RoutingOutput",
  "attention",
  "dynamic",
  "dynamic_routing",
  "em",
  "em_convolution",
  "em_routing",
  "inverted_attention_routing",
  "self_attention_routing",
  "self_routing",
  "transform_and_route",
  "variational",
  "variational_routing",
  "windows",
]
