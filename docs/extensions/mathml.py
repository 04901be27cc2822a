"""Renders equations as MathML, which browsers show without any script."""

from docutils import nodes
from docutils.utils.math import latex2mathml
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator


def to_mathml(latex: str, *, block: bool) -> str:
  """The MathML of LaTeX, by the converter of docutils.

  Args:
    latex: what stands between the dollars; a block may have several lines
      that end in a double backslash.
    block: whether the equation stands alone.
  """
  if block and "\\\\" in latex and "\\begin" not in latex:
    latex = f"\\begin{{aligned}}{latex}\\end{{aligned}}"
  return latex2mathml.tex2mathml(latex.strip(), as_block=block)


def _inline(self: HTML5Translator, node: nodes.math) -> None:
  self.body.append(to_mathml(node.astext(), block=False))
  raise nodes.SkipNode


def _block(self: HTML5Translator, node: nodes.math_block) -> None:
  text = to_mathml(node.astext(), block=True)
  self.body.append(f'<div class="math">{text}</div>\n')
  raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
  """Makes this renderer the one of the site."""
  app.add_html_math_renderer(
    "mathml",
    inline_renderers=(_inline, None),
    block_renderers=(_block, None),
  )
  app.connect("config-inited", _choose)
  return {"parallel_read_safe": True, "parallel_write_safe": True}


def _choose(app, config):
  config.html_math_renderer = "mathml"
