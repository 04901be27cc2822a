r"""Fetches MNIST or Fashion-MNIST, verified, into a folder of data sets.

  python -m experiments.fetch mnist --data_dir=DIR

The files are in DIR/mnist afterwards, where --dataset=mnist --data_dir=DIR
finds them. A download that was interrupted is resumed by the same command.
"""

import functools

from absl import app, flags

from capjax.data import fetching

from .flags import errors, limits

# Not the flag of training: its module defines other flags of no use here.
_DATA_DIR = flags.DEFINE_string(
  "data_dir", None, "Folder of all data sets; each gets a folder in it."
)
_MIRROR = flags.DEFINE_list(
  "mirror",
  [],
  "Addresses of folders with the files, tried before the known addresses.",
)


def main(names: list[str]) -> None:
  known = ", ".join(fetching.SETS)
  if not names:
    raise app.UsageError(f"name a data set to fetch: {known}")
  with errors.clear_errors():
    if not _DATA_DIR.value:
      raise ValueError("give the folder of all data sets as --data_dir=DIR")
    unknown = sorted(set(names) - fetching.SETS.keys())
    if unknown:
      raise ValueError(f"cannot fetch {', '.join(unknown)}; known are {known}")
    for name in names:
      fetching.fetch(
        name,
        _DATA_DIR.value,
        mirrors=_MIRROR.value,
        tell=functools.partial(print, flush=True),
      )


if __name__ == "__main__":
  limits.run_on_words(main, shared=())
