"""The longest common sequence of two models' modules or calls."""

from collections.abc import Iterable, Sequence

WINDOW = 600
"""Modules of one module that are compared with all of the other's at a time, to be paired in their order."""


def in_order(left: Sequence[tuple[int, object]], right: Sequence[tuple[int, object]]) -> Iterable[tuple[int, int]]:
    """Return the longest common subsequence of two sequences of (position, key), as pairs of positions.

    Entries match if their keys are equal and not None. For more than WINDOW entries, keys that only one sequence has
    are dropped first, and the search moves a window along both sequences.
    """
    if max(len(left), len(right)) > WINDOW:
        both = {key for _, key in left} & {key for _, key in right} - {None}
        left, right = ([one for one in side if one[1] in both] for side in (left, right))
    while left and right:
        first = list(_longest(left[:WINDOW], right[:WINDOW]))
        last = max(len(left), len(right)) <= WINDOW
        if not last:  # the end of a window may fit better in the next one
            first = first[: max(1, len(first) // 2)]
        yield from ((left[i][0], right[j][0]) for i, j in first)
        if last:
            return
        beyond = (first[-1][0] + 1, first[-1][1] + 1) if first else (WINDOW // 2, WINDOW // 2)
        left, right = left[beyond[0] :], right[beyond[1] :]


def _longest(left: Sequence[tuple[int, object]], right: Sequence[tuple[int, object]]) -> Iterable[tuple[int, int]]:
    """The longest common sequence: positions in both."""
    equal_to = 0  # a common start needs no table
    while equal_to < min(len(left), len(right)) and _equal(left[equal_to], right[equal_to]):
        yield equal_to, equal_to
        equal_to += 1
    start, left, right = equal_to, left[equal_to:], right[equal_to:]
    longest = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for i in reversed(range(len(left))):
        for j in reversed(range(len(right))):
            longest[i][j] = (
                longest[i + 1][j + 1] + 1 if _equal(left[i], right[j]) else max(longest[i + 1][j], longest[i][j + 1])
            )
    i = j = 0
    while i < len(left) and j < len(right):
        if _equal(left[i], right[j]):
            yield start + i, start + j
            i, j = i + 1, j + 1
        elif longest[i + 1][j] >= longest[i][j + 1]:
            i += 1
        else:
            j += 1


def _equal(one: tuple[int, object], other: tuple[int, object]) -> bool:
    return one[1] is not None and one[1] == other[1]
