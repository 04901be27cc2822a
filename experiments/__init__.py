"""Binaries that train and evaluate models, and the modules that they use."""

import importlib.util

# What comes with the extra `train`.
_NEEDED = (
  "filelock", "matplotlib", "orbax", "PIL", "sklearn", "tensorboardX", "tqdm",
)  # fmt: skip

_missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
if _missing:
  raise ModuleNotFoundError(
    "training and evaluation need packages that are missing "
    f"({', '.join(_missing)}); install them by `pip install 'capjax[train]'`, "
    "or by `pip install '.[train]'` in the folder of this repository",
    name=_missing[0],
  )
