"""`bugs`: the bugs of the zoo that first show at one stage, by what has to be changed.

```{bugs} weights
```
"""

from __future__ import annotations

from _ext.common import escaped, linked
from conformance.zoo.bug import Bug
from conformance.zoo.registry import all_bugs


def by_fix(stage: str) -> dict[str, list[Bug]]:
    """What to change -> the bugs of this stage that it mends; the largest group first.

    >>> sum(map(len, by_fix("values").values()))
    6
    """
    groups: dict[str, list[Bug]] = {}
    for bug in all_bugs():
        if bug.stage == stage:
            groups.setdefault(bug.fix, []).append(bug)
    if not groups:
        raise ValueError(f"no bug of the zoo shows at {stage!r}")
    return dict(sorted(groups.items(), key=lambda group: -len(group[1])))


def line_of(bug: Bug) -> str:
    """A bug as an item of a list."""
    seen = f" Seen in {linked(bug.seen_in)}." if bug.seen_in else ""
    equal = f" Not found by any input: {escaped(bug.equivalent)}" if bug.equivalent else ""
    return f"- `{bug.id}`: {escaped(bug.sentence)}{seen}{equal}"


def markdown(stage: str) -> str:
    """A block to open, since there are up to 89; those that were seen in public code stand before it."""
    groups = by_fix(stage)
    bugs = [bug for group in groups.values() for bug in group]
    public = [line_of(bug) for bug in bugs if bug.seen_in]
    lines = ["Seen in public code:", "", *public, ""] if public else []
    lines += [f":::{{dropdown}} All {len(bugs)} mistakes that `mha bugs` knows here, and what to change", ""]
    for fix, group in groups.items():
        lines += [f"{escaped(fix)}", "", *map(line_of, group), ""]
    return "\n".join([*lines, ":::"])
