"""The directive `promise`: the first numbers of one output in all backends, as measured by `docs/_data/promise.py`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from _data import promise as measuring
from _ext.common import FRAMEWORKS, Computed

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.util.typing import ExtensionMetadata


def table() -> str:
    """One line for each backend, and one for the reference."""
    found = json.loads((measuring.HERE / "promise.json").read_text("utf-8"))
    labels = {"reference": "reference, float64", **{name: f"{label}, float32" for name, label in FRAMEWORKS.items()}}
    lines = [
        f"| | the first {measuring.NUMBERS} numbers of its output | largest difference of all 800 |",
        "|---|---|---|",
    ]
    for name, label in labels.items():
        distance = f"{found[name]['distance']:.1g}" if found[name]["distance"] else "-"
        lines.append(f"| {label} | `{' '.join(found[name]['row'])}` | {distance} |")
    return "\n".join(lines)


class Promise(Computed):
    """The directive."""

    def markdown(self) -> str:
        """The table."""
        return table()


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directive."""
    app.add_directive("promise", Promise)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
