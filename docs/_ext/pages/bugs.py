"""`bugs`: the bugs of the zoo that first show at one stage, or that are of one part, by what has to be changed.

```{bugs} weights
```

Bugs of parts stand beside the settings of the parts alone (docs/definition.md).
"""

from _ext.common import escaped, linked
from conformance.zoo.bug import Bug
from conformance.zoo.registry import all_bugs, beginnings_of_parts, bugs_of_parts
from mha_core import STAGES


def place_of(bug: Bug) -> str:
    """The part that the bug is of; else the stage at which it shows first, or "gradients".

    >>> some = ("rotary-ignored", "gradient-of-norm-missing", "scale-missing")
    >>> [place_of(bug) for bug in all_bugs() if bug.id in some]
    ['scores', 'rotary', 'query_key_norm']
    """
    if bug.id not in bugs_of_parts():
        return bug.stage
    begins = bug.id.removeprefix("gradient-of-")
    return next(part for part, words in beginnings_of_parts().items() if begins.startswith(words))


def by_fix(place: str) -> dict[str, list[Bug]]:
    """What to change -> the bugs of this stage or part that it mends; the largest group first.

    >>> sum(map(len, by_fix("query_key_norm").values()))
    43
    """
    groups: dict[str, list[Bug]] = {}
    for bug in all_bugs():
        if place_of(bug) == place:
            groups.setdefault(bug.fix, []).append(bug)
    if not groups:
        known = ", ".join([*STAGES, "gradients", *beginnings_of_parts()])
        raise ValueError(f"no bug of the zoo is of {place!r} (known: {known})")
    return dict(sorted(groups.items(), key=lambda group: -len(group[1])))


def line_of(bug: Bug) -> str:
    """A bug as an item of a list."""
    seen = f" Seen in {linked(bug.seen_in)}." if bug.seen_in else ""
    equal = f" Not found by any input: {escaped(bug.equivalent)}" if bug.equivalent else ""
    return f"- `{bug.id}`: {escaped(bug.sentence)}{seen}{equal}"


def markdown(place: str) -> str:
    """A block to open, since there are up to 89; those that were seen in public code stand before it."""
    groups = by_fix(place)
    bugs = [bug for group in groups.values() for bug in group]
    public = [line_of(bug) for bug in bugs if bug.seen_in]
    lines = ["Seen in public code:", "", *public, ""] if public else []
    lines += [f":::{{dropdown}} All {len(bugs)} mistakes that `mha bugs` knows here, and what to change", ""]
    for fix, group in groups.items():
        lines += [f"{escaped(fix)}", "", *map(line_of, group), ""]
    return "\n".join([*lines, ":::"])
