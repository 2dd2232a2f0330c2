"""`symbols`: one function of the four backends, in four tabs, as it stands in their sources.

    ```{symbols} ops/heads.py split_heads
    ```

The file is that of each backend, `backends/NAME/ops/heads.py`. A backend that has no such symbol stops the build. Tabs
are in step over all pages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sphinx.util.docutils import SphinxDirective

from _ext.common import FRAMEWORKS

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx
    from sphinx.util.typing import ExtensionMetadata


def tabs_of(file: str, symbol: str) -> str:
    """Markdown of the tab set: the symbol in each framework, with the numbers of its lines."""
    dedent = ":dedent: 4\n" if "." in symbol else ""  # a method
    return "\n".join(
        [
            "::::{tab-set}",
            *(
                f":::{{tab-item}} {label}\n:sync: {name}\n"
                f"```{{literalinclude}} /../backends/{name}/{file}\n"
                f":pyobject: {symbol}\n:language: python\n:caption: backends/{name}/{file}\n"
                f":lineno-match:\n{dedent}```\n:::"
                for name, label in FRAMEWORKS.items()
            ),
            "::::",
        ]
    )


class Symbols(SphinxDirective):
    """The directive."""

    required_arguments = 2

    def run(self) -> list[nodes.Node]:
        """The nodes of `tabs_of`."""
        return self.parse_text_to_nodes(tabs_of(*self.arguments))


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directive."""
    app.add_directive("symbols", Symbols)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
