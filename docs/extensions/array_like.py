"""Shows the unions of types behind `ArrayLike` under that name."""

import jax.typing
import numpy.typing
from sphinx.application import Sphinx
from sphinx.util.typing import stringify_annotation

_UNIONS = (numpy.typing.ArrayLike, jax.typing.ArrayLike)


def short(signature: str) -> str:
  """The signature with `ArrayLike` in place of what it stands for."""
  for union in _UNIONS:
    for mode in ("smart", "fully-qualified"):
      signature = signature.replace(
        stringify_annotation(union, mode), "ArrayLike"
      )
  return signature


def _shorten(app, what, name, thing, options, signature, returned):
  del app, what, name, thing, options
  return signature and short(signature), returned


def setup(app: Sphinx) -> dict:
  app.setup_extension("sphinx.ext.autodoc")  # which has the event
  app.connect("autodoc-process-signature", _shorten)
  return {"parallel_read_safe": True, "parallel_write_safe": True}
