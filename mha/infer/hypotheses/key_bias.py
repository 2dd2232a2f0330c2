"""Chooses the key bias by names: it adds one number to all scores of a row, so the output does not depend on it."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile

from mha.infer.hypotheses.candidates import Candidates, Slice
from mha.infer.hypotheses.hypothesis import Hypothesis

SHOWN = 6
"""How many names of arrays that could be one are written out."""


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
    shown = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
    return None, f"any of {shown} could be one, or none"


def _analogous(weight: str, bias: str, other: str) -> str:
    """The name of the bias of the weight `other`, formed as `bias` is from `weight`; "" if that has no such form.

    >>> _analogous("query.weight", "query.bias", "key.weight")
    'key.bias'
    """
    start = _alike(weight, other)
    end = _alike(weight[start:][::-1], other[start:][::-1])
    mine, theirs = weight[start : len(weight) - end], other[start : len(other) - end]
    if not bias.startswith(weight[:start] + mine):
        return ""
    return weight[:start] + theirs + bias[start + len(mine) :]


def _alike(a: str, b: str) -> int:
    """How many characters two names have in common at their beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
