"""Layers: convolutions, capsules of every kind, attention among sets."""

from capjax.layers import (
  agreement,
  attention,
  capsules,
  conv_capsules,
  convolution,
  custom_routing,
  dense,
  em_forms,
  grid_capsules,
  inference,
  matrix,
  normalization,
  platforms,
  residual,
  routers,
  routing_inputs,
  set_transformer,
  slots,
  tile_products,
  tile_transforms,
  tiling,
)
from capjax.layers.agreement import route_by_agreement
from capjax.layers.capsules import DenseCaps, Fixed, PrimaryCaps
from capjax.layers.conv_capsules import ConvCaps
from capjax.layers.convolution import Conv
from capjax.layers.dense import Einsum, Linear
from capjax.layers.grid_capsules import GridCaps
from capjax.layers.inference import transform_kernels
from capjax.layers.normalization import BatchNorm
from capjax.layers.residual import ResidualBlock, ResidualStages

__all__ = [
  "BatchNorm",
  "Conv",
  "ConvCaps",
  "DenseCaps",
  "Einsum",
  "Fixed",
  "GridCaps",
  "Linear",
  "PrimaryCaps",
  "ResidualBlock",
  "ResidualStages",
  "agreement",
  "attention",
  "capsules",
  "conv_capsules",
  "convolution",
  "custom_routing",
  "dense",
  "em_forms",
  "grid_capsules",
  "inference",
  "matrix",
  "normalization",
  "platforms",
  "residual",
  "route_by_agreement",
  "routers",
  "routing_inputs",
  "set_transformer",
  "slots",
  "tile_products",
  "tile_transforms",
  "tiling",
  "transform_kernels",
]
