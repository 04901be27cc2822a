"""Groups records by setting, and formats their numbers as Markdown tables."""

import collections
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from . import published

_GROUP = ("experiment", "dataset", "preset", "device", "suite")
# Flags that the name of a row leaves out: they have a column, or only set how
# often a run is logged, validated or saved.
_ELSEWHERE = {"num_steps", "log_every", "eval_every", "checkpoint_every"}

# Sides of the images of data sets that have views.
_ROWS = {"digits": 8, "mnist": 28, "fashion_mnist": 28}

# Numbers in the scores of a suite that describe its settings.
SETTINGS = (
  "num_images",
  "num_rows",
  "views",
  "pad",
  "max_shift",
  "temperatures",
  "num_samples",
)

# Beginnings of the names of counts, which are equal for equal networks.
_COUNTED = ("num_", "operations", "parameters")

# The values of flags with which the code behaves as before it had these flags.
# Only values other than 0, false and empty are listed.
_FORMER = {
  "decoder_init": "lecun",
  "max_scale": 1.0,
  "model_parallel": 1,
  "momentum": 0.9,
  "num_micro_batches": 1,
  "optimizer": "adam",
  "pad": 4,
  "routing_gradient": "all",
  "transforms_scale": 0.1,
  "viewpoints": "all",
}

# Presets whose seeds trained on solids that were rendered on different devices
# or processors, which round some pixels differently, as
# docs/results/viewpoints.md says.
_RENDERED_APART = {"solids_cpu_vector", "solids_cpu_cross_entropy"}

NO_RUNS = "No runs are recorded yet.\n"


class Setting(NamedTuple):
  """The seeds of one setting.

  Attributes:
    experiment: the binary.
    dataset: the data set.
    name: the preset and the flags that distinguish the setting from others.
    steps: the mean number of updates, and the restarts if there were any.
    device: the device of all seeds.
    suite: the suite of an evaluation; empty for a training run.
    records: one for each seed, from the lowest.
  """

  experiment: str
  dataset: str
  name: str
  steps: str
  device: str
  suite: str
  records: list[dict]

  @property
  def what(self) -> list[str]:
    """The cells that every row of the tables begins with."""
    return [self.experiment, self.dataset, self.name, self.steps, self.device]


def settings(records: Iterable[dict]) -> Iterator[Setting]:
  """Yields each setting with its seeds, sorted by name and number of steps.

  Seeds share a row only if all their flags agree; their commits may differ. A
  flag that an older record lacks counts as off.

  Raises:
    ValueError: if one setting holds a seed twice, or seeds of different data.
  """
  groups = collections.defaultdict(list)
  for record in records:
    key = tuple(record.get(name) or "" for name in _GROUP)
    # Runs that stop at an accuracy differ in their number of steps.
    stops = record["flags"].get("stop_accuracy") is not None
    key += (0 if stops else record["num_steps"],)
    groups[key].append(record)
  for key, peers in sorted(groups.items()):
    experiment, dataset, preset, device, suite, _ = key
    named = collections.defaultdict(list)
    for record in peers:
      named[_words(record, peers)].append(record)
    for words, group in sorted(named.items()):
      group.sort(key=lambda record: record["seed"])
      seeds = [record["seed"] for record in group]
      if len(set(seeds)) < len(seeds):
        raise ValueError(f"{key}: a seed occurs twice in {seeds}; keep one.")
      name = " ".join([preset or "-", *words])
      fingerprint(group)
      yield Setting(
        experiment, dataset, name, _steps(group), device, suite, group
      )


def fingerprint(group: Sequence[dict]) -> str:
  """The start of the fingerprints of the training and of the test set.

  Returns:
    Both, or - where no record has them; those of all seeds where the images
    were rendered apart.

  Raises:
    ValueError: if seeds of one setting are of different data.
  """
  sets = {
    (record["data"]["train"], record["data"]["test"]): record["seed"]
    for record in group
    if "data" in record
  }
  if len(sets) > 1 and group[0]["preset"] not in _RENDERED_APART:
    seeds = ", ".join(str(seed) for seed in sets.values())
    raise ValueError(
      f"seeds {seeds} of {group[0]['preset']} are of different data; keep "
      "those of one fingerprint"
    )
  return ", ".join(" ".join(x[:7] for x in pair) for pair in sets) or "-"


def differing(record: dict, peers: Sequence[dict]) -> dict[str, str]:
  """The flags of a record that are not the same in all of its peers.

  Returns:
    Their values by name; None for a flag that is newer than the record and on
    in a peer, if the former behaviour is not known.
  """
  names = {name for peer in peers for name in peer["flags"]}
  found = {}
  for name in sorted(names - set(published.NOT_OF_PRESETS)):
    values = _values(name, peers)
    if any(value != values[0] for value in values):
      found[name] = values[_index(record, peers)]
  return found


def words_apart(record: dict, peers: Sequence[dict]) -> list[str]:
  """The flags that `differing` finds, as words of a row's name."""
  return [_word(*flag) for flag in differing(record, peers).items()]


def commits(records: Sequence[dict], field: str = "commit") -> str:
  """The commits of some seeds; several commits are followed by their seeds.

  Args:
    records: the records of the seeds.
    field: the field that holds the commit; records without it are left out.
  """
  found = collections.defaultdict(dict)
  for record in records:
    if field in record:
      found[record[field][:7]][str(record["seed"])] = None
  if len(found) < 2:
    return next(iter(found), "-")
  return ", ".join(f"{name} ({' '.join(of)})" for name, of in found.items())


def seeds(records: Sequence[dict]) -> str:
  """The number of seeds, and of their commits if there is more than one."""
  count = len({record["commit"] for record in records})
  mark = f" of {count} commits" if count > 1 else ""
  return f"{len(records)}{mark}"


def images(records: Sequence[dict], metric: str) -> str:
  """The number of test images of a metric; - if none or not recorded."""
  if metric.removeprefix("raw_").startswith("validation_"):
    return "-"  # Older records give the number of test images.
  counts = {_num_images(record, metric) for record in records} - {None, 0}
  if len(counts) > 1:
    return f"{min(counts):,} to {max(counts):,}"
  return f"{counts.pop():,}" if counts else "-"


def is_measured(metric: str) -> bool:
  """Whether a number can differ between seeds; settings and counts cannot."""
  return metric not in SETTINGS and not metric.startswith(_COUNTED)


def canvas(record: dict) -> str:
  """Height and width of the images that a model takes, such as 40x40.

  From the scores of the suite, or the flag `--canvas`, or the data set.
  """
  rows = record["metrics"].get("num_rows") or record["flags"].get("canvas")
  rows = rows or _ROWS.get(record["dataset"])
  return f"{rows}x{rows}" if rows else "size unknown"


def mean(values: Sequence[float], form: str, spread_form: str) -> str:
  """Numbers of several seeds as one cell.

  For three or more, the mean and the sample standard deviation. For two both
  values, since their standard deviation would mean little.
  """
  if len(values) < 3:
    return ", ".join(f"{value:{form}}" for value in values)
  spread = f" ± {statistics.stdev(values):{spread_form}}"
  return f"{statistics.fmean(values):{form}}{spread}"


def require_one_each(group: Sequence[dict], where: str) -> None:
  """Checks that records of one setting have different seeds and the same data.

  Raises:
    ValueError: if a seed is there twice, or seeds are of different data.
  """
  fingerprint(group)
  seeds = collections.Counter(record["seed"] for record in group)
  seed, times = seeds.most_common(1)[0]
  if times > 1:
    raise ValueError(f"{where}: {times} records are of seed {seed}.")


def by_seed(
  named: Mapping[str, Sequence[dict]], stem: str, suite: str, metric: str
) -> dict[int, Any]:
  """A metric of a record by seed; seeds that do not have it are left out.

  Args:
    named: what `pages.read` returns.
    stem: the name of the record without the seed.
    suite: the suite of an evaluation; empty for a training run.
    metric: the metric, a number or a curve.

  Raises:
    ValueError: as `require_one_each`.
  """
  group = [
    record
    for record in named.get(stem, ())
    if (record.get("suite") or "") == suite and metric in record["metrics"]
  ]
  if group:
    require_one_each(group, f"{stem}:{suite} {metric}")
  return {record["seed"]: record["metrics"][metric] for record in group}


def curve(
  named: Mapping[str, Sequence[dict]], stem: str, suite: str, metric: str
) -> list[float]:
  """The means over seeds of each point of a curve; empty without records.

  Args:
    named: as for `by_seed`.
    stem: as for `by_seed`.
    suite: as for `by_seed`.
    metric: a curve.
  """
  curves = by_seed(named, stem, suite, metric).values()
  return [statistics.fmean(points) for points in zip(*curves, strict=True)]


def differences(
  ours: Mapping[int, float], theirs: Mapping[int, float]
) -> list[float]:
  """The values of one setting minus those of another, for common seeds."""
  return [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs)]


def section(title: str, text: str) -> list[str]:
  """A heading and its text; empty where there is no text."""
  return [f"## {title}\n", text] if text else []


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  """A Markdown table; empty where there are no rows."""
  lines = [header, ["---"] * len(header), *rows] if rows else []
  lines = [[cell.replace("|", "\\|") for cell in line] for line in lines]
  return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def costs(group: Sequence[dict]) -> list[str]:
  """The cells of parameters, minutes and images per second."""
  size = group[0]["num_parameters"]
  minutes = statistics.fmean(record["seconds"] for record in group) / 60
  rate = statistics.fmean(record["images_per_second"] for record in group)
  return [
    f"{size / 1e6:.1f}M" if size >= 999_500 else f"{size / 1e3:.0f}K",
    f"{minutes:.1f}",
    f"{rate:,.0f}",
  ]


def _words(record: dict, peers: Sequence[dict]) -> tuple[str, ...]:
  """The flags that distinguish a run from its preset, and from its peers."""
  changes = published.changes(record["command"]) if record["preset"] else []
  given = dict(_name_and_value(word, record["flags"]) for word in changes)
  given |= {name: str(x) for name, x in record.get("filled", {}).items()}
  given |= differing(record, peers)
  given = {
    name: value
    for name, value in given.items()
    if value is None or not _is_of_preset(name, record, peers)
  }
  if given.get("stop_accuracy"):
    given["stop_accuracy"] = ""  # Seeds may each have their own.
  return tuple(
    _word(name, value)
    for name, value in sorted(given.items())
    if name not in _ELSEWHERE
  )


def _name_and_value(
  word: str, known: Mapping[str, Any]
) -> tuple[str, str | None]:
  """A word of a command as a flag and its value, such as True or 0.5.

  --noNAME is NAME=False, and numbers do not depend on how they were typed.
  """
  name, _, value = word.lstrip("-").partition("=")
  positive = name.removeprefix("no")
  if name not in known and known.get(positive) is False:
    return positive, "False"
  is_typed_freely = value and isinstance(known.get(name), float | bool)
  return name, str(known[name]) if is_typed_freely else value


def _is_off(name: str, value: object) -> bool:
  """Whether a flag of this value changes nothing."""
  return not value or _FORMER.get(name) == value


def _word(name: str, value: str | None) -> str:
  if value is None:
    return f"before `--{name}`"
  return f"`{name}={value}`" if value else f"`{name}`"


def _index(record: dict, peers: Sequence[dict]) -> int:
  return next(i for i, peer in enumerate(peers) if peer is record)


def _values(name: str, peers: Sequence[dict]) -> list[str | None]:
  """The values of a flag; None if a record lacks it and no peer has it off."""
  known = [p["flags"][name] for p in peers if name in p["flags"]]
  # A record that lacks the flag did what the flag does when it is off.
  offs = [str(value) for value in known if _is_off(name, value)]
  off = next(iter(offs), None)
  if name in _FORMER:  # also the value of a flag that was left unset
    off = str(_FORMER[name])
  return [
    off if peer["flags"].get(name) is None and _lacks(name, peer)
    else str(peer["flags"][name])
    for peer in peers
  ]  # fmt: skip


def _lacks(name: str, record: dict) -> bool:
  """Whether a record has no value of a flag, or none but the former one."""
  return name not in record["flags"] or name in _FORMER


def _is_of_preset(name: str, record: dict, peers: Sequence[dict]) -> bool:
  """Whether all runs that do not give a flag have the value of this record."""
  values = _values(name, peers)
  own = values[_index(record, peers)]
  left = {
    value
    for value, peer in zip(values, peers, strict=True)
    if not {f"--{name}", f"--no{name}"}
    & {word.partition("=")[0] for word in published.changes(peer["command"])}
  }
  return own is not None and left == {own}


def _steps(records: Sequence[dict]) -> str:
  steps = round(statistics.fmean(record["num_steps"] for record in records))
  restarts = sum(record.get("restarts", 0) for record in records)
  if not restarts:
    return f"{steps:,}"
  return f"{steps:,} ({restarts} restart{'s' if restarts > 1 else ''})"


def _num_images(record: dict, metric: str) -> int | None:
  # Older evaluations have only one count, that of the suite.
  of_suite = record["metrics"].get("num_images")
  return record.get("num_images", {}).get(metric, of_suite)
