"""`masks`: what a mask means to each framework's own attention, as measured by `docs/_data/masks.py`.

```{masks}
```
"""

from __future__ import annotations

import json

from _data import masks as measuring
from _ext.common import FRAMEWORKS, table

HEADERS = (
    "layer",
    "argument",
    "True means",
    "numbers 0 and -1e9",
    "a query without a key",
    "causal, 2 queries, 3 keys",
)

OPEN, CLOSED = (measuring.attended(mask) for mask in (measuring.OPEN, ~measuring.OPEN))

WORDS = {
    "bool": {OPEN: "attend", CLOSED: "**ignore**", "-": "takes lengths alone"},
    "float": {
        OPEN: "added to the scores",
        CLOSED: "**taken for False and True**: the mask is inverted",
        "ValueError": "refused",
        "-": "takes lengths alone",
    },
    "empty": {"000 111": "weights 0", "NaN 111": "**NaN**", "111 111": "**attends to all keys**"},
    "causal": {"100 110": "query 0 sees key 0 alone: top-left", "110 111": "bottom-right", "-": "none of its own"},
}
"""What was measured -> what it means; anything else stops the build."""


def markdown() -> str:
    """The truth table, ours first."""
    found = json.loads((measuring.HERE / "masks.json").read_text("utf-8"))["masks"]
    ours = {name for name in found if name in FRAMEWORKS}
    if len({json.dumps(found[name]) for name in ours}) != 1:
        raise ValueError(f"the backends differ in what a mask means: {found}")
    others = [(subject[:2], found[name]) for name, subject in measuring.SUBJECTS.items() if name not in ours]
    layers = [(("all four `backends`", "`allowed`, `bias`"), found["torch"]), *others]
    meant = [[*names, *(words[said[kind]] for kind, words in WORDS.items())] for names, said in layers]
    return table(HEADERS, meant)
