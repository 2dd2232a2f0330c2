"""What a softmax gives in rows of each kind: with finite scores, without a key, with a NaN.

Each kind has outcomes, a sentence and the weights that it speaks of. A sentence is said if all rows of its kind have
these weights in every case, and all of them only if together they explain every row that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from mha.learn.bench import bench, distance
from mha.learn.exercise import StepExercise

FILLS: tuple[float, ...] = (
    *(0.0, -1e2, -1e3, -1e4, -32768.0, -1e5, -1e6, -1e7, -1e8, -1e9, -(2.0**32), -1e10, -1e12, -1e15, -1e18, -1e20),
    *(-1e30, float(np.finfo(np.float32).min), -1e100, -1e300, float(np.finfo(np.float64).min)),
)
"""Numbers that people write for minus infinity."""

NEAR = 1e-9

SAME = 0.1
"""How near, relative to each other, what rows say of a number must be that their sums show."""

OWN_MAXIMUM = "Subtract from each row its own: scores.max(axis=-1, keepdims=True)."
WHERE = "np.where(allowed, weights, 0)"


@dataclass(frozen=True)
class Call:
    """One case: what a softmax gets, what it gives, and in which rows that is wrong, bool (...)."""

    scores: NDArray
    allowed: NDArray
    made: NDArray
    wrong: NDArray


Outcome: TypeAlias = tuple[str, Callable[[Call], NDArray]]
"""A sentence, and the weights in a call of which it is true."""


def softmax(scores: NDArray, over: int | tuple[int, ...] | None = -1) -> NDArray:
    """The softmax of each row; `over` are the axes of the maximum."""
    return shares(np.exp(scores - scores.max(over, keepdims=True)))


def shares(powers: NDArray) -> NDArray:
    """Each number as a share of its row."""
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def masked(call: Call) -> NDArray:
    return np.where(call.allowed, call.scores, -np.inf)


def opened(call: Call) -> NDArray:
    """The scores, 0 where a key is masked."""
    return np.where(call.allowed, call.scores, 0.0)


def _no_nan(call: Call) -> NDArray:
    return np.nan_to_num(softmax(masked(call)))


NUMBERS: tuple[Outcome, ...] = (
    (
        f"The maximum is taken over the whole matrix, not over each row: rows far below it become 0 / 0. {OWN_MAXIMUM}",
        lambda call: softmax(masked(call), (-2, -1)),
    ),
    (
        f"The maximum is taken over each column, not over each row. {OWN_MAXIMUM}",
        lambda call: softmax(masked(call), -2),
    ),
    (
        "The mean of the row is subtracted, and not its maximum: the exponential of the largest score can still be "
        "infinite.",
        lambda call: shares(
            np.exp(masked(call) - opened(call).sum(-1, keepdims=True) / call.allowed.sum(-1, keepdims=True))
        ),
    ),
    (
        "Scores are divided by the largest of their row. It must be subtracted.",
        lambda call: shares(np.exp(masked(call) / masked(call).max(-1, keepdims=True))),
    ),
    (
        "Scores are divided by their sum, and no exponential is taken first.",
        lambda call: shares(opened(call)),
    ),
    (
        "Negative scores are set to 0 and the others divided by their sum. A softmax takes exponentials first.",
        lambda call: shares(np.maximum(opened(call), 0.0)),
    ),
    (
        "Masked scores become the smallest score of all, and not minus infinity: a masked key still counts.",
        lambda call: softmax(np.where(call.allowed, call.scores, call.scores.min())),
    ),
    (
        "Masked scores become the smallest score of their row, and not minus infinity: a masked key still counts.",
        lambda call: softmax(np.where(call.allowed, call.scores, call.scores.min(-1, keepdims=True))),
    ),
    (
        "True is taken for masked, and False for allowed: True says that the query may attend to the key.",
        lambda call: softmax(np.where(call.allowed, -np.inf, call.scores)),
    ),
)
"""Of rows with a key, whose scores are finite."""

EMPTY: tuple[Outcome, ...] = (
    (
        "A row without a key is NaN: -inf - -inf is no number. Ask the mask whether there is a key, "
        "and give such a row weights of 0.",
        lambda call: np.full(call.scores.shape, np.nan),
    ),
    (
        f"A row without a key has the weights of all its keys, as if there were no mask. They must be 0: {WHERE}.",
        lambda call: softmax(call.scores),
    ),
    (
        f"A row without a key has the same weight for all keys. They must be 0: {WHERE}.",
        lambda call: np.full(call.scores.shape, 1.0 / call.scores.shape[-1]),
    ),
)

EMPTY_WITH_NAN: tuple[Outcome, ...] = (
    (f"A row without a key is NaN if a score is, as 0 * NaN is NaN: choose, {WHERE}, do not multiply.", EMPTY[0][1]),
)

WITH_NAN: tuple[Outcome, ...] = (
    (
        f"In a row in which the score of an allowed key is NaN masked keys are NaN too. They must be 0: {WHERE}.",
        EMPTY[0][1],
    ),
    (
        "A NaN among the scores is hidden: the row has weights of 0. Allowed keys of such a row must be NaN, so that a "
        "mistake somewhere else is seen. Ask the mask whether there is a key, and not the weights.",
        _no_nan,
    ),
)

BEHIND_MASK: tuple[Outcome, ...] = (
    (
        "The NaN score of a masked key makes the whole row NaN: choose, np.where(allowed, scores, -np.inf), do not add "
        "or multiply.",
        EMPTY[0][1],
    ),
)


def _kinds(call: Call) -> tuple[tuple[NDArray, tuple[Outcome, ...]], ...]:
    """Rows, bool (...), and what they may have."""
    finite, has_key = np.isfinite(call.scores).all(-1), call.allowed.any(-1)
    sees_nan, reads_finite = (np.isnan(call.scores) & call.allowed).any(-1), np.isfinite(opened(call)).all(-1)
    return (
        (reads_finite, ()),  # of fills
        (reads_finite & has_key, NUMBERS),
        (finite & ~has_key, EMPTY),
        (~finite & ~has_key, EMPTY_WITH_NAN),
        (sees_nan, WITH_NAN),
        (~finite & has_key & ~sees_nan, BEHIND_MASK),
    )


def of_rows(exercise: StepExercise, answers: Sequence[Sequence[NDArray]]) -> tuple[str, ...]:
    """Sentences that explain every wrong row of a softmax; () if there are none, or it is no softmax of an array."""
    places = bench(exercise).places
    is_softmax = exercise.covers == ("weights",) and exercise.parameters in (("scores",), ("scores", "allowed"))
    if not is_softmax or len(answers) != len(places):
        return ()
    calls = []
    for place, (made, *_) in zip(places, answers, strict=True):
        scores, allowed = (*place.arguments, np.ones(place.wanted[0].shape, dtype=bool))[:2]
        if made.shape != scores.shape:
            return ()
        calls.append(Call(scores, allowed, made, (distance(made, place.wanted[0]) > place.allowed[0]).any(-1)))
    with any_numbers:
        return tuple(_said(calls))


def _said(calls: Sequence[Call]) -> list[str]:
    left, said = [call.wrong for call in calls], []
    for number, (_, outcomes) in enumerate(_kinds(calls[0])):
        rows = [_kinds(call)[number][0] for call in calls]
        if not any((one & some).any() for one, some in zip(left, rows, strict=True)):
            continue
        fits = [one for one, weights in outcomes if _have(calls, rows, weights)]
        fits += _fills(calls, rows) if not outcomes else _sums(calls, rows) if outcomes is NUMBERS else []
        if fits:
            said.append(fits[0])
            left = [one & ~some for one, some in zip(left, rows, strict=True)]
    return [] if any(one.any() for one in left) else said


def _have(calls: Sequence[Call], rows: Sequence[NDArray], weights: Callable[[Call], NDArray]) -> bool:
    """Whether these rows have these weights in every call."""
    return all(
        bool((distance(call.made[some], weights(call)[some]) <= NEAR).all())
        for call, some in zip(calls, rows, strict=True)
    )


def _filled(change: Callable[[Call, float], NDArray], fill: float, call: Call) -> NDArray:
    return softmax(change(call, fill))


def _sums(calls: Sequence[Call], rows: Sequence[NDArray]) -> list[str]:
    """The sentence on a number that is added to the sum: the same in every row, as far as rows can tell."""
    powers = [
        np.exp(masked(call) - masked(call).max(-1, keepdims=True))[some] for call, some in zip(calls, rows, strict=True)
    ]
    more = [
        power.sum(-1) / call.made[some].sum(-1) - power.sum(-1)
        for power, call, some in zip(powers, calls, rows, strict=True)
    ]
    middle = float(np.median(np.concatenate([one.ravel() for one in more])))
    is_one = middle > 0.0 and all((np.abs(one - middle) <= SAME * middle).all() for one in more)
    return [f"{middle:.2g} is added to the sum of the exponentials. Divide by the sum as it is."] * is_one


FILLED: dict[str, Callable[[Call, float], NDArray]] = {
    "masked scores become a number, {}": lambda call, fill: np.where(call.allowed, call.scores, fill),
    "a number is added to masked scores, {}": lambda call, fill: call.scores + np.where(call.allowed, 0.0, fill),
}


def _fills(calls: Sequence[Call], rows: Sequence[NDArray]) -> list[str]:
    """The sentence on numbers in place of minus infinity."""
    said = []
    for sentence, change in FILLED.items():
        fits = [fill for fill in FILLS if _have(calls, rows, partial(_filled, change, fill))]
        if fits:
            likely = -1e9 if -1e9 in fits else fits[len(fits) // 2]
            number = f"{likely:g}".replace("e+0", "e").replace("e+", "e")
            said.append(sentence.format("such as " * (len(fits) > 1) + number))
    if not said:
        return []
    how = ", or ".join(said)
    has_empty = not all(call.allowed.any(-1).all() for call in calls)
    where = "a masked key still counts"
    if any(likely < np.nanmin(call.scores) for call in calls):
        where = "a masked key counts where scores lie as low" + ", or where no key is allowed" * has_empty
    rest = "; a row without a key has weights of 0" * has_empty
    return [f"{how[0].upper()}{how[1:]}, not minus infinity: {where}. Mask with -inf{rest}."]
