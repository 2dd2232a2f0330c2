"""Settings that no array shows: rotary positions and a query-key norm, found from a layer's outputs.

The search ranks readings of the arrays without them. Where none fits, the readings whose outputs come closest are
tried with one or both, with the numbers that bring the outputs closest. The record then judges them as it judges the
others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, permutations, product
from typing import Any

from mha.infer.hypotheses.candidates import Candidates, Slice
from mha.infer.hypotheses.hypothesis import Hypothesis
from mha.infer.sample import Sample
from mha_core import QueryKeyNorm, Rotary
from mha_core.parts.query_key_norm import Order

CLOSER = 0.5
"""A part is proposed if it brings the outputs of a sample this many times as near, or nearer."""

BASES = (1e4, 1e5, 1.3e5, 1.5e5, 1.6e5, 2.5e5, 5e5, 1e6, 2e6, 5e6, 8e6, 1e7)
"""Bases of rotary positions that models have."""

TURNS = tuple(product((1, 2, 4), (False, True)))
"""(which part of a head's channels turn, as its divisor; whether pairs are interleaved)."""

NORM_EPSILONS = (1e-6, 1e-5)
"""Numbers in the root of a query-key norm that models have."""

MOST_NORMS = 4
"""Most arrays as wide as a head of which pairs are tried as weights of a query-key norm."""

SHAPES = 4
"""How many of the forms of rotary positions and norms that come closest are tried with every number."""

NEAR = 30.0
"""How many times the least misfit another choice of those numbers may have and still be proposed to the judge."""


def with_turns_and_norms(
    found: Hypothesis, early: Sample, sample: Sample, candidates: Candidates
) -> Iterator[Hypothesis]:
    """`found` with rotary positions, a query-key norm, or both: every choice that brings its outputs about as close.

    Args:
        found: a hypothesis without settings.
        sample, candidates: those by which settings are tried.
        early: rows of the first positions, by which the form is chosen: bases and epsilons hardly act there.
    """
    shapes = [shape for shape in _shapes(found, candidates) if shape.is_readable()]
    shapes.sort(key=lambda shape: early.misfit(shape, candidates))
    forms: dict[tuple[Any, ...], Hypothesis] = {}
    for shape in shapes:
        rotary = shape.settings.get("rotary")
        form = (rotary and rotary.layout, shape.settings.get("query_key_norm"), shape.norms, shape.bk)
        forms.setdefault(form, shape)  # one base of each
    nearest_forms = list(forms.values())[:SHAPES]
    tried = [(sample.misfit(h, candidates), h) for shape in nearest_forms for h in _with_numbers(shape)]
    nearest = NEAR * min((misfit for misfit, _ in tried), default=0.0)
    limit = min(nearest, CLOSER * sample.misfit(found, candidates))
    yield from (hypothesis for misfit, hypothesis in tried if misfit < limit)


def _shapes(found: Hypothesis, candidates: Candidates) -> Iterator[Hypothesis]:
    """Each form, with two bases and an epsilon; without a norm, with each key bias where there is a query bias."""
    d = found.head_dim
    turns: list[dict[str, Any]] = [{}]
    turns += [
        {"rotary": Rotary(width=d // part, interleaved=interleaved, base=base)}
        for part, interleaved in TURNS
        if d % (2 * part) == 0 and (d > 2 * part or not interleaved)  # one pair is the same in both
        for base in (BASES[0], BASES[-5])
    ]
    weights = [Slice(vector) for vector in candidates.vectors if vector.count == d][:MOST_NORMS]
    twice = [(weight, weight) for weight in weights if len(weight.source.names) > 1]
    biases = (None, *candidates.biases(found.k)) if found.bq is not None else (None,)
    for turn in turns:
        if turn:
            yield from (replace(found, settings=turn, bv=None, bk=bk) for bk in biases)
        # Weights that act last are multiplied by each other, so that their order says nothing.
        unordered: list[tuple[Slice, ...]] = [*combinations(weights, 2), *twice]
        pairs: list[tuple[Order, tuple[Slice, ...]]]
        pairs = [("before", norms) for norms in ([*permutations(weights, 2), *twice] if turn else unordered)]
        pairs += [("after", norms) for norms in unordered if turn]
        for order, norms in (*pairs, ("before", ())):
            norm = QueryKeyNorm(order=order, eps=NORM_EPSILONS[0], weight="shared" if norms else "none")
            yield replace(found, settings={**turn, "query_key_norm": norm}, bv=None, norms=norms)


def _with_numbers(shape: Hypothesis) -> Iterator[Hypothesis]:
    """`shape` with each base and epsilon that models have, where it has one."""
    rotary, norm = shape.settings.get("rotary"), shape.settings.get("query_key_norm")
    turns = [{"rotary": replace(rotary, base=base)} for base in BASES] if rotary else [{}]
    norms = [{"query_key_norm": replace(norm, eps=eps)} for eps in NORM_EPSILONS] if norm else [{}]
    yield from (replace(shape, settings={**turn, **normed}) for turn, normed in product(turns, norms))
