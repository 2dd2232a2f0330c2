"""Two calls: their differences, and how far their outputs may differ."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import Precision
from conformance.cases.problem import Problem
from conformance.judging.distance import distance
from conformance.judging.expected import Expected, answer
from mha.recipes.judge import Judgement, judge_recorded
from mha.substitution.recorded.arrays import EQUAL, Allowance, Apart, apart
from mha.substitution.recorded.masks import mask_differences, padded_keys, padded_queries
from mha.substitution.reports.report import Difference
from mha_core import SpecError
from mha_core.call.inputs import AttentionInputs
from mha_core.call.rotary import tables_of_call
from mha_core.parts.rotary import Table, base_in, in_words, positions_in
from mha_core.reference import pipeline as reference

GIVEN = ("queries", "keys", "values")
PAST = ("past_keys", "past_values")
FIELDS = {"inputs": (*GIVEN, *PAST, "rotary"), "mask": ("mask", "dropout_keep"), "layer": ()}
"""Part of a call -> the fields of its inputs; a layer is config and weights."""


@dataclass(frozen=True, eq=False)
class ComparedCall:
    """A recorded call (`problem`), with the reference's results and allowed errors for it (`wanted`)."""

    name: str
    dtype: str
    problem: Problem
    wanted: Expected

    @classmethod
    def of(cls, name: str, dtype: str, problem: Problem) -> ComparedCall:
        """Return a ComparedCall: the recorded call `problem` with the reference's results, which are computed here."""
        return cls(name, dtype, problem, answer(problem, Precision.of(dtype)))

    @property
    def output(self) -> NDArray:
        """Return the recorded output (B, Lq, Do)."""
        return self.problem.recorded["output"]

    def with_mask_of(self, other: ComparedCall) -> ComparedCall:
        """Return this call with the mask of another."""
        inputs = replace(self.problem.inputs, mask=other.problem.inputs.mask)
        return ComparedCall.of(self.name, self.dtype, replace(self.problem, inputs=inputs))

    def judged(self, rows: NDArray[np.bool_] | None = None) -> Judgement:
        """Return the comparison of the recorded outputs with the reference's answer, where `rows` (B, Lq) is True."""
        return judge_recorded(self.problem, self.wanted, self.dtype, None if rows is None else ~rows[:, None, :])


@dataclass
class CallDifferences:
    """A record of the differences of two recorded calls in inputs, mask and cached keys.

    Attributes:
        inputs: the largest difference / allowed difference of the inputs; None if their shapes differ.
        drift: the largest relative difference (root mean square) of inputs whose difference is allowed.
        found: every difference that is not allowed.
        notes: remarks in words.
        rows: bool (B, Lq), True at queries outside padding; None if shapes differ.
    """

    inputs: float | None = None
    drift: float = 0.0
    found: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    rows: NDArray[np.bool_] | None = None


def calls_part(a: ComparedCall, b: ComparedCall, allowance: Allowance) -> CallDifferences:
    """Return the differences of the port's call `b` from the original's `a`, in inputs, mask and cached keys."""
    both = CallDifferences()
    own, other = a.problem.inputs, b.problem.inputs
    shapes = _other_shapes(own, other)
    if shapes:
        both.found.append(Difference("inputs", shapes, "shapes"))
        return both
    one_shape = a.wanted.where.shape == b.wanted.where.shape  # else heads or the past differ, which is said there
    both.rows = ~padded_queries(a.wanted, b.wanted) if one_shape else np.ones(a.output.shape[:2], dtype=bool)
    _compare_inputs(both, a, b, allowance, both.rows)
    if one_shape:
        masks, notes = mask_differences(a.wanted, b.wanted, allowance, both.rows)
        both.found += masks
        both.notes += notes
    _compare_keep_masks(both, own, other)
    _compare_pasts(both, own, other, allowance)
    _compare_positions(both, a.problem, b.problem)
    return both


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


def _compare_inputs(
    both: CallDifferences, a: ComparedCall, b: ComparedCall, allowance: Allowance, rows: NDArray[np.bool_]
) -> None:
    counted = _keys_that_count(a, b)
    both.inputs, padded = 0.0, []
    alike: dict[str, list[tuple[str, Apart]]] = {}  # in self-attention, queries, keys and values are one array
    for name in GIVEN:
        one, other = getattr(a.problem.inputs, name), getattr(b.problem.inputs, name)
        counts = rows if name == "queries" else counted
        here = counts[:, None, :, None] if one.ndim == 4 else counts[:, :, None]
        found = allowance.apart(one, other, here)
        if found is EQUAL:
            continue
        ratio = allowance.ratio(found)
        both.inputs = max(both.inputs, ratio)
        if ratio > 1.0:
            alike.setdefault(_in_words(one, other, here, found, allowance), []).append((name, found))
        else:
            both.drift = max(both.drift, found.mean)
        if not counts.all() and allowance.ratio(apart(one, other, ~here)) > 1.0:
            padded.append(name)
    for words, same in alike.items():
        names, (first, found) = ", ".join(name for name, _ in same), same[0]
        given = getattr(a.problem.inputs, first)
        both.found.append(Difference("inputs", f"{names} {words}", names, *allowance.at_worst(given, found)))
    if padded:
        both.notes.append(f"{', '.join(padded)} differ in rows of padding, which reach no other row")


def _keys_that_count(a: ComparedCall, b: ComparedCall) -> NDArray[np.bool_]:
    """Bool (B, L): the new keys that some query attends to in either call."""
    length = a.problem.inputs.keys.shape[-2]
    if a.wanted.where.shape[-1] != b.wanted.where.shape[-1]:  # another past
        return np.ones((len(a.output), length), dtype=bool)
    padded = padded_keys(a.wanted) & padded_keys(b.wanted)
    counts: NDArray[np.bool_] = ~padded[:, padded.shape[1] - length :]
    return counts


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
    """Return the least and the largest factor f of the rows if b - a = (f - 1) (a - v) with one vector v."""
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


def _compare_keep_masks(both: CallDifferences, a: AttentionInputs, b: AttentionInputs) -> None:
    if (a.dropout_keep is None) != (b.dropout_keep is None):
        whose = "the port" if a.dropout_keep is None else "the original"
        words = f"only {whose} was given a keep-mask of dropout"
    elif a.dropout_keep is None or b.dropout_keep is None or np.array_equal(a.dropout_keep, b.dropout_keep):
        return
    else:
        words = "the keep-masks of dropout differ"
    both.found.append(Difference("mask", words, "dropout_keep"))


def _compare_pasts(both: CallDifferences, a: AttentionInputs, b: AttentionInputs, allowance: Allowance) -> None:
    assert both.inputs is not None
    for name in PAST:
        one, other = getattr(a, name), getattr(b, name)
        shapes = ["none" if array is None else str(array.shape) for array in (one, other)]
        if shapes[0] != shapes[1]:
            words = f"{name}: the original has {shapes[0]}, the port {shapes[1]}"
            both.found.append(Difference("past", words, name))
        elif one is not None:
            found = allowance.apart(one, other)
            both.inputs = max(both.inputs, allowance.ratio(found))
            if allowance.ratio(found) > 1.0:
                both.found.append(
                    Difference("past", f"{name} differ {found.words}", name, *allowance.at_worst(one, found))
                )


def _compare_positions(both: CallDifferences, a: Problem, b: Problem) -> None:
    """Find whether queries or new keys turn by other angles; other channels or pairs are a difference of the layers."""
    if a.config.rotary is None or b.config.rotary is None or a.config.rotary.layout != b.config.rotary.layout:
        return
    one, other = (
        tables_of_call(p.config.rotary, p.inputs.rotary, p.inputs.mask.query_offset, p.sizes)
        for p in (a, b)
        if p.config.rotary is not None
    )
    for side in ("queries", "keys"):
        of_one, of_other = getattr(one, side), getattr(other, side)
        apart = [~np.isclose(x, y, rtol=0.0, atol=1e-6) for x, y in zip(of_one, of_other, strict=True)]
        if any(one.any() for one in apart):
            rows = (apart[0] | apart[1]).any(axis=-1)
            words = f"{side} turn by other angles at {int(rows.sum())} of {rows.size} positions"
            turned = [_settled(p, table) for p, table in ((a, of_one), (b, of_other))]
            if None not in turned and turned[0] != turned[1]:
                words += f": by {turned[1]}, the original's by {turned[0]}"
            both.found.append(Difference("inputs", words, "rotary"))


def _settled(problem: Problem, table: Table) -> str | None:
    """By which base and rule a call's tables turn, in words; None if that is not found."""
    settings = problem.config.rotary
    assert settings is not None
    if positions_in(table, settings, problem.sizes.key_len) is not None:
        return in_words(settings)
    base = base_in(table, settings)
    return None if base is None else in_words(replace(settings, base=base, rule=None))


# Outputs ---------------------------------------------------------------------------------------------


def moves(a: ComparedCall, b: ComparedCall, rows: NDArray[np.bool_], parts: Collection[str]) -> NDArray | None:
    """Return (B, Lq, Do): how much the original's output changes if `parts` of its call are replaced by the port's.

    Return None if parts of the two calls can't be combined because their sizes differ.

    Args:
        a, b: the original's call and the port's.
        rows: bool (B, Lq, 1), True at the queries to compare.
        parts: some of "inputs", "mask" and "layer" (config and weights).
    """
    own, other = a.wanted.problem, b.wanted.problem
    taken = [name for part in parts for name in FIELDS[part]]
    inputs = replace(own.inputs, **{name: getattr(other.inputs, name) for name in taken})
    layer = other if "layer" in parts else own
    if layer.config.rotary is not None:  # angles belong to the inputs, given or by the layer's settings
        placed = other if "inputs" in parts else own
        inputs = replace(inputs, rotary=placed.inputs.rotary_tables(placed.config))
    try:
        output = reference.run(layer.config, layer.weights, inputs).output
    except SpecError:
        return None
    right = np.asarray(a.wanted.trace.output)
    if output is None or output.shape != right.shape:
        return None
    return np.where(rows, distance(output, right), 0.0)


def own_differences(
    a: ComparedCall, b: ComparedCall, rows: NDArray[np.bool_] | None
) -> tuple[list[Difference], list[str], float]:
    """Return (differences, notes, the port's worst error / allowed error), comparing each call with the reference.

    The outputs of a call are compared with the reference's outputs for this call's own inputs, mask and weights.
    """
    found, notes, ratio = [], [], 0.0
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
        ratio = judged.worst
        for mismatch in judged.mismatches:
            message = f"the {whose}'s own {mismatch.message}; it is not what its inputs, mask and weights give"
            found.append(Difference("outputs", message, mismatch.stage, mismatch.error, mismatch.allowed))
    return found, notes, ratio
