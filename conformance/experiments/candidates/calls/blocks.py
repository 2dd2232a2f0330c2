"""Blocks: the bugs of blocked attention on file, with the number that was read, and keys that padding adds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from conformance.experiments.measured import PREFIX
from conformance.zoo.blocked import keys, queries
from conformance.zoo.blocked.queries import in_blocks_of
from conformance.zoo.bug import Bug, DoesNotApply, OnTop
from mha_core.reference import forward
from mha_core.reference.state import State, Step

PADDING_FIX = "Pad keys only if the padding is excluded: it has no weight and counts in no sum."


def filed_blocks(numbers: Iterable[int]) -> Iterator[Bug]:
    """Each bug of blocked attention on file, in blocks of each number."""
    for number in numbers:
        for bug in (*queries.BUGS, *keys.KEY_BLOCKS):
            yield in_blocks_of(bug, number)


# Padding that attends ------------------------------------------------------------------------------

_COUNTS: tuple[tuple[str, str, Callable[[int, int], int]], ...] = (
    ("to-a-multiple-of-{}", "up to a multiple of {}", lambda length, n: -length % n),
    ("to-{}", "up to {}", lambda length, n: max(n - length, 0)),
    ("with-{}", "with {} more", lambda length, n: n),
    ("by-a-block-of-{}", "to the next multiple of {}, also from a whole one", lambda length, n: n - length % n),
)
"""(slug, words, (Lk, number) -> how many keys are added)."""


def padded(numbers: Iterable[int]) -> Iterator[Bug]:
    """Keys filled up with zeros that attend: as they are, or before the projections, which then add their biases."""
    for n in numbers:
        for slug, words, count in _COUNTS:
            for key_bias in (False, True):
                for value_bias in (False, True):
                    yield _padded(slug.format(n), words.format(n), _counted(count, n), key_bias, value_bias)


def _counted(count: Callable[[int, int], int], n: int) -> Callable[[int], int]:
    return lambda length: count(length, n)


def _padded(slug: str, words: str, count: Callable[[int], int], key_bias: bool, value_bias: bool) -> Bug:
    def share(state: State) -> tuple[NDArray, NDArray]:
        """(B, H, Lq, 1): what each row keeps of its weights, and (B, H, Lq, 1): what its padding gets."""
        scores = np.where(state["allowed"], state["scores"], -np.inf)
        pad = _scores_of_padding(state) if key_bias else np.zeros((*scores.shape[:-1], 1))
        highest = np.maximum(scores.max(axis=-1, keepdims=True, initial=-np.inf), pad)
        own = np.exp(scores - highest).sum(axis=-1, keepdims=True)
        others = count(state.sizes.key_len) * np.exp(pad - highest)
        total = np.where(own + others == 0.0, 1.0, own + others)
        return own / total, others / total

    def weights(state: State, beneath: Step) -> NDArray:
        found = beneath(state)
        return found * share(state)[0] if count(state.sizes.key_len) else found

    def heads(state: State, beneath: Step) -> NDArray:
        found = beneath(state)
        if not count(state.sizes.key_len):
            return found
        return found + share(state)[1] * _bias_of(state, "v_proj", state.config.num_kv_heads)

    steps: dict[str, Step] = {"weights": OnTop(forward.FORWARD["weights"], weights)}
    if value_bias:
        steps["heads"] = OnTop(forward.FORWARD["heads"], heads)
    what = {
        (False, False): "zeros",
        (True, True): "zeros before the projections, which add their biases",
        (True, False): "zeros before the projection of the keys",
        (False, True): "zeros before the projection of the values",
    }[key_bias, value_bias]
    suffix = ("-with-key-bias" if key_bias else "") + ("-with-value-bias" if value_bias else "")
    return Bug(
        f"{PREFIX}keys-padded-{slug}{suffix}",
        f"Keys are filled up {words} by {what}, which have weights.",
        "weights",
        PADDING_FIX,
        forward=steps,
    )


def _bias_of(state: State, projection: str, heads: int) -> NDArray:
    """(1, H, 1, width): a projection's bias, split into heads; 0 without one."""
    bias = state.parameters.get(f"{projection}.bias")
    if bias is None:
        raise DoesNotApply("a layer without biases fills up with zeros after the projection as before")
    split: NDArray = np.repeat(bias.reshape(1, heads, 1, -1), state.config.num_heads // heads, axis=1)
    return split


def _scores_of_padding(state: State) -> NDArray:
    """(B, H, Lq, 1): the scores of keys that are the bias of their projection."""
    if state.config.score == "additive":
        raise DoesNotApply("the additive score has no dot product")
    keys = _bias_of(state, "k_proj", state.config.num_kv_heads)
    return forward.cap(state, (state["queries"] * keys).sum(axis=-1, keepdims=True) * state.config.softmax_scale)
