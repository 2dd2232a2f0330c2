"""The site of these pages, which opens from disk: `sphinx-build -W -n --keep-going docs build/site`."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

HERE = Path(__file__).parent
EXTENSIONS = HERE / "_ext"

# The directives, as package `_ext`; and what they read: the project's own packages, installed or not.
sys.path[:0] = [str(HERE), str(HERE.parent)]

# Pages are hundreds of thousands of nodes: Python looks for cycles among them a fourteenth as often.
gc.set_threshold(10_000)

project = "mha-parity"
author = "the mha-parity authors"
project_copyright = "Apache-2.0"
language = "en"  # and some pages in others: `_ext.languages`
gettext_compact = "pages"

extensions = [
    "myst_parser",
    "sphinx_design",
    "sphinx_copybutton",
    *sorted(
        ".".join(path.relative_to(HERE).with_suffix("").parts)
        for path in EXTENSIONS.rglob("*.py")
        if "\ndef setup(" in path.read_text("utf-8")
    ),
]
exclude_patterns = ["_data/**", "_ext/**", "**/__pycache__"]
templates_path = ["_templates"]

source_suffix = {".md": "markdown"}
myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 4  # `page.md#a-heading`, as on a git host
myst_links_external_new_tab = False
highlight_language = "none"  # a block without a language is output, not Python
copybutton_exclude = ".linenos, .gp, .go"

toc_object_entries = False
autodoc_typehints = "none"
autodoc_class_signature = "mixed"
default_role = "code"  # `name` in docstrings
# Docstrings say types in words ("bool (B, H, Lq, Lk)"), which are no targets; dotted names are looked for.
nitpick_ignore_regex = [("py:(class|obj)", r"[^.]*")]

html_theme = "furo"
html_title = "mha-parity"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["parallel.css", "phrases.css", "site.css"]
html_copy_source = False
html_show_copyright = False
html_search_scorer = str(EXTENSIONS / "scorer.js")
html_show_search_summary = False  # excerpts are fetched, and a page that was opened from disk can't fetch
pygments_style = "default"
pygments_dark_style = "github-dark"
html_theme_options = {"navigation_with_keys": False, "top_of_page_buttons": []}


def setup(app: Sphinx) -> None:
    """Say where the site is, also where a build is told to be quiet."""
    app.connect("build-finished", _say_where)


def _say_where(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.name == "html" and app.config.language == language:
        print(f"The site is there: open {Path(app.outdir) / 'index.html'}")
