"""Shapes: arrays that are viewed in another order, softmaxes over other axes and with other sums."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations, permutations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.kinds.change import Change, Setting
from conformance.kinds.made import bug_of
from conformance.kinds.orders import RULES, Order, change_of, of_any_length
from conformance.kinds.places import PLACES
from conformance.zoo.bug import Bug
from conformance.zoo.forward.softmax import has_key, open_scores
from mha_core.reference.forward import softmax
from mha_core.reference.state import State, Step

AXES, STORED = "BHLd", "BLHd"
"""Axes of heads, and of the projection that they are made of, whose channels are (H, d)."""

OVER_ALL = "Take the softmax over all keys that the mask allows."
EMPTY_AGAIN = ", and the weights of a row without a key become 0 then"
ROWS_AGAIN = ", and each row is divided by its sum then"

SPLIT = {"queries": "projected_queries", "keys": "projected_keys", "values": "projected_values"}


def views() -> Iterator[Bug]:
    """Yield bugs that split projections by a view other than (B, L, H, d), or merge heads by a wrong view."""
    for order in ("".join(one) for one in permutations(AXES)):
        split = {name: partial(_split, order) for name in SPLIT.values()}
        shape = f"({', '.join(order)})"
        if order != STORED:
            for name, step in SPLIT.items():
                yield _of_view(
                    f"The projected {name} are viewed as {shape}, in place of (B, L, H, d).", {step: split[step]}
                )
            said = f"The projected queries, keys and values are viewed as {shape}, in place of (B, L, H, d)"
            yield _of_view(f"{said}.", split)
            yield _of_view(
                f"{said}, and heads are merged in the same order.", {**split, "merged": partial(_merged, order)}
            )
            yield _of_view(
                f"Heads are merged in the order {shape}, in place of (B, L, H, d).", {"merged": partial(_merged, order)}
            )
        if order != AXES:
            said = f"Heads (B, H, L, d) are viewed, without a transpose, as {shape} before they are merged"
            yield _of_view(f"{said}.", {"merged": partial(_viewed, order, True)})
            yield _of_view(f"{said}, as if they were (B, H, L, d).", {"merged": partial(_viewed, order, False)})


def _of_view(sentence: str, steps: Mapping[str, Any]) -> Bug:
    how = {"merged": "Merge with transpose(0, 2, 1, 3).reshape(B, L, H * d)."}
    some = [how.get(step, "Split with reshape(B, L, H, d).transpose(0, 2, 1, 3).") for step in steps]
    return bug_of(sentence, sentence, " ".join(dict.fromkeys(some)), steps)


def _sizes(x: NDArray, order: str) -> list[int]:
    return [x.shape[AXES.index(axis)] for axis in order]


def _split(order: str, state: State, beneath: Step) -> NDArray:
    x = beneath(state)
    return x.swapaxes(1, 2).reshape(_sizes(x, order)).transpose([order.index(axis) for axis in AXES])


def _merged(order: str, state: State, beneath: Step) -> NDArray:
    x = state["heads"]
    return x.transpose([AXES.index(axis) for axis in order]).reshape(beneath(state).shape)


def _viewed(order: str, by_name: bool, state: State, beneath: Step) -> NDArray:
    x = state["heads"]
    viewed = x.reshape(_sizes(x, order))
    back = [order.index(axis) for axis in STORED] if by_name else [AXES.index(axis) for axis in STORED]
    return viewed.transpose(back).reshape(beneath(state).shape)


def pasts() -> Iterator[Bug]:
    """Yield bugs that reorder the items, heads or positions of a cache, in past keys and values alike."""
    axes = PLACES["past_keys"].axes
    for (place, name), (slug, (words, rule)) in product(enumerate(axes[:-1]), RULES.items()):
        change = change_of(name, place - len(axes), Order(slug, words, partial(of_any_length, rule)))
        said = f"Past keys and values are {change.words}."
        yield bug_of(said, said, change.fix, dict.fromkeys(("keys", "values"), partial(_of_past, change)))


def _of_past(change: Change, state: State, beneath: Step) -> NDArray:
    found, past = np.asarray(beneath(state)), state.sizes.past_len
    changed = change.made(found[:, :, :past], PLACES["past_keys"].axes, Setting.of(state))
    return np.concatenate([changed, found[:, :, past:]], axis=2)


Filled = Callable[[NDArray], NDArray | float]

FILLS: Mapping[str, Filled] = {
    "": lambda scores: -np.inf,
    ", with -1e9 as the score of excluded keys": lambda scores: -1e9,
    ", with -1e9 added to the scores of excluded keys": lambda scores: scores - 1e9,
}
"""The words of a fill -> the scores of excluded keys."""


def softmaxes() -> Iterator[Bug]:
    """Yield bugs that take the softmax over wrong axes (with or without rescaled rows), or of top scores only."""
    named = ("items", "heads", "queries", "keys")
    for axes in (some for n in range(1, len(named) + 1) for some in combinations(range(len(named)), n)):
        over = " and ".join(named[axis] for axis in axes)
        of_keys = 3 in axes  # then each row sums to 1, or to what no second sum changes
        for fill, again, repaired in product(FILLS, (False,) if of_keys else (False, True), (False, True)):
            if (axes == (3,)) + repaired + (not fill) > 1:  # the definition's, but for extreme scores
                continue
            said = f"The softmax runs over {over}{fill}{ROWS_AGAIN * again}{EMPTY_AGAIN * repaired}."
            step = partial(_over, axes, again, repaired, FILLS[fill])
            yield bug_of(said, said, "Take the softmax over the keys, the last axis.", {"weights": step})
    for most, alone in product((1, 2, 3, 4, 8), (False, True)):
        keys = "key of its largest score" if most == 1 else f"keys of its {most} largest scores"
        said = f"Each query attends to the {keys} alone{', the first of equal ones' * alone}."
        yield bug_of(said, said, OVER_ALL, {"weights": partial(_of_largest, most, alone)})


def _over(axes: Sequence[int], again: bool, repaired: bool, filled: Filled, state: State, beneath: Step) -> NDArray:
    scores = np.where(state["allowed"], state["scores"], filled(state["scores"]))
    highest = scores.max(axis=tuple(axes), keepdims=True, initial=-np.inf)
    found = np.exp(scores - np.where(np.isneginf(highest), 0.0, highest))
    for summed in (tuple(axes), *((-1,),) * again):
        total = found.sum(axis=summed, keepdims=True)
        found = found / np.where(total == 0.0, 1.0, total)
    return np.where(has_key(state), found, 0.0) if repaired else found


def _of_largest(most: int, alone: bool, state: State, beneath: Step) -> NDArray:
    if state.sizes.key_len <= most:
        return np.asarray(beneath(state))
    scores = open_scores(state)
    among = scores >= np.sort(scores, axis=-1)[..., -most][..., None]
    if alone:
        among = np.argsort(np.argsort(-scores, axis=-1, kind="stable"), axis=-1) < most
    return softmax(state["scores"], state["allowed"] & among)


Number = Callable[[State], Any]
"""A number of each call, or one of each head (H, 1, 1)."""

OWN_SUM = "Divide exp(score) by the sum of its own row."
EXCLUDE = "Exclude keys by a score of -inf, or by a weight of 0 before the sum."


def exponentials(scores: NDArray, allowed: NDArray) -> tuple[NDArray, NDArray]:
    """Return two arrays: exp(scores - m), 0 for excluded keys; exp(-m). m: row maximum, 0 in rows without a key."""
    highest = np.where(allowed, scores, -np.inf).max(axis=-1, keepdims=True, initial=-np.inf)
    shift = np.where(np.isfinite(highest), highest, 0.0)
    return np.where(allowed, np.exp(scores - shift), 0.0), np.exp(-shift)


def with_sum(words: str, slug: str, number: Number, less_highest: bool) -> Bug:
    """Return a bug: number(state) is added to the softmax's divisor sum(exp(s)). s: score (- max if less_highest)."""

    def change(state: State, beneath: Step) -> NDArray:
        given, unit = exponentials(state["scores"], state["allowed"])
        total = given.sum(axis=-1, keepdims=True) + number(state) * (1.0 if less_highest else unit)
        return np.where(state["allowed"], given / np.where(total == 0.0, 1.0, total), 0.0)

    total = "sum(exp(score - highest of the row))" if less_highest else "sum(exp(score))"
    sentence = f"In the softmax, {words} is added to the divisor of a row, {total}."
    fix = f"Divide a row by {total} alone."
    return bug_of(f"sum-plus-{slug}-{less_highest}", sentence, fix, {"weights": change})


def without_sum(words: str, slug: str, number: Number) -> Bug:
    """Return a bug: attention weights are number(state) * exp(score), without a division by their sum."""

    def change(state: State, beneath: Step) -> NDArray:
        return np.where(state["allowed"], np.exp(state["scores"]) * number(state), 0.0)

    sentence = f"Attention weights are {words} * exp(score) in every row, in place of exp(score) / sum(exp(score))."
    return bug_of(f"no-sum-{slug}", sentence, OWN_SUM, {"weights": change})


def filled(words: str, slug: str, number: Number, added: bool) -> Bug:
    """Return a bug: the scores of excluded keys become number(state) or, if `added`, number(state) is added to them."""

    def change(state: State, beneath: Step) -> NDArray:
        scores, n = state["scores"], number(state)
        other = np.where(state["allowed"], scores, scores + n if added else n)
        given = exponentials(other, np.ones_like(other, bool))[0]
        return given / given.sum(axis=-1, keepdims=True) if other.size else beneath(state)

    said = f"{words} is added to excluded scores" if added else f"Excluded scores become {words}"
    slug = f"excluded-{'plus' if added else 'filled'}-{slug}"
    return bug_of(slug, f"{said}, which leaves these keys a weight.", EXCLUDE, {"weights": change})
