"""Families: changes in closed form that need no reading; each is tried as it is where a row of problems differs.

allowed keys       by another rule of positions in place of one source of the mask, or beside all of them
queries and keys   turned by their positions, or normed, in a layer that has neither
scores             with a bias that grows with the distance
weights            another function of the score than exp, divided by its sum or not
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from itertools import combinations, permutations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.kinds import published
from conformance.kinds.change import EACH, LEAVE_OUT, elementwise
from conformance.kinds.change import FUNCTIONS as ELEMENTWISE
from conformance.kinds.made import bug_of, of_mask, with_padding_zeroed
from conformance.kinds.parameters import parameters, reordered
from conformance.kinds.places import PLACES, fault_of_all
from conformance.kinds.shapes import biases, pasts, softmaxes, views
from conformance.zoo.bug import Bug
from conformance.zoo.forward.precision import FORMATS
from conformance.zoo.rows import keys_of
from mha_core import AttentionMask
from mha_core.call.masks import padding_keys
from mha_core.parts.query_key_norm import QueryKeyNorm, norm
from mha_core.parts.rotary import Rotary, rotate, tables
from mha_core.reference.state import State, Step

Term = Callable[[State], Any]
"""Integers or bools that broadcast to (B, 1, Lq, Lk)."""

BLOCKS = (1, 2, 3, 4, 8, 16)
"""Numbers of keys that a rule may have in it."""


@cache
def families(stage: str) -> tuple[Bug, ...]:
    """Return the changes that may show in a row of problems of this stage; most of them in one that tells none.

    >>> families("weights")[0].sentence
    'Under causal, query i sees key j where j <= offset + i.'
    """
    some: dict[str, tuple[Callable[[], Iterator[Bug]], ...]] = {
        "weights": (_rules_of_sources, _rules_beside, _rules_of_two, softmaxes, _functions, published.weightings),
        "scores": (_distances, biases, published.scales),
        "heads": (published.dropouts,),
        "output": (published.norms,),
        "": (
            *(_rules_beside, _rules_of_empty, _functions, _turned, _normed, _both, _distances),
            *(views, softmaxes, parameters, reordered, pasts),
            *(published.weightings, published.reads, published.norms, published.scales, published.shifts),
            published.logarithms,
        ),
    }
    found = [bug for family in some.get(stage, ()) for bug in family()]
    return (*map(of_mask, found), *with_padding_zeroed(found))


# Which keys -------------------------------------------------------------------------------------------


def _query(state: State) -> Any:
    return np.arange(state.sizes.query_len)[:, None]


def _key(state: State) -> Any:
    return np.arange(state.sizes.key_len)


def _at(state: State) -> Any:
    return np.reshape(state.inputs.mask.query_offset, (-1, 1, 1, 1)) + _query(state)


def _lens(state: State) -> Any:
    return np.reshape(state.inputs.mask.valid_lens, (state.sizes.batch, 1, -1, 1))


def _at_last(state: State) -> Any:
    """The queries' positions such that the last of them is the last key of an item's length."""
    lens = state.inputs.mask.valid_lens
    return _at(state) if lens is None or lens.ndim > 1 else _lens(state) - state.sizes.query_len + _query(state)


QUERIES: Mapping[str, Term] = {
    "offset + i": _at,
    "i": _query,
    "i + Lk - Lq": lambda s: _query(s) + s.sizes.key_len - s.sizes.query_len,
    "i + length - Lq": _at_last,
    "i + past length": lambda s: _query(s) + s.sizes.past_len,
    "offset + i + past length": lambda s: _at(s) + s.sizes.past_len,
    "offset + i - past length": lambda s: _at(s) - s.sizes.past_len,
}
"""Positions that query i may have."""

KEYS: Mapping[str, Term] = {"j": _key, "j - past length": lambda s: _key(s) - s.sizes.past_len}
"""Positions that key j may have."""


def _between(a: int, b: int, q: Any, k: Any, left: float, right: float) -> Any:
    return (q - left + a <= k) & (k <= q + right + b)


def _in_chunk(more: int, q: Any, k: Any, left: float, right: float) -> Any:
    size = max(left + more, 1)
    return q // size == k // size if np.isfinite(left) else _between(0, 0, q, k, left, right)


WINDOWS: Mapping[str, Callable[[Any, Any, float, float], Any]] = {
    **{
        f"{{q}} - left{PLUS[a]} <= {{k}} <= {{q}} + right{PLUS[b]}": partial(_between, a, b)
        for PLUS in [("", " + 1", " - 1")]
        for a, b in product((0, 1, -1), (0, 1, -1))
    },
    "{q} - right <= {k} <= {q} + left": lambda q, k, left, right: _between(0, 0, q, k, right, left),
    "{q} - left <= {k} <= {q} + left": lambda q, k, left, right: abs(q - k) <= left,
    "{q} - left / 2 <= {k} <= {q} + left / 2": lambda q, k, left, right: abs(q - k) <= left / 2,
    "{q} - left // 2 <= {k} <= {q} + right // 2": lambda q, k, *sides: _between(
        0, 0, q, k, *(side // 2 if np.isfinite(side) else side for side in sides)
    ),
    "it is within and {q} - {k} even": lambda q, k, *sides: _between(0, 0, q, k, *sides) & ((q - k) % 2 == 0),
    "it is within or {k} = 0": lambda q, k, *sides: _between(0, 0, q, k, *sides) | (k == 0),
    "{k} // (left + 1) = {q} // (left + 1)": partial(_in_chunk, 1),
    "{k} // left = {q} // left": partial(_in_chunk, 0),
}
"""Rules of a window: which keys it lets in, of the queries' positions q, the keys' k, and its sides (or infinity)."""

LENGTHS: Mapping[str, Term] = {
    "offset + i < length": lambda s: _at(s) < _lens(s),
    "i < length": lambda s: _query(s) < _lens(s),
    "j - past length < length": lambda s: _key(s) - s.sizes.past_len < _lens(s),
    "j < length - past length": lambda s: _key(s) < _lens(s) - s.sizes.past_len,
    "j < max(length, 1)": lambda s: _key(s) < np.maximum(_lens(s), 1),
    **{
        f"j < length rounded up to a multiple of {n}": partial(lambda n, s: _key(s) < -(-_lens(s) // n) * n, n)
        for n in BLOCKS
    },
    **{
        f"j < length rounded down to a multiple of {n}": partial(lambda n, s: _key(s) < _lens(s) // n * n, n)
        for n in BLOCKS
    },
}
"""Rules of lengths: which keys they let in."""

BESIDES: Mapping[str, Term] = {
    "Keys at the query's position": lambda s: _key(s) == _at(s),
    "Keys ahead of the query": lambda s: _key(s) > _at(s),
    "Keys behind the query": lambda s: _key(s) < _at(s),
    "Keys at odd distances": lambda s: (_key(s) - _at(s)) % 2 == 1,
    "Odd keys": lambda s: _key(s) % 2 == 1,
    "Keys j >= Lq": lambda s: _key(s) >= s.sizes.query_len,
    "New keys behind the first": lambda s: _key(s) > (s.sizes.past_len or s.sizes.key_len),
    **{
        words.format(n): partial(rule, n)
        for n in BLOCKS
        for words, rule in (
            ("Keys j < {}", lambda n, s: _key(s) < n),
            ("Past keys but the last {}", lambda n, s: _key(s) < s.sizes.past_len - n),
            ("Keys j < Lk - {}", lambda n, s: _key(s) < s.sizes.key_len - n),
            ("Keys j >= Lk - {}", lambda n, s: _key(s) >= s.sizes.key_len - n),
            ("Keys more than {} away", lambda n, s: abs(_key(s) - _at(s)) > n),
            ("Keys more than {} back", lambda n, s: _at(s) - _key(s) > n),
            ("Keys of other blocks of {}", lambda n, s: _key(s) // n != _at(s) // n),
            ("Keys after the last whole block of {}", lambda n, s: _key(s) >= (s.sizes.key_len // n or 1) * n),
        )
    },
}
"""Keys that may be left out, or let in, whatever the mask says."""


def _but(right: NDArray, some: NDArray) -> NDArray:
    return right & ~some


def _but_not_all(right: NDArray, some: NDArray) -> NDArray:
    left = right & ~some
    return np.where(left.any(axis=-1, keepdims=True), left, right)


def _rules_of_sources() -> Iterator[Bug]:
    for (k, key), (q, query), more in product(KEYS.items(), QUERIES.items(), (0, 1, -1)):
        said = f"Under causal, query i sees key j where {k} <= {q}{('', ' + 1', ' - 1')[more]}."
        yield _of_keys(said, partial(_causal, key, query, more), np.logical_and, "causal")
    for (k, key), (q, query), (words, within) in product(KEYS.items(), QUERIES.items(), WINDOWS.items()):
        said = f"In a window (left, right), query i sees key j where {words.format(q=q, k=k)}."
        yield _of_keys(said, partial(_window, key, query, within), np.logical_and, "window")
    for words, rule in LENGTHS.items():
        yield _of_keys(f"Lengths let key j in where {words}.", rule, np.logical_and, "valid_lens")


def _rules_beside() -> Iterator[Bug]:
    said = "Nothing excludes a key but -inf in the additive bias."
    yield bug_of(said, said, "", {"allowed": _bias_alone, "padding": _given_padding}, stage="weights")
    for words, some in BESIDES.items():
        yield _of_keys(f"{words} are left out, whatever the mask says.", some, _but)
        yield _of_keys(f"{words} are left out, unless the row has no other.", some, _but_not_all)
        yield _of_keys(f"{words} are let in, whatever the mask says.", some, np.logical_or)


SOURCES: Mapping[str, Any] = {"valid_lens": None, "allowed": None, "bias": None, "causal": False, "window": None}
"""Each source of a mask, and what stands for none."""


def _rules_of_two() -> Iterator[Bug]:
    """Yield two sources of a mask of which either one lets a key in, or of which one is dropped beside the other."""
    for one, other in combinations(SOURCES, 2):
        said = f"Where {one} and {other} are given, a key is let in that either of them lets in."
        yield _of_two(said, one, other, np.logical_or)
    for dropped, beside in permutations(SOURCES, 2):
        said = f"{dropped} is dropped where {beside} is given too."
        yield _of_two(said, dropped, beside, lambda without, alone: without)


def _of_two(said: str, one: str, other: str, how: Callable[[NDArray, NDArray], NDArray]) -> Bug:
    """Return the bug of `how` of (the mask without the first source, the mask without the second)."""

    def allowed(state: State, beneath: Step) -> NDArray:
        mask = state.inputs.mask
        if any(getattr(mask, name) is None or getattr(mask, name) is False for name in (one, other)):
            return beneath(state)
        changes: list[dict[str, Any]] = [{name: SOURCES[name]} for name in (one, other)]
        return how(*(keys_of(state, mask, **change) for change in changes))

    steps = {"allowed": allowed, "padding": _given_padding}
    return bug_of(said, said, "Combine all sources of the mask with AND.", steps, stage="weights")


OF_EMPTY: Mapping[str, Term] = {
    "the first key": lambda s: _key(s) == 0,
    "the last key": lambda s: _key(s) == s.sizes.key_len - 1,
    "the key at its position": lambda s: _key(s) == _at(s),
    "the key of its own number": lambda s: _key(s) == _query(s),
    "every key": lambda s: _key(s) >= 0,
    "every key but padding": lambda s: ~_given_padding(s)[:, None, None],
}
"""Keys that a row may attend to which has none."""


def _rules_of_empty() -> Iterator[Bug]:
    for words, some in OF_EMPTY.items():
        yield _of_keys(f"A row without an allowed key attends to {words}.", some, _unless_empty)
    said = "A length is at least 1: where it is 0, the first key is attended to."
    yield _of_keys(said, LENGTHS["j < max(length, 1)"], np.logical_and, "valid_lens")


def _unless_empty(right: NDArray, some: NDArray) -> NDArray:
    return np.where(right.any(axis=-1, keepdims=True), right, some)


def _bias_alone(state: State, beneath: Step) -> NDArray:
    return keys_of(state, AttentionMask(bias=state.inputs.mask.bias))


def _causal(key: Term, query: Term, more: int, state: State) -> Any:
    return key(state) <= query(state) + more


def _window(key: Term, query: Term, within: Callable[..., Any], state: State) -> Any:
    sides = (np.inf if side is None else side for side in state.inputs.mask.window or ())
    return within(query(state), key(state), *sides)


def _given_padding(state: State, beneath: Step | None = None) -> NDArray:
    return padding_keys(state.inputs.mask, state.sizes)


def _of_keys(sentence: str, rule: Term, how: Callable[[NDArray, Any], NDArray], source: str = "") -> Bug:
    """Return the bug of a rule beside the mask, or in place of one source. Lengths alone let padding in as it is."""

    def allowed(state: State, beneath: Step) -> NDArray:
        mask = state.inputs.mask
        if not source:
            return how(beneath(state), rule(state))
        if getattr(mask, source) is None or getattr(mask, source) is False:
            return beneath(state)
        others: dict[str, Any] = {source: None if source != "causal" else False}
        return how(keys_of(state, mask, **others), rule(state))

    if source == "valid_lens":
        return bug_of(sentence, sentence, "", {"allowed": allowed}, stage="keys")
    return bug_of(sentence, sentence, "", {"allowed": allowed, "padding": _given_padding}, stage="weights")


# Queries, keys and scores ------------------------------------------------------------------------------

BASES = (10000.0, 500000.0)

TURNED: Mapping[str, tuple[str, Term]] = {
    "new keys by j + past length": ("rotated_keys", lambda s: np.arange(s.sizes.past_len, s.sizes.key_len)),
    "new keys by j, whatever the past": ("rotated_keys", lambda s: np.arange(s.sizes.key_len - s.sizes.past_len)),
    "all keys, those of the past too, by their place": ("keys", _key),
    "no keys": ("rotated_keys", lambda s: np.zeros(s.sizes.key_len - s.sizes.past_len, int)),
}
"""Ways to turn keys: the step that is changed, and their positions."""

DECLARE = "Leave this out; or declare it, by {} of the config."


def _turned() -> Iterator[Bug]:
    parts = {"all channels": (1, "first"), "the first half": (2, "first"), "the last half": (2, "last")}
    pairs = {"(k, k + half of them)": False, "(2 k, 2 k + 1)": True}
    queries = ("offset + i", "i", "i + past length", "offset + i - past length")
    for base, some, layout, back, q, k in product(BASES, parts, pairs, (False, True), queries, TURNED):
        if back and some != "all channels":
            continue
        sentence = (
            f"Queries are turned{' back' * back} by their positions {q}, and {k}: {some} of a head in pairs {layout}, "
            f"base {base:g}; the config has no rotary positions."
        )
        turn = partial(_turn, *parts[some], pairs[layout], base, -1 if back else 1)
        step, places = TURNED[k]
        steps = {"rotated_queries": partial(turn, QUERIES[q]), step: partial(turn, places)}
        yield bug_of(sentence, sentence, DECLARE.format("rotary"), steps)
    for base, layout, (axis, of) in product(BASES, pairs, enumerate(("item", "head"))):
        sentence = (
            f"Queries and new keys are turned by the number of their {of}, not by their position, in pairs {layout}, "
            f"base {base:g}; the config has no rotary positions."
        )
        turn = partial(_turn_by, axis, pairs[layout], base)
        yield bug_of(
            sentence, sentence, DECLARE.format("rotary"), dict.fromkeys(("rotated_queries", "rotated_keys"), turn)
        )


def _turn(
    part: int, start: Any, pairs: bool, base: float, sign: int, positions: Term, state: State, beneath: Step
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
    means = {"rms": "", "layer": "less their mean, "}
    scopes = {"head": "their head", "all": "all heads of their token"}
    for kind, scope, eps, words in product(means, scopes, (1e-6, 1e-5, 1e-12), both):
        settings = QueryKeyNorm(kind, scope, eps=eps, weight="none")  # type: ignore[arg-type]
        sentence = (
            f"{words} are {means[kind]}divided by the root of their mean square over {scopes[scope]} (eps {eps:g}); "
            "the config has no query-key norm."
        )
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
    "-|i - j|": lambda d: -abs(d),
    "(j - i)": lambda d: -d,
    "min(j - i, 0)": lambda d: -np.maximum(d, 0),
    "|i - j|": lambda d: 1 * abs(d),
    "-(i - j)^2": lambda d: -(d**2),
    "-ln(1 + |i - j|)": lambda d: -np.log1p(abs(d)),
}
"""What a bias may grow with: of the query's position less the key's."""


def _powers(heads: int) -> NDArray:
    return 2.0 ** (-8.0 / heads * np.arange(1, heads + 1))


def _spare(heads: int) -> NDArray:
    whole = 2 ** int(math.log2(heads))
    return np.concatenate([_powers(whole), _powers(2 * whole)[::2][: heads - whole]])


SLOPES: Mapping[str, Callable[[int], NDArray]] = {
    "2^(-8 h / H), h = 1 .. H": _powers,
    "those of a power of 2 and, for further heads, those in between": _spare,
    "2^(-h), h = 1 .. H": lambda heads: 0.5 ** np.arange(1, heads + 1),
    "2^(-8 h / H), h = 0 .. H - 1": lambda heads: 2.0 ** (-8.0 / heads * np.arange(heads)),
    "2^(-8 h / H), h = H .. 1": lambda heads: _powers(heads)[::-1],
    "1": lambda heads: np.ones(heads),
}
"""Slopes of the heads: ALiBi has the first two."""


def _distances() -> Iterator[Bug]:
    fix = "Leave this out; or give it as the additive bias."
    for slope, words, q in product(SLOPES, DISTANCES, ("offset + i", "i", "i + Lk - Lq")):
        said = (
            f"Slopes of the heads ({slope}) times {words} are added to the scores, where query i stands at {q} (ALiBi)."
        )
        yield bug_of(said, said, fix, {"scores": partial(_biased, SLOPES[slope], DISTANCES[words], QUERIES[q])})
    for slope in SLOPES:
        said = f"ALiBi: slopes ({slope}) times the key's position j are added to the scores."
        yield bug_of(said, said, fix, {"scores": partial(_biased, SLOPES[slope], lambda d: -d, lambda s: 0)})


def _biased(
    slopes: Callable[[int], NDArray], distance: Callable[[Any], Any], query: Term, state: State, beneath: Step
) -> NDArray:
    added = slopes(state.config.num_heads)[:, None, None] * distance(query(state) - _key(state))
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
    "divided by the sum of their sizes": lambda x, s: np.abs(x).sum(axis=-1, keepdims=True),
    "divided by nothing": lambda x, s: 1.0,
    "divided by Lk": lambda x, s: s.sizes.key_len,
    "divided by the number of allowed keys": lambda x, s: s["allowed"].sum(axis=-1, keepdims=True),
}
"""What they may be divided by."""


def _functions() -> Iterator[Bug]:
    for words, divided in product(FUNCTIONS, SUMS):
        sentence = f"Weights are {words} of each score s, {divided}, in place of a softmax."
        step = partial(_divided, FUNCTIONS[words], SUMS[divided])
        yield bug_of(sentence, sentence, "Take the softmax of the scores.", {"weights": step})


def _divided(function: Callable[[NDArray], NDArray], total: Callable[..., Any], state: State, beneath: Step) -> NDArray:
    found = np.where(state["allowed"], function(state["scores"]), 0.0)
    by = np.asarray(total(found, state), np.float64)
    return found / np.where(by == 0.0, 1.0, by)
