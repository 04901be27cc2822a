"""Flags of CapsNet and of the networks compared with it.

Sabour, Frosst, Hinton (2017), Dynamic routing between capsules, and the
networks and routings that are compared with theirs.
"""

from collections.abc import Sequence
from typing import Any

from absl import flags

import capjax
from capjax import baselines, capsnet, decoder, losses
from capjax.layers import routers
from capjax.specs import Spec

from . import arithmetic, limits

_MODEL = flags.DEFINE_enum(
  "model", "capsnet", ["capsnet", "efficient", "baseline"], "Network to train."
)
_RECONSTRUCTION = flags.DEFINE_enum(
  "reconstruction",
  "paper",
  list(losses.RECONSTRUCTION_WEIGHTS),
  "Weight of the reconstruction loss: that of the paper, that of the "
  "authors' code (20 times larger), or none (no decoder).",
)
_NUM_ITERATIONS = flags.DEFINE_integer(
  "num_iterations",
  None,
  "Number of routing iterations; by default that of the routing's paper.",
  lower_bound=1,
  upper_bound=100,
)
ROUTING = flags.DEFINE_enum(
  "routing",
  "dynamic",
  routers.NAMES,
  "Routing algorithm from primary to class capsules.",
)
_LEAKY = flags.DEFINE_bool(
  "leaky",
  False,
  "Add an orphan class to the routing, which takes parts that belong to no "
  "class.",
)
_ROUTING_GRADIENT = flags.DEFINE_enum(
  "routing_gradient",
  "all",
  ["all", "last"],
  "Iterations of routing that gradients flow through: all, or the last alone, "
  "whose coefficients then count as constants.",
)
_CONV_FEATURES = flags.DEFINE_integer(
  "conv_features", 256, "Channels of the first convolution.", lower_bound=1
)
_CONV_KERNEL = flags.DEFINE_integer(
  "conv_kernel",
  9,
  "Side of the first convolution's kernel, in pixels.",
  lower_bound=1,
)
_RESIDUAL_FEATURES = flags.DEFINE_list(
  "residual_features",
  [],
  "Channels of stages of residual blocks between the first convolution and the "
  "primary capsules, each of which halves the grid.",
)
_RESIDUAL_BLOCKS = flags.DEFINE_integer(
  "residual_blocks",
  None,
  "Residual blocks of each stage; 1 by default.",
  lower_bound=1,
)
_NUM_TYPES = flags.DEFINE_integer(
  "num_types", 32, "Primary capsules at each position.", lower_bound=1
)
_PART_SIZE = flags.DEFINE_integer(
  "part_size", 8, "Length of a primary capsule's vector.", lower_bound=1
)
_PRIMARY_KERNEL = flags.DEFINE_integer(
  "primary_kernel",
  9,
  "Side of the kernel of the primary capsules' convolution, in pixels.",
  lower_bound=1,
)
_PRIMARY_STRIDE = flags.DEFINE_integer(
  "primary_stride",
  2,
  "Stride of the primary capsules' convolution.",
  lower_bound=1,
)
_PRIMARY_SCALE = flags.DEFINE_float(
  "primary_scale",
  None,
  "Factor that multiplies the output of the primary capsules' convolution; "
  "by default 1 / num_types, as in the authors' code. With 1 the capsules "
  "start saturated.",
  lower_bound=0.0,
)
_POSE_SIZE = flags.DEFINE_integer(
  "pose_size", 16, "Length of a class capsule's vector.", lower_bound=1
)
_CONV_CAPSULES = flags.DEFINE_list(
  "conv_capsules",
  [],
  "Types of capsules of each convolutional layer between primary and class "
  "capsules.",
)
_CONV_CAPSULES_KERNEL = flags.DEFINE_integer(
  "conv_capsules_kernel",
  None,
  "Capsules along each axis of the windows of convolutional capsules; 3 by "
  "default.",
  lower_bound=1,
)
_CONV_COMPETITION = flags.DEFINE_enum(
  "conv_competition",
  None,
  capsnet.CONV_COMPETITIONS,
  "Where the parents of convolutional capsules compete: in each window, by "
  "--routing, which is the default, or over the grid, by the 3D convolutions "
  "of DeepCaps.",
)
_HIDDEN_CAPSULES = flags.DEFINE_list(
  "hidden_capsules",
  [],
  "Numbers of capsules of each layer between primary and class capsules, which "
  "are routed as the classes are.",
)
_TRANSFORMS_SCALE = flags.DEFINE_float(
  "transforms_scale",
  None,
  "Standard deviation of the matrices between capsules at the start; 0.1 by "
  "default, as in the authors' code. Mixtures (em, heinsen_em, variational) "
  "may need about 1 / sqrt(part_size).",
)
limits.require_above_zero(_TRANSFORMS_SCALE)
_DECODER_FEATURES = flags.DEFINE_list(
  "decoder_features", ["512", "1024"], "Widths of the decoder's hidden layers."
)
_DECODER_INIT = flags.DEFINE_enum(
  "decoder_init",
  "lecun",
  list(decoder.DECODER_INITS),
  "Initial weights of the decoder: those of Flax's dense layers, or those "
  "of the authors' code.",
)
_CNN_FEATURES = flags.DEFINE_list(
  "cnn_features",
  ["256", "256", "128"],
  "Channels of the baseline's convolutions.",
)
_CNN_KERNELS = flags.DEFINE_list(
  "cnn_kernels",
  ["5", "5", "5"],
  "Sides of the baseline's convolution kernels, in pixels.",
)
_CNN_POOL = flags.DEFINE_integer(
  "cnn_pool",
  1,
  "Side of the max-pooling windows after each convolution of the baseline; "
  "1 for no pooling.",
  lower_bound=1,
)
_CNN_AVERAGE = flags.DEFINE_bool(
  "cnn_average",
  False,
  "Give the dense layers of the baseline the mean of its features over "
  "positions, so that all positions share their weights.",
)
_CNN_DROPOUT = flags.DEFINE_float(
  "cnn_dropout",
  0.5,
  "Probability that a unit of the baseline's last hidden layer is dropped.",
  lower_bound=0.0,
  upper_bound=0.99,
)
_CNN_DENSE = flags.DEFINE_list(
  "cnn_dense", ["328", "192"], "Widths of the baseline's hidden dense layers."
)
limits.require_counts(_DECODER_FEATURES, example="512,1024")
limits.require_counts(
  _CNN_FEATURES,
  _CNN_KERNELS,
  _CNN_DENSE,
  _HIDDEN_CAPSULES,
  _CONV_CAPSULES,
  _RESIDUAL_FEATURES,
  example="512,1024",
  at_least=0,
)

_CNN_FLAGS = (
  "cnn_features", "cnn_kernels", "cnn_pool", "cnn_average", "cnn_dense",
  "cnn_dropout",
)  # fmt: skip
_CAPSULE_FLAGS = (
  "reconstruction", "part_size", "pose_size", "decoder_features",
)  # fmt: skip
_CAPSNET_FLAGS = (
  "routing", "num_iterations", "leaky", "routing_gradient", "conv_features",
  "conv_kernel", "num_types", "primary_kernel", "primary_stride",
  "primary_scale", "transforms_scale", "decoder_init", "hidden_capsules",
  "residual_features", "residual_blocks", "conv_capsules",
  "conv_capsules_kernel", "conv_competition",
)  # fmt: skip


def reconstruction_weight() -> float:
  """The weight that --reconstruction names."""
  return losses.RECONSTRUCTION_WEIGHTS[_RECONSTRUCTION.value]


def spec() -> Spec:
  """The network that the flags describe, without its image shape and classes.

  Raises:
    ValueError: if flags are given that the network does not use.
  """
  unused = {
    "capsnet": _CNN_FLAGS,
    "efficient": _CNN_FLAGS + _CAPSNET_FLAGS,
    "baseline": _CAPSNET_FLAGS + _CAPSULE_FLAGS,
  }
  limits.refuse(f"--model={_MODEL.value}", unused[_MODEL.value])
  if not reconstruction_weight():
    limits.refuse("--reconstruction=none", ["decoder_features", "decoder_init"])
  if _MODEL.value == "baseline":
    arguments = dict(
      conv_features=_whole(_CNN_FEATURES.value),
      conv_kernels=_whole(_CNN_KERNELS.value),
      pool=_CNN_POOL.value,
      average=_CNN_AVERAGE.value,
      dense_features=_whole(_CNN_DENSE.value),
      dropout=_CNN_DROPOUT.value,
      dtype=arithmetic.dtype(),
    )
    return Spec(baselines.CapsNetBaseline, arguments)
  decoder = _whole(_DECODER_FEATURES.value) if reconstruction_weight() else ()
  arguments = dict(
    part_size=_PART_SIZE.value,
    pose_size=_POSE_SIZE.value,
    decoder_features=decoder,
    dtype=arithmetic.dtype(),
  )
  if _MODEL.value == "efficient":
    return Spec(capjax.EfficientCapsNet, arguments)
  arguments |= dict(
    conv_features=_CONV_FEATURES.value,
    conv_kernel=_CONV_KERNEL.value,
    num_types=_NUM_TYPES.value,
    primary_kernel=_PRIMARY_KERNEL.value,
    primary_stride=_PRIMARY_STRIDE.value,
    primary_scale=_PRIMARY_SCALE.value,
    routing=ROUTING.value,
    num_iterations=_NUM_ITERATIONS.value,
    leaky=_LEAKY.value,
    routing_gradient=_ROUTING_GRADIENT.value,
    decoder_init=_DECODER_INIT.value,
  )
  hidden = _whole(_HIDDEN_CAPSULES.value)
  arguments |= {"hidden_capsules": hidden} if hidden else {}
  if _TRANSFORMS_SCALE.value is not None:
    arguments["transforms_scale"] = _TRANSFORMS_SCALE.value
  return Spec(capjax.CapsNet, arguments | _deeper())


def _deeper() -> dict[str, Any]:
  """Arguments of the residual front and of convolutional capsules, if any."""
  arguments: dict[str, Any] = {}
  if _RESIDUAL_FEATURES.value:
    arguments |= dict(
      residual_features=_whole(_RESIDUAL_FEATURES.value),
      residual_blocks=_RESIDUAL_BLOCKS.value or 1,
    )
  else:
    limits.refuse("a network without --residual_features", ["residual_blocks"])
  if _CONV_CAPSULES.value:
    arguments |= dict(
      conv_capsules=_whole(_CONV_CAPSULES.value),
      conv_capsules_kernel=_CONV_CAPSULES_KERNEL.value or 3,
      conv_competition=_CONV_COMPETITION.value or "window",
    )
  else:
    limits.refuse(
      "a network without --conv_capsules",
      ["conv_capsules_kernel", "conv_competition"],
    )
  return arguments


def _whole(words: Sequence[str]) -> list[int]:
  return [int(word) for word in words]
