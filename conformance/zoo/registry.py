"""The bug zoo: every known way of getting attention wrong that the suite must catch, found in its folders."""

from collections.abc import Mapping
from functools import cache

from conformance import zoo
from conformance.discovery import members, select_by_id
from conformance.zoo import parts
from conformance.zoo.bug import Bug


@cache
def all_bugs() -> tuple[Bug, ...]:
    """Return every bug: the tuples BUGS of all modules in the zoo's folders, in the order of each folder's ORDER.

    >>> all_bugs()[0].id
    'q-proj-weight-transposed'
    """
    return bugs_of()


def bugs_of(*, parts: bool = True, gradients: bool = True) -> tuple[Bug, ...]:
    """Return the zoo's bugs. parts=False omits bugs in optional parts; gradients=False omits bugs in gradients alone.

    The modules of the bugs that are left out are not imported.

    >>> len(bugs_of(parts=False)) == len(all_bugs()) - len(bugs_of_parts())
    True
    """
    but = frozenset(["parts"] * (not parts) + ["backward", "gradients"] * (not gradients))
    topics = (topic for folder in members(zoo, folders=True, but=but) for topic in members(folder, but=but))
    return tuple(bug for topic in topics for bug in topic.BUGS if gradients or bug.forward)


@cache
def bugs_of_parts() -> frozenset[str]:
    """Return the ids of bugs in optional parts, such as rotary positions: only layers with that part show them."""
    return frozenset(bug.id for topic in members(parts) for bug in topic.BUGS)


@cache
def beginnings_of_parts() -> Mapping[str, tuple[str, ...]]:
    """Return config field of a part, such as "rotary" -> prefixes of its bugs' ids (BEGINS in the part's module).

    >>> beginnings_of_parts()["rotary"]
    ('rotary-', 'rotation-', 'rotated-')
    """
    modules = {topic.__name__.rpartition(".")[2]: topic for topic in members(parts)}
    return {name: topic.BEGINS for name, topic in modules.items() if hasattr(topic, "BEGINS")}


LARGE_BLOCKS = (16, 32, 64, 128, 256, 512, 1024)
"""Sizes of blocks in use, which only large cases fill."""


@cache
def bugs_of_large_blocks() -> tuple[Bug, ...]:
    """Return the bugs of attention in large blocks. Only cases with at least a block of queries or keys show them.

    >>> bugs_of_large_blocks()[0].id
    'block-of-last-queries-dropped-of-16'
    """
    from conformance.zoo.blocked import blocks, gradients

    overwritten = [bug for bug in gradients.BUGS if bug.id.endswith("-from-last-block")]
    some = (*blocks.QUERY_BLOCKS, *blocks.KEY_BLOCKS, *overwritten)
    return tuple(blocks.in_blocks_of(bug, size) for size in LARGE_BLOCKS for bug in some)


def select(patterns: tuple[str, ...]) -> list[Bug]:
    """Return the bugs whose id matches one of the patterns (shell wildcards); all of them if there is none.

    >>> [bug.id for bug in select(("scale-given-*",))]
    ['scale-given-ignored', 'scale-given-on-top']
    >>> select(("scale-mising",))
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: bug 'scale-mising' is not known; `mha bugs` lists them; did you mean scale-missing?
    """
    return select_by_id(all_bugs(), patterns, "bug {} is not known; `mha bugs` lists them")
