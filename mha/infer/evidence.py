"""Judges a hypothesis: whether it gives the recorded output within the computed bound, and with which biases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import Precision
from conformance.cases.problem import Problem
from conformance.judging.expected import answer
from mha.infer.hypotheses.biases import constants
from mha.infer.hypotheses.candidates import Candidates
from mha.infer.hypotheses.hypothesis import Hypothesis
from mha.infer.observed import Observed
from mha_core import AttentionInputs, AttentionMask, Trace
from mha_core.dtypes import storage_dtype
from mha_core.reference import pipeline as reference

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
        worst, error, furthest = 0.0, 0.0, 0.0
        problem = self._problem(hypothesis)
        every = list(pieces(problem, problem.config.num_heads * problem.config.value_head_dim))
        spread_out = np.unique(np.linspace(0, len(every) - 1, MOST_PIECES).astype(int))
        for piece in [every[i] for i in spread_out]:
            wanted = answer(piece, self.precision)
            output = piece.recorded["output"]
            ratios, _ = wanted.judge(Trace(output=output), self.precision.storage)
            worst = max(worst, ratios["output"])
            furthest = max(furthest, float(wanted.allowed_error["output"].max(initial=0.0)))
            error = max(error, _worst(wanted.trace.output, output))
            if worst > HOPELESS:
                break
        if len(spread_out) < len(every) and worst <= 1.0:
            error = _worst(self._output(hypothesis)[0], self.recorded)
            worst = max(worst, error / furthest if furthest else np.inf)
        return Fit(hypothesis, worst, error)


def pieces(problem: Problem, each: int) -> Iterator[Problem]:
    """The problem in parts of some batch items and queries, so that what is computed of one fits into memory.

    Args:
        problem: with what was recorded of its output, weights and heads.
        each: for each query and key, how many elements the largest array has.
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


def _worst(wanted: NDArray | None, given: NDArray) -> float:
    """The largest finite difference between two arrays."""
    assert wanted is not None
    with np.errstate(invalid="ignore"):
        error = np.abs(wanted - given)
    return float(error[np.isfinite(error)].max(initial=0.0))
