"""The first pages in other languages: a build of its own for each, from the catalogs in `docs/locales`.

Of a page its paragraphs alone are translated; code, figures and exercises are those of the English page. A paragraph
that is not in the catalog as it reads now is shown in English, with a sentence that says so, and named by the build.
"""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.search.ja import SearchJapanese
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.config import Config
    from sphinx.util.typing import ExtensionMetadata

ENGLISH = "en"
LANGUAGES = {ENGLISH: "English", "ja": "日本語", "id": "Bahasa Indonesia"}
PAGES = ("start", "attention", "heads-lesson", "layer-in-code")
"""Pages that are translated; the first leads to the others."""

SINCE = {"ja": "この段落は翻訳後に英語版が変わりました。", "id": "Versi bahasa Inggris paragraf ini telah berubah."}


def limited(app: Sphinx, config: Config) -> None:
    """In another language there are the translated pages alone."""
    config.html_context |= {"languages": LANGUAGES, "translated": PAGES}
    if config.language != ENGLISH:
        config.master_doc = PAGES[0]
        config.include_patterns = [f"{page}.md" for page in PAGES]


def led(app: Sphinx, page: str, source: list[str]) -> None:
    """The first page leads to the others where there is no index."""
    if app.config.language != ENGLISH and page == PAGES[0]:
        source[0] += "\n".join(["", "```{toctree}", ":hidden:", "", "self", *PAGES[1:], "```", ""])


def marked(app: Sphinx, doctree: nodes.document) -> None:
    """Say which paragraphs of a page have changed since, there and in the build; cells of tables may stay English."""
    language = app.config.language
    if language == ENGLISH or app.builder.format != "html":
        return
    for node in doctree.findall(lambda node: isinstance(node, nodes.paragraph | nodes.title)):
        if node.get("translated") or isinstance(node.parent, nodes.entry):
            continue
        print(f"{language}, {app.env.docname}: has changed in English since it was translated: {node.astext()!r}")
        node["classes"].append(f"language-{ENGLISH}")
        if isinstance(node, nodes.paragraph):
            node += [nodes.Text(" "), nodes.inline("", SINCE[language], classes=["since", f"language-{language}"])]


class Elsewhere(SphinxPostTransform):
    """Links to pages that are there in English alone lead to these."""

    default_priority = 8  # before MyST looks for the page

    def run(self, **kwargs: Any) -> None:
        for node in list(self.document.findall(pending_xref)) if self.config.language in SINCE else ():
            page, anchor = node["reftarget"], node.get("reftargetid")
            if node["refdomain"] == "doc" and page not in self.env.found_docs:
                uri = f"../{page}.html" + (f"#{anchor}" if anchor else "")
                node.replace_self(nodes.reference("", "", *node.children, refuri=uri, classes=["english"]))


class SearchByPairs(SearchJapanese):
    """Japanese in the index and in a question is pairs of characters, so that a part of a compound is found."""

    js_splitter_code = r"""
function splitQuery(query) {
  const runs = query.match(/[A-Za-z0-9_]+|[^\x00-\x7F\s]+/g) ?? [];
  const pairs = run => [...run].slice(1).map((letter, i) => [...run][i] + letter);
  return runs.flatMap(run => /\w/.test(run) || run.length < 2 ? [run] : pairs(run));
}
"""

    def split(self, input: str) -> list[str]:
        runs = re.findall(r"[A-Za-z0-9_]+|[^\x00-\x7F\s]+", input)
        return [word for run in runs for word in ([run] if run.isascii() else map("".join, pairwise(run)))]


def shared(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    """Point links to files that a page loads or offers to those of the English site."""
    if app.config.language != ENGLISH and doctree is not None:
        context["body"] = re.sub(r'(href|src)="(_downloads|_static)/', r'\1="../\2/', context["body"])


def build_others(app: Sphinx, error: Exception | None) -> None:
    """Build the pages in each other language, in a process of its own, as strictly as this build."""
    if (
        error
        or app.builder.name != "html"
        or app.config.language != ENGLISH
        or not app.env.found_docs.issuperset(PAGES)
    ):
        return
    for language in SINCE:
        places = ["-d", f"{app.doctreedir}-{language}", str(app.srcdir), str(app.outdir / language)]
        command = [sys.executable, "-m", "sphinx", "-nWq", "--keep-going", "-D", f"language={language}", *places]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            logging.getLogger(__name__).warning("pages in %s: %s", LANGUAGES[language], done.stderr)


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register all of it."""
    app.add_search_language(SearchByPairs)
    app.add_post_transform(Elsewhere)
    app.connect("config-inited", limited)
    app.connect("source-read", led)
    app.connect("doctree-read", marked)
    app.connect("html-page-context", shared)
    app.connect("build-finished", build_others)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
