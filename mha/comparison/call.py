"""Compare two calls: find their differences, and how far their outputs may differ."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.judging.compare import distance, error_ratio
from conformance.judging.expected import Expected
from mha.comparison.arrays import EQUAL, Allowance, Apart, Difference, apart
from mha.comparison.masks import mask_differences, padded_keys, padded_queries
from mha.recipes.judge import Judgement, judge_recorded
from mha_core import SpecError
from mha_core.call.inputs import AttentionInputs
from mha_core.reference import pipeline as reference

GIVEN = ("queries", "keys", "values")
PAST = ("past_keys", "past_values")
FIELDS = {"inputs": (*GIVEN, *PAST), "mask": ("mask", "dropout_keep"), "layer": ()}
"""Part of a call -> the fields of its inputs; a layer is config and weights."""


@dataclass(frozen=True, eq=False)
class ComparedCall:
    """One call of one recording, with the reference's answer to it and the comparison of its outputs with that."""

    name: str
    dtype: str
    problem: Problem
    wanted: Expected

    @property
    def output(self) -> NDArray:
        """The recorded output (B, Lq, Do)."""
        return self.problem.recorded["output"]

    def judged(self, rows: NDArray[np.bool_] | None = None) -> Judgement:
        """Compare the recorded arrays with the answer to this call's inputs; only queries in `rows` (B, Lq)."""
        return judge_recorded(self.problem, self.wanted, self.dtype, None if rows is None else ~rows[:, None, :])


@dataclass(frozen=True)
class CallDifferences:
    """The differences of two calls in inputs, mask and past.

    Attributes:
        inputs: the largest difference / allowed difference; None where shapes differ.
        drift: the largest relative difference (root mean square) of inputs within the allowance.
        differences, notes: in words.
        rows: bool (B, Lq), the queries that are no padding; None where shapes differ.
    """

    inputs: float | None
    drift: float
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]
    rows: NDArray[np.bool_] | None


def calls_part(a: ComparedCall, b: ComparedCall, allowance: Allowance) -> CallDifferences:
    """Compare inputs, mask and past of two calls."""
    shapes = _other_shapes(a.problem.inputs, b.problem.inputs)
    if shapes:
        return CallDifferences(None, 0.0, (Difference("inputs", shapes, "shapes"),), (), None)
    if a.wanted.where.shape != b.wanted.where.shape:  # another number of heads, which is said where settings are
        rows = np.ones(a.output.shape[:2], dtype=bool)
    else:
        rows = ~padded_queries(a.wanted, b.wanted)
    ratio, drift, found, notes = _inputs(a, b, allowance, rows)
    if a.wanted.where.shape == b.wanted.where.shape:
        masks, more = mask_differences(a.wanted, b.wanted, allowance, rows)
        found += masks
        notes += more
    found += _keeps(a.problem.inputs, b.problem.inputs)
    past, ratio_of_past = _past(a, b, allowance)
    found += past
    return CallDifferences(max(ratio, ratio_of_past), drift, tuple(found), tuple(notes), rows)


def _other_shapes(a: AttentionInputs, b: AttentionInputs) -> str:
    """The shapes that differ, in words; "" if none do."""
    names = [name for name in GIVEN if getattr(a, name).shape != getattr(b, name).shape]
    if not names:
        return ""
    one, other = getattr(a, names[0]).shape, getattr(b, names[0]).shape
    found = f"{', '.join(names)}: the original was given {one}, the port {other}"
    if len(one) != len(other):
        return f"{found}: only one is split into heads"
    if one[0] != other[0]:
        return f"{found}: another batch, so these are not the same calls"
    if one[-1] != other[-1]:
        return f"{found}: another width"
    return f"{found}: another length. Record both with the same padding"


def _inputs(
    a: ComparedCall, b: ComparedCall, allowance: Allowance, rows: NDArray[np.bool_]
) -> tuple[float, float, list[Difference], list[str]]:
    counts = {"queries": rows, "keys": _keys_that_count(a, b), "values": _keys_that_count(a, b)}
    worst, drift, parted, padded = 0.0, 0.0, [], []
    for name in GIVEN:
        one, other = getattr(a.problem.inputs, name), getattr(b.problem.inputs, name)
        here = counts[name][:, None, :, None] if one.ndim == 4 else counts[name][:, :, None]
        found = allowance.apart(one, other, here)
        if found is EQUAL:
            continue
        worst = max(worst, allowance.ratio(found))
        if allowance.ratio(found) > 1.0:
            parted.append((name, found, _in_words(one, other, here, found, allowance)))
        else:
            drift = max(drift, found.mean)
        padding = apart(one, other, ~here)
        if not counts[name].all() and allowance.ratio(padding) > 1.0:
            padded.append(name)
    notes = [f"{', '.join(padded)} differ in rows of padding, which reach no other row"] if padded else []
    return worst, drift, _grouped(parted, allowance, a), notes


def _keys_that_count(a: ComparedCall, b: ComparedCall) -> NDArray[np.bool_]:
    """Bool (B, L): the new keys that some query attends to in either call."""
    if a.wanted.where.shape[-1] != b.wanted.where.shape[-1]:  # another past
        return np.ones((len(a.output), a.problem.inputs.keys.shape[-2]), dtype=bool)
    length = a.problem.inputs.keys.shape[-2]
    padded = padded_keys(a.wanted) & padded_keys(b.wanted)
    counts: NDArray[np.bool_] = ~padded[:, padded.shape[1] - length :]
    return counts


def _grouped(parted: list[tuple[str, Apart, str]], allowance: Allowance, a: ComparedCall) -> list[Difference]:
    """One Difference for all names with equal messages: in self-attention, queries, keys and values are one array."""
    by_words: dict[str, list[tuple[str, Apart]]] = {}
    for name, found, words in parted:
        by_words.setdefault(words, []).append((name, found))
    differences = []
    for words, same in by_words.items():
        names, found = ", ".join(name for name, _ in same), same[0][1]
        allowed = allowance.at_worst(getattr(a.problem.inputs, same[0][0]), found)
        differences.append(Difference("inputs", f"{names} {words}", names, found.difference, allowed))
    return differences


def _in_words(a: NDArray, b: NDArray, counts: NDArray[np.bool_], found: Apart, allowance: Allowance) -> str:
    """The difference of two arrays in words: how large, where, and its form if it has a simple one."""
    counts = np.broadcast_to(counts, a.shape)
    wide = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(all="ignore"):
        off = ~(np.where(counts, np.abs(wide[0] - wide[1]), 0.0) <= allowance.worst * (np.abs(wide[0]) + found.size))
    rows, total = int((off & counts).any(axis=-1).sum()), int(counts.any(axis=-1).sum())
    where = f"in {rows} of {total} rows" if rows else "a little in all rows"
    words = f"differ {where}, {allowance.words(found, 'their')}"
    shrunk = _shrunk(*(array[counts.any(axis=-1)] for array in wide))
    if shrunk is not None:
        words += (
            f". Each row is drawn towards one and the same vector by a factor of its own, {shrunk[0]:.7g} to "
            f"{shrunk[1]:.7g}, as another epsilon of a normalisation does"
        )
    return words


ROUNDS, MOST_ROWS = 40, 1000
"""Steps and rows of the search for the vector in `_shrunk`."""


def _shrunk(a: NDArray, b: NDArray) -> tuple[float, float] | None:
    """The least and the largest factor f of the rows if b - a = (f - 1) (a - v) with one vector v; else None."""
    a, b = a[:MOST_ROWS], b[:MOST_ROWS]
    change = b - a
    if len(a) < 4 or a.shape[-1] < 4 or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return None
    vector = np.zeros(a.shape[-1])
    with np.errstate(all="ignore"):
        for _ in range(ROUNDS):
            centred = a - vector
            factors = (change * centred).sum(axis=-1, keepdims=True) / np.square(centred).sum(axis=-1, keepdims=True)
            vector = (factors * (factors * a - change)).sum(axis=0) / np.square(factors).sum()
        left = np.square(change - factors * (a - vector)).sum() / np.square(change).sum()
    return (1.0 + float(factors.min()), 1.0 + float(factors.max())) if left < 0.01 else None


def _keeps(a: AttentionInputs, b: AttentionInputs) -> list[Difference]:
    """The differences of the keep-masks for dropout."""
    given = [one.dropout_keep for one in (a, b)]
    if given[0] is None and given[1] is None:
        return []
    if given[0] is None or given[1] is None:
        whose = "the original" if given[1] is None else "the port"
        return [Difference("mask", f"only {whose} was given a keep-mask of dropout", "dropout_keep")]
    if np.array_equal(given[0], given[1]):
        return []
    return [Difference("mask", "the keep-masks of dropout differ", "dropout_keep")]


def _past(a: ComparedCall, b: ComparedCall, allowance: Allowance) -> tuple[list[Difference], float]:
    found: list[Difference] = []
    worst = 0.0
    for name in PAST:
        one, other = getattr(a.problem.inputs, name), getattr(b.problem.inputs, name)
        if one is None and other is None:
            continue
        if one is None or other is None or one.shape != other.shape:
            shapes = ["none" if array is None else str(array.shape) for array in (one, other)]
            found.append(Difference("past", f"{name}: the original has {shapes[0]}, the port {shapes[1]}", name))
            continue
        distance = allowance.apart(one, other)
        ratio = allowance.ratio(distance)
        worst = max(worst, ratio)
        if ratio > 1.0:
            allowed = allowance.at_worst(one, distance)
            found.append(Difference("past", f"{name} differ {distance.words}", name, distance.difference, allowed))
    return found, worst


# Outputs ---------------------------------------------------------------------------------------------


def moves(a: ComparedCall, b: ComparedCall, rows: NDArray[np.bool_], parts: Collection[str]) -> NDArray | None:
    """How far `parts` of the port's call move the original's output: (B, Lq, Do), or None if sizes don't fit.

    Args:
        a, b: the original's call and the port's.
        rows: bool (B, Lq, 1), the queries that count.
        parts: some of "inputs", "mask" and "layer".
    """
    own, other = a.wanted.problem, b.wanted.problem
    taken = [name for part in parts for name in FIELDS[part]]
    inputs = replace(own.inputs, **{name: getattr(other.inputs, name) for name in taken})
    layer = other if "layer" in parts else own
    try:
        output = reference.run(layer.config, layer.weights, inputs).output
    except SpecError:
        return None
    right = np.asarray(a.wanted.trace.output)
    if output is None or output.shape != right.shape:
        return None
    return np.where(rows, distance(output, right), 0.0)


def outputs_apart(
    a: ComparedCall, b: ComparedCall, rows: NDArray[np.bool_], drift: NDArray | None
) -> tuple[float, float, float]:
    """(difference, allowed difference, their ratio) of the output element with the largest ratio.

    Allowed is the sum of both bounds and `drift` (B, Lq, Do), the effect of inputs that differ within their allowance.
    """
    slack = a.wanted.allowed_error["output"] + b.wanted.allowed_error["output"] + (0.0 if drift is None else drift)
    far = np.where(rows, distance(a.output.astype(np.float64), b.output.astype(np.float64)), 0.0)
    ratio = error_ratio(far, slack)
    if not ratio.size:
        return 0.0, 0.0, 0.0
    worst = np.unravel_index(np.argmax(ratio), ratio.shape)
    return float(far[worst]), float(slack[worst]), float(ratio[worst])


def own_differences(
    a: ComparedCall, b: ComparedCall, rows: NDArray[np.bool_] | None
) -> tuple[list[Difference], list[str], tuple[float, float]]:
    """The differences of each call's outputs from the reference's answer to its own inputs, mask and weights.

    Returns (differences, notes, the worst error / allowed error of the original and of the port).
    """
    found, notes, ratios = [], [], []
    for side, whose in ((a, "original"), (b, "port")):
        judged = side.judged()
        if not judged.equal and rows is not None and not rows.all():
            among = side.judged(rows)
            if among.equal:
                count = int((~rows).sum())
                notes.append(
                    f"the {whose}'s own output is another in {count} rows of padding, which reach no other row"
                )
                judged = among
        ratios.append(judged.worst)
        for mismatch in judged.mismatches:
            message = f"the {whose}'s own {mismatch.message}; it is not what its inputs, mask and weights give"
            found.append(Difference("outputs", message, mismatch.stage, mismatch.error, mismatch.allowed))
    return found, notes, (ratios[0], ratios[1])
