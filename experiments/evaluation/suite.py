"""The type of an evaluation suite, and the decorator that makes one."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from ..run.directory import Run
from .models import Options, Scores, Trained


class Main(NamedTuple):
  """The score of a suite that docs/results.md shows.

  Attributes:
    metric: the name of the score.
    label: the label of its row; `{canvas}` stands for the model's canvas.
    factor: the score is multiplied by it, such as 100 for percent.
  """

  metric: str
  label: str
  factor: float = 1.0


class Suite(NamedTuple):
  """An evaluation of a trained model.

  Attributes:
    run: `(run, trained, options) -> {name: score}`; a score is a number or the
      list of numbers of a curve; it writes figures into the run's folder.
      The function's name is the suite's name, and the first line of its
      docstring is the suite's summary.
    takes: the fields of `Options` that it reads; it is given no others.
    compares: whether its figure also holds the curves of other runs
      (`Options.compare_with`), which must have been evaluated by it before.
    main: its main score, if it has one.
    counts: for scores that are measured on fewer images than the others:
      `{prefix of their names: name of the score that holds the number of
      images, or 0 for scores of no image}`; the first prefix that fits is used,
      and `*` in it is any text.
    labelled: whether it needs the labels of the images.
    other_data: `(run, options) -> name`, the name or path of the other data set
      that it loads; None if it loads none. Raises a ValueError if the user must
      name one and did not.
    require: `(run, trained, options) -> None`, raises a ValueError if the suite
      cannot run with them. It is called before the first of several suites
      runs, so that a wrong option costs no time; None if all options are fine.
  """

  run: Callable[[Run, Trained, Options], Scores]
  takes: frozenset[str] = frozenset()
  compares: bool = False
  main: Main | None = None
  counts: Mapping[str, str | int] = {}
  labelled: bool = False
  other_data: Callable[[Run, Options], str] | None = None
  require: Callable[[Run, Trained, Options], None] | None = None

  @property
  def name(self) -> str:
    """Its name on the command line and in records."""
    return self.run.__name__

  @property
  def summary(self) -> str:
    """What it measures or plots, in one sentence."""
    return self.run.__doc__.partition("\n")[0]

  def __call__(
    self, run: Run, trained: Trained, options: Options | None = None
  ) -> Scores:
    """Evaluates a trained model, with only the options that the suite reads."""
    options = self._own(options)
    self.check(run, trained, options)
    return self.run(run, trained, options)

  def check(
    self, run: Run, trained: Trained, options: Options | None = None
  ) -> None:
    """Raises a ValueError if the suite cannot run; see `require`."""
    if self.require:
      self.require(run, trained, self._own(options))

  def _own(self, options: Options | None) -> Options:
    """Keeps the options that the suite reads."""
    given = (options or Options())._asdict()
    return Options(**{name: given[name] for name in self.takes})


def suite(
  *takes: str,
  compares: bool = False,
  main: Main | None = None,
  counts: Mapping[str, str | int] = {},
  labelled: bool = False,
  other_data: Callable[[Run, Options], str] | None = None,
  require: Callable[[Run, Trained, Options], None] | None = None,
) -> Callable[[Callable[[Run, Trained, Options], Scores]], Suite]:
  """Turns a function into a suite; the arguments are fields of `Suite`."""
  takes += ("compare_with",) if compares else ()
  return lambda run: Suite(
    run,
    frozenset(takes),
    compares,
    main,
    counts,
    labelled,
    other_data,
    require,
  )
