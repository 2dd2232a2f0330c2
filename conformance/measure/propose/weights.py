"""Weights: other softmaxes that give the weights that were read, with their numbers; and weights that are left out.

a_ij = f(s_i1, ..., s_in)_j:  which f, with which number, gives the weights of every layer that was asked?
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.cases.problem import Problem
from conformance.measure.designs import NO_BIASES, changed, generic
from conformance.measure.evidence import Evidence
from conformance.measure.faults import bug_of, only_at
from conformance.measure.grammar.expressions import Expression, constant, expressions_of
from conformance.measure.grammar.numbers import snapped, solve
from conformance.measure.grammar.sample import Sample, Setting
from conformance.measure.grammar.where import conditions_of_samples, parts_of
from conformance.measure.places import OF_WEIGHTS
from conformance.measure.propose.steps import at_places
from conformance.measure.read.weights import AXES, read_weights
from conformance.measure.softmax import forms
from conformance.measure.softmax.families import FAMILIES, Family
from conformance.measure.softmax.scored import Form, Make, Scored
from conformance.zoo.bug import Bug, DoesNotApply
from mha_core import AttentionConfig
from mha_core.reference import forward
from mha_core.reference.state import State, Step

MOST_SAMPLES, MOST_IN_PARTS, BISECTIONS = 6, 8, 20
"""Calls of a probe whose weights are read; softmaxes that are tried in each part; halvings of a limit."""


def softmax_bug(slug: str, make: Make, sentence: str, *, excluded: bool = False) -> Bug:
    """A bug that makes other weights of the scores. With `excluded`, excluded keys get what it makes for them too."""

    def change(state: State, beneath: Step) -> NDArray:
        weights: NDArray = beneath(state)
        if not state["scores"].size:  # nothing to normalise
            return weights

        def softmax(scores: NDArray) -> NDArray:
            found: NDArray = beneath(replace(state, arrays={**state.arrays, "scores": scores}))
            return found

        scored = Scored(state["scores"], state["allowed"], weights, Setting.of(state), softmax)
        with any_numbers:
            return scored.kept(make(scored), excluded=excluded)

    return bug_of(f"softmax-{slug}{'-of-all' if excluded else ''}", sentence, OF_WEIGHTS, "weights", change)


# Weights that were read -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Weighed:
    """Measured weights (B, H, Lq, Lk) and what they should have been made of.

    Args:
        sample: the weights as measured, and as the model gives them, in the places where they are in the model.
        scored: the scores of the model.
    """

    sample: Sample
    scored: Scored

    @property
    def lost(self) -> NDArray[np.bool_]:
        """Where a key has the weight 0 that has another in the model."""
        return (self.sample.measured == 0.0) & self.scored.allowed & (self.scored.weights > 0.0)

    def off(self, made: NDArray) -> NDArray:
        """What is missing from `made` to the measured weights; NaN where there is none counts as 0."""
        with any_numbers:
            distance = np.where(self.sample.known & (made != self.sample.measured), made - self.sample.measured, 0.0)
        return np.where(np.isnan(distance), np.inf, distance).ravel()

    def made(self, make: Make) -> NDArray:
        with any_numbers:
            return self.scored.kept(make(self.scored))

    def is_given_by(self, made: NDArray) -> bool:
        return made.shape == self.sample.measured.shape and bool((np.abs(self.off(made)) <= self.sample.tolerance).all())


def weighed(evidence: Evidence, problems: Iterable[Problem]) -> list[Weighed]:
    """The weights of each problem that can be read off."""
    found: list[Weighed] = []
    unit = min(max(1e-14, 10.0 * evidence.asker.unit), 2e-5)
    for problem in problems:
        made, measured = evidence.made_all(problem), read_weights(evidence.got, problem)
        expected = read_weights(evidence.made, problem)
        if made is None or measured is None or expected is None or not np.isfinite(measured).all():
            continue
        if np.allclose(expected, made["weights"], rtol=1e-6, atol=1e-9, equal_nan=True):
            setting = Setting(problem.config, problem.sizes, problem.inputs)
            scored = Scored.right(made["scores"], problem.allowed(), setting)
            found.append(Weighed(Sample(measured, made["weights"], AXES, setting, unit), scored))
    return found


def _readable(evidence: Evidence) -> list[Problem]:
    """Some problems of the probe: those without dropout, of each layer in turn."""
    given = [one for one in evidence.problems if one.inputs.dropout_keep is None and one.sizes.key_len]
    turns: dict[object, int] = {}
    ranked: list[tuple[int, int, Problem]] = []
    for problem in given:
        turns[problem.config] = turns.get(problem.config, -1) + 1
        ranked.append((turns[problem.config], len(ranked), problem))
    return [problem for _, _, problem in sorted(ranked, key=lambda one: one[:2])][:MOST_SAMPLES]


# What gives them --------------------------------------------------------------------------------------------


def other_weights(evidence: Evidence, longer: Sequence[Problem]) -> Iterator[Bug]:
    """Every softmax that gives the measured weights: of longer rows too, or else of the probe's problems alone.

    Only if there is none, those in places alone; and changes of the sums, of the weights and of the scores.
    """
    own, rows = weighed(evidence, _readable(evidence)), weighed(evidence, longer)
    for samples in ((*own, *rows), own):
        if not any(one.sample.differs for one in samples):
            continue
        problems = [*_readable(evidence), *(longer if len(samples) > len(own) else ())]
        found, lost = _found(samples), list(_left_out(evidence, samples))  # the latter are not verified
        yield from (*found, *lost)
        fitted = list(at_places(evidence, problems, ("sums", "weights", "kept_weights", "scores")))
        yield from fitted
        parts = [] if found or fitted else list(_by_head(samples)) or list(_in_parts(evidence, samples))
        yield from parts
        if found or fitted or (parts and not lost) or not any(one.sample.differs for one in rows):
            return


def _found(samples: Sequence[Weighed]) -> list[Bug]:
    found: list[Bug] = []
    for form in (*forms.AXES, *forms.SHIFTS):
        if all(one.is_given_by(one.made(form.make)) for one in samples):
            found.append(softmax_bug(form.name, form.make, form.words))
    for form in forms.OTHERS:
        found += _times_a_number(form, samples)
    for family in FAMILIES:
        found += _of_family(family, samples)
    return found


def _times_a_number(form: Form, samples: Sequence[Weighed]) -> Iterator[Bug]:
    numbers = []
    for one in samples:
        number = _ratio(one, one.made(form.make))
        if number is None:
            return
        numbers.append((number, one.sample.setting))
    for number in _named(numbers, samples):
        if number.words == "1":
            yield softmax_bug(form.name, form.make, form.words)
        else:
            yield softmax_bug(f"{form.name}-times-{number.slug}", _times(form.make, number), f"{form.words} All of it is times {number.words}.")


def _times(make: Make, number: Expression) -> Make:
    return lambda s: make(s) * number.at(s.setting)


def _ratio(one: Weighed, made: NDArray) -> float | None:
    """The number times which `made` is what was measured, or None."""
    measured = one.sample.measured
    if one.is_given_by(made):
        return 1.0
    good = np.isfinite(made) & one.sample.known
    with any_numbers:
        square = float(made[good] @ made[good])
        if not square or not np.isfinite(square):
            return None
        number = float(made[good] @ measured[good]) / square
    return number if number and one.is_given_by(number * made) else None


def _of_family(family: Family, samples: Sequence[Weighed]) -> Iterator[Bug]:
    """The members of a family that give every sample, their number as an expression of the sizes."""
    numbers: list[tuple[float, Setting]] = []
    for one in samples:
        if not one.sample.differs:
            continue

        number = _number_of(family, one, [number for number, _ in numbers])
        if number is None:
            return
        numbers.append((number, one.sample.setting))
    for expression in _named(numbers, samples):
        make = _member(family, expression)
        if all(one.is_given_by(one.made(make)) for one in samples):
            sentence = family.words.format(expression.words)
            yield softmax_bug(f"{family.name}-{expression.slug}", make, sentence)
            if family.name.startswith(("plus", "smoothed", "mixed")):
                said = f"{sentence} Excluded keys get it too."
                yield softmax_bug(f"{family.name}-{expression.slug}", make, said, excluded=True)


def _by_head(samples: Sequence[Weighed]) -> Iterator[Bug]:
    """The families of which each head has a number of its own, the same in every layer; one key tells none."""
    for family in FAMILIES if all(one.scored.scores.shape[-1] > 1 for one in samples) else ():
        numbers: list[float] = []
        for head in range(max(one.scored.scores.shape[1] for one in samples)):
            inside = [_of_head(one, head) for one in samples if head < one.scored.scores.shape[1]]
            found = [_number_of(family, one, numbers) for one in inside if one.sample.differs]
            if not found or None in found or np.ptp(found) > 1e-6 * max(map(abs, found)):
                break
            numbers.append(snapped(found[0], 1e-8))
        else:
            make = _member_by_head(family, np.array(numbers))
            if all(one.is_given_by(one.made(make)) for one in samples):
                words = f"a number of each head ({', '.join(f'{number:.6g}' for number in numbers)})"
                yield softmax_bug(f"{family.name}-by-head-{numbers[0]:.6g}", make, family.words.format(words))


def _of_head(one: Weighed, head: int) -> Weighed:
    """One head alone."""
    at = (slice(None), slice(head, head + 1))
    sample, scored = one.sample, one.scored
    return Weighed(
        replace(sample, measured=sample.measured[at], expected=sample.expected[at]),
        Scored.right(scored.scores[at], np.broadcast_to(scored.allowed, scored.scores.shape)[at], scored.setting),
    )


def _number_of(family: Family, one: Weighed, starts: Sequence[float]) -> float | None:
    return solve(
        lambda number: one.off(one.made(lambda s: family.make(s, number))),
        (*family.starts, *starts),
        one.sample.tolerance,
    )


def _member_by_head(family: Family, numbers: NDArray) -> Make:
    def make(s: Scored) -> NDArray:
        heads = s.scores.shape[1]
        if heads > len(numbers):
            raise DoesNotApply(f"{heads} heads; numbers of {len(numbers)} are known")
        return family.make(s, numbers[:heads, None, None])  # type: ignore[arg-type]

    return make


def _member(family: Family, number: Expression) -> Make:
    return lambda s: family.make(s, number.at(s.setting))


def _named(numbers: Sequence[tuple[float, Setting]], samples: Sequence[Weighed]) -> list[Expression]:
    """Expressions for a number, of few digits if it may be."""
    if not numbers:
        return []
    unit = samples[0].sample.unit
    close = max(1e-9, 1e4 * unit)
    first = numbers[0][0]
    if all(abs(one - first) <= close * abs(first) for one, _ in numbers):
        # Equal at all sizes: so it depends on none that differ between the samples.
        return [constant(snapped(first, close))] if abs(first) > 1e-9 else []
    return expressions_of(numbers, unit=10.0 * unit)


def _in_parts(evidence: Evidence, samples: Sequence[Weighed]) -> Iterator[Bug]:
    """The softmaxes that give a part of the weights, or those of some calls, there alone."""
    arrays = [one.sample for one in samples]
    for parts in parts_of(arrays):
        inside = []
        for one in samples:
            flags = parts[0].flags(one.sample.expected.shape, one.sample.axes, one.sample.setting)
            inside.append(replace(one, sample=one.sample.within(np.broadcast_to(flags, one.sample.expected.shape))))
        bugs = [*_found(inside), *_left_out(evidence, inside)][:MOST_IN_PARTS]
        limited = [only_at(bug, part) for bug in bugs for part in parts]
        yield from (bug for bug in limited if bug is not None)
        if bugs:
            return
    conditions = list(islice(conditions_of_samples(arrays), MOST_IN_PARTS))
    differing = [one for one in samples if one.sample.differs]
    bugs = [*_found(differing), *_left_out(evidence, differing)][:MOST_IN_PARTS] if conditions else []
    limited = [only_at(bug, condition) for bug in bugs for condition in conditions]
    yield from (bug for bug in limited if bug is not None)


# Weights that are left out ------------------------------------------------------------------------------------


def _left_out(evidence: Evidence, samples: Sequence[Weighed]) -> Iterator[Bug]:
    """Weights that are 0 below a limit, or but for the largest of a row."""
    lost = [float(weight) for one in samples for weight in one.scored.weights[one.lost & one.sample.known]]
    if not lost:
        return
    kept = [one.scored.weights[one.scored.allowed & one.sample.known & ~one.lost].min(initial=1.0) for one in samples]
    least = _highest_of(*_narrowed(evidence, max(lost), float(min(kept))))
    yield from _kept(f"at-least-{least:.6g}", f"Weights below {least:.6g} are 0", lambda s: s.weights >= least)
    below = -float(np.log(max(float(one.scored.stable[one.lost].max(initial=0.0)) for one in samples) or 1.0))
    if np.isfinite(below) and below > 0.0:
        edge = _highest_of(0.8 * below, below)
        words = f"Scores more than {edge:.6g} below the maximum get no weight"
        yield from _kept(f"within-{edge:.6g}", words, lambda s: s.scores >= s.highest - edge)
    counts = [
        (float((one.sample.measured != 0.0).sum(axis=-1)[rows].max()), one.sample.setting)
        for one in samples
        if (rows := one.lost.any(axis=-1)).any()
    ]
    for number in expressions_of(counts):
        words = f"Only the {number.words} largest weights of a row are kept"
        yield from _kept(f"top-{number.slug}", words, _top_of(number))
        yield from _kept(f"top-{number.slug}-or-equal", f"{words}, and those equal to them", _top_of(number, ties=True))
    for share, said in ((0.5, "half"), (0.25, "a quarter"), (0.75, "three quarters")):
        words = f"Only {said} of a row's weights, the largest, are kept"
        yield from _kept(f"top-share-{share:g}", words, _share(share))
    yield from _kept("at-least-mean", "Weights below the row's mean are 0", lambda s: s.weights >= 1.0 / s.count)


Kept = Callable[[Scored], "NDArray[np.bool_]"]


def _kept(slug: str, words: str, kept: Kept) -> Iterator[Bug]:
    yield softmax_bug(slug, lambda s: np.where(kept(s), s.weights, 0.0), f"{words}; the rest is left as it is.")
    said = f"{words}, and the rest is divided by its sum again."
    yield softmax_bug(f"{slug}-normalised", lambda s: forward.softmax(s.scores, s.allowed & kept(s)), said)


def _top(s: Scored, count: int, *, ties: bool = False) -> NDArray[np.bool_]:
    """The `count` largest of each row, NaN before all others; with `ties` all that are as large as the last of them."""
    ordered = np.sort(s.open, axis=-1)[..., ::-1]
    if ties:
        return s.open >= ordered[..., [min(max(count, 1), ordered.shape[-1]) - 1]]
    with_nan = np.where(np.isnan(s.open), np.inf, s.open)
    return np.argsort(np.argsort(-with_nan, axis=-1, kind="stable"), axis=-1, kind="stable") < count


def _top_of(count: Expression, *, ties: bool = False) -> Kept:
    def top(s: Scored) -> NDArray[np.bool_]:
        number = count.at(s.setting)
        if not np.isfinite(number):
            raise DoesNotApply("one over a size of 0 is no number of keys")
        return _top(s, round(number), ties=ties)

    return top


def _share(share: float) -> Kept:
    return lambda s: _top(s, max(1, int(share * s.scores.shape[-1])))


def _narrowed(evidence: Evidence, low: float, high: float) -> tuple[float, float]:
    """The limits between which a weight is left out, nearer together: two keys, their weights chosen between them."""
    if high >= 0.5:
        return low, high
    problem = _two_keys(evidence.asker.configs[0])
    made = evidence.made_all(problem)
    difference = None if made is None else np.ptp(made["scores"][0, 0, 0])
    for _ in range(BISECTIONS):
        middle = float(np.sqrt(low * high)) if low > 0.0 else high / 16.0
        if not difference or high - low <= 1e-6 * high:
            break
        factor = float(np.log((1.0 - middle) / middle) / difference)
        weights = read_weights(evidence.got, changed(problem, queries=problem.inputs.queries * factor))
        if weights is None:
            break
        low, high = (middle, high) if weights[0, 0, 0].min() == 0.0 else (low, middle)
    return low, high


@lru_cache(maxsize=64)
def _two_keys(config: AttentionConfig) -> Problem:
    """One query and two keys, without biases: the difference of the two scores is linear in the query."""
    return generic(config, seed=3, query_len=1, key_len=2, weights=NO_BIASES)


def _highest_of(low: float, high: float) -> float:
    """The number of fewest digits that is above `low` and at most `high`; of several the largest."""
    if not 0.0 <= low < high:
        return high
    for digits in range(1, 17):
        unit = 10.0 ** (np.floor(np.log10(high)) - digits + 1)
        number = float(f"{np.floor(high / unit) * unit:.{digits}g}")
        if low < number <= high:
            return number
    return high
