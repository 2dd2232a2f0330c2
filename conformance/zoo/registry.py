"""The bug zoo: every known way of getting attention wrong that the suite must catch."""

from __future__ import annotations

from functools import cache

from conformance.cases.select import select_by_id
from conformance.zoo.backward import attention as gradients
from conformance.zoo.backward import parameters
from conformance.zoo.blocked import gradients as block_gradients
from conformance.zoo.blocked import keys as key_blocks
from conformance.zoo.blocked import queries as blocks
from conformance.zoo.bug import Bug
from conformance.zoo.forward import decoding, dropout, heads, masks, positions, precision, projections, scores, softmax


@cache
def all_bugs() -> tuple[Bug, ...]:
    """Every bug, by topic, in the order of the stages.

    >>> all_bugs()[0].id
    'q-proj-weight-transposed'
    """
    topics = (
        projections,
        scores,
        masks,
        positions,
        softmax,
        precision,
        dropout,
        heads,
        decoding,
        blocks,
        key_blocks,
        block_gradients,
        gradients,
        parameters,
    )
    return tuple(bug for topic in topics for bug in topic.BUGS)


LARGE_BLOCKS = (16, 32, 64, 128, 256, 512, 1024)
"""Sizes of blocks in use, which only large cases fill."""


@cache
def bugs_of_large_blocks() -> tuple[Bug, ...]:
    """The bugs that depend on the size of a block, in sizes that small cases do not see.

    >>> bugs_of_large_blocks()[0].id
    'block-of-last-queries-dropped-of-16'
    """
    gradients = [bug for bug in block_gradients.BUGS if bug.id.endswith("-from-last-block")]
    some = (*blocks.BUGS, *key_blocks.KEY_BLOCKS, *gradients)
    return tuple(blocks.in_blocks_of(bug, size) for size in LARGE_BLOCKS for bug in some)


def select(patterns: tuple[str, ...]) -> list[Bug]:
    """The bugs whose id matches one of the patterns (shell wildcards); all of them if there is none.

    >>> [bug.id for bug in select(("scale-given-*",))]
    ['scale-given-ignored', 'scale-given-on-top']
    >>> select(("scale-mising",))
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: bug 'scale-mising' is not known; `mha bugs` lists them
    """
    return select_by_id(all_bugs(), patterns, "bug {} is not known; `mha bugs` lists them")
