"""The number of a family that makes a model's scores those that were measured, by Gauss and Newton's method.

Scores are linear in most numbers, and then the first step is exact. Two numbers of different families are found
together in the same way, after least squares over all pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.experiments.candidates.scores.families import Family, Number, no_detail
from conformance.experiments.candidates.scores.places import SCORES, SIMILARITY, UNSCALED, setting_of
from conformance.experiments.candidates.scores.target import Target
from conformance.experiments.changes.expressions import expressions_of
from conformance.experiments.changes.sample import Setting
from conformance.experiments.linear import least_squares
from conformance.zoo.bug import Bug
from mha_core import AttentionConfig

LEFT = 1e-6
"""Of the difference, what a family may leave before its number is looked for in every layer; 1 is all of it."""

SMALL = 0.0625
STEPS = 14
PROMISING = 8
"""Families whose number is looked for in several steps, and pairs of families that are tried."""


def measured_numbers(
    targets: Sequence[Target], families: Sequence[Family], *, pairs: bool = True
) -> Iterator[Bug | tuple[Bug, ...]]:
    """The families, each with its number, that give what was measured of every target; else such pairs of them."""
    if not targets:
        return
    first = targets[0]
    screened = _screened(first, families)
    singles = [(family,) for family in _singles(first, screened) or _promising(first, screened, families)]
    whole = list(_everywhere(targets, singles))
    yield from (bugs[0] for bugs in whole)
    if pairs and not whole:
        yield from _everywhere(targets, _pairs(first, screened))


Screened = tuple[Family, NDArray]


def _screened(target: Target, families: Sequence[Family]) -> list[Screened]:
    """Each family that has a neutral number, with the change of the scores by SMALL more."""
    before = target.off()
    found = []
    for family in families:
        if family.neutral is None or before is None:
            continue
        off = target.off(family.at(family.neutral + SMALL))
        if off is not None and off.shape == before.shape:
            change = before - off
            if np.abs(change).max(initial=0.0) > 1e-9 * target.size:
                found.append((family, change))
    return found


def _rest(before: NDArray, screened: Sequence[Screened]) -> NDArray:
    """The part of a difference that each family leaves, if scores are linear in its number."""
    changes = np.array([change for _, change in screened]).reshape(len(screened), -1)
    numbers = changes @ before / (changes * changes).sum(axis=1)
    found: NDArray = np.linalg.norm(before - numbers[:, None] * changes, axis=1) / np.linalg.norm(before)
    return found


def _singles(target: Target, screened: Sequence[Screened]) -> list[Family]:
    """Those that leave nothing."""
    before = target.off()
    if before is None or not screened:
        return []
    return [family for (family, _), rest in zip(screened, _rest(before, screened), strict=True) if rest < LEFT]


def _promising(target: Target, screened: Sequence[Screened], families: Sequence[Family]) -> list[Family]:
    """Those that leave the least, and those whose number is found only in several steps."""
    before = target.off()
    found = [family for family in families if family.starts]
    if before is not None and screened:
        rest = _rest(before, screened)
        found += [screened[place][0] for place in np.argsort(rest, kind="stable")[:PROMISING] if rest[place] < 0.3]
    return found


def _left(before: NDArray, changes: NDArray) -> float:
    """The part of a difference that no multiples of some changes make up."""
    numbers, _ = least_squares(changes.T, before)
    return float(np.linalg.norm(before - numbers @ changes) / np.linalg.norm(before))


def _pairs(target: Target, screened: Sequence[Screened]) -> Sequence[tuple[Family, ...]]:
    """The pairs of families that leave the least, if scores are linear in both numbers."""
    before = target.off()
    if before is None or len(screened) < 2:
        return []
    changes = np.stack([change / np.linalg.norm(change) for _, change in screened])
    gram, along = changes @ changes.T, changes @ before
    with any_numbers:
        rest = 1.0 - gram**2
        explained = (along[:, None] ** 2 + along**2 - 2.0 * gram * along[:, None] * along) / rest
    explained[(rest < 1e-6) | ~np.isfinite(explained)] = 0.0
    best = np.argsort(-np.triu(explained, 1), axis=None, kind="stable")[: 4 * PROMISING]
    found: list[tuple[Family, ...]] = []
    for a, b in zip(*np.unravel_index(best, explained.shape), strict=True):
        if explained[a, b] > 0.0 and _left(before, changes[[a, b]]) < 1e-5:
            found.append((screened[a][0], screened[b][0]))
    return found[:PROMISING]


def _everywhere(targets: Sequence[Target], choices: Sequence[tuple[Family, ...]]) -> Iterator[tuple[Bug, ...]]:
    for families in choices:
        starts = np.stack(np.meshgrid(*(family.begin for family in families))).reshape(len(families), -1).T
        solved: list[NDArray] = []
        for target in targets:
            numbers = next((found for start in starts if (found := solve(target, families, start)) is not None), None)
            if numbers is None:
                break
            solved.append(np.where([family.even for family in families], np.abs(numbers), numbers))
        else:
            yield from _bugs(targets, families, np.array(solved))


def _bugs(targets: Sequence[Target], families: tuple[Family, ...], solved: NDArray) -> Iterator[tuple[Bug, ...]]:
    """The families with their numbers named: each, if there are several names, with the first of the others."""
    unit = targets[0].view.lab.unit
    names = [
        list(islice(named([(float(number), t.setting) for number, t in zip(column, targets, strict=True)], unit), 4))
        for column in solved.T
    ]
    if not all(names):
        return
    for place, family_names in enumerate(names):
        for choice in family_names if not place else family_names[1:]:
            chosen = [choice if other == place else names[other][0] for other in range(len(names))]
            for alike in _alike(families):
                yield tuple(
                    family.bug(number, told, family.detail(float(measured), targets[0].setting))
                    for family, (told, number), measured in zip(alike, chosen, solved[0], strict=True)
                )


def _alike(families: tuple[Family, ...]) -> Iterator[tuple[Family, ...]]:
    """The families; and one alone at places that differ from its own with a softcap or another score alone."""
    yield families
    if len(families) == 1 and families[0].place == SIMILARITY:
        for place in (SCORES, SCALED, UNCAPPED):
            yield (replace(families[0], place=place, detail=families[0].detail if place is SCALED else no_detail),)


SCALED = replace(  # a step of its own, so that it is followed beside the factor of all scores
    UNSCALED,
    label="scaled-",
    when=lambda state: state.config.score == "scaled_dot",
    name="With a scale, scores",
)
UNCAPPED = replace(
    SCORES, label="uncapped-", when=lambda state: state.config.softcap is None, name="Without a softcap, scores"
)


def solve(target: Target, families: Sequence[Family], start: NDArray) -> NDArray | None:
    """The numbers with which the families together give what was measured; None if none were found."""

    def off(numbers: NDArray) -> NDArray | None:
        return target.off(*(family.at(float(number)) for family, number in zip(families, numbers, strict=True)))

    numbers = np.array(start, np.float64)
    now = off(numbers)
    for step in range(STEPS):
        if now is None or not now.size:
            return None
        width = 0.25 if not step else 1e-6
        columns = []
        for place in range(len(numbers)):
            moved = numbers.copy()
            moved[place] += width * max(1.0, abs(moved[place]))
            changed = off(moved)
            if changed is None or changed.shape != now.shape:
                return None
            columns.append((now - changed) / (moved[place] - numbers[place]))
        forward, _ = least_squares(np.stack(columns, axis=1), now)
        size = np.linalg.norm(now)
        for shorter in (1.0, 0.5, 0.2, 0.05):
            after = off(numbers + shorter * forward)
            if after is not None and after.shape == now.shape and np.linalg.norm(after) < size:
                numbers, now = numbers + shorter * forward, after
                break
        else:
            break
        if step > 2 and np.linalg.norm(now) > 0.5 * size and np.abs(now).max() > target.enough:
            break
    return numbers if now is not None and np.abs(now).max(initial=0.0) <= target.enough else None


def named(numbers: Sequence[tuple[float, Setting]], unit: float) -> Iterator[tuple[str, Number]]:
    """What numbers measured at several sizes may be: (words, the number as a function of the State)."""
    for words, (base, has) in BASES.items():
        if all(has(setting.config) for _, setting in numbers):
            over = [(_round(number / base(setting.config), unit), setting) for number, setting in numbers]
            for expression in expressions_of(over, unit=10 * unit):
                if words and not expression.words.replace(".", "").lstrip("-").isdigit():
                    continue  # a form of sizes, times one of the config: one too many
                told = " * ".join(part for part in (expression.words, words) if part and part != "1") or "1"
                yield told, _product(expression.at, base)


def _round(number: float, unit: float) -> float:
    """The number as an integer, if it is that within its error; 0 above all, of which every error is too large."""
    whole = float(round(number))
    return whole if abs(number - whole) <= max(1e-9, 1e3 * unit) else number


Base = Callable[[AttentionConfig], float]


def _product(at: Callable[[Setting], float], base: Base) -> Number:
    return lambda state: at(setting_of(state)) * base(state.config)


def _scale(power: float) -> Base:
    return lambda config: math.copysign(abs(config.softmax_scale) ** power, config.softmax_scale)


def _cap(power: float) -> Base:
    return lambda config: float(config.softcap or 1.0) ** power


def _hidden(power: float) -> Base:
    return lambda config: float(config.score_dim or 1.0) ** power


POWERS = (("{}", 1.0), ("1 / {}", -1.0), ("{}^2", 2.0), ("1 / {}^2", -2.0), ("sqrt({})", 0.5), ("1 / sqrt({})", -0.5))

BASES: dict[str, tuple[Base, Callable[[AttentionConfig], bool]]] = {
    "": (lambda config: 1.0, lambda config: True),
    **{words.format("scale"): (_scale(power), lambda config: bool(config.scale)) for words, power in POWERS},
    **{
        words.format("score_dim"): (_hidden(power), lambda config: config.score_dim is not None)
        for words, power in (("1 / sqrt({})", -0.5), ("1 / {}", -1.0), ("sqrt({})", 0.5))
    },
    **{words.format("softcap"): (_cap(power), lambda config: config.softcap is not None) for words, power in POWERS},
}
"""Numbers of the config on which a measured one may depend besides sizes, and whether a config has them."""
