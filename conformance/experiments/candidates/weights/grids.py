"""Weights, exponentials or scores on a grid: multiples of a number, or numbers of a narrow format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.experiments.candidates.weights.bugs import Make, softmax_bug
from conformance.experiments.changes.softmaxes import Form, Scored
from conformance.experiments.readings import softmax as reading
from conformance.zoo.bug import Bug
from mha_core.dtypes import round_to

LEVELS = (
    4,
    8,
    10,
    15,
    16,
    31,
    32,
    63,
    64,
    100,
    127,
    128,
    255,
    256,
    511,
    512,
    1000,
    1023,
    1024,
    4096,
    10000,
    32767,
    65535,
    65536,
)

FORMATS = ("float32", "float16", "bfloat16")


TO_INTEGER: tuple[tuple[str, str, Callable[[NDArray], NDArray]], ...] = (
    ("rounded", "rounded to", np.round),
    ("floored", "cut off to", np.floor),
    ("ceiled", "rounded up to", np.ceil),
)


def on_grids(samples: Sequence[reading.Weighed]) -> Iterator[Bug]:
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
        with any_numbers:
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
