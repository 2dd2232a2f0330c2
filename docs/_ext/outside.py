"""Links of a page to what stands beside docs/, such as ../examples/subject_numpy.py.

On a git host they lead to the file. On the site a file is copied beside the page; of a folder the name stays, as text.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform
from sphinx.util import logging

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.util.typing import ExtensionMetadata

logger = logging.getLogger(__name__)


class FoldersAsText(SphinxTransform):
    """Turns a link to a folder outside docs/ into the text of the link."""

    default_priority = 5

    def apply(self, **kwargs: Any) -> None:
        """Look at what MyST has not resolved: links whose target is no page and no file."""
        for node in list(self.document.findall(addnodes.pending_xref)):
            target = str(node.get("reftarget", ""))
            if target.startswith("../") and (Path(self.env.srcdir) / target).resolve().is_dir():
                node.replace_self(list(node.children[0].children) if isinstance(node.children[0], nodes.inline) else [])


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the transform."""
    app.add_transform(FoldersAsText)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
