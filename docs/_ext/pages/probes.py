"""`probes`: every probe of the experiments, with what it isolates and its formula.

```{probes}
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from _ext.common import Computed, escaped
from conformance.discovery import members
from conformance.measure import probes as folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from sphinx.application import Sphinx
    from sphinx.util.typing import ExtensionMetadata

    from conformance.measure.probe import Probe


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
        yield from (f"`{probe.id}`{_compared(probe)}: {escaped(probe.says)}", "")
        yield from ("```{math}", probe.formula, "```", "")


def _compared(probe: Probe) -> str:
    return " (gradients)" if probe.gradients else ""


class Probes(Computed):
    """The directive."""

    def markdown(self) -> str:
        """All probes in their order."""
        return "\n".join(line for topic in topics() for line in lines_of(topic))


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directive."""
    app.add_directive("probes", Probes)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
