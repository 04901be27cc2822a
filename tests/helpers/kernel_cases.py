"""All public kernels with descriptions of their arguments.

The tests of all kernels use these rows. Each row gives the axes of each
argument and the kind of its numbers, so that a test can draw it at any size and
magnitude.
"""

import model_rows
import numerics_rows
import routing_rows
from kernel_arguments import KINDS, SIZES, Case, draw, kind_of, shape_of

__all__ = [
  "CASES", "KINDS", "NOT_OF_ARRAYS", "SIZES", "Case", "draw", "kind_of",
  "shape_of",
]  # fmt: skip

CASES: dict[str, Case] = (
  routing_rows.CASES | numerics_rows.CASES | model_rows.CASES
)

# Public functions that have no row: they take no arrays, compute no arrays but
# those of another dtype, or are a part of one kernel that has a row.
NOT_OF_ARRAYS = {
  "checks.arrays", "checks.choice", "checks.counts", "checks.dtype",
  "checks.floats", "checks.image_shape", "checks.positive", "checks.sequences",
  "checks.did_you_mean", "checks.images", "checks.padding", "checks.rngs",
  "checks.same_shape", "checks.within", "checks.are_known", "checks.values",
  "compilation.keep_reductions", "em.amount_of_data_scale",
  "em_moments.plain_moments", "em_moments.shares",
  "em.inverse_temperature_schedule",
  "em.pixel_coordinates", "em.relative_coordinates", "em.require_form",
  "em.require_iterations",
  "linear_votes.check", "linear_votes.contractions", "linear_votes.output",
  "linear_votes.require_iterations", "linear_votes.require_normalisable",
  "linear_votes.route_by_agreement",
  "windows.over", "windows.same_padding", "similarities.as_complex",
  "similarities.check_templates", "similarities.poses",
  "similarities.posterior", "similarities.present_points",
  "similarities.templates",
  "geometry.grid", "geometry.pixel_offsets", "geometry.pixel_units",
  "numerics.accumulation_dtype", "numerics.full_products",
  "numerics.precision", "numerics.widen", "sharding.vary_alike",
}  # fmt: skip
