"""What the directives share: the names of the frameworks, links, and a directive whose content is computed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sphinx.util.docutils import SphinxDirective

if TYPE_CHECKING:
    from docutils import nodes

FRAMEWORKS = {"torch": "PyTorch", "tf": "TensorFlow", "jax": "JAX", "mxnet": "MXNet"}
"""In the order in which they stand on the pages."""

DIALECTS = {"numpy": "NumPy", **FRAMEWORKS}
"""What the plain edition and the lessons are written in."""


class Computed(SphinxDirective):
    """A directive that stands for Markdown which is made in this build, from the code and tables of this checkout.

    Its page is read again in each build, since what it is made from is no page.
    """

    def markdown(self) -> str:
        """What stands here."""
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        """The nodes of `markdown`, whose headings are those of the page."""
        self.env.note_reread()
        return self.parse_text_to_nodes(self.markdown(), allow_section_headings=True)


def linked(text: str) -> str:
    """Markdown in which issues of GitHub are links.

    >>> linked("seen in pytorch/pytorch#41508")
    'seen in [pytorch#41508](https://github.com/pytorch/pytorch/issues/41508)'
    """
    return re.sub(r"\b([\w.-]+)/([\w.-]+)#(\d+)", r"[\2#\3](https://github.com/\1/\2/issues/\3)", text)


def escaped(text: str) -> str:
    r"""Text as Markdown: nothing of it is markup, but what stands in backticks is code.

    >>> print(escaped("0 * NaN of `mask` in W_q [0, 0]"))
    0 \* NaN of `mask` in W\_q \[0, 0\]
    """
    return re.sub(r"(`[^`]*`)|([\\`*_\[\]<>{}$|~#])", lambda found: found[1] or f"\\{found[2]}", text)


def short(link: str) -> str:
    """What a link is called: "pytorch#41508" for an issue or a pull request, else its host.

    >>> short("https://github.com/pytorch/pytorch/issues/41508"), short("https://docs.jax.dev/en/latest/x.html")
    ('pytorch#41508', 'docs.jax.dev')
    """
    found = re.fullmatch(r"https://github\.com/[\w.-]+/([\w.-]+)/(?:issues|pull)/(\d+).*", link)
    return f"{found[1]}#{found[2]}" if found else link.split("/")[2]
