"""Biases that the sketch of a search leaves out.

Attention weights add up to 1, so a bias of the values passes through them unchanged: it and the output bias add one
vector to every row. A key bias adds one number to all scores of a row, so the output does not depend on it: it is
chosen by names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from os.path import commonprefix

import numpy as np
from numpy.typing import NDArray

from mha.infer.hypotheses.candidates import Candidates, Slice
from mha.infer.hypotheses.hypothesis import Hypothesis
from mha_core.errors import listed

SHOWN = 6
"""How many names of arrays that could be a key bias are written out."""


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


def key_bias(found: Hypothesis, candidates: Candidates) -> tuple[Slice | None, str]:
    """The array that is probably the key bias, or None; and why."""
    used = {(bias.source, bias.part) for bias in found.biases if bias is not None}
    free = [
        bias
        for bias in candidates.biases(found.k)
        if (bias.source, bias.part) not in used and replace(found, bk=bias).is_readable()
    ]
    packed = [bias for bias in free if bias.parts > 1 and any(bias.source is source for source, _ in used)]
    if packed:
        return packed[0], "by its place between the biases of queries and values"
    for letter, bias in (("q", found.bq), ("v", found.bv), ("o", found.bo)):
        if bias is None:
            continue
        weight = getattr(found, letter)
        for own in found.k.source.names:
            expected = _analogous(weight.source.names[0], bias.source.names[0], own)
            named = [one for one in free if expected in one.source.names]
            if named:
                return named[0], f"by its name: it is to {own!r} what {bias.source.names[0]!r} is to its weight"
    if not free:
        return None, "no array is left that could be one"
    if len(free) == 1 and all(bias is not None for bias in (found.bq, found.bv, found.bo)):
        return free[0], "by being the only array left of that size"
    names = list(dict.fromkeys(repr(bias.source.names[0]) for bias in free))
    return None, f"any of {listed(names, SHOWN)} could be one, or none"


def _analogous(weight: str, bias: str, other: str) -> str:
    """The name of the bias of the weight `other`, formed as `bias` is from `weight`; "" if that has no such form.

    >>> _analogous("query.weight", "query.bias", "key.weight")
    'key.bias'
    """
    start = len(commonprefix([weight, other]))  # noqa: RUF071  # of texts that are no paths
    end = len(commonprefix([weight[start:][::-1], other[start:][::-1]]))  # noqa: RUF071
    mine, theirs = weight[start : len(weight) - end], other[start : len(other) - end]
    if not bias.startswith(weight[:start] + mine):
        return ""
    return weight[:start] + theirs + bias[start + len(mine) :]
