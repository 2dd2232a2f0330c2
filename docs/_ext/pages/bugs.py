"""`bugs`: the bugs of the zoo that first show at one stage, by what has to be changed; and its exercises.

```{bugs} weights
```
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import TYPE_CHECKING

from _ext.common import Computed, escaped, linked
from conformance.zoo.registry import all_bugs
from mha.learn.exercise import NUMPY, StepExercise
from mha.learn.exercises import all_exercises

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.util.typing import ExtensionMetadata

    from conformance.zoo.bug import Bug


def by_fix(stage: str) -> dict[str, list[Bug]]:
    """What to change -> the bugs of this stage that it mends; the largest group first.

    >>> sum(map(len, by_fix("values").values()))
    4
    """
    groups: dict[str, list[Bug]] = {}
    for bug in all_bugs():
        if bug.stage == stage:
            groups.setdefault(bug.fix, []).append(bug)
    if not groups:
        raise ValueError(f"no bug of the zoo shows at {stage!r}")
    return dict(sorted(groups.items(), key=lambda group: -len(group[1])))


@cache
def exercises_of(stage: str) -> tuple[str, ...]:
    """The exercises of `mha learn` in which this stage is written: most bugs of their steps show there.

    >>> exercises_of("heads")
    ('weighted-sum',)
    """
    found = []
    for one in all_exercises((NUMPY,)):
        if isinstance(one, StepExercise) and one.track in ("write", "backwards"):
            stages = Counter(bug.stage for bug in all_bugs() if bug.steps & set(one.covers))
            if stages and stages.most_common(1)[0][0] == stage:
                found.append(one.name)
    return tuple(found)


def line_of(bug: Bug) -> str:
    """A bug as an item of a list."""
    seen = f" Seen in {linked(bug.seen_in)}." if bug.seen_in else ""
    equal = f" Not found by any input: {escaped(bug.equivalent)}" if bug.equivalent else ""
    return f"- `{bug.id}`: {escaped(bug.sentence)}{seen}{equal}"


class Bugs(Computed):
    """The directive."""

    required_arguments = 1

    def markdown(self) -> str:
        """A block to open, since there are up to 89; those that were seen in public code stand before it."""
        groups = by_fix(self.arguments[0])
        bugs = [bug for group in groups.values() for bug in group]
        public = [line_of(bug) for bug in bugs if bug.seen_in]
        lines = ["Seen in public code:", "", *public, ""] if public else []
        lines += [f":::{{dropdown}} All {len(bugs)} mistakes that `mha bugs` knows here, and what to change", ""]
        for fix, group in groups.items():
            lines += [f"{escaped(fix)}", "", *map(line_of, group), ""]
        lines += [":::", ""]
        names = ", ".join(f"`{name}`" for name in exercises_of(self.arguments[0]))
        return "\n".join([*lines, f"[Write it yourself](exercises.md), in `mha learn`: {names}." if names else ""])


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directive."""
    app.add_directive("bugs", Bugs)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
