"""What figures need of matplotlib, which comes with the extra `viz`."""

import sys

try:
  from matplotlib import axes, colormaps, figure, patches, ticker
except ModuleNotFoundError as error:
  if (error.name or "").partition(".")[0] != "matplotlib":
    raise
  sys.exit(
    "matplotlib is missing, which figures need: install capjax[viz], by `pip "
    "install '.[viz]'` in the folder of this repository"
  )

__all__ = ["axes", "colormaps", "figure", "patches", "ticker"]
