r"""Formulas as MathML, which browsers show without a script. docutils converts; what it doesn't know stops the build.

Write them as ``{math}`` (role or directive). docutils is strict: \ldots, not \dots, and no empty base.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util import logging

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.util.typing import ExtensionMetadata
    from sphinx.writers.html5 import HTML5Translator

logger = logging.getLogger(__name__)


def to_mathml(formula: str, *, block: bool) -> str:
    r"""The formula as a `<math>` element.

    >>> to_mathml(r"q^2", block=False)
    '<math xmlns="http://www.w3.org/1998/Math/MathML"><msup><mi>q</mi><mn>2</mn></msup></math>'

    Raises:
        MathError: docutils can't convert it.
    """
    return "".join(line.strip() for line in tex2mathml(formula, as_block=block).splitlines())


def _visit(self: HTML5Translator, node: nodes.math | nodes.math_block) -> None:
    block = isinstance(node, nodes.math_block)
    try:
        markup = to_mathml(node.astext(), block=block)
    except MathError as error:
        logger.warning("no MathML of %r: %s", node.astext(), error, location=node)
        raise nodes.SkipNode from None
    self.body.append(f'<div class="formula">{markup}</div>\n' if block else markup)
    raise nodes.SkipNode


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the renderer `mathml`."""
    app.add_html_math_renderer("mathml", inline_renderers=(_visit, None), block_renderers=(_visit, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
