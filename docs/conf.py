"""Settings of the site: `make docs` builds it, without any network."""

import configparser
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs" / "extensions")]
_CONFIG = configparser.ConfigParser()
_CONFIG.read(ROOT / "setup.cfg")

project = "capjax"
author = "The capjax authors"
release = version = _CONFIG["metadata"]["version"]
extensions = [
  "array_like",
  "deviations",
  "mathml",
  "myst_nb",
  "plain_docstrings",
  "sphinx.ext.autodoc",
  "sphinx.ext.napoleon",
  "sphinx.ext.viewcode",
  "submodules",
]
exclude_patterns = ["build", "**/.ipynb_checkpoints", "README.md"]

html_theme = "sphinx_book_theme"
html_title = "capjax"
html_show_copyright = False
html_theme_options = {"show_navbar_depth": 1, "show_toc_level": 2}
html_static_path = ["static"]
html_css_files = ["site.css"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": False}
autodoc_class_signature = "mixed"
maximum_signature_line_length = 78
napoleon_include_init_with_doc = False
napoleon_attr_annotations = False
napoleon_use_ivar = True
napoleon_use_rtype = False
add_module_names = False

# Outputs of tutorials are stored, and the site shows them. With the option
# `-D nb_execution_mode=force` it runs them, and shows what that gives.
nb_execution_mode = "off"
nb_execution_timeout = 1800  # seconds, for each cell
nb_execution_raise_on_error = True
# Widgets would bring scripts of other origins; the tutorials have none.
nb_ipywidgets_js = {}
myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
