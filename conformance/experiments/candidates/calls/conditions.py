"""Conditions: faults of some items, queries, keys or sizes only; which those are is read off a sweep over sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.experiments.measured import PREFIX
from conformance.zoo.bug import Bug, DoesNotApply, OnTop
from mha_core import AttentionConfig, AttentionInputs
from mha_core.call.sizes import CallSizes
from mha_core.reference.forward import FORWARD
from mha_core.reference.state import State, Step

MOST = 16
"""Most conditions that are followed up."""

_QUERIES = dict.fromkeys(("query_inputs", "q_proj", "merged", "output"), 1) | {"queries": 2, "heads": 2}
_SQUARES = ("allowed", "additive_hidden", "unscaled", "similarity", "capped", "scores", "weights", "kept_weights")
_KEYS = {"padding": 1, "keys": 2, "values": 2}

AXIS: dict[str, dict[str, int]] = {
    "item": dict.fromkeys(FORWARD, 0),
    "query": _QUERIES | dict.fromkeys(_SQUARES, 2),
    "key": _KEYS | dict.fromkeys(_SQUARES, 3),
}
"""Name of an axis -> step -> where its result has it. Steps of new keys alone have no axis of all keys."""


@dataclass(frozen=True, eq=False)
class Condition:
    """Where a fault acts.

    Args:
        slug: in kebab-case.
        words: to be read after a sentence: "of items from 2 on".
        axis: "item", "query" or "key" if it acts on a part of that axis; None if on whole calls.
        holds: sizes -> bool, one for each place of the axis; one alone if there is no axis.
    """

    slug: str
    words: str
    axis: str | None
    holds: Callable[[CallSizes], Any]

    def at(self, config: AttentionConfig, inputs: AttentionInputs, sizes: CallSizes) -> Any:
        """What `holds` gives for a call, of which more may count than its sizes."""
        return self.holds(sizes)


Seen = tuple[CallSizes, NDArray[np.bool_]]
"""Sizes, and where a subject differed there: one bool for each place of an axis, or one alone."""


def consistent(conditions: Iterable[Condition], seen: Sequence[Seen], *, exactly: bool = False) -> list[Condition]:
    """The conditions that hold wherever something differed, but not everywhere; the tightest first.

    With `exactly` those alone that hold nowhere else.
    """
    if not any(bool(np.any(differs)) for _, differs in seen):
        return []
    found: list[tuple[int, Condition]] = []
    for condition in conditions:
        slack = _slack(condition, seen, 0 if exactly else None)
        if slack is not None:
            found.append((slack, condition))
    found.sort(key=lambda one: one[0])
    return [condition for _, condition in found[:MOST]]


def _slack(condition: Condition, seen: Sequence[Seen], most: int | None) -> int | None:
    """At how many places it holds though nothing differed; None if it does not hold where something did, or always."""
    slack, always = 0, True
    for sizes, differs in seen:
        holds = np.asarray(condition.holds(sizes), bool)
        if (differs & ~holds).any():
            return None
        always = always and bool(holds.all())
        slack += int((holds & ~differs).sum())
        if most is not None and slack > most:
            return None
    return None if always else slack


def only_where(bug: Bug, condition: Condition) -> Bug | None:
    """The bug where the condition holds; None if one of its steps has no such axis, or it is one of gradients."""
    if not bug.forward or (condition.axis and any(name not in AXIS[condition.axis] for name in bug.forward)):
        return None
    name = bug.id.removeprefix(PREFIX)
    return Bug(
        f"{PREFIX}{name}-{condition.slug}",
        f"{condition.words[0].upper()}{condition.words[1:]}: {bug.sentence[0].lower()}{bug.sentence[1:]}",
        bug.stage,
        bug.fix,
        forward={name: OnTop(FORWARD[name], _where(name, step, condition)) for name, step in bug.forward.items()},
    )


def _where(name: str, step: Step, condition: Condition) -> Callable[[State, Step], Any]:
    def change(state: State, beneath: Step) -> Any:
        holds = np.asarray(condition.at(state.config, state.inputs, state.sizes), bool)
        right = beneath(state)
        if right is None or not holds.any():
            return right
        wrong = step.change(state, beneath) if isinstance(step, OnTop) else step(state)
        if condition.axis is None:
            return wrong
        if wrong is None or wrong.shape != right.shape:
            raise DoesNotApply("a part of an axis has no array of another shape")
        shape = [1] * right.ndim
        shape[AXIS[condition.axis][name]] = -1
        return np.where(holds.reshape(shape), wrong, right)

    return change


# What a condition may be --------------------------------------------------------------------------

SIZE: dict[str, Callable[[CallSizes], int]] = {
    "item": lambda s: int(s.batch),
    "query": lambda s: int(s.query_len),
    "key": lambda s: int(s.key_len),
}

PLURAL = {"item": "items", "query": "queries", "key": "keys"}


_SIZE_RULES: tuple[tuple[str, str, Callable[[int, int], bool]], ...] = (
    ("above-{}-{}", "in calls of more than {} {}", lambda size, n: size > n),
    ("below-{}-{}", "in calls of fewer than {} {}", lambda size, n: size < n),
    ("just-{}-{}", "in calls of {} {}", lambda size, n: size == n),
    ("no-multiple-of-{}-{}", "unless a multiple of {} is the number of {}", lambda size, n: size % n != 0),
    ("multiple-of-{}-{}", "where a multiple of {} is the number of {}", lambda size, n: size % n == 0),
    ("rest-of-{}-{}", "where blocks of {} {} leave a rest", lambda size, n: size > n and size % n != 0),
)

_PLACE_RULES: tuple[tuple[str, str, Callable[[NDArray, int, int], NDArray]], ...] = (
    ("from-{}", "from {} on", lambda i, n, k: i >= k),
    ("below-{}", "below {}", lambda i, n, k: i < k),
    ("just-{}", "of number {}", lambda i, n, k: i == k),
    ("last-{}", "among the last {}", lambda i, n, k: i >= n - k),
    ("each-{0}", "0, {0}, 2 * {0}, ...", lambda i, n, k: i % k == 0),
    ("not-each-{0}", "other than 0, {0}, 2 * {0}, ...", lambda i, n, k: i % k != 0),
    ("ends-of-{}", "that end a block of {}", lambda i, n, k: i % k == k - 1),
    ("rest-of-{}", "behind the last whole block of {}", lambda i, n, k: i >= n - n % k),
    (
        "behind-blocks-of-{}",
        "behind the last whole block of {}, if there is one",
        lambda i, n, k: (i >= n - n % k) & (n > k),
    ),
)

_LENGTH_RULES: tuple[tuple[str, str, Callable[[int, int], bool]], ...] = (
    ("equal-lengths", "where there are as many queries as keys", lambda q, k: q == k),
    ("unequal-lengths", "where there are not as many queries as keys", lambda q, k: q != k),
    ("more-queries-than-keys", "where there are more queries than keys", lambda q, k: q > k),
    ("fewer-queries-than-keys", "where there are fewer queries than keys", lambda q, k: q < k),
    ("not-fewer-queries-than-keys", "where there are at least as many queries as keys", lambda q, k: q >= k),
    ("not-more-queries-than-keys", "where there are at most as many queries as keys", lambda q, k: q <= k),
)


def of_sizes(axis: str, numbers: Iterable[int]) -> Iterator[Condition]:
    """Conditions on how many items, queries or keys a call has, with these numbers."""
    for n in numbers:
        for slug, words, rule in _SIZE_RULES:
            name = slug.format(n, PLURAL[axis])
            yield Condition(name, words.format(n, PLURAL[axis]), None, _of_size(SIZE[axis], rule, n))


def _of_size(size: Callable[[CallSizes], int], rule: Callable[[int, int], bool], n: int) -> Callable[[CallSizes], Any]:
    return lambda sizes: rule(size(sizes), n)


def of_places(axis: str, numbers: Iterable[int]) -> Iterator[Condition]:
    """Conditions on the place of an item, query or key, with these numbers."""
    many = PLURAL[axis]
    for k in numbers:
        for slug, words, rule in _PLACE_RULES:
            name = f"{many}-{slug.format(k)}"
            yield Condition(name, f"in {many} {words.format(k)}", axis, _of_place(SIZE[axis], rule, k))


def _of_place(
    size: Callable[[CallSizes], int], rule: Callable[[NDArray, int, int], NDArray], k: int
) -> Callable[[CallSizes], Any]:
    return lambda sizes: rule(np.arange(size(sizes)), size(sizes), k)


def of_both_lengths() -> Iterator[Condition]:
    """Conditions on the number of queries beside that of keys."""
    for slug, words, rule in _LENGTH_RULES:
        yield Condition(slug, words, None, _of_lengths(rule))
    yield Condition(
        "queries-past-keys",
        "in queries i with i >= Lk",
        "query",
        lambda s: np.arange(s.query_len) >= s.key_len,
    )
    yield Condition(
        "keys-past-queries",
        "in keys j with j >= Lq",
        "key",
        lambda s: np.arange(s.key_len) >= s.query_len,
    )


def _of_lengths(rule: Callable[[int, int], bool]) -> Callable[[CallSizes], Any]:
    return lambda sizes: rule(sizes.query_len, sizes.key_len)
