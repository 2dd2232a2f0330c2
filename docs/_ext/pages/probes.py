"""`probes`: every probe of the experiments, with what it isolates and its formula.

```{probes}
```
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

from _ext.common import escaped
from conformance.discovery import members
from conformance.experiments import probes as folder


def topics() -> list[ModuleType]:
    """The modules that have probes, in the order in which these run.

    >>> topics()[0].PROBES[0].id != ""
    True
    """
    modules = (topic for part in members(folder, folders=True) for topic in members(part))
    return [topic for topic in modules if topic.PROBES]


def lines_of(topic: ModuleType) -> Iterator[str]:
    """A heading, and a paragraph and a formula for each probe."""
    title = str(topic.__doc__).splitlines()[0].rstrip(".")
    yield from (f"### {escaped(title)}", "")
    for probe in topic.PROBES:
        compared = " (gradients)" if probe.gradients else ""
        yield from (f"`{probe.id}`{compared}: {escaped(probe.says)}", "")
        yield from ("```{math}", probe.formula, "```", "")


def markdown() -> str:
    """All probes in their order."""
    return "\n".join(line for topic in topics() for line in lines_of(topic))
