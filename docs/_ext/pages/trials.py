"""`trials`: how often the diagnosis was right, as `docs/_data/trials.py` kept it from the last published run.

```{trials} groups
```
```{trials} singles
```
"""

from __future__ import annotations

import json
from typing import Any

from _data import trials as kept
from _ext import common

GROUPS = {
    "singles": "layers with one fault",
    "pairs": "with two",
    "triples": "with three",
    "gradients": "with a wrong gradient",
    "restricted": "with one, that take only some calls",
    "zoo": "bugs of the zoo",
    "rewritten": "known bugs written anew",
    "right": "right layers",
    "native": "frameworks' own layers",
}
"""Group -> what it is called."""

SHARES = {"differs": "seen", "stage": "right first stage", "described": "right description", "wrong": "wrong claims"}


def table(of: str) -> str:
    """The table of all groups, or that of the kinds of fault of one group."""
    report = json.loads(kept.KEPT.read_text("utf-8"))
    groups = report["groups"]
    rows = {GROUPS[name]: found for name, found in groups.items()} if of == "groups" else groups[of]["kinds"]
    columns = ["tried", *SHARES.values(), "median", "worst"]
    how = "with experiments" if report["experiments"] else "without experiments, by the zoo alone"
    how = f"Tried {how}; what is drawn at random is of the seeds {', '.join(map(str, report['seeds']))}."
    cells = [_row(label, found) for label, found in rows.items()]
    return f"{common.table(['', *columns], cells, numbers=columns)}\n\n{how}"


def _row(label: str, found: dict[str, Any]) -> list[str]:
    """One line; shares of what was tried.

    >>> counts = {"tried": 8, "differs": 8, "stage": 4, "described": 3, "wrong": 0, "median": 1.25, "worst": 9.0}
    >>> _row("mask", counts)
    ['mask', '8', '100.0 %', '50.0 %', '37.5 %', '0.0 %', '1.2 s', '9.0 s']
    """
    shares = [f"{100.0 * found[name] / found['tried']:.1f} %" for name in SHARES]
    times = [f"{found[name]:.1f} s" for name in ("median", "worst")]
    return [label, str(found["tried"]), *shares, *times]
