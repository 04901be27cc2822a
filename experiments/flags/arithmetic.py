"""Flags of the precision of products."""

import jax
from absl import flags

_PRECISION = flags.DEFINE_enum(
  "precision",
  None,
  ["highest", "high", "default"],
  "How far accelerators round the float32 operands of all products: highest "
  "keeps float32; high takes TF32 on GPUs and three bfloat16 on TPUs; default "
  "takes TF32 on GPUs and bfloat16 on TPUs. Without this flag, the variable "
  "JAX_DEFAULT_MATMUL_PRECISION decides; without both, highest. CPUs never "
  "round.",
)
_BFLOAT16 = flags.DEFINE_bool(
  "bfloat16",
  False,
  "Compute convolutions and dense layers in bfloat16, which is faster on "
  "accelerators; parameters, routing, likelihoods and sums stay in float32.",
)


def configure() -> None:
  """Sets the precision of products, if --precision is given."""
  if _PRECISION.value:
    jax.config.update("jax_default_matmul_precision", _PRECISION.value)


def dtype() -> str:
  """The dtype of convolutions and dense layers."""
  return "bfloat16" if _BFLOAT16.value else "float32"


def refuse_bfloat16(why: str) -> None:
  """Raises a ValueError with the reason `why`, if --bfloat16 is given."""
  if _BFLOAT16.value:
    raise ValueError(f"--bfloat16 is not for this model: {why}")
