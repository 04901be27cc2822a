"""Rewrites the numbers of the documentation and results/ from the records.

`python -m experiments.report` writes one line for each preset into
docs/results.md, and all metrics of the records into results/README.md and the
pages that it names. Runs of presets that end in `_sweep` are compared in
results/sweeps.md. Numbers in the README and in docs/ stand between comments
that name their record (see `experiments.records.pages`); a page with markers of
`TABLES` gets their table. With `--check` it only compares the pages with the
records, and fails where they differ.
"""

import pathlib
import sys

from absl import flags

from .flags import limits
from .records import (
  ablations,
  densities,
  every_metric,
  networks,
  pages,
  routings,
  scaling,
  summary,
  sweeps,
)
from .records import records as record_files

_CHECK = flags.DEFINE_bool(
  "check", False, "Only compare, and fail if a page is out of date."
)
_PAGE = flags.DEFINE_string(
  "page", "docs/results.md", "Page with the block to rewrite."
)
_PAGES = flags.DEFINE_list(
  "pages",
  ["README.md", "docs"],
  "Pages, or folders of pages, with numbers of records in their text.",
)
_RESULTS = flags.DEFINE_string(
  "results",
  "results",
  "Folder that holds records/*.jsonl and gets the generated pages.",
)

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
# Tables on pages of docs/, by the name in the markers around them.
TABLES = {
  "routings": routings.table,
  "routers": routings.by_name,
  "scaling": scaling.table,
  "ablations": ablations.table,
  "networks": networks.table,
}


def replace_block(
  text: str, table: str, marks: tuple[str, str] = (BEGIN, END)
) -> str:
  """Puts a table between the markers of a text.

  Args:
    text: Markdown.
    table: what comes between.
    marks: the markers before and after it.

  Raises:
    ValueError: unless the text has each marker once, and in order.
  """
  begin, end = marks
  before, _, rest = text.partition(begin)
  _, found, after = rest.partition(end)
  if not found or text.count(begin) + text.count(end) != 2:
    raise ValueError(
      f"the page must hold a line `{begin}` and below it a line `{end}`, "
      "once each; add them where the results belong."
    )
  return f"{before}{begin}\n\n{table}\n{end}{after}"


def main() -> None:
  page = pathlib.Path(_PAGE.value)
  results = pathlib.Path(_RESULTS.value)
  try:
    every = record_files.read(_RESULTS.value)
    short = [x for x in every if (x["preset"] or "").endswith("_sweep")]
    records = [x for x in every if x not in short]
    block = summary.table(records), densities.compact(records)
    new = {
      page: replace_block(
        page.read_text("utf-8"), "\n".join(filter(None, block))
      ),
      results / "sweeps.md": sweeps.page(short),
      **{
        results / name: text
        for name, text in every_metric.pages(records).items()
      },
    }
    named = pages.read(_RESULTS.value)
    for path in _pages():
      text = new.get(path) or path.read_text("utf-8")
      for name, make in TABLES.items():
        marks = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        if marks[0] in text:
          text = replace_block(text, make(named), marks)
      new[path] = pages.fill(text, named)
  except (OSError, ValueError) as error:
    sys.exit(str(error))
  stale = [
    path
    for path, text in new.items()
    if not path.exists() or path.read_text("utf-8") != text
  ]
  # Pages of binaries that no record names any more.
  left = sorted(set((results / "metrics").glob("*.md")) - set(new))
  if _CHECK.value and (stale or left):
    sys.exit(
      f"{(stale + left)[0]} is out of date; run `python -m experiments.report`."
    )
  for path in stale:
    path.parent.mkdir(exist_ok=True)
    path.write_text(new[path], "utf-8")
    print(f"wrote {path}")
  for path in left:
    path.unlink()
    print(f"removed {path}")
  print(
    f"{len(new) - len(stale)} of {len(new)} pages were up to date with "
    f"{len(every)} records of {_RESULTS.value}"
  )


def _pages() -> list[pathlib.Path]:
  """The pages whose numbers are filled in."""
  found = []
  for path in map(pathlib.Path, _PAGES.value):
    if path.is_dir():
      inside = path.rglob("*.md")
      found += sorted(x for x in inside if "build" not in x.parts)
    else:
      found.append(path)
  return found


if __name__ == "__main__":
  limits.run(main, shared=())
