"""Usual mistakes that are no row of the zoo: keys excluded another way, padding let in, a mask read the wrong way."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
from numpy.typing import NDArray

from conformance.kinds.made import PREFIX
from conformance.zoo.bug import Bug
from conformance.zoo.forward.scores import ONE_SCALE, scaled
from conformance.zoo.forward.softmax import EXACTLY, RIGHT_WAY, has_key, let_in, no_padding, plain_softmax
from conformance.zoo.rows import keys_of
from mha_core import AttentionMask
from mha_core.call.masks import padding_keys
from mha_core.reference.forward import allowed
from mha_core.reference.state import State

SENTENCE = "The mask is read the wrong way round: it excludes what it should let through."

ADDED = "The mask is read the wrong way round: -1e9 is added to the scores of the keys that it lets in."

FINITE = (
    "A finite number, -1e9, stands where -inf belongs, and excluded weights become 0: allowed keys that score below it "
    "lose their weights."
)

FILLS: Mapping[str, tuple[float, bool]] = {  # what the scores of the keys that it lets in become; whether it is added
    "infinity": (-np.inf, False),
    "1e9": (-1e9, False),
    "lowest": (float(np.finfo(np.float32).min), False),
    "added-1e9": (-1e9, True),
    "added-1e4": (-1e4, True),
}

After = Callable[[State, NDArray], NDArray]
"""(state, weights) -> the weights with something done to them."""


def _where_allowed(state: State, weights: NDArray) -> NDArray:
    return np.where(state["allowed"], weights, 0.0)


def _times_allowed(state: State, weights: NDArray) -> NDArray:
    return weights * state["allowed"]


AFTER: Mapping[str, After] = {
    "as-they-are": lambda s, w: w,
    "zero-where-all-are-let-in": lambda s, w: np.where(s["allowed"].all(axis=-1, keepdims=True), 0.0, w),
    "zero-where-none-is-let-in": lambda s, w: np.where(has_key(s), w, 0.0),
    "zero-where-excluded": _where_allowed,
    "zero-for-nan": lambda s, w: np.nan_to_num(w),
}

ON_FILE = frozenset([("infinity", "as-they-are"), ("1e9", "as-they-are"), ("added-1e9", "as-they-are")])
"""What bugs of the zoo, or two of them, do where padding stays as it is."""


def usual() -> Iterator[Bug]:
    """Yield the bugs."""
    ignored = {"allowed": lambda s: np.ones_like(allowed(s)), "padding": lambda s: padding_keys(s.inputs.mask, s.sizes)}
    fix = "Exclude the keys that the mask does not allow."
    yield Bug(f"{PREFIX}mask-ignored-zeroed", "The whole mask is ignored.", "weights", fix, forward=ignored)
    of_all = scaled(lambda s: (s.config.num_heads * s.config.head_dim) ** -0.5)
    said = "Scores are divided by the root of the width of all heads, not of one head's."
    yield Bug(f"{PREFIX}scale-of-all-heads", said, "scores", ONE_SCALE, forward=of_all)
    of_keys = scaled(lambda s: max(s.sizes.key_len, 1) ** -0.5, lambda s: True)
    said = "Scores are divided by the root of the number of keys, whatever the scale is."
    yield Bug(f"{PREFIX}scale-of-key-length", said, "scores", ONE_SCALE, forward=of_keys)
    for added, times in product((True, False), repeat=2):
        where = _times_allowed if times else _where_allowed
        step = partial(_weights, -1e9, added, where, lambda s: ~s["allowed"])
        slug = f"{PREFIX}fill-1e9{'-added' * added}-then-zero{'-times' * times}"
        yield Bug(slug, FINITE, "weights", EXACTLY, forward={"weights": step})
    yield from _padding()
    yield from _inverted()


def _padding() -> Iterator[Bug]:
    """Yield those that let padding in, as it is and where the layer sets padded keys and values to 0."""
    for (slug, (said, keys)), zeroed in product(PADDING.items(), (False, True)):
        sentence = f"{said}{', though padded keys and values are set to 0' * zeroed}."
        steps = {"allowed": keys, **({"padding": _padded} if zeroed else {})}
        yield Bug(f"{PREFIX}{slug}{'-zeroed' * zeroed}", sentence, "weights", EXCLUDED, forward=steps)


def _padded(state: State) -> NDArray:
    return padding_keys(state.inputs.mask, state.sizes)


def _let_in(state: State) -> NDArray:
    return allowed(state) | _padded(state)[:, None, None]


def _not_excluded(state: State) -> NDArray:
    """The keys that are let in by what is no padding: causal, a window, a bias, and lengths or bools query by query."""
    mask = state.inputs.mask
    sources = {name: getattr(mask, name) for name in ("valid_lens", "allowed")}
    others = keys_of(state, mask, **dict.fromkeys(sources))
    for name, source in sources.items():
        if source is not None:
            alone = AttentionMask(**{name: source})
            others = others & (keys_of(state, alone) | padding_keys(alone, state.sizes)[:, None, None])
    return others


def _of_queries(state: State) -> NDArray:
    padded = _padded(state)
    of_queries = padded[:, None, :, None] if state.sizes.query_len == state.sizes.key_len else False
    return _let_in(state) & ~np.asarray(of_queries)


PADDING: Mapping[str, tuple[str, Callable[[State], NDArray]]] = {
    "padding-ignored": ("The mask of padding is ignored: padded keys get weights", _not_excluded),
    "padding-let-in": (
        "Padded keys get weights whatever else the mask says, causal too: the mask of padding is joined to it by or",
        _let_in,
    ),
    "padding-of-queries": (
        "Padded keys get weights: the mask of padding is put on the axis of the queries, where there are as many of "
        "them as keys",
        _of_queries,
    ),
}
"""Slug -> what is done with keys that are padding, and the keys that are let in."""

EXCLUDED = "Exclude padded keys from every query: and-join a mask (B, 1, 1, Lk) of valid keys with all others."


def _inverted() -> Iterator[Bug]:
    """Yield those of a mask that is read the wrong way round, where padding is set to 0, and where it is not."""
    for fill, after in product(FILLS, AFTER):
        step = partial(_weights, *FILLS[fill], AFTER[after], let_in)
        bug = Bug(f"{PREFIX}inverted-{fill}-{after}", SENTENCE, "weights", RIGHT_WAY, forward={"weights": step})
        yield bug
        if (fill, after) not in ON_FILE:
            yield replace(bug, id=f"{bug.id}-unpadded", forward={**bug.forward, "padding": no_padding})
    # In float32 a score less 1e9 is a multiple of 64: where all keys are let in, most have one and the same.
    for name, more in (("", {}), ("-unpadded", {"padding": no_padding})):
        id, steps = f"{PREFIX}inverted-added-1e9-in-float32{name}", {"weights": _in_float32, **more}
        yield Bug(id, ADDED, "weights", RIGHT_WAY, forward=steps)


def _in_float32(state: State) -> NDArray:
    added = (state["scores"].astype(np.float32) - np.float32(1e9)).astype(np.float64)
    return plain_softmax(np.where(let_in(state), added, state["scores"]))


def _weights(number: float, is_added: bool, after: After, out: Callable[[State], NDArray], state: State) -> NDArray:
    excluded, scores = out(state), state["scores"]
    filled = scores + np.where(excluded, number, 0.0) if is_added else np.where(excluded, number, scores)
    return after(state, plain_softmax(filled))
