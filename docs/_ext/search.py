"""The search: lessons first, and each result with the words around what was found.

A page that was opened from disk can't fetch others, so the texts of all pages stand in one script, which the search
page alone loads: `_static/search-texts.js`, beside `_static/search-lessons.js`, which uses it.
"""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _ext.lessons.course import COURSE

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.util.typing import ExtensionMetadata

FIRST = ("start", *(lesson.page for lesson in COURSE))
"""Pages that stand before all others."""

LONGEST = 8_000
"""Characters kept of one section, prose before code."""

SILENT = {"script", "style", "svg", "math", "button"}

INLINE = {"a", "b", "code", "em", "i", "span", "strong", "wbr", "mark"}


class Sections(HTMLParser):
    """The text of a page by section: id -> its prose and its code, without those of sections in it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, tuple[list[str], list[str]]] = {}
        self._open: list[str] = []
        self._silent = self._code = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Enter a section, code, or something that is no text."""
        if tag == "section":
            self._open.append(dict(attrs).get("id") or "")
        self._silent += tag in SILENT
        self._code += tag == "pre"
        if tag not in INLINE:
            self.handle_data(" ")

    def handle_endtag(self, tag: str) -> None:
        """Leave it."""
        if tag == "section" and self._open:
            self._open.pop()
        self._silent -= tag in SILENT
        self._code -= tag == "pre"

    def handle_data(self, data: str) -> None:
        """Text of the innermost section."""
        if self._open and not self._silent:
            self.found.setdefault(self._open[-1], ([], []))[self._code > 0].append(data)


def texts(page: str) -> dict[str, str]:
    """Section -> text of a page's HTML.

    >>> texts('<section id="a"><pre>x = 1</pre><p>one  <b>t</b>wo</p><section id="b">three</section></section>')
    {'a': 'one two x = 1', 'b': 'three'}
    """
    parser = Sections()
    parser.feed(page)
    return {
        name: " ".join(f"{''.join(prose)} {''.join(code)}".replace("\N{PILCROW SIGN}", "").split())[:LONGEST]
        for name, (prose, code) in parser.found.items()
    }


def load_on_the_search_page(app: Sphinx, page: str, *_: Any) -> None:
    """Both scripts, before the theme's own."""
    if page == "search":
        app.add_js_file("search-texts.js", priority=10)
        app.add_js_file("search-lessons.js", priority=11)


def write_texts(app: Sphinx, error: Exception | None) -> None:
    """Read all pages of the site once they are there."""
    if error is None and app.builder.format == "html":
        pages = {
            path.stem: texts(path.read_text("utf-8"))
            for path in sorted(Path(app.outdir).glob("*.html"))
            if path.stem in app.env.found_docs
        }
        script = f"const SEARCH_FIRST = {json.dumps(FIRST)};\nconst SEARCH_TEXTS = {json.dumps(pages)};\n"
        Path(app.outdir, "_static", "search-texts.js").write_text(script, "utf-8")


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register both steps."""
    app.connect("html-page-context", load_on_the_search_page)
    app.connect("build-finished", write_texts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
