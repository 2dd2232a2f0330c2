"""Of a subject that is right once the weights are: are they wrong, or the scores, the queries, the keys?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.experiments.designs import changed
from conformance.experiments.linear import least_squares
from conformance.experiments.localise.bench import ROUNDOFFS, Bench, size_of
from conformance.experiments.readings.weights import centred_logs, read_weights
from mha_core.heads import repeat_kv_heads

SEEN = 1e-6
"""A weight that is 0 though it should be more than this is of a key that is left out: no usual score makes it so."""

MOST_FURTHER = 6
"""Most problems with other queries, or other keys, to which what is wrong is fitted."""


KEYS_LEFT_OUT = "keys left out"
"""Said in place of "weights" where a key has a weight that should have none, or none that should have one."""


def before_the_sum(bench: Bench, weights: NDArray) -> str:
    """The stage at which weights first go wrong, or KEYS_LEFT_OUT."""
    problem = bench.problem
    if problem.inputs.dropout_keep is not None:
        plain = changed(problem, dropout_keep=None)
        if bench.lab.ask(plain) is None or bench.fits(plain):
            return "heads"  # dropout alone is wrong
        without = read_weights(bench.got, plain)
        factor = problem.inputs.dropout_keep / (1.0 - problem.config.dropout)
        if without is None or not bench.near(without * factor, weights):
            return "heads"
        return before_the_sum(replace(bench, problem=plain), without)
    right = read_weights(bench.made, problem)
    if right is None:
        return "weights"
    left_out = _leave_out_others(bench, weights, right)
    if left_out or not bench.near(weights.sum(axis=-1), right.sum(axis=-1)):
        if _are_of_other_values(bench):
            return "values"
        if _is_after_dropout(bench, weights):
            return "heads"
        return KEYS_LEFT_OUT if left_out else "weights"
    if is_multiplied(bench, weights):
        return "scores"
    surplus = centred_logs(weights) - centred_logs(right)
    if problem.config.score != "additive" and problem.config.softcap is None:
        of_queries, of_keys = _are_queries(bench), _are_keys(bench)
        if of_queries or of_keys:
            return "queries" if of_queries else "keys"
    if not _is_of_the_softmax(bench, weights, surplus):
        return "scores"
    return "heads" if _is_after_dropout(bench, weights) else "weights"


def is_multiplied(bench: Bench, weights: NDArray) -> bool:
    """Whether the scores are the right ones, those of each row times some number."""
    right = read_weights(bench.made, bench.problem)
    if right is None:
        return False
    scores = centred_logs(right)
    surplus = centred_logs(weights) - scores
    along = np.nansum(scores * surplus, axis=-1, keepdims=True)
    along /= np.maximum(np.nansum(scores**2, axis=-1, keepdims=True), 1e-300)
    return size_of(surplus - along * scores) <= bench.share * size_of(surplus)


def is_one_factor(bench: Bench, weights: NDArray) -> bool:
    """Whether the weights are the right ones, all times one number."""
    right = read_weights(bench.made, bench.problem)
    if right is None or not (right > 0.0).any():
        return False
    factor = float((weights * right).sum() / (right * right).sum())
    return bench.near(weights, factor * right)


def _is_after_dropout(bench: Bench, weights: NDArray) -> bool:
    """Whether dropout does not multiply the weights that are seen without it: what is wrong comes after it then."""
    keep = np.random.default_rng(75).random(weights.shape) < 0.5
    config = replace(bench.problem.config, dropout=0.5)
    dropped = read_weights(bench.got, changed(replace(bench.problem, config=config), dropout_keep=keep))
    return dropped is not None and not bench.near(dropped, 2.0 * keep * weights)


def _leave_out_others(bench: Bench, weights: NDArray, right: NDArray) -> bool:
    """Whether a key has a weight that should have none, or none that should have one."""
    least = ROUNDOFFS * bench.lab.unit
    return bool(((weights > least) & (right <= 0.0)).any() or ((weights <= 0.0) & (right > SEEN)).any())


def _are_of_other_values(bench: Bench) -> bool:
    """Whether the weights are right, and the keys' values are exchanged among them, or multiplied.

    Then each weight acts on a value of another key, whatever the weights are: W = A P with one P for all queries.
    """
    problem, sizes = bench.problem, bench.problem.sizes
    own, right = [], []
    for seed in range(min(MOST_FURTHER, ceil((sizes.key_len + 2) / sizes.query_len) + 1)):
        drawn = np.random.default_rng([74, seed]).normal(size=problem.inputs.queries.shape)
        one = changed(problem, queries=drawn) if seed else problem
        own.append(read_weights(bench.got, one))
        right.append(read_weights(bench.made, one))
    if any(array is None for array in (*own, *right)):
        return False
    given, wanted = (np.concatenate([a for a in arrays if a is not None], axis=2) for arrays in (own, right))
    shape = (-1, *given.shape[2:])
    largest = np.abs(given - wanted).max()
    for a, w in zip(wanted.reshape(shape), given.reshape(shape), strict=True):
        seen = (a > 0.0).any(axis=0)
        exchange = least_squares(a[:, seen], w)[0]
        if np.abs(a[:, seen] @ exchange - w).max(initial=0.0) > bench.share * largest:
            return False
        others = exchange - np.where(np.flatnonzero(seen)[:, None] == np.arange(len(seen)), exchange, 0.0)
        small = bench.share * largest
        if np.abs(others).max(initial=0.0) > small and np.abs(exchange.sum(axis=1) - 1.0).max() > small:
            return False
    return True


def _surplus(bench: Bench, problem: Problem) -> NDArray | None:
    """(B, H, Lq, Lk): log weights less the right ones, each less their mean; NaN where there is no weight."""
    weights, right = read_weights(bench.got, problem), read_weights(bench.made, problem)
    return None if weights is None or right is None else centred_logs(weights) - centred_logs(right)


def _others(bench: Bench, name: str, count: int) -> Iterator[tuple[Problem, NDArray]]:
    """The problem with other inputs of this name, and what is wrong with the logs of its weights."""
    for seed in range(count):
        given = getattr(bench.problem.inputs, name)
        drawn = np.random.default_rng([71, seed]).normal(size=given.shape)
        drawn_inputs: dict[str, Any] = {name: drawn}
        if name == "keys" and bench.problem.inputs.past_keys is not None:
            shape = bench.problem.inputs.past_keys.shape
            drawn_inputs["past_keys"] = np.random.default_rng([73, seed]).normal(size=shape)
        problem = changed(bench.problem, **drawn_inputs) if seed else bench.problem
        surplus = _surplus(bench, problem)
        if surplus is not None:
            yield problem, surplus


def _are_queries(bench: Bench) -> bool:
    """Whether one change of each query explains what is wrong, whatever the keys are."""
    width, keys = bench.problem.config.head_dim, bench.problem.sizes.key_len
    rows: list[NDArray] = []
    wrong: list[NDArray] = []
    for problem, surplus in _others(bench, "keys", min(MOST_FURTHER, ceil((width + 3) / max(1, keys - 1)) + 1)):
        seen = ~np.isnan(surplus)
        there = repeat_kv_heads(bench.arrays(problem)["keys"], problem.config.num_heads)[:, :, None]
        mean = (there * seen[..., None]).sum(axis=3, keepdims=True)
        mean = mean / np.maximum(seen.sum(axis=-1), 1)[..., None, None]
        rows.append(np.where(seen[..., None], there - mean, 0.0))  # (B, H, Lq, Lk, d)
        wrong.append(np.where(seen, surplus, 0.0))
    if not rows:
        return False
    matrix, surplus = np.concatenate(rows, axis=3), np.concatenate(wrong, axis=3)
    flat = matrix.reshape(-1, *matrix.shape[3:])
    left = [one - a @ least_squares(a, one)[0] for a, one in zip(flat, surplus.reshape(len(flat), -1), strict=True)]
    return max(map(size_of, left)) <= bench.share * size_of(surplus)


def _are_keys(bench: Bench) -> bool:
    """Whether one change of each key explains what is wrong, whatever the queries are."""
    config, sizes = bench.problem.config, bench.problem.sizes
    shared = config.num_heads // config.num_kv_heads
    width = config.head_dim
    count = min(MOST_FURTHER, ceil((width + 3) / (shared * sizes.query_len)) + 1)
    found = list(_others(bench, "queries", count))
    if not found:
        return False
    largest = max(size_of(surplus) for _, surplus in found)
    for item in range(sizes.batch):
        for group in range(config.num_kv_heads):
            rows, wrong = [], []
            for problem, surplus in found:
                queries = bench.arrays(problem)["queries"]
                for head in range(group * shared, (group + 1) * shared):
                    for query in range(sizes.query_len):
                        one = surplus[item, head, query]
                        seen = ~np.isnan(one)
                        centring = np.diag(seen.astype(float)) - np.outer(seen, seen) / max(1, seen.sum())
                        rows.append(np.kron(centring, queries[item, head, query])[seen])
                        wrong.append(one[seen])
            matrix, values = np.concatenate(rows), np.concatenate(wrong)
            left = values - matrix @ least_squares(matrix, values)[0]
            if size_of(left) > bench.share * largest:
                return False
    return True


def _is_of_the_softmax(bench: Bench, weights: NDArray, surplus: NDArray) -> bool:
    """Whether weights, wrong but not in proportion to the queries, stay when each score of a row is raised."""
    problem = bench.problem
    twice = _surplus(bench, changed(problem, {"q_proj.weight": 2.0, "q_proj.bias": 2.0}))
    if twice is not None and (bench.near(twice, 2.0 * surplus, size_of(surplus)) or bench.near(twice, surplus)):
        return False
    step = np.random.default_rng(72).normal(size=problem.config.key_dim)
    inputs: dict[str, Any] = {"keys": problem.inputs.keys + step}
    if problem.inputs.past_keys is not None:
        moved = (problem.weights["k_proj.weight"] @ step).reshape(problem.config.num_kv_heads, 1, -1)
        inputs["past_keys"] = problem.inputs.past_keys + moved
    raised = read_weights(bench.got, changed(problem, **inputs))
    return raised is not None and bench.near(raised, weights, 0.1 * size_of(surplus))
