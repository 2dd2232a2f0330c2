"""Judges a hypothesis: whether it gives the recorded output within the computed bound, and with which biases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import Precision
from conformance.cases.problem import Problem
from conformance.judging.expected import answer
from mha.infer.hypotheses.bias_sums import constants
from mha.infer.hypotheses.candidates import Candidates
from mha.infer.hypotheses.hypothesis import Hypothesis
from mha.infer.observed import Observed
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, Trace
from mha_core.call.masks import allowed_keys
from mha_core.call.sizes import CallSizes
from mha_core.dtypes import storage_dtype
from mha_core.reference import pipeline as reference
from mha_core.weights import Weights

EXP_ULPS = 20.0
"""Error of the least exact exponential of any framework, because the record does not name its framework."""

KEYS_PER_BLOCK = 512
"""The smallest block of an online softmax."""

AT_ONCE = 4_000_000
"""Elements of the largest array that is computed at once: (B, H, rows, Lk), in a bound (B, H, rows, Lk, dv)."""

MOST_PIECES = 6
"""Pieces of a large record that are bounded row by row; the other rows must lie within the largest of those bounds."""

HOPELESS = 1e3
"""Worst error / allowed error from which on the rest of a record is not looked at."""

JUDGED = 3
"""How many choices of biases of one hypothesis are compared with the record."""


@dataclass(frozen=True)
class Fit:
    """A hypothesis, and how far its output is from the recorded one.

    Attributes:
        hypothesis: with all its biases.
        ratio: the worst error / allowed error of the output; at most 1 if it fits.
        error: the worst error.
        constant: the largest element of the one vector that is missing from every output row, where no arrays
            are the biases that add it; then the hypothesis has none. Else 0.
    """

    hypothesis: Hypothesis
    ratio: float
    error: float
    constant: float = 0.0

    @property
    def fits(self) -> bool:
        return self.ratio <= 1.0


class Judge:
    """Compares hypotheses with every row of a record."""

    def __init__(self, candidates: Candidates, observed: Observed) -> None:
        self.candidates, self.observed = candidates, observed
        self.precision = replace(Precision.of(observed.dtype), exp_ulps=EXP_ULPS, key_block=KEYS_PER_BLOCK)
        self.recorded = observed.output.astype(storage_dtype(observed.dtype))

    def fits(self, hypothesis: Hypothesis) -> list[Fit]:
        """A Fit for every choice of value and output biases that fits; else one for the choice that comes closest."""
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
        fitting = [fit for fit in judged if fit.fits]
        size = float(np.abs(constant).max())
        if not fitting and len(missing) > 1 and choices[0][0] > 4.0 * spread and spread < 1e-2 * size:
            return [replace(self._judge(bare), constant=size)]
        return fitting or [min(judged, key=lambda fit: fit.ratio)]

    def _output(self, hypothesis: Hypothesis) -> tuple[NDArray, NDArray]:
        """The output (B, Lq, Do) of a hypothesis in float64, and bool (B, Lq): the rows with a key in every head."""
        config, weights = hypothesis.canonical()
        parts: list[NDArray] = []
        for problem, _ in self._problems(hypothesis, config, weights, self._pieces(hypothesis.heads)):
            part = reference.run(config, weights, problem.inputs).output
            assert part is not None
            parts.append(part)
        batch, query_len, _ = self.observed.queries.shape
        sizes = CallSizes(batch, query_len, self.observed.keys.shape[1])
        keys = allowed_keys(self.observed.masks[hypothesis.mask], sizes, hypothesis.heads)
        rows = [part.reshape(-1, part.shape[-1]) for part in parts]
        return np.concatenate(rows).reshape(self.observed.output.shape), keys.any(axis=-1).all(axis=1)

    def _judge(self, hypothesis: Hypothesis) -> Fit:
        config, weights = hypothesis.canonical()
        worst, error, furthest = 0.0, 0.0, 0.0
        pieces = self._pieces(hypothesis.heads * hypothesis.value_head_dim)
        spread_out = np.unique(np.linspace(0, len(pieces) - 1, MOST_PIECES).astype(int))
        for problem, output in self._problems(hypothesis, config, weights, [pieces[i] for i in spread_out]):
            wanted = answer(problem, self.precision)
            ratios, _ = wanted.judge(Trace(output=output), self.precision.storage)
            worst = max(worst, ratios["output"])
            furthest = max(furthest, float(wanted.allowed_error["output"].max(initial=0.0)))
            error = max(error, _worst(wanted.trace.output, output))
            if worst > HOPELESS:
                break
        if len(spread_out) < len(pieces) and worst <= 1.0:
            error = _worst(self._output(hypothesis)[0], self.recorded)
            worst = max(worst, error / furthest if furthest else np.inf)
        return Fit(hypothesis, worst, error)

    def _pieces(self, each: int) -> list[tuple[slice, slice]]:
        """Batch items and rows of queries that are computed at once, where a row has Lk times `each` elements."""
        batch, query_len, _ = self.observed.queries.shape
        row = max(1, self.observed.keys.shape[1] * each)
        if batch * query_len * row <= AT_ONCE:
            return [(slice(None), slice(None))]
        rows = max(1, AT_ONCE // row)
        return [
            (slice(item, item + 1), slice(start, start + rows))
            for item, start in product(range(batch), range(0, query_len, rows))
        ]

    def _problems(
        self, hypothesis: Hypothesis, config: AttentionConfig, weights: Weights, pieces: list[tuple[slice, slice]]
    ) -> Iterator[tuple[Problem, NDArray]]:
        """Each piece of the record as a problem, with the output that was recorded for it."""
        observed, mask = self.observed, self.observed.masks[hypothesis.mask]
        batch, query_len, _ = observed.queries.shape
        if pieces == [(slice(None), slice(None))]:
            inputs = AttentionInputs(observed.queries, observed.keys, observed.values, mask)
            yield Problem(config, weights, inputs), self.recorded
            return
        # Piece by piece, every source of the mask but the bias becomes one array.
        allowed = allowed_keys(mask, CallSizes(batch, query_len, observed.keys.shape[1]), hypothesis.heads)
        bias = None if mask.bias is None else np.broadcast_to(mask.bias, allowed.shape)
        for b, i in pieces:
            piece = AttentionMask(allowed=allowed[b, :, i], bias=None if bias is None else bias[b, :, i])
            inputs = AttentionInputs(observed.queries[b, i], observed.keys[b], observed.values[b], piece)
            yield Problem(config, weights, inputs), self.recorded[b, i]


def _worst(wanted: NDArray | None, given: NDArray) -> float:
    """The largest finite difference between two arrays."""
    assert wanted is not None
    with np.errstate(invalid="ignore"):
        error = np.abs(wanted - given)
    return float(error[np.isfinite(error)].max(initial=0.0))
