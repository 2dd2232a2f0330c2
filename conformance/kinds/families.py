"""Families: bugs by formula, without a measured number; each is tried as it is where several answers are wrong.

queries and keys   turned by their positions, or normed, in a layer that has neither
scores             with a bias that grows with the distance
weights            another function of the score than exp, divided by its sum or not
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.kinds import masks, published
from conformance.kinds.change import EACH, LEAVE_OUT, elementwise
from conformance.kinds.change import FUNCTIONS as ELEMENTWISE
from conformance.kinds.made import bug_of, of_mask, with_padding_zeroed
from conformance.kinds.parameters import parameters, reordered, rounded
from conformance.kinds.places import PLACES, fault_of_all
from conformance.kinds.shapes import pasts, softmaxes, views
from conformance.zoo.bug import Bug
from conformance.zoo.forward.precision import FORMATS
from mha_core.parts.query_key_norm import QueryKeyNorm, norm
from mha_core.parts.rotary import Rotary, rotate, tables
from mha_core.reference.state import State, Step


@cache
def families(stage: str) -> tuple[Bug, ...]:
    """Return the bugs of `conformance.kinds` to try if `stage` is the first wrong stage. "" means an unknown stage.

    >>> families("weights")[0].sentence
    'Under causal, query i sees key j where j <= offset + i.'
    """
    some: dict[str, tuple[Callable[[], Iterator[Bug]], ...]] = {
        "weights": (
            *(masks.rules_of_sources, masks.rules_beside, masks.rules_of_two, masks.masks_reordered),
            *(masks.rules_of_some, masks.coinciding, softmaxes, _functions, published.weightings),
        ),
        "scores": (_distances, masks.masks_reordered, masks.coinciding, published.scales),
        "heads": (published.dropouts,),
        "output": (published.norms,),
        "": (
            *(masks.rules_beside, masks.rules_of_empty, _functions, _turned, _normed, _both, _distances),
            *(views, softmaxes, parameters, reordered, rounded, pasts),
            *(published.weightings, published.reads, published.norms, published.scales, published.shifts),
            *(published.logarithms, published.sinusoids),
        ),
    }
    found = [bug for family in some.get(stage, ()) for bug in family()]
    return (*map(of_mask, found), *with_padding_zeroed(found))


# Whi, keys and scores ------------------------------------------------------------------------------

BASES = (10000.0, 500000.0, 1000000.0)

USUAL = "new keys by past length + j"

TURNED: Mapping[str, tuple[str, masks.Term]] = {
    USUAL: ("rotated_keys", lambda s: np.arange(s.sizes.past_len, s.sizes.key_len)),
    "new keys by j, from 0 on even after a past": (
        "rotated_keys",
        lambda s: np.arange(s.sizes.key_len - s.sizes.past_len),
    ),
    "all keys by j, past ones a second time": ("keys", masks.key_number),
    "no keys": ("rotated_keys", lambda s: np.zeros(s.sizes.key_len - s.sizes.past_len, int)),
}
"""Ways to turn keys: the step that is changed, and their positions."""

DECLARE = "Remove it; or, if it is meant, declare it: {} in the config."
TURN = (
    "Remove the rotation; or, if it is meant, declare it (rotary in the config), and rotate queries by position "
    "offset + i, new keys by past length + j (offset: query_offset)."
)
FORWARD = " Do not negate the sine."


def _turned() -> Iterator[Bug]:
    parts = {"all channels": (1, "first"), "the first half": (2, "first"), "the last half": (2, "last")}
    pairs = {"rotate-half pairs (k, k + half of them)": False, "interleaved pairs (2 k, 2 k + 1)": True}
    queries = ("offset + i", "i", "i + past length", "offset + i - past length")
    for base, some, layout, back, q, k in product(BASES, parts, pairs, (False, True), queries, TURNED):
        if some != "all channels" and (back or base != BASES[0]):
            continue
        is_usual = (q, k) in (("offset + i", USUAL), ("i + past length", USUAL))
        odd = f"{'' if is_usual else f'; queries are rotated by position {q}, {k}'}{'; the sine is negated' * back}"
        where = f"queries are rotated by position {q}, {k}; " * is_usual
        sentence = (
            f"Rotary positions (RoPE) are applied, and the config has none{odd}. In detail: "
            f"{where}{some} of a head, {layout}, base {base:g}."
        )
        turn = partial(_turn, *parts[some], pairs[layout], base, -1 if back else 1)
        step, places = TURNED[k]
        steps = {"rotated_queries": partial(turn, masks.QUERIES[q]), step: partial(turn, places)}
        fix = (DECLARE.format("rotary") if is_usual else TURN) + FORWARD * back
        yield bug_of(sentence, sentence, fix, steps)
    for base, layout, (axis, of) in product(BASES, pairs, enumerate(("item", "head"))):
        sentence = (
            f"Queries and keys are rotated (RoPE) by the number of their {of}, as if it were their position, and the "
            f"config has no rotary positions. In detail: "
            f"{layout}, base {base:g}."
        )
        turn = partial(_turn_by, axis, pairs[layout], base)
        yield bug_of(sentence, sentence, TURN, dict.fromkeys(("rotated_queries", "rotated_keys"), turn))


def _turn(
    part: int, start: Any, pairs: bool, base: float, sign: int, positions: masks.Term, state: State, beneath: Step
) -> NDArray:
    return _rotated(beneath(state), sign * np.asarray(positions(state)), part, start, pairs, base)


def _turn_by(axis: int, pairs: bool, base: float, state: State, beneath: Step) -> NDArray:
    x = np.asarray(beneath(state)).swapaxes(axis, 2)
    return _rotated(x, np.arange(x.shape[2]), 1, "first", pairs, base).swapaxes(axis, 2)


def _rotated(x: NDArray, positions: NDArray, part: int, start: Any, pairs: bool, base: float) -> NDArray:
    width = x.shape[-1] // part // 2 * 2
    if not width or not x.size:
        return x
    settings = Rotary(width, pairs, start, base)
    return rotate(x, tables(settings, positions.reshape(-1, x.shape[2]), positions.size), settings)


def _normed() -> Iterator[Bug]:
    both = {"Queries and keys": ("queries", "keys"), "Queries": ("queries",), "Keys": ("keys",)}
    kinds = {"rms": "RMSNorm", "layer": "LayerNorm"}
    scopes = {"head": "their head", "all": "all heads of their token"}
    for kind, scope, eps, words in product(kinds, scopes, (1e-6, 1e-5, 1e-12), both):
        settings = QueryKeyNorm(kind, scope, eps=eps, weight="none")  # type: ignore[arg-type]
        how = f"{kinds[kind]} over {scopes[scope]}, eps {eps:g}"
        sentence = f"{words} are normed ({how}), and the config has no query-key norm."
        steps = {f"normed_{name}": partial(_norm, settings) for name in both[words]}
        yield bug_of(sentence, sentence, DECLARE.format("query_key_norm"), steps)


def _norm(settings: QueryKeyNorm, state: State, beneath: Step) -> NDArray:
    return norm(beneath(state), settings, None, None).result


def _both() -> Iterator[Bug]:
    """Yield the functions and roundings of queries and keys alike: of neither the right ones are there to be read."""
    changes = [elementwise(name, EACH.format(words), function) for name, (words, function) in ELEMENTWISE.items()]
    changes += [elementwise(name, f"rounded to {name}", narrow) for name, narrow in FORMATS.items()]
    for change in changes:
        yield fault_of_all([PLACES["queries"], PLACES["new_keys"]], replace(change, fix=LEAVE_OUT))


DISTANCES: Mapping[str, Callable[[Any], Any]] = {
    "-|{} - j|": lambda d: -abs(d),
    "min(j - ({}), 0)": lambda d: -np.maximum(d, 0),
    "|{} - j|": lambda d: 1 * abs(d),
    "-({} - j)^2": lambda d: -(d**2),
    "-ln(1 + |{} - j|)": lambda d: -np.log1p(abs(d)),
}
"""What a bias may grow with: of the query's position less the key's."""


def _powers(heads: int) -> NDArray:
    return 2.0 ** (-8.0 / heads * np.arange(1, heads + 1))


def _spare(heads: int) -> NDArray:
    whole = 2 ** int(math.log2(heads))
    return np.concatenate([_powers(whole), _powers(2 * whole)[::2][: heads - whole]])


SLOPES: Mapping[str, Callable[[int], NDArray]] = {
    "2^(-8 h / H), h = 1 .. H": _powers,
    "2^(-8 h / H), h = 1 .. H, made for an H that is no power of 2 as ALiBi does": _spare,
    "2^(-h), h = 1 .. H": lambda heads: 0.5 ** np.arange(1, heads + 1),
    "2^(-8 h / H), h = 0 .. H - 1": lambda heads: 2.0 ** (-8.0 / heads * np.arange(heads)),
    "2^(-8 h / H), h = H .. 1": lambda heads: _powers(heads)[::-1],
    "1": lambda heads: np.ones(heads),
}
"""Slopes of the heads: ALiBi has the first two."""


def _distances() -> Iterator[Bug]:
    for slope, words, q in product(SLOPES, DISTANCES, ("offset + i", "i", "i + Lk - Lq")):
        yield _bias(slope, words.format(q), DISTANCES[words], masks.QUERIES[q])
    for slope in SLOPES:
        yield _bias(slope, "j, or (j - i), which a softmax does not tell apart", lambda d: -d, lambda s: 0)


def _bias(slope: str, words: str, distance: Callable[[Any], Any], query: masks.Term) -> Bug:
    said = f"A bias by position, as ALiBi's, is added to the scores. In detail: slope * {words}; slopes: {slope}."
    fix = "Remove it; or pass it as the additive bias."
    return bug_of(said, said, fix, {"scores": partial(_biased, SLOPES[slope], distance, query)})


def _biased(
    slopes: Callable[[int], NDArray], distance: Callable[[Any], Any], query: masks.Term, state: State, beneath: Step
) -> NDArray:
    added = slopes(state.config.num_heads)[:, None, None] * distance(query(state) - masks.key_number(state))
    return np.asarray(beneath(state) + added)


# Weights ------------------------------------------------------------------------------------------------

FUNCTIONS: Mapping[str, Callable[[NDArray], NDArray]] = {
    "relu(s)": lambda x: np.maximum(x, 0.0),
    "relu(s)^2": lambda x: np.maximum(x, 0.0) ** 2,
    "1 + s + s^2 / 2": lambda x: 1.0 + x + x**2 / 2.0,
    "1 + s": lambda x: 1.0 + x,
    "elu(s) + 1": lambda x: np.where(x > 0.0, x + 1.0, np.exp(np.minimum(x, 0.0))),
    "the logistic function of s": lambda x: 1.0 / (1.0 + np.exp(-x)),
    "ln(1 + exp(s))": lambda x: np.logaddexp(0.0, x),
    "s": lambda x: x,
    "exp(s)": np.exp,
    "exp(s) - 1": np.expm1,
    "relu(exp(s) - 1)": lambda x: np.maximum(np.expm1(x), 0.0),
}
"""What may stand for exp of a score s."""

SUMS: Mapping[str, Callable[[NDArray, State], Any]] = {
    "divided by their sum": lambda x, s: x.sum(axis=-1, keepdims=True),
    "divided by the sum of their absolute values": lambda x, s: np.abs(x).sum(axis=-1, keepdims=True),
    "not divided by their sum": lambda x, s: 1.0,
    "divided by Lk": lambda x, s: s.sizes.key_len,
    "divided by the number of allowed keys": lambda x, s: s["allowed"].sum(axis=-1, keepdims=True),
}
"""What they may be divided by."""


def _functions() -> Iterator[Bug]:
    for words, divided in product(FUNCTIONS, SUMS):
        each = "the scores themselves" if words == "s" else f"{words} of each score s"
        sentence = f"Attention weights are {each}, {divided}, in place of their softmax."
        step = partial(_divided, FUNCTIONS[words], SUMS[divided])
        yield bug_of(sentence, sentence, "Take the softmax of the scores.", {"weights": step})


def _divided(function: Callable[[NDArray], NDArray], total: Callable[..., Any], state: State, beneath: Step) -> NDArray:
    found = np.where(state["allowed"], function(state["scores"]), 0.0)
    by = np.asarray(total(found, state), np.float64)
    return found / np.where(by == 0.0, 1.0, by)
