"""The softmax: how weights follow from scores, whatever the steps after it do with them.

a_ij = exp(s_ij - m_i) / sum_k exp(s_ik - m_i)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import UNIT_ROUNDOFF
from conformance.cases.problem import Problem
from conformance.experiments.candidates.rounded import rounded
from conformance.experiments.candidates.scores.arrays import longer
from conformance.experiments.candidates.steps import change_on
from conformance.experiments.changes.expressions import Expression, expressions_of
from conformance.experiments.changes.sample import Change, Setting
from conformance.experiments.changes.softmax_families import FAMILIES, SHIFTS
from conformance.experiments.changes.softmaxes import AXES, OTHERS, Family, Form, Scored
from conformance.experiments.designs import NO_BIASES, generic
from conformance.experiments.lab import Lab
from conformance.experiments.measured import around
from conformance.experiments.probe import Probe
from conformance.experiments.readings import softmax as reading
from conformance.experiments.view import View
from conformance.zoo.bug import Bug, DoesNotApply
from mha_core import AttentionConfig, reference
from mha_core.dtypes import round_to
from mha_core.reference.state import State, Step

FIX = "Weights are exp(score - maximum of the row) over their sum over the row's allowed keys, and nothing else."

Make = Callable[[Scored], NDArray]


def propose(view: View) -> Iterator[Bug]:
    """Every softmax that gives the measured weights: of longer rows too, or else of the probe's problems alone."""
    own = reading.weighed(view, reading.readable(view))
    further = reading.weighed(view, (*_rows(view.lab), *longer(view.lab)))
    for samples in ((*own, *further), own):
        found = _found(view, samples) if any(one.sample.differs for one in samples) else []
        yield from found
        if found or not any(one.sample.differs for one in further):
            return


def _found(view: View, samples: Sequence[reading.Weighed]) -> list[Bug]:
    found: list[Bug] = []
    for form in reading.matching(samples, (*AXES, *SHIFTS)):
        found.append(softmax_bug(form.name, form.make, form.words))
    for form, expression in reading.matching_forms(samples, OTHERS):
        found += _form(form, expression)
    for family, expression in reading.matching_families(samples, FAMILIES):
        found += _member(family, expression)
    for change in reading.matching_changes(samples):
        found += [_changed(change), change_on("weights", change), change_on("kept_weights", change)]
    found += [_other_sums(change, stable=stable) for change, stable in reading.matching_sums(samples)]
    found += _left_out(view, samples)
    found += _rounded(samples)
    return found


def softmax_bug(slug: str, make: Make, sentence: str, *, excluded: bool = False) -> Bug:
    """A bug that makes other weights of the scores. With `excluded`, excluded keys get what it makes for them too."""

    def change(state: State, beneath: Step) -> Any:
        if not state["scores"].size:  # nothing to normalise
            return beneath(state)

        def softmax(scores: NDArray) -> Any:
            return beneath(replace(state, arrays={**state.arrays, "scores": scores}))

        setting = Setting(state.config, state.sizes)
        scored = Scored(state["scores"], state["allowed"], beneath(state), setting, softmax)
        with np.errstate(all="ignore"):
            return scored.kept(make(scored), excluded=excluded)

    return around("weights", f"softmax-{slug}{'-of-all' if excluded else ''}", change, sentence, FIX)


def _form(form: Form, expression: Expression) -> Iterator[Bug]:
    if expression.words == "1":
        yield softmax_bug(form.name, form.make, form.words)
    else:
        slug = f"{form.name}-times-{expression.words.replace(' ', '')}"
        yield softmax_bug(
            slug,
            lambda s: form.make(s) * expression.at(s.setting),
            f"{form.words} All of it is times {expression.words}.",
        )


def _member(family: Family, expression: Expression) -> Iterator[Bug]:
    slug = f"{family.name}-{expression.words.replace(' ', '')}"
    sentence = family.words.format(expression.words)

    def make(s: Scored) -> NDArray:
        return family.make(s, expression.at(s.setting))

    yield softmax_bug(slug, make, sentence)
    if family.name.startswith(("plus", "smoothed", "mixed")):
        yield softmax_bug(slug, make, f"{sentence} Excluded keys get it too.", excluded=True)


def _changed(change: Change) -> Bug:
    return softmax_bug(
        f"weights-{change.slug}",
        lambda s: change.apply(s.weights, reading.AXES, s.setting),
        f"Weights are the definition's {change.words}.",
        excluded=True,
    )


def _other_sums(change: Change, *, stable: bool) -> Bug:
    return softmax_bug(
        f"sums-{change.slug}{'-stable' if stable else ''}",
        lambda s: reading.over_other_sums(s, change, stable=stable),
        f"Exponentials are divided by the sums of other rows: those of the definition {change.words}.",
    )


# Weights that are left out -------------------------------------------------------------------------


def _top(s: Scored, count: int) -> NDArray[np.bool_]:
    """The `count` largest of each row."""
    ranks = np.argsort(np.argsort(-s.open, axis=-1, kind="stable"), axis=-1, kind="stable")
    return ranks < count


def _left_out(view: View, samples: Sequence[reading.Weighed]) -> Iterator[Bug]:
    limits = reading.narrowed(view, reading.left_out(samples))
    if limits is None:
        return
    least = reading.roundest(*limits)
    yield from _kept(f"at-least-{least:.6g}", f"Weights below {least:.6g} are 0", lambda s: s.weights >= least)
    below = -float(np.log(_relative(samples)))
    if np.isfinite(below):
        edge = reading.roundest(*sorted((below * 0.8, below)))
        yield from _kept(
            f"within-{edge:.6g}",
            f"Scores more than {edge:.6g} below the maximum get no weight",
            lambda s: s.scores >= s.highest - edge,
        )
    counts = reading.most_kept(samples)
    for expression in expressions_of(counts):
        slug = f"top-{expression.words.replace(' ', '')}"
        yield from _kept(slug, f"Only the {expression.words} largest weights of a row are kept", _top_of(expression))
    for share, words in ((0.5, "half"), (0.25, "a quarter"), (0.75, "three quarters")):
        yield from _kept(
            f"top-share-{share:g}", f"Only {words} of a row's weights, the largest, are kept", _share(share)
        )
    yield from _kept("at-least-mean", "Weights below the row's mean are 0", lambda s: s.weights >= 1.0 / s.count)


def _top_of(count: Expression) -> Callable[[Scored], NDArray[np.bool_]]:
    def top(s: Scored) -> NDArray[np.bool_]:
        number = count.at(s.setting)
        if not np.isfinite(number):
            raise DoesNotApply("one over a size of 0 is no number of keys")
        return _top(s, round(number))

    return top


def _share(share: float) -> Callable[[Scored], NDArray[np.bool_]]:
    return lambda s: _top(s, max(1, int(share * s.scores.shape[-1])))


def _relative(samples: Sequence[reading.Weighed]) -> float:
    """The largest exponential less the maximum that got no weight."""
    lost = [
        float(one.scored.stable[(one.sample.measured == 0.0) & one.scored.allowed].max(initial=0.0)) for one in samples
    ]
    return max(lost) or 1.0


def _kept(slug: str, words: str, kept: Callable[[Scored], NDArray[np.bool_]]) -> Iterator[Bug]:
    yield softmax_bug(slug, lambda s: np.where(kept(s), s.weights, 0.0), f"{words}; the rest is left as it is.")
    yield softmax_bug(
        f"{slug}-normalised",
        lambda s: s.normalised(np.where(kept(s), s.weights, 0.0)),
        f"{words}, and the rest is divided by its sum again.",
    )


# Weights on a grid ---------------------------------------------------------------------------------

LEVELS = (
    4, 8, 10, 15, 16, 31, 32, 63, 64, 100, 127, 128, 255, 256, 511, 512,
    1000, 1023, 1024, 4096, 10000, 32767, 65535, 65536,
)  # fmt: skip

FORMATS = ("float32", "float16", "bfloat16")


TO_INTEGER: tuple[tuple[str, str, Callable[[NDArray], NDArray]], ...] = (
    ("rounded", "rounded to", np.round),
    ("floored", "cut off to", np.floor),
    ("ceiled", "rounded up to", np.ceil),
)


def _rounded(samples: Sequence[reading.Weighed]) -> Iterator[Bug]:
    forms = [form for levels in LEVELS for form in _multiples(levels)]
    forms += [form for dtype in FORMATS for form in _narrow(dtype)]
    for form in reading.matching(samples, forms):
        yield softmax_bug(form.name, form.make, form.words)


def _multiples(n: int) -> Iterator[Form]:
    for name, words, to_integer in TO_INTEGER:
        yield Form(f"{name}-to-{n}", f"Weights are {words} multiples of 1 / {n}.", _on_grid(n, to_integer))
        sentence = f"Weights are {words} multiples of 1 / {n} of the row's largest."
        yield Form(f"{name}-to-{n}-of-row", sentence, _on_grid(n, to_integer, of_row=True))


def _on_grid(n: int, to_integer: Callable[[NDArray], NDArray], *, of_row: bool = False) -> Make:
    def make(s: Scored) -> NDArray:
        unit = s.weights.max(axis=-1, keepdims=True) / n if of_row else 1.0 / n
        with np.errstate(all="ignore"):
            return np.asarray(to_integer(s.weights / unit) * unit)

    return make


def _narrow(dtype: str) -> Iterator[Form]:
    def r(x: NDArray) -> NDArray:
        return round_to(x, dtype).astype(np.float64)

    def in_all(s: Scored) -> NDArray:
        exponentials = r(np.exp(r(r(s.scores) - r(s.highest))))
        return r(exponentials / r(exponentials.sum(axis=-1, keepdims=True)))

    makes: dict[str, tuple[str, Make]] = {
        "weights": ("Weights", lambda s: r(s.weights)),
        "exponentials": ("Exponentials", lambda s: r(s.stable) / s.stable_sum),
        "terms": ("Exponentials, also those of the sum,", lambda s: s.normalised(r(s.stable))),
        "sums": ("The sums of exponentials", lambda s: s.stable / r(s.stable_sum)),
        "scores": ("Scores", lambda s: s.softmax(r(s.scores))),
        "differences": ("Scores less their maximum", lambda s: s.normalised(np.exp(r(s.scores - s.highest)))),
        "scores-and-weights": ("Scores and weights", lambda s: r(s.softmax(r(s.scores)))),
        "all": ("Scores, exponentials, sums and weights", in_all),
    }
    for name, (words, make) in makes.items():
        yield Form(f"{name}-in-{dtype}", f"{words} are rounded to {dtype}.", make)


# Problems ------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _rows_of(config: AttentionConfig) -> tuple[Problem, ...]:
    return tuple(generic(config, seed=7, query_len=q, key_len=k, weights=NO_BIASES) for q, k in ((3, 5), (4, 7)))


def _rows(lab: Lab) -> list[Problem]:
    return [_rows_of(config)[1] for config in lab.configs[:3]]


def _longer(lab: Lab) -> Sequence[Problem]:
    return [_rows_of(config)[1] for config in lab.configs]


def far(lab: Lab) -> float:
    """A score whose exponential overflows where the subject computes its softmax."""
    return 900.0 if lab.unit <= UNIT_ROUNDOFF["float64"] else 120.0


def _of_size(config: Any, size: float, seed: int) -> Problem:
    """A problem of 4 queries whose largest scores are about 0.1, 3, size / 8 and size."""
    problem = generic(config, seed=seed, query_len=4, key_len=7, weights=NO_BIASES)
    trace_scores = np.abs(_scores(problem)).max(axis=(1, 3))[:, :, None]  # (B, Lq, 1)
    wanted = np.array([0.1, 3.0, size / 8.0, size])[None, :, None]
    return generic(
        config,
        seed=seed,
        query_len=4,
        key_len=7,
        weights=NO_BIASES,
        queries=problem.inputs.queries * wanted / trace_scores,
    )


def _scores(problem: Problem) -> NDArray:
    return reference.run(problem.config, problem.weights, problem.inputs).scores  # type: ignore[return-value]


def _moderate(lab: Lab) -> Sequence[Problem]:
    return [_of_size(config, 30.0, 8) for config in lab.configs]


def _large(lab: Lab) -> Sequence[Problem]:
    return [_of_size(config, far(lab), 9) for config in lab.configs]


def _rounded_or_other(view: View) -> Iterator[Bug]:
    """Roundings of any step, which show everywhere, and other softmaxes."""
    yield from rounded(view)
    yield from propose(view)


PROBES = (
    Probe(
        "softmax",
        "More keys, without biases or mask: sums, other functions, temperatures, weights that are left out or rounded.",
        r"a_{ij} = f(s_{i1}, \ldots, s_{in})_j \text{ with } f = \mathrm{softmax}?",
        _longer,
        _rounded_or_other,
        everywhere=True,
    ),
    Probe(
        "softmax-moderate",
        "Rows of scores up to 0.1, 3, 4 and 30: bounds of scores, small weights that are left out.",
        r"\log a_{ij} - \log a_{ik} = s_{ij} - s_{ik} \text{ down to } a \approx e^{-60}",
        _moderate,
        propose,
    ),
    Probe(
        "softmax-large",
        "Scores beyond where exp overflows, in some rows: which maximum is subtracted.",
        r"e^{s_{ij} - m_i} \le 1 \text{ if } m_i = \max_k s_{ik}",
        _large,
        propose,
    ),
)
