"""Biases that the sketch of a search leaves out.

Attention weights add up to 1, so a bias of the values passes through them unchanged: it and the output bias add one
vector to every row. A key bias adds one number to all scores of a row, so the output does not depend on it (without
rotary positions): it is chosen by its place in a pack.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mha.infer.arrays import Candidates, Slice
from mha.infer.hypothesis import Hypothesis
from mha_core.errors import listed

SHOWN = 6
"""How many names of arrays that could be a key bias are written out."""


def constants(found: Hypothesis, candidates: Candidates) -> Iterator[tuple[Hypothesis, NDArray]]:
    """Yield (hypothesis, vector) for each choice of value and output biases; the vector (Do,) is what they add.

    The first choice is no bias.
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
    """Return (the slice that is probably the key bias, or None; the reason for that, in words)."""
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
