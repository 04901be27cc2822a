"""Shows docstrings, which are plain text, in the reference.

They write code between single backticks, indent equations, and use `*` and `|`
as signs of mathematics. Here code becomes code, equations blocks of their own,
and signs stay signs.
"""

import re

from sphinx.application import Sphinx

_CODE = re.compile(r"(?<![`:\w])`([^`\n]+)`(?!`)")
# Code that runs over the end of a line.
_BROKEN = re.compile(r"(?<![`:\w])`([^`\n]+)\n *([^`\n]+)`(?!`)")
_SIGNS = re.compile(r"([*|\\]|_(?=\W|$))")
# A section of Google's style, which napoleon reads.
_SECTION = re.compile(r"\s*(Args|Returns|Raises|Attributes|Yields):$")


def plain(lines: list[str]) -> list[str]:
  """The lines as reStructuredText."""
  found, base = [], None
  in_example = in_list = in_equation = False
  for line in _joined(lines):
    indent = len(line) - len(line.lstrip())
    if not line.strip():
      in_example = in_list = False
    elif _SECTION.match(line):
      base = indent
    elif base is not None and indent <= base:
      base = None
    in_example |= line.lstrip().startswith(">>>")
    if line.startswith(("- ", "1. ")) and not in_list:
      found.append("")
      in_list = True
    plain_text = in_example or in_list or base is not None or indent < 2
    if line.strip() and in_equation == plain_text:
      # An equation begins or ends.
      found += [""] if plain_text else ["", "::", ""]
      in_equation = not plain_text
    if in_equation:
      found.append(f"   {line}".rstrip())
    else:
      found.append(line if in_example else _escaped(line))
  return found


def _joined(lines):
  """The lines, with each piece of code on one of them."""
  return _BROKEN.sub(r"`\1 \2`", "\n".join(lines)).split("\n")


def _escaped(line: str) -> str:
  parts = _CODE.split(line)
  # Every second part stood between backticks; what follows may touch it.
  return "".join(
    f"``{part}``\\ " if n % 2 else _SIGNS.sub(r"\\\1", part)
    for n, part in enumerate(parts)
  )


def _process(app, kind, name, obj, options, lines):
  lines[:] = plain(lines)


def _is_field(app, kind, name, obj, skip, options):
  """Passes over the fields of a NamedTuple, which its docstring lists."""
  return True if type(obj).__name__ == "_tuplegetter" else None


def _signature(app, kind, name, obj, options, arguments, returns):
  """Names the type of arrays as the code does."""
  return tuple(
    x and x.replace("jaxlib._jax.Array", "Array") for x in (arguments, returns)
  )


def setup(app: Sphinx) -> dict[str, bool]:
  """Changes docstrings before napoleon reads them."""
  app.setup_extension("sphinx.ext.autodoc")
  app.connect("autodoc-process-docstring", _process, priority=100)
  app.connect("autodoc-skip-member", _is_field)
  app.connect("autodoc-process-signature", _signature)
  return {"parallel_read_safe": True, "parallel_write_safe": True}
