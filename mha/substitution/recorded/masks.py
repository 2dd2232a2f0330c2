"""Masks of two calls, compared whatever sources they are made of, and the likely cause of a difference."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.judging.expected import Expected
from mha.recordings.origins import same_numbers
from mha.substitution.allowance import number
from mha.substitution.recorded.arrays import Allowance, apart
from mha.substitution.reports.report import Difference
from mha_core import AttentionMask
from mha_core.call.arguments import CallSizes
from mha_core.call.masks import additive_bias, allowed_keys

FINITE = "one of both masks excludes by a large finite number, which leaves those keys no weight here"
"""Remark where a large finite number excludes a key that the other mask excludes by -inf or False."""

FORGETS_CAUSAL = "it forgets that the mask is causal"


def _causal(offset: int, sizes: CallSizes, heads: int) -> NDArray[np.bool_]:
    return allowed_keys(AttentionMask(causal=True, query_offset=offset), sizes, heads)


def _shifted(by: int) -> str:
    seen = f"{abs(by)} key{'s' * (abs(by) > 1)} {'more' if by > 0 else 'less'}"
    return f"its causal mask is shifted by {by:+d}: each query sees {seen}"


def mask_differences(
    a: Expected, b: Expected, allowance: Allowance, rows: NDArray[np.bool_]
) -> tuple[list[Difference], list[str]]:
    """Return (differences of the port's mask from the original's, notes on differences without effect).

    Two masks are equal if every query may attend to the same keys, with the same bias. So valid lengths may be equal to
    a bool mask, or to a bias of -inf. A large negative bias excludes a key if the key's weight becomes exactly 0.

    Args:
        a, b: the reference's results for the original's call and for the port's; both calls have the same shapes.
        allowance: how far biases may differ.
        rows: bool (B, Lq), True at the queries to compare.
    """
    weights = [np.asarray(one.trace.weights) for one in (a, b)]
    with np.errstate(invalid="ignore"):
        unseen = (weights[0] == 0.0) & (weights[1] == 0.0)
    counts = rows[:, None, :, None]
    parted = (a.where != b.where) & counts
    finite_numbers = bool((parted & unseen).any())
    parted &= ~unseen
    found: list[Difference] = []
    notes: list[str] = []
    if parted.any():
        found.append(Difference("mask", _exclusions(a, b, parted, counts), "allowed"))
    elif finite_numbers:
        notes.append(FINITE)
    bias = _bias_difference(a, b, allowance, a.where & b.where & ~unseen & counts)
    if bias is not None:
        found.append(bias)
    return found, notes


def _exclusions(a: Expected, b: Expected, parted: NDArray[np.bool_], counts: NDArray[np.bool_]) -> str:
    more = int((parted & a.where).sum())
    less = int((parted & b.where).sum())
    places = int(np.broadcast_to(counts, parted.shape).sum())
    first = np.argwhere(parted)[0].tolist()
    changes = [f"attends to {less} (query, key) places that the original excludes"] if less else []
    changes += [f"excludes {more} that the original attends to"] if more else []
    why = _told([words for words, mask in _variants(a, b) if _same(mask, b.where, counts)])
    return f"the port {' and '.join(changes)}, of {places}, the first at {first}{f': {why}' if why else ''}"


def _told(readings: Sequence[str]) -> str:
    """The readings that fit, in words. Of several that forget something, the first forgets the most."""
    each = list(dict.fromkeys(readings))
    forgets = [words for words in each if words.startswith("it forgets")]
    left = [words for words in each if words not in forgets[1:]]
    return " or ".join(left) + (": these calls can't tell" if len(left) > 1 else "")


def _same(mask: NDArray[np.bool_], other: NDArray[np.bool_], counts: NDArray[np.bool_]) -> bool:
    return not ((mask != other) & counts).any()


def _variants(a: Expected, b: Expected) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Yield common mistakes with the original's mask in words, most likely first, and the keys that each allows."""
    mask, where = a.problem.inputs.mask, a.where
    sizes, heads = a.problem.sizes, a.problem.config.num_heads
    everything = np.ones_like(where)
    yield "it forgets the mask", everything
    yield "its mask is inverted (True and False exchanged)", ~where

    def of(**changed: Any) -> NDArray[np.bool_]:
        return allowed_keys(replace(mask, **changed), sizes, heads)

    for name, words in (("valid_lens", "lengths"), ("allowed", "mask of keys (allowed)"), ("window", "window")):
        if getattr(mask, name) is not None:
            yield f"it forgets the {words}", of(**{name: None})
    if mask.bias is not None:
        yield "it forgets the bias, and what that excludes", of(bias=None)
    if mask.causal:
        yield FORGETS_CAUSAL, of(causal=False)
        for shift in (-1, 1):
            yield _shifted(shift), of(query_offset=np.asarray(mask.query_offset) + shift)
    if mask.allowed is not None:
        inverted = of(allowed=~np.asarray(mask.allowed))
        yield "its mask of keys (allowed) is inverted (True and False exchanged)", inverted
    if mask.valid_lens is not None:
        lens = np.asarray(mask.valid_lens)
        for shift, words in ((-1, "one short"), (1, "one too long")):
            yield f"its lengths are {words}", of(valid_lens=np.clip(lens + shift, 0, sizes.key_len))
        padding = ~allowed_keys(AttentionMask(valid_lens=lens), sizes, heads)
        yield "its lengths are inverted: it keeps the padding and excludes the rest", padding & of(valid_lens=None)
    for offset in sorted({0, sizes.key_len - sizes.query_len}):
        fewer, causal = (_causal(offset + shift, sizes, heads) for shift in (-1, 0))
        if _same(b.where & causal, where, everything):  # the original's may be within an array
            some = np.broadcast_to(b.where.any(axis=2, keepdims=True), where.shape)  # keys of any query
            _, _, queries, keys = np.nonzero(b.where)
            ahead = int((keys - queries).max(initial=offset)) - offset
            is_shifted = ahead > 0 and _same(some & _causal(offset + ahead, sizes, heads), b.where, everything)
            is_open = _same(some, b.where, everything)
            if is_shifted and (ahead == 1 or not is_open):
                yield _shifted(ahead), b.where
            if is_open or not is_shifted:
                yield FORGETS_CAUSAL, b.where
        if _same(where & causal, where, everything):
            yield _shifted(-1), where & fewer
        yield "it is causal in addition", where & causal
    if sizes.query_len == sizes.key_len:
        yield "its mask is transposed", where.swapaxes(-1, -2)
    yield "it forgets the padding", np.broadcast_to(where.any(axis=0), where.shape)
    yield "it has the first item's mask for all items", np.broadcast_to(where[:1], where.shape)


def _bias_difference(a: Expected, b: Expected, allowance: Allowance, counts: NDArray[np.bool_]) -> Difference | None:
    """Return the difference of the biases where both calls attend; a constant for all keys of a query is none."""
    given = [one.problem.inputs.mask.bias is not None for one in (a, b)]
    if not any(given) or not counts.any():
        return None
    first, second = (_whole_bias(one, counts.shape) for one in (a, b))
    if same_numbers(np.where(counts, first, 0.0), np.where(counts, second, 0.0), allowance.dtype):
        return None
    found = apart(first, second, counts)
    centred = apart(_centred(first, counts), _centred(second, counts), counts)
    if min(allowance.ratio(found), allowance.ratio(centred)) <= 1.0:
        return None
    what = "the biases differ"
    if not given[1]:
        what = "the port has no bias, the original has one"
    elif not given[0]:
        what = "the port has a bias, the original has none"
    elif same_numbers(first, -second, allowance.dtype):
        what = "the port's bias has the other sign"
    where = f"by up to {number(found.worst.largest)} where both attend, worst at {list(found.worst.index)}"
    return Difference("mask", f"{what}, {where}", "bias", *allowance.at_worst(first, found))


def _whole_bias(one: Expected, shape: tuple[int, ...]) -> NDArray:
    mask = one.problem.inputs.mask
    bias = np.zeros(()) if mask.bias is None else additive_bias(mask)
    return np.broadcast_to(bias, shape).astype(np.float64)


def _centred(bias: NDArray, counts: NDArray[np.bool_]) -> NDArray:
    """Return the bias less its largest number for each query, which changes no attention weight."""
    highest = np.where(counts, bias, -np.inf).max(axis=-1, keepdims=True, initial=-np.inf)
    return bias - np.where(np.isfinite(highest), highest, 0.0)


def padded_queries(a: Expected, b: Expected) -> NDArray[np.bool_]:
    """Return bool (B, Lq), True at queries of self-attention whose position is padding in both calls' masks.

    These rows have no influence on any other row of this layer's output, or of a later layer's.
    """
    padded = np.ones((a.problem.sizes.batch, a.problem.sizes.query_len), dtype=bool)
    for one in (a, b):
        inputs = one.problem.inputs
        is_own = inputs.past_keys is None and np.array_equal(inputs.queries, inputs.keys, equal_nan=True)
        padded &= padded_keys(one) if is_own else False
    return padded


def padded_keys(one: Expected) -> NDArray[np.bool_]:
    """Return bool (B, Lk), True at keys that no query in any head may attend to, or that the mask calls padding."""
    unseen: NDArray[np.bool_] = ~one.where.any(axis=(1, 2))
    return unseen | one.problem.padding()
