"""Reach: keys without a weight where the definition gives them one: a window, blocks or a stride that nobody asked for.

The pattern is read off the weights: rows of zeros and others, by query i and key j; a rule must give it at all sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.experiments.candidates.calls.conditions import Condition, only_where
from conformance.experiments.measured import on_step
from conformance.experiments.readings.weights import read_weights
from conformance.experiments.view import View
from conformance.zoo.bug import Bug
from mha_core.reference.state import State

FIX = "Without a mask every query attends to every key, whatever the lengths."

MOST = 17
"""The largest number that a rule is tried with."""

Rule = Callable[[NDArray, NDArray, int, int, int], NDArray]
"""(queries (Lq, 1), keys (Lk,), Lq, Lk, number) -> bool, broadcastable to (Lq, Lk): where a key has a weight."""

RULES: tuple[tuple[str, str, Rule], ...] = (
    ("up-to-{:+d}", "keys j <= i {:+d}", lambda i, j, q, k, n: j <= i + n),
    ("from-{:+d}", "keys j >= i {:+d}", lambda i, j, q, k, n: j >= i + n),
    ("up-to-{:+d}-from-end", "keys j <= i + Lk - Lq {:+d}", lambda i, j, q, k, n: j <= i + k - q + n),
    ("from-{:+d}-from-end", "keys j >= i + Lk - Lq {:+d}", lambda i, j, q, k, n: j >= i + k - q + n),
    ("within-{}", "keys with |i - j| <= {}", lambda i, j, q, k, n: abs(i - j) <= n),
    ("within-{}-before", "keys with 0 <= i - j <= {}", lambda i, j, q, k, n: (i - j <= n) & (j <= i)),
    ("within-{}-or-first", "keys with |i - j| <= {} or j = 0", lambda i, j, q, k, n: (abs(i - j) <= n) | (j == 0)),
    ("within-{}-from-end", "keys with |i + Lk - Lq - j| <= {}", lambda i, j, q, k, n: abs(i + k - q - j) <= n),
    ("beyond-{}", "keys with |i - j| > {}", lambda i, j, q, k, n: abs(i - j) > n),
    ("not-{:+d}", "keys j other than i {:+d}", lambda i, j, q, k, n: j != i + n),
    ("first-{}", "the first {} keys", lambda i, j, q, k, n: j + 0 * i < n),
    ("last-{}", "the last {} keys", lambda i, j, q, k, n: j + 0 * i >= k - n),
    ("behind-{}", "the keys from {} on", lambda i, j, q, k, n: j + 0 * i >= n),
    ("all-but-last-{}", "all but the last {} keys", lambda i, j, q, k, n: j + 0 * i < k - n),
    ("not-key-{}", "all keys but key {}", lambda i, j, q, k, n: j + 0 * i != n),
    ("whole-blocks-of-{}", "keys in whole blocks of {}", lambda i, j, q, k, n: j + 0 * i < k - k % n),
    (
        "whole-blocks-of-{}-if-any",
        "keys in whole blocks of {}, if there is one",
        lambda i, j, q, k, n: (j + 0 * i < k - k % n) | (k < n),
    ),
    ("same-block-of-{}", "keys in the query's own block of {}", lambda i, j, q, k, n: i // n == j // n),
    ("blocks-of-{}-so-far", "keys in blocks of {} up to its own", lambda i, j, q, k, n: j // n <= i // n),
    ("every-{}", "keys with i - j a multiple of {}", lambda i, j, q, k, n: (i - j) % n == 0),
    (
        "every-{}-or-next",
        "keys with i - j a multiple of {}, or 1 apart",
        lambda i, j, q, k, n: ((i - j) % n == 0) | (abs(i - j) <= 1),
    ),
    ("each-{}", "keys 0, {0}, 2 * {0}, ...", lambda i, j, q, k, n: (j + 0 * i) % n == 0),
    ("not-each-{}", "keys other than 0, {0}, 2 * {0}, ...", lambda i, j, q, k, n: (j + 0 * i) % n != 0),
    ("not-ends-of-{}", "keys that end no block of {}", lambda i, j, q, k, n: (j + 0 * i) % n != n - 1),
)


def unasked(view: View, problems: Sequence[Problem], conditions: Sequence[Condition]) -> Iterator[Bug]:
    """Rules for which keys have a weight that give all problems' patterns, or those where a condition holds."""
    patterns = [(problem, _pattern(view, problem)) for problem in problems]
    known = [(problem.sizes, pattern) for problem, pattern in patterns if pattern is not None]
    if not any((~pattern).any() for _, pattern in known):
        return
    for slug, words, rule in RULES:
        for n in range(
            -MOST if "{:+d}" in slug else 1 if "-of-" in slug or "ver" in slug or "each" in slug else 0, MOST
        ):
            bugs = [
                on_step(
                    step, f"{step}-{slug.format(n)}", _keeping(rule, n), f"{prefix} {words.format(n)} {suffix}", FIX
                )
                for step, prefix, suffix in (
                    ("allowed", "Query i attends to", "alone, without being asked to."),
                    ("kept_weights", "Only", "keep their weight, and the others are not given theirs."),
                )
            ]
            for condition in (None, *conditions):
                where = [condition is None or bool(np.any(condition.holds(sizes))) for sizes, _ in known]
                if all(
                    np.array_equal(pattern, _kept(rule, n, *pattern.shape[-2:]) if holds else np.ones_like(pattern))
                    for (_, pattern), holds in zip(known, where, strict=True)
                ):
                    for bug in bugs:
                        limited = bug if condition is None else only_where(bug, condition)
                        if limited is not None:
                            yield limited


def _kept(rule: Rule, n: int, queries: int, keys: int) -> NDArray[np.bool_]:
    found = rule(np.arange(queries)[:, None], np.arange(keys), queries, keys, n)
    return np.broadcast_to(found, (queries, keys))


def _keeping(rule: Rule, n: int) -> Callable[[State, NDArray], NDArray]:
    return lambda state, array: array * _kept(rule, n, state.sizes.query_len, state.sizes.key_len)


def _pattern(view: View, problem: Problem) -> NDArray[np.bool_] | None:
    """(Lq, Lk): where some head has a weight that the model has too; None if that differs between heads."""
    measured, expected = read_weights(view.got, problem), read_weights(view.made, problem)
    if measured is None or expected is None or not np.isfinite(measured).all():
        return None
    has_weight = np.abs(measured) > 1e-9 * np.abs(expected).max(initial=0.0)
    heads = (has_weight | (expected == 0.0))[0]
    return heads[0] if bool((heads == heads[:1]).all()) else None
