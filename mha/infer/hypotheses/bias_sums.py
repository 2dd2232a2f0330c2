"""The vector that value and output biases add to every output row, for each choice of the two biases.

Attention weights add up to 1, so a bias of the values passes through them unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mha.infer.hypotheses.candidates import Candidates, Slice
from mha.infer.hypotheses.hypothesis import Hypothesis


def constants(found: Hypothesis, candidates: Candidates) -> Iterator[tuple[Hypothesis, NDArray]]:
    """`found` with each choice of value and output biases, and the vector (Do,) that they add; first without biases."""
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
