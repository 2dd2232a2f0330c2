"""Ways: the choices of which a formulation is made; what each means is where it is read."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from conformance.calibration.softcap import CapWay, SlopeWay


@dataclass(frozen=True)
class Ways:
    """The choices of one formulation; every combination is correct.

    Args:
        order: of every sum (see arithmetic.ORDERS).
        scale: where the scale goes: the product, the queries, the keys, or its root on both.
        bias: of a projection: added to the stored product, or one term of its sum.
        layout: what is handled at a time: everything, a head, an item, a few queries, a few queries of one head
            of one item ("tiles"), or everything with the heads folded into the batch.
        groups: key heads repeated for the query heads that read them, or query heads folded into
            the queries of their key head.
        softmax: how weights and heads are computed; "two parts" joins the scores of two parts of the keys, and adds
            up their weighted sums, as a decoding step does that leaves its cache where it is.
        recompute: whether the backward direction computes the weights again, as exp(score - logsumexp).
        row_sum: D of the backward direction, from the weights (sum of P dP) or the heads (sum of dO O).
        backward: P (dP - D); P dP - P D ("split"); or through exp, sum and quotient ("chain").
        additive: tanh itself, through expm1, or added up over the hidden units one by one ("loop").
        softcap: how scores are capped (see softcap.py); "folded" needs the scale where it is
            by itself, on the product.
        slope: how a capped score is differentiated.
        packed: the three projections in one product.
        output: projected at once, or head by head.
        rotation: pair by pair, as complex numbers, as x cos + (x turned by a quarter) sin with tables of the whole
            width of a head, or as a matrix for each position.
        norm: times 1 / sqrt(mean square + eps); divided by the root; the weight folded into the factor; or by the root
            of the sum, over sqrt(n).
        norm_back: by the formula of its derivative, or through the root, the mean and the product ("chain").
        query_scale: times factors that are made in float64 and rounded; times factors of the accumulator's dtype, as
            they are ("wide"); or times such by a logarithm of base 2, rounded.
        chunks: where a query's chunk begins and ends; equal numbers of chunks; or how far a chunk reaches back from a
            query, and ahead.
        clip: two comparisons with the limit c in the storage dtype, or as it is in the accumulator's ("wide"); c times
            x / c cut off at 1 ("quotient"); or the sign times the smaller of |x| and c.
        value_scale: the scale as the storage dtype has it, as the accumulator's has it, or folded into the norm.
    """

    order: str = "blas"
    scale: Literal["scores", "queries", "keys", "both"] = "scores"
    bias: Literal["split", "first", "last"] = "split"
    layout: Literal["together", "heads", "items", "queries", "tiles", "folded"] = "together"
    groups: Literal["repeated", "folded"] = "repeated"
    softmax: Literal[
        "quotient", "reciprocal", "logsumexp", "base 2", "base 2 logsumexp", "divide last", "online", "two parts"
    ] = "quotient"
    recompute: bool = False
    row_sum: Literal["weights", "heads"] = "weights"
    backward: Literal["factored", "split", "chain"] = "factored"
    additive: Literal["tanh", "expm1", "loop"] = "tanh"
    softcap: CapWay = "divide"
    slope: SlopeWay = "chain"
    packed: bool = False
    output: Literal["concatenated", "per head"] = "concatenated"
    rotation: Literal["pairs", "complex", "full", "matrices"] = "pairs"
    norm: Literal["factor", "division", "folded", "length"] = "factor"
    norm_back: Literal["formula", "chain"] = "formula"
    query_scale: Literal["factors", "wide", "base 2"] = "factors"
    chunks: Literal["interval", "numbers", "reach"] = "interval"
    clip: Literal["stored", "wide", "quotient", "sign"] = "stored"
    value_scale: Literal["stored", "wide", "folded"] = "stored"

    def describe(self) -> str:
        """What is different from the plain way.

        >>> Ways(scale="keys", packed=True).describe()
        'scale: keys, packed: True'
        """
        changed = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        return ", ".join(f"{name}: {value}" for name, value in changed.items()) or "as the reference writes it"
