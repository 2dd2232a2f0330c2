"""The directive `promise`: the first numbers of one output in all backends, as measured by `docs/_data/promise.py`."""

from __future__ import annotations

import json

from _data import promise as measuring
from _ext.common import FRAMEWORKS, table


def markdown() -> str:
    """One line for each backend, and one for the reference."""
    found = json.loads((measuring.HERE / "promise.json").read_text("utf-8"))
    labels = {"reference": "reference, float64", **{name: f"{label}, float32" for name, label in FRAMEWORKS.items()}}
    rows = []
    for name, label in labels.items():
        distance = f"{found[name]['distance']:.1g}" if found[name]["distance"] else "-"
        rows.append([label, f"`{' '.join(found[name]['row'])}`", distance])
    head = ["", f"the first {measuring.NUMBERS} numbers of its output", "largest difference of all 800"]
    return table(head, rows)
