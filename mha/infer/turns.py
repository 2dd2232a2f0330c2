"""Rotary positions, which no array shows.

The search ranks readings of the arrays without them, by rows of the first positions, which turn least. Where none
fits, the closest readings are tried with each form of rotary positions, and with the bases that models have.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from mha.infer.arrays import Candidates
from mha.infer.hypothesis import Hypothesis
from mha.infer.sample import Sample
from mha_core import Rotary

BASES = (1e4, 1e5, 1.3e5, 1.5e5, 1.6e5, 2.5e5, 5e5, 1e6, 2e6, 5e6, 8e6, 1e7)
"""Bases of rotary positions that models have."""

FORMS = tuple(product((1, 2, 4), (False, True)))
"""(which part of a head's channels turn, as its divisor; True for interleaved pairs)."""

CLOSER = 0.5
"""A form is proposed if it brings the outputs of a sample this many times as near, or nearer."""

NEAREST = 3
"""How many of the forms that come closest are tried with every base."""

NEAR = 30.0
"""How many times the least misfit another base may have and still be proposed to the judge."""


def with_rotary(found: Hypothesis, early: Sample, sample: Sample, candidates: Candidates) -> Iterator[Hypothesis]:
    """Yield `found` with rotary positions, for each form (which channels are pairs) and base that fits nearly best.

    Args:
        found: a hypothesis without rotary positions.
        early: queries at the first positions, where the base hardly matters; they choose the form.
        sample: more queries; they choose the base.
        candidates: the arrays, for a key bias, which changes the output of a layer with rotary positions.
    """
    d = found.head_dim
    keys = (None, *candidates.biases(found.k)) if found.bq is not None else (None,)
    shapes = [
        replace(found, rotary=Rotary(width=d // part, interleaved=interleaved, base=base), bk=bias)
        for part, interleaved in FORMS
        if d % (2 * part) == 0 and (d > 2 * part or not interleaved)  # one pair is the same in both
        for bias in keys
        for base in (BASES[0], BASES[-5])
    ]
    shapes = sorted((one for one in shapes if one.is_readable()), key=early.misfit)
    forms = {(one.rotary and one.rotary.layout, one.bk): one for one in reversed(shapes)}  # one base of each
    nearest = sorted(forms.values(), key=early.misfit)[:NEAREST]
    tried = [
        (sample.misfit(one), one)
        for shape in nearest
        for base in BASES
        for one in (replace(shape, rotary=replace(shape.rotary, base=base) if shape.rotary else None),)
    ]
    limit = min(NEAR * min((misfit for misfit, _ in tried), default=0.0), CLOSER * sample.misfit(found))
    yield from (one for misfit, one in tried if misfit < limit)
