"""The version of the installed package."""

import importlib.metadata


def installed(package: str = "capjax") -> str:
  """The version of a package; "unknown" for a checkout not installed.

  Args:
    package: the name of the distribution.
  """
  try:
    return importlib.metadata.version(package)
  except importlib.metadata.PackageNotFoundError:
    return "unknown"
