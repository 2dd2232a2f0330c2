"""Settings that no array shows: parts of a layer beside its projections, found from its outputs.

The search ranks readings of the arrays without them. Where none fits, the readings whose outputs come closest are
tried with one part each (or with rotary positions and a query-key norm), with the numbers that bring the outputs
closest. The record then judges them as it judges the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, permutations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha.infer.hypotheses.candidates import Candidates, Slice
from mha.infer.hypotheses.hypothesis import Hypothesis
from mha.infer.sample import Sample
from mha_core import ChunkedMask, QueryKeyNorm, QueryScale, Rotary
from mha_core.parts.query_key_norm import Order
from mha_core.parts.query_scale import SHIFTS

CLOSER = 0.5
"""A part is proposed if it brings the outputs of a sample this many times as near, or nearer."""

STEPS, FIRST_STEPS = 80, 8
"""Golden sections of an interval, after which it is as wide as float64's rounding; fewer where nothing comes of it."""

GOLDEN = (3.0 - 5.0**0.5) / 2.0

CLIPS, EPSILONS = 30, 15
"""How many limits of projections, and numbers in value norm's root, are tried before the best is refined."""

CHUNKS = 256
"""The largest size of chunks that is tried if it is no power of 2."""

USUAL = (1e-5, 1e-6, 1e-8, 1e-12)
"""Numbers in the root that models have."""

FACTORS = np.geomspace(0.2, 5.0, 25)
"""Factors of a query of which the best is refined."""

SHIFTED = 1e-3
"""How far from 1 a query's factor must be to count as another."""

DIGITS = 7
"""Most significant digits of a number that is taken in place of the nearest one."""


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


@dataclass(frozen=True, eq=False)
class _Trial:
    """A hypothesis without settings, and the sample by which some are tried."""

    found: Hypothesis
    sample: Sample
    candidates: Candidates

    def changed(self, settings: Mapping[str, Any]) -> Hypothesis:
        return replace(self.found, settings=settings, bv=None)

    def misfit(self, settings: Mapping[str, Any]) -> float:
        return self.sample.misfit(self.changed(settings), self.candidates)

    @cached_property
    def without(self) -> float:
        return self.misfit({})


def with_settings(found: Hypothesis, sample: Sample, candidates: Candidates) -> Iterator[Hypothesis]:
    """`found` with each part that brings its outputs much closer to the record's."""
    trial = _Trial(found, sample, candidates)
    for propose in (_value_scale, _value_norm, _clip, _chunks, _query_scale):
        for settings in propose(trial):
            if trial.misfit(settings) < CLOSER * trial.without:
                yield trial.changed(settings)


def with_turns_and_norms(
    found: Hypothesis, early: Sample, sample: Sample, candidates: Candidates
) -> Iterator[Hypothesis]:
    """`found` with rotary positions, a query-key norm, or both: every choice that brings its outputs about as close.

    Args:
        found, sample, candidates: as in `with_settings`.
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


def _value_scale(trial: _Trial) -> Iterator[dict[str, Any]]:
    got, wanted = (x - x.mean(axis=0) for x in (trial.sample.output(trial.found), trial.sample.y))
    size = float((got * got).sum())
    if size:
        scale = float((got * wanted).sum()) / size
        yield {"value_scale": _rounded(scale, lambda scale: trial.misfit({"value_scale": scale}), trial)}


def _value_norm(trial: _Trial) -> Iterator[dict[str, Any]]:
    """Each usual number that brings the outputs as close as any does: far below the values' squares, all look alike."""

    def at(eps: float) -> float:
        return trial.misfit({"value_norm_eps": eps})

    least = 10.0 ** _least(lambda power: at(10.0**power), np.linspace(-14.0, 0.0, EPSILONS), trial)
    usual = [eps for eps in USUAL if _as_close(at(eps), at(least), trial)]
    yield from ({"value_norm_eps": eps} for eps in usual or [_rounded(least, at, trial)])


def _clip(trial: _Trial) -> Iterator[dict[str, Any]]:
    largest = max(float(np.abs(x).max()) for x in trial.sample.projections(trial.found))
    limits = largest * np.linspace(0.0, 1.0, CLIPS + 1)[1:]

    def at(limit: float) -> float:
        return trial.misfit({"clip_qkv": limit})

    if largest:
        yield {"clip_qkv": _rounded(_least(at, limits, trial), at, trial)}


def _chunks(trial: _Trial) -> Iterator[dict[str, Any]]:
    sizes = [size for size in range(1, trial.sample.length) if size <= CHUNKS or size & (size - 1) == 0]
    if sizes:
        yield min(({"chunked_mask": ChunkedMask(size)} for size in sizes), key=trial.misfit)


def _query_scale(trial: _Trial) -> Iterator[dict[str, Any]]:
    """By the factor of each row alone, counted from that of the first position, which has none in most rules."""
    positions = trial.sample.positions(trial.found.mask)
    factors = _factors(trial.found, trial.sample, int(positions.argmin()))
    far = np.abs(np.log(factors)) > SHIFTED
    if positions.min() < 0 or not far.any():
        return
    fits = []
    for rule, shift in SHIFTS.items():
        for length in range(1, int(positions.max()) + shift + 1):
            steps = np.log1p((positions + shift) // length)
            if (steps[far] > 0.0).all():
                beta = float((steps * (factors - 1.0)).sum() / (steps * steps).sum())
                fits.append((float(np.abs(1.0 + beta * steps - factors).sum()), rule, length, beta))
    for _, rule, length, beta in sorted(fits)[:2]:

        def at(beta: float, rule: Any = rule, length: int = length) -> dict[str, Any]:
            return {"query_scale": QueryScale(rule, beta=beta, length=length)}

        near = _least(lambda beta: trial.misfit(at(beta)), beta * np.linspace(0.9, 1.1, 5), trial)
        yield at(_rounded(near, lambda beta: trial.misfit(at(beta)), trial))


def _factors(found: Hypothesis, sample: Sample, first: int) -> NDArray:
    """(n,) the factor of each row's query that brings its output closest, apart from what the first row lacks."""
    start = sample.output(found)[first] - sample.y[first]

    def errors(factors: NDArray) -> NDArray:
        return np.linalg.norm(sample.output(found, factors) - sample.y - start, axis=1)

    n = len(sample.q)
    tried = np.array([errors(np.full(n, factor)) for factor in FACTORS])
    best = np.clip(tried.argmin(axis=0), 1, len(FACTORS) - 2)
    low, high = FACTORS[best - 1], FACTORS[best + 1]
    for _ in range(STEPS // 2):
        width = GOLDEN * (high - low)
        nearer = errors(low + width) < errors(high - width)
        low, high = np.where(nearer, low, low + width), np.where(nearer, high - width, high)
    middle = (low + high) / 2
    plain = errors(np.ones(n))
    return np.where(errors(middle) < CLOSER * plain, middle, 1.0)


def _least(function: Callable[[float], float], grid: NDArray, trial: _Trial) -> float:
    """Where the misfit is least: near the best number of a grid, by golden sections, if that is any good."""
    at = int(np.argmin([function(float(x)) for x in grid]))
    low, high = float(grid[max(at - 1, 0)]), float(grid[min(at + 1, len(grid) - 1)])
    left, right = (low + GOLDEN * (high - low), high - GOLDEN * (high - low))
    of_left, of_right = function(left), function(right)
    for step in range(STEPS):
        if step == FIRST_STEPS and min(of_left, of_right) > CLOSER * trial.without:
            break
        if of_left < of_right:
            high, right, of_right = right, left, of_left
            left = low + GOLDEN * (high - low)
            of_left = function(left)
        else:
            low, left, of_left = left, right, of_right
            right = high - GOLDEN * (high - low)
            of_right = function(right)
    return (low + high) / 2


def _rounded(value: float, misfit: Callable[[float], float], trial: _Trial) -> float:
    """The number of fewest digits that brings the outputs as close as `value` does."""
    exact = misfit(value)
    if exact > CLOSER * trial.without:
        return value
    numbers = (float(f"{value:.{digits}g}") for digits in range(1, DIGITS + 1))
    return next((number for number in numbers if number and _as_close(misfit(number), exact, trial)), value)


def _as_close(misfit: float, least: float, trial: _Trial) -> bool:
    """Whether a misfit is the least one, up to what rounding of the record's numbers makes of it."""
    return misfit <= 1.05 * float(np.hypot(least, max(0.5 * trial.sample.unit, 1e-15)))
