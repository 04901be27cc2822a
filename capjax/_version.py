"""The version of the installed package."""

import importlib.metadata


def installed(package: str = "capjax") -> str:
  """The version of a package; "unknown" of a checkout that is on the path."""
  try:
    return importlib.metadata.version(package)
  except importlib.metadata.PackageNotFoundError:
    return "unknown"
