"""The command `capjax`, which runs the binaries of this package by name.

  capjax train capsnet --workdir=runs/digits --preset=digits
  capjax evaluate --workdir=runs/digits --suite=accuracy
  capjax predict --model=runs/digits --out=classes.csv *.png

In a checkout, `capjax train capsnet` is `python -m experiments.train_capsnet`.
"""

import difflib
import pathlib
import runpy
import sys

_TRAIN = "train_"
_HERE = pathlib.Path(__file__).parent
_USAGE = """usage: capjax COMMAND [FLAGS]

  capjax train MODEL --workdir=DIR   MODEL is one of {models}
{commands}
Each has --help.
"""
# The extra of setup.cfg that each optional package belongs to.
_EXTRAS = {
  "PIL": "train",
  "array_record": "data",
  "filelock": "train",
  "grain": "data",
  "matplotlib": "train",
  "orbax": "train",
  "sklearn": "train",
  "tensorboardX": "train",
  "tqdm": "train",
}
_COMMANDS = {
  "evaluate": "evaluates a trained model",
  "export": "writes a trained model in other forms",
  "fetch": "fetches MNIST or Fashion-MNIST",
  "write_records": "writes a data set as ArrayRecord files",
  "predict": "predicts the classes of image files",
}


def models() -> list[str]:
  """The names that `capjax train` takes."""
  return sorted(
    path.stem.removeprefix(_TRAIN) for path in _HERE.glob(f"{_TRAIN}*.py")
  )


def main() -> None:
  """Runs the binary that the command line names, with the flags after it."""
  module, rest = _binary(sys.argv[1:])
  sys.argv = [f"capjax {module}", *rest]
  try:
    runpy.run_module(
      f"{__package__}.{module}", run_name="__main__", alter_sys=True
    )
  except ModuleNotFoundError as error:
    package = (error.name or "").partition(".")[0]
    if package not in _EXTRAS:
      raise
    sys.exit(
      f"{sys.argv[0]} needs {package}, which is not installed; run "
      f"pip install 'capjax[{_EXTRAS[package]}]', or pip install "
      f"'.[{_EXTRAS[package]}]' in the folder of the repository."
    )


def _binary(words: list[str]) -> tuple[str, list[str]]:
  """The module that the first words name, and the words after these."""
  command, *rest = words or ["--help"]
  asks = ("--help", "-h", "help")
  if command in asks or (command == "train" and rest and rest[0] in asks):
    print(_usage())
    sys.exit(0)
  if command == "train" and rest and rest[0] in models():
    return f"{_TRAIN}{rest[0]}", rest[1:]
  if command in _COMMANDS:
    return command, rest
  if words == ["train"]:
    sys.exit(f"capjax train: give a model, one of {', '.join(models())}")
  said = words[:2] if command == "train" else words[:1]
  known = models() if len(said) > 1 else [*_COMMANDS, "train"]
  near = difflib.get_close_matches(said[-1], known, 1)
  remedy = f"; did you mean {near[0]}?" if near and command != near[0] else ""
  sys.exit(f"capjax {' '.join(said)}: unknown command{remedy}\n{_usage()}")


def _usage() -> str:
  commands = "".join(
    f"  capjax {name:<28}{summary}\n" for name, summary in _COMMANDS.items()
  )
  return _USAGE.format(models=", ".join(models()), commands=commands)


if __name__ == "__main__":
  main()
