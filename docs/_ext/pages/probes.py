"""`probes`: every probe of the diagnosis, with what it isolates and its formula.

```{probes}
```
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from _ext.common import escaped
from conformance.measure.probe import Probe
from conformance.measure.probes import around, calls, gradients, items, masked, masks, scores, sums, values

TOPICS: dict[str, Sequence[Probe]] = {
    "Values: one key": values.PROBES,
    "Weighted sums: equal scores": sums.PROBES,
    "Masks, with equal scores": masks.PROBES,
    "Scores and softmax": scores.PROBES,
    "Around the scores: biases, scale, softcap": around.PROBES,
    "Several items, and layers of equal widths": items.PROBES,
    "Masks, with scores that differ": masked.PROBES,
    "What calls may have besides": calls.PROBES,
    "Empty rows, padding, NaN": masked.EXTREMES,
    "Gradients": gradients.PROBES,
}
"""Heading -> probes, in the order in which they run."""


def lines_of(title: str, probes: Sequence[Probe]) -> Iterator[str]:
    """A heading, and a paragraph and a formula for each probe."""
    yield from (f"### {title}", "")
    for probe in probes:
        compared = " (gradients)" if probe.gradients else ""
        yield from (f"`{probe.id}`{compared}: {escaped(probe.says)}", "")
        yield from ("```{math}", probe.formula, "```", "")


def markdown() -> str:
    """All probes in their order.

    >>> markdown().splitlines()[0]
    '### Values: one key'
    """
    return "\n".join(line for title, probes in TOPICS.items() for line in lines_of(title, probes))
