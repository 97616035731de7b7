"""The documentation as a site, built by `make docs`.

Pages are Markdown; the Python API comes from docstrings.
"""

import re

from sphinx.application import Sphinx

import penstock

project = "Penstock"
release = penstock.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["grafana", "images"]
html_theme = "furo"
html_title = f"Penstock {release}"
html_static_path: list[str] = []
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "description"
napoleon_use_ivar = True  # else attributes are listed twice
# Blocks of Python in the guides show results and prompts, too.
suppress_warnings = ["misc.highlighting_failure"]


def prepare(_: Sphinx, page: str, source: list[str]) -> None:
    """Name examples, which are no pages; make the lists of index.md the contents of the site."""
    source[0] = re.sub(r"\[([^]]+)\]\(\.\./(examples/\w+)[^)]*\)", r"\1 (`\2`)", source[0])
    if page != "index":
        return
    groups = re.findall(r"(?m)^([A-Z][\w ]+):\n\n((?:- .*\n)+)", source[0])
    for caption, entries in groups:
        pages = "\n".join(re.findall(r"\]\(([\w-]+)\.(?:md|rst)\)", entries))
        source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{pages}\n```\n"


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", prepare)
