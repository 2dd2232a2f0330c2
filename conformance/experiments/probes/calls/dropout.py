"""Dropout with a given keep-mask, and none where no mask is given.

The weights after dropout are read off the output, and those before it in the same problem without a keep-mask:

    kept_ij = a_ij keep_ij / (1 - p)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.cases.problem import Problem
from conformance.experiments.changes.fit import fit
from conformance.experiments.changes.sample import Change, Sample, Setting
from conformance.experiments.designs import generic
from conformance.experiments.lab import Lab
from conformance.experiments.measured import around, on_step
from conformance.experiments.probe import Probe
from conformance.experiments.readings.dropout import RATES, Dropped, Mask, Rate, dropped, factors, masks, rates
from conformance.experiments.readings.softmax import AXES
from conformance.experiments.view import View
from conformance.zoo.bug import Bug
from mha_core import AttentionConfig
from mha_core.reference import forward
from mha_core.reference.state import State, Step

FIX = (
    "Multiply the weights after the softmax by keep / (1 - p), element by element, and only where a keep-mask is given."
)

RATE = (0.25, 0.4, 0.3, 0.15)
"""Of each layer that is asked another one, so that what depends on it can be told."""


def propose(view: View) -> Iterator[Bug]:
    """Every other mask or number that gives the measured weights after dropout."""
    samples = dropped(view)
    if not samples:
        return
    with np.errstate(all="ignore"):
        if view.problems[0].inputs.dropout_keep is not None:
            yield from _other_masks(samples)
            yield from _over_shares(samples)
            yield from _elsewhere(samples)
            if not view.explained:
                yield from _fitted(samples)
        else:
            yield from _outside_training(samples)


def _bug(slug: str, factor: Callable[[State, NDArray], NDArray], sentence: str) -> Bug:
    """Weights times `factor(state, keep)` where a keep-mask is given."""

    def change(state: State, beneath: Step) -> NDArray:
        keep = _keep(state)
        return np.asarray(beneath(state)) if keep is None else state["weights"] * factor(state, keep)

    return around("kept_weights", f"dropout-{slug}", change, sentence, FIX)


def _keep(state: State) -> NDArray[np.bool_] | None:
    keep = state.inputs.dropout_keep
    return (
        None
        if keep is None or not state["weights"].size
        else np.broadcast_to(keep, state["weights"].shape).astype(bool)
    )


def _setting(state: State) -> Setting:
    return Setting(state.config, state.sizes)


def _other_masks(samples: Sequence[Dropped]) -> Iterator[Bug]:
    for slug, words, mask in masks():
        found = factors(samples, mask)
        if found is None:
            continue
        for inside, at in rates([(one, p) for one, _, p in found], samples[0].unit):
            for outside, other in rates([(one, p) for _, one, p in found], samples[0].unit):
                yield _masked(slug, words, mask, (inside, at), (outside, other))


def _masked(slug: str, words: str, mask: Mask, kept: tuple[str, Rate], lost: tuple[str, Rate]) -> Bug:
    def factor(state: State, keep: NDArray) -> NDArray:
        p = float(state.config.dropout)
        return np.where(mask(keep, _setting(state)), kept[1](p), lost[1](p))

    name = f"{slug}-{kept[0]}-{lost[0]}".replace(" ", "")
    return _bug(name, factor, f"Weights are multiplied by {kept[0]} where {words} is set, and by {lost[0]} elsewhere.")


def _over_shares(samples: Sequence[Dropped]) -> Iterator[Bug]:
    """The number of kept weights in place of the rate that they are kept at."""
    for axes, words in (((3,), "row"), ((2, 3), "head"), ((1, 2, 3), "item"), ((0, 1, 2, 3), "call"), ((2,), "column")):

        def share(keep: NDArray, axes: tuple[int, ...] = axes) -> NDArray:
            return np.asarray(keep / np.maximum(keep.mean(axis=axes, keepdims=True), 1e-300))

        if all(one.is_given_by(one.weights * share(one.keep)) for one in samples):
            sentence = f"Kept weights are divided by the share that is kept of a {words}, not by 1 - p."
            yield _bug(f"over-share-of-{words}", _of_keep(share), sentence)
    for name, words, total in _TOTALS:

        def over(state: State, keep: NDArray, total: Callable[[NDArray, NDArray], NDArray] = total) -> NDArray:
            return keep / _not_0(total(state["weights"], keep))

        made = [one.weights * one.keep / _not_0(total(one.weights, one.keep)) for one in samples]
        for words_of, rate in _times_rates(samples, made):
            sentence = f"Kept weights are divided by {words}, times {words_of}."
            yield _bug(f"over-{name}-{words_of}".replace(" ", ""), _scaled(over, rate), sentence)


def _of_keep(factor: Callable[[NDArray], NDArray]) -> Callable[[State, NDArray], NDArray]:
    return lambda state, keep: factor(keep)


def _fitted(samples: Sequence[Dropped]) -> Iterator[Bug]:
    """Any change of keep / (1 - p), as it is read off: a neighbour's mixed in, in some places alone, ..."""
    read = []
    for one in samples:
        with any_numbers:
            measured = np.where(one.weights > 0.0, one.measured / one.weights, np.nan)
        read.append(Sample(measured, one.keep / (1.0 - one.rate), AXES, one.setting, unit=max(1e-12, one.unit)))
    for change in fit(read):
        yield _bug(f"factor-{change.slug}", _changed(change), f"What dropout multiplies weights by is {change.words}.")


def _changed(change: Change) -> Callable[[State, NDArray], NDArray]:
    return lambda state, keep: change.apply(keep / (1.0 - state.config.dropout), AXES, _setting(state))


def _not_0(total: NDArray) -> NDArray:
    return np.where(total == 0.0, 1.0, total)


_TOTALS: tuple[tuple[str, str, Callable[[NDArray, NDArray], NDArray]], ...] = (
    ("sum", "their sum", lambda w, keep: (w * keep).sum(axis=-1, keepdims=True)),
    ("sum-of-column", "their sum over the queries", lambda w, keep: (w * keep).sum(axis=-2, keepdims=True)),
    ("norm", "the root of the sum of their squares", lambda w, keep: np.sqrt((w * w * keep).sum(-1, keepdims=True))),
    ("maximum", "the largest of them", lambda w, keep: (w * keep).max(axis=-1, keepdims=True)),
)


def _scaled(factor: Callable[[State, NDArray], NDArray], rate: Rate) -> Callable[[State, NDArray], NDArray]:
    return lambda state, keep: factor(state, keep) * rate(float(state.config.dropout))


def _times_rates(samples: Sequence[Dropped], made: Sequence[NDArray]) -> Iterator[tuple[str, Rate]]:
    """The numbers times which the arrays are the measured ones."""
    numbers = []
    for one, array in zip(samples, made, strict=True):
        square = float((array * array).sum())
        number = float((array * one.measured).sum()) / square if square else np.nan
        if not number or not one.is_given_by(number * array):
            return
        numbers.append((number, one.rate))
    yield from rates(numbers, samples[0].unit)


# Before the softmax, or elsewhere --------------------------------------------------------------------------

ON_SCORES: dict[str, tuple[str, Callable[[NDArray, NDArray, float], NDArray]]] = {
    "scores": ("Scores are multiplied by keep times {}.", lambda s, keep, c: s * keep * c),
    "scores-excluded": (
        "Dropped keys get the score -inf, the others are multiplied by {}.",
        lambda s, keep, c: np.where(keep, s * c, -np.inf),
    ),
    "scores-where-dropped": (
        "Scores of dropped keys are multiplied by {}.",
        lambda s, keep, c: np.where(keep, s, s * c),
    ),
    "scores-inverted": ("Scores are multiplied by 1 - keep times {}.", lambda s, keep, c: s * ~keep * c),
    "scores-plus": ("{} is added to the scores of kept keys.", lambda s, keep, c: s + c * keep),
}


def _elsewhere(samples: Sequence[Dropped]) -> Iterator[Bug]:
    """Dropout of the scores, before the softmax; the weights then as they are, or dropped once more."""
    for name, (words, change) in ON_SCORES.items():
        for rate_words, rate in RATES.items():
            for after in (False, True):
                yield from _before(samples, name, words.format(rate_words), _at(change, rate), rate_words, after=after)


def _at(
    change: Callable[[NDArray, NDArray, float], NDArray], rate: Rate
) -> Callable[[NDArray, NDArray, float], NDArray]:
    return lambda scores, keep, p: change(scores, keep, rate(p))


def _before(
    samples: Sequence[Dropped],
    name: str,
    words: str,
    change: Callable[[NDArray, NDArray, float], NDArray],
    rate: str,
    *,
    after: bool,
) -> Iterator[Bug]:
    one = samples[0]
    made = _softmax(change(one.scores, one.keep, one.rate)) * (one.keep / (1.0 - one.rate) if after else 1.0)
    if not one.is_given_by(made):
        return

    def changed(state: State, beneath: Step) -> NDArray:
        keep = _keep(state)
        if keep is None:
            return np.asarray(beneath(state))
        new = change(state["scores"], keep, float(state.config.dropout))
        weights = forward.softmax(np.where(np.isneginf(new), 0.0, new), state["allowed"] & ~np.isneginf(new))
        return weights * (forward.dropout_factor(state) if after else 1.0)

    slug = f"dropout-of-{name}-{rate}{'-and-weights' if after else ''}".replace(" ", "")
    sentence = f"{words} {'Then weights are dropped too.' if after else 'Weights are not dropped.'}"
    yield around("kept_weights", slug, changed, sentence, FIX, stage="scores")


def _softmax(scores: NDArray) -> NDArray:
    allowed = ~np.isneginf(scores)
    return forward.softmax(np.where(allowed, scores, 0.0), allowed)


# Without a keep-mask --------------------------------------------------------------------------------------


def _outside_training(samples: Sequence[Dropped]) -> Iterator[Bug]:
    for words, rate in _times_rates(samples, [one.weights for one in samples]):
        yield _without_mask(words, rate)


def _without_mask(words: str, rate: Rate) -> Bug:
    def change(state: State, weights: NDArray) -> NDArray:
        return weights * rate(float(state.config.dropout)) if state.inputs.dropout_keep is None else weights

    slug = f"dropout-outside-training-{words}".replace(" ", "")
    sentence = f"Weights are multiplied by {words} where no keep-mask is given, with p the rate of dropout."
    return on_step("kept_weights", slug, change, sentence, FIX)


# Problems --------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _problem(config: AttentionConfig, place: int, batch: int, query_len: int, key_len: int, training: bool) -> Problem:
    rate = RATE[place % len(RATE)]
    config = replace(config, dropout=rate)
    shape = (batch, config.num_heads, query_len, key_len)
    keep = np.random.default_rng([place, *shape]).random(shape) >= max(rate, 0.3)
    return generic(
        config, seed=11, batch=batch, query_len=query_len, key_len=key_len, dropout_keep=keep if training else None
    )


def _evaluation(lab: Lab) -> Sequence[Problem]:
    return [_problem(config, place, 1, 3, 5, False) for place, config in enumerate(lab.configs)]


def _training(lab: Lab) -> Sequence[Problem]:
    rows = [_problem(config, place, 1, 3, 5, True) for place, config in enumerate(lab.configs)]
    return [*rows, *(_problem(config, place, 1, 4, 4, True) for place, config in enumerate(lab.configs[:2]))]


def _training_items(lab: Lab) -> Sequence[Problem]:
    return [_problem(config, place, (4, 3, 5, 2)[place % 4], 3, 5, True) for place, config in enumerate(lab.configs)]


PROBES = (
    Probe(
        "dropout-evaluation",
        "A layer with a rate of dropout, and no keep-mask: nothing may be dropped.",
        r"kept_{ij} = a_{ij}",
        _evaluation,
        propose,
    ),
    Probe(
        "dropout",
        "A given keep-mask, one item: which weights are dropped, by what the others are multiplied.",
        r"kept_{ij} / a_{ij} = keep_{ij} / (1 - p)",
        _training,
        propose,
        unknown="dropout in training",
    ),
    Probe(
        "dropout-items",
        "A given keep-mask, two to five items.",
        r"kept_{bij} / a_{bij} = keep_{bij} / (1 - p)",
        _training_items,
        propose,
    ),
)
