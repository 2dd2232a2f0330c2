"""The directives that stand for Markdown which is made in this build, from the code and tables of this checkout."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from sphinx.util.docutils import SphinxDirective

from _ext import families, symbols
from _ext.lessons import course
from _ext.pages import bugs, commands, exercises, parallel, public, traps
from _ext.phrasebook import layers

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx
    from sphinx.util.typing import ExtensionMetadata

DIRECTIVES: dict[str, Callable[..., str]] = {
    "bugs": bugs.markdown,
    "commands": commands.markdown,
    "course": course.markdown,
    "exercises": exercises.markdown,
    "families": families.markdown,
    "layer-phrases": layers.markdown,
    "layers": public.layers,
    "parallel": parallel.markdown,
    "public": public.public,
    "symbols": symbols.markdown,
    "traps": traps.markdown,
}
"""Name -> what makes its Markdown, from as many words behind the name as it has arguments."""


class Computed(SphinxDirective):
    """One of them. Its page is read again in each build, since what it is made from is no page."""

    markdown: ClassVar[Callable[..., str]]

    def run(self) -> list[nodes.Node]:
        """The nodes of the Markdown, whose headings are those of the page."""
        self.env.note_reread()
        return self.parse_text_to_nodes(type(self).markdown(*self.arguments), allow_section_headings=True)


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directives, and how docstrings are read."""
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-process-docstring", public.google_style)
    for name, markdown in DIRECTIVES.items():
        arguments = len(inspect.signature(markdown).parameters)
        made = {"markdown": staticmethod(markdown), "required_arguments": arguments}
        app.add_directive(name, type(name, (Computed,), made))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
