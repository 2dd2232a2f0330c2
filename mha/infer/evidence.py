"""The judge of a hypothesis: does it give the recorded output within the computed bound, and with which biases?"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import Precision
from conformance.cases.problem import Problem
from mha.infer.arrays import Candidates, Slice
from mha.infer.hypothesis import Hypothesis
from mha.infer.observed import Observed
from mha.recipes.judge import judge_original
from mha_core import AttentionInputs, AttentionMask
from mha_core.dtypes import storage_dtype
from mha_core.errors import listed
from mha_core.reference import pipeline as reference

EXP_ULPS = 20.0
"""Error of the least exact exponential of any framework, because the record does not name its framework."""

KEYS_PER_BLOCK = 512
"""The smallest block of an online softmax."""

AT_ONCE = 4_000_000
"""Elements of the largest array that is computed at once: (B, H, rows, Lk), in a bound (B, H, rows, Lk, dv)."""

HOPELESS = 1e3
"""Worst error / allowed error from which on the rest of a record is not looked at."""

JUDGED = 3
"""How many choices of biases of one hypothesis are compared with the record."""


@dataclass(frozen=True)
class Fit:
    """A hypothesis (which array is which weight), and the distance of its output from the recorded one.

    Attributes:
        hypothesis: the hypothesis with all its biases.
        ratio: the largest ratio of error to allowed error in the output; at most 1 if it fits.
        error: the worst error of the output.
        is_shifted: whether the output is off by the same vector in all rows, as if a bias were missing.
    """

    hypothesis: Hypothesis
    ratio: float
    error: float
    is_shifted: bool = False

    @property
    def fits(self) -> bool:
        """Return whether the output is within its bound."""
        return self.ratio <= 1.0


class Judge:
    """A judge of hypotheses by every row of a record."""

    def __init__(self, candidates: Candidates, observed: Observed) -> None:
        self.candidates, self.observed = candidates, observed
        self.precision = replace(Precision.of(observed.dtype), exp_ulps=EXP_ULPS, key_block=KEYS_PER_BLOCK)
        self.recorded = observed.output.astype(storage_dtype(observed.dtype))

    def fits(self, hypothesis: Hypothesis) -> list[Fit]:
        """Return a Fit for each fitting pair of value bias and output bias. If no pair fits, return the closest."""
        bare = replace(hypothesis, bv=None, bo=None)
        output, has_key = self._output(bare)
        missing = (self.observed.output - output)[has_key]
        finite = np.isfinite(missing).all(axis=-1)
        missing = missing[finite]
        if not len(missing):
            return []
        constant = np.median(missing, axis=0)
        spread = float(np.abs(missing - constant).max())
        choices = sorted(
            ((float(np.abs(added - constant).max()), changed) for changed, added in constants(bare, self.candidates)),
            key=lambda choice: choice[0],
        )
        judged: list[Fit] = []
        for distance, changed in choices[:JUDGED]:
            if judged and distance > 4.0 * choices[0][0] + spread:
                break
            judged.append(self._judge(changed))
        nearest = min(judged, key=lambda fit: fit.ratio)
        is_shifted = len(missing) > 1 and spread * nearest.ratio <= nearest.error  # the spread is within the bound
        return [fit for fit in judged if fit.fits] or [replace(nearest, is_shifted=is_shifted)]

    def _problem(self, hypothesis: Hypothesis) -> Problem:
        """The whole record as a problem."""
        observed = self.observed
        inputs = AttentionInputs(observed.queries, observed.keys, observed.values, observed.masks[hypothesis.mask])
        return Problem(*hypothesis.canonical(), inputs, {"output": self.recorded})

    def _output(self, hypothesis: Hypothesis) -> tuple[NDArray, NDArray]:
        """The output (B, Lq, Do) of a hypothesis in float64, and bool (B, Lq): the rows with a key in every head."""
        problem = self._problem(hypothesis)
        parts: list[Any] = [
            reference.run(piece.config, piece.weights, piece.inputs).output
            for piece in pieces(problem, problem.config.num_heads)
        ]
        width = self.recorded.shape[-1]
        output = np.concatenate([part.reshape(-1, width) for part in parts]).reshape(self.recorded.shape)
        return output, problem.allowed().any(axis=-1).all(axis=1)

    def _judge(self, hypothesis: Hypothesis) -> Fit:
        worst, error = 0.0, 0.0
        problem = self._problem(hypothesis)
        for piece in pieces(problem, problem.config.num_heads * problem.config.value_head_dim):
            judged = judge_original(piece, self.precision)
            worst, error = max(worst, judged.worst), max(error, judged.error)
            if worst > HOPELESS:
                break
        return Fit(hypothesis, worst, error)


def pieces(problem: Problem, each: int) -> Iterator[Problem]:
    """Yield a call in parts, each with few enough batch items and queries to be computed in memory.

    Args:
        problem: the call, with its recorded output, weights and heads.
        each: the size of the largest array of the computation / (number of queries x keys): H for attention weights.
    """
    inputs, sizes = problem.inputs, problem.sizes
    row = max(1, sizes.key_len * each)
    plain = not inputs.is_split and inputs.dropout_keep is None and inputs.past_keys is None
    if sizes.batch * sizes.query_len * row <= AT_ONCE or not plain:
        yield problem
        return
    # Piece by piece, every source of the mask but the bias becomes one array; positions are those of the whole.
    allowed = problem.allowed()
    bias = None if inputs.mask.bias is None else np.broadcast_to(inputs.mask.bias, allowed.shape)
    rows = max(1, AT_ONCE // row)
    for b, start in product(range(sizes.batch), range(0, sizes.query_len, rows)):
        item, i = slice(b, b + 1), slice(start, start + rows)
        offset = int(np.broadcast_to(inputs.mask.query_offset, sizes.batch)[b]) + start
        of_bias = None if bias is None else bias[item, :, i]
        mask = AttentionMask(allowed=allowed[item, :, i], bias=of_bias, query_offset=offset)
        piece = AttentionInputs(inputs.queries[item, i], inputs.keys[item], inputs.values[item], mask)
        recorded = {
            name: array[item, i] if name == "output" else array[item, :, i]
            for name, array in problem.recorded.items()
            if name in ("output", "weights", "heads")
        }
        yield Problem(problem.config, problem.weights, piece, recorded)


# Biases that the sketch of a search leaves out.
#
# Attention weights add up to 1, so a bias of the values passes through them unchanged: it and the output bias add one
# vector to every row. A key bias adds one number to all scores of a row, so the output does not depend on it (without
# rotary positions): it is chosen by its place in a pack.


SHOWN = 6
"""How many names of arrays that could be a key bias are written out."""


def constants(found: Hypothesis, candidates: Candidates) -> Iterator[tuple[Hypothesis, NDArray]]:
    """Yield (hypothesis with biases, vector) for each pair (value bias or None, output bias or None), both None first.

    The vector (Do,) is what both biases together add to every row of the output.
    """
    bare = replace(found, bv=None, bo=None)
    outs = [Slice(vector) for vector in candidates.vectors if vector.count == bare.o.source.inputs]
    for bv in (None, *candidates.biases(bare.v)):
        changed = replace(bare, bv=bv)
        if not changed.is_readable() or _same(bv, bare.bq):
            continue
        from_values = np.zeros(bare.o.source.inputs)
        if bv is not None:
            per_head = bv.source.flat[changed.rows("bv")][bare.kv_of()]  # (H, dv)
            from_values = per_head.reshape(-1) @ bare.o.source.flat[changed.rows("o").reshape(-1)]
        for bo in (None, *outs):
            if not _same(bo, bv) and not _same(bo, bare.bq):
                yield replace(changed, bo=bo), from_values if bo is None else from_values + bo.source.flat


def _same(a: Slice | None, b: Slice | None) -> bool:
    """Whether two biases use the same numbers of an array of which the file has no copy."""
    return a is not None and b is not None and a.source is b.source and a.part == b.part and len(a.source.names) == 1


def key_bias(found: Hypothesis, candidates: Candidates) -> tuple[Slice | None, str]:
    """Return (the likeliest key bias, as a Slice of a vector; the reason). The first is None if no vector is likely."""
    used = {(bias.source, bias.part) for bias in found.biases if bias is not None}
    free = [
        bias
        for bias in candidates.biases(found.k)
        if (bias.source, bias.part) not in used and replace(found, bk=bias).is_readable()
    ]
    for bias in free:
        if bias.parts > 1 and any(bias.source is source for source, _ in used):
            return bias, "by its place between the biases of queries and values"
    names = list(dict.fromkeys(repr(bias.source.names[0]) for bias in free))
    return (
        None,
        f"any of {listed(names, SHOWN)} could be one, or none" if names else "no array is left that could be one",
    )
