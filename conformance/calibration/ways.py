"""Ways: the choices of which a formulation is made; what each means is where it is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal


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
        packed: the three projections in one product.
        output: projected at once, or head by head.
        parts: choice of a part of attention -> its way; a module of `by_part` says what they are. Not there: the plain
            one.
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
    packed: bool = False
    output: Literal["concatenated", "per head"] = "concatenated"
    parts: Mapping[str, str] = field(default_factory=dict)

    def describe(self) -> str:
        """What is different from the plain way.

        >>> Ways(scale="keys", packed=True).describe()
        'scale: keys, packed: True'
        """
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "parts"}
        changed = {name: value for name, value in own.items() if value != getattr(Ways, name)} | dict(self.parts)
        return ", ".join(f"{name}: {value}" for name, value in changed.items()) or "as the reference writes it"
