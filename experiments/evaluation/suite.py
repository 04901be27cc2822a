"""What an evaluation suite is."""

from collections.abc import Callable
from typing import NamedTuple

from experiments.evaluation.models import Options, Scores, Trained
from experiments.run.directory import Run


class Main(NamedTuple):
  """The score of a suite that the summary of all records shows.

  Attributes:
    metric: its name.
    label: of the row; `{canvas}` stands for the canvas of the model.
    factor: that the score is multiplied by, such as 100 for percent.
  """

  metric: str
  label: str
  factor: float = 1.0


class Suite(NamedTuple):
  """An evaluation of a trained model.

  Attributes:
    run: `(run, trained, options) -> scores` by name, numbers or the numbers of
      a curve; it plots into the run's folder. Its name is the suite's, and the
      first line of its docstring says what it measures.
    takes: the fields of `Options` that it reads; no others are given to it.
    compares: whether its figure holds the curves of the runs to compare with,
      which must have been evaluated by it before.
    main: its main score, if it has one.
  """

  run: Callable[[Run, Trained, Options], Scores]
  takes: frozenset[str] = frozenset()
  compares: bool = False
  main: Main | None = None

  @property
  def name(self) -> str:
    """What it is called on the command line and in records."""
    return self.run.__name__

  @property
  def summary(self) -> str:
    """What it measures, in a sentence."""
    return self.run.__doc__.partition("\n")[0]

  def __call__(
    self, run: Run, trained: Trained, options: Options | None = None
  ) -> Scores:
    """Evaluates a trained model; options that it does not take are left out."""
    given = (options or Options())._asdict()
    kept = {name: given[name] for name in self.takes}
    return self.run(run, trained, Options(**kept))


def suite(
  *takes: str, compares: bool = False, main: Main | None = None
) -> Callable[[Callable[[Run, Trained, Options], Scores]], Suite]:
  """Makes a suite of a function; the arguments are those of `Suite`."""
  takes += ("beside",) if compares else ()
  return lambda run: Suite(run, frozenset(takes), compares, main)
