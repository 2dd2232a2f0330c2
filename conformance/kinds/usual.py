"""Usual mistakes that are no row of the zoo: ways of excluding keys, of a right mask and of one read the wrong way."""

from __future__ import annotations

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
    yield from _inverted()


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
