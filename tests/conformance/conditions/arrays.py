"""Words for conditions of arrays and their numbers, and of calls one after the other."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from tests.conformance.conditions.words import ARRAYS, FLOATS, Call, arr, full, m, ordinary, padding, shape, z

# Layouts ---------------------------------------------------------------------------------------------


def wide(x: np.ndarray) -> list[tuple[int, int]]:
    """(size, stride) of the axes longer than 1."""
    return [(n, s) for n, s in zip(x.shape, x.strides, strict=True) if n > 1] if x.size else []


def contiguous(x: np.ndarray | None) -> bool:
    return x is not None and x.flags.c_contiguous


def strided(x: np.ndarray | None) -> bool:
    return x is not None and x.size > 1 and not x.flags.c_contiguous


def turned(x: np.ndarray | None) -> bool:
    """Its axes lie in another order in memory."""
    steps = [abs(s) for _, s in wide(x)] if x is not None else []
    return 0 not in steps and steps != sorted(steps, reverse=True)


def flipped(x: np.ndarray | None) -> bool:
    return x is not None and any(s < 0 for _, s in wide(x))


def spread(x: np.ndarray | None) -> bool:
    """Broadcast: the same memory for several places."""
    return x is not None and any(s == 0 for _, s in wide(x))


def gaps(x: np.ndarray | None) -> bool:
    """A slice, or every other element, of something larger."""
    axes = wide(x) if x is not None else []
    if not axes or any(s <= 0 for _, s in axes) or turned(x):
        return False
    return not x.flags.c_contiguous


def readonly(x: np.ndarray | None) -> bool:
    return x is not None and not x.flags.writeable


def memory_start(x: np.ndarray) -> int:
    return int(x.__array_interface__["data"][0])


def unaligned_to(x: np.ndarray | None, to: int) -> bool:
    """Its first element does not lie at a multiple of `to` bytes."""
    return x is not None and x.size > 0 and memory_start(x) % to != 0


def together(*arrays: np.ndarray | None) -> bool:
    """Different arrays that are views of one array, or lie within one another's bounds."""
    given = [x for x in arrays if x is not None]
    return len(given) == len(arrays) and all(
        a is not b and (np.may_share_memory(a, b) or (a.base is not None and a.base is b.base))
        for a, b in pairwise(given)
    )


def overlap(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether some element belongs to both."""
    try:
        return bool(np.shares_memory(a, b, max_work=10**5))
    except np.exceptions.TooHardError:
        return False


# Numbers ---------------------------------------------------------------------------------------------


def floats(c: Call) -> dict[str, np.ndarray]:
    """Queries, keys, values and the past, as far as given."""
    return {name: x for name in FLOATS[:5] if (x := arr(c, name)) is not None}


def finite(c: Call) -> bool:
    return all(np.isfinite(x).all() for x in floats(c).values())


def key_rows(c: Call, name: str) -> np.ndarray:
    """Keys or values as (B, new, everything else)."""
    x = arr(c, name)
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1) if x.ndim == 4 else x


def bad(c: Call, name: str, what: Callable[[np.ndarray], np.ndarray], where: str) -> bool:
    """Whether new keys or values hold such numbers, "open" or in the "padding"."""
    if not ordinary(c):
        return False
    rows = what(key_rows(c, name)).any(axis=-1)
    gone = padding(c)[:, z(c).past :]
    open_ = full(c).any(axis=(1, 2))[:, z(c).past :]
    return bool((rows & (gone if where == "padding" else open_ & ~gone)).any())


def logits(c: Call) -> np.ndarray:
    """The scores of allowed keys before bias, flat, in float64; of the first items alone if there are very many."""
    if "logits" in c.kept:
        return c.kept["logits"]
    k, x, s = c.config, c.inputs, z(c)
    items = max(1, min(s.b, int(2e7 // max(1, s.h * s.lq * s.lk))))
    with np.errstate(all="ignore"):
        heads = []
        for given, proj, count in ((x.queries, "q_proj", s.h), (x.keys, "k_proj", s.g)):
            y = np.asarray(given[:items], np.float64)
            if y.ndim == 3:
                if k.projections:
                    y = y @ np.asarray(c.weights[f"{proj}.weight"], np.float64).T
                    y = y + np.asarray(c.weights.get(f"{proj}.bias", 0.0), np.float64)
                y = y.reshape(*y.shape[:2], count, k.head_dim).swapaxes(1, 2)
            heads.append(y)
        q, keys = heads
        if x.past_keys is not None:
            keys = np.concatenate([np.asarray(x.past_keys[:items], np.float64), keys], axis=2)
        keys = np.repeat(keys, s.h // s.g, axis=1)
        if k.score == "additive":
            a = q @ np.asarray(c.weights["score.query.weight"], np.float64).T
            b = keys @ np.asarray(c.weights["score.key.weight"], np.float64).T
            vector = np.asarray(c.weights["score.vector"], np.float64)
            rows = [np.tanh(a[:, :, i, None] + b) @ vector for i in range(s.lq)]
            scores = np.stack(rows, axis=2) if rows else np.zeros((items, s.h, 0, s.lk))
        else:
            scores = (q * k.softmax_scale) @ keys.swapaxes(2, 3)
        if k.softcap is not None:
            scores = k.softcap * np.tanh(scores / k.softcap)
    c.kept["scores"] = np.where(full(c)[:items], scores, np.nan)
    c.kept["logits"] = scores[full(c)[:items]]
    return c.kept["logits"]


def score_rows(c: Call) -> np.ndarray:
    """(B, H, Lq, Lk), NaN where not allowed."""
    logits(c)
    return c.kept["scores"]


def top(c: Call) -> float:
    """The largest size of a finite score."""
    scores = logits(c)
    scores = scores[np.isfinite(scores)]
    return float(np.abs(scores).max(initial=0.0))


def biased_rows(c: Call) -> np.ndarray:
    """(n, Lk): the scores with the bias of the rows that have two allowed keys or more; -inf where not allowed."""
    scores = score_rows(c)
    bias = arr(c, "bias")
    with np.errstate(all="ignore"):
        if bias is not None:
            scores = scores + (
                np.where(np.isneginf(bias), 0, bias)[: len(scores)]
                if bias.ndim == 4
                else np.where(np.isneginf(bias), 0, bias)
            )
    scores = np.where(np.isnan(scores), -np.inf, scores).reshape(-1, z(c).lk)
    return scores[(scores > -np.inf).sum(axis=-1) >= 2]


def logit_rows(c: Call) -> np.ndarray:
    """(n, Lk): the scores of rows with two allowed keys or more; the row's largest where not allowed."""
    rows = score_rows(c).reshape(-1, z(c).lk)
    rows = rows[(~np.isnan(rows)).sum(axis=-1) >= 2]
    return np.where(np.isnan(rows), np.nanmax(rows, axis=-1, keepdims=True), rows) if len(rows) else rows


def best_scores(c: Call) -> np.ndarray:
    """The largest score of each row that has an allowed key."""
    rows = score_rows(c).reshape(-1, z(c).lk)
    rows = rows[~np.isnan(rows).all(axis=-1)]
    return np.nanmax(rows, axis=-1) if len(rows) else np.zeros(0)


def peaked(c: Call) -> bool:
    """Whether some row with several allowed keys gives one of them a weight above 0.9999."""
    if not ordinary(c):
        return False
    rows = biased_rows(c)
    with np.errstate(all="ignore"):
        total = np.exp(rows - rows.max(axis=-1, keepdims=True)).sum(axis=-1) if len(rows) else np.zeros(0)
    return bool((1 / total > 0.9999).any()) if len(rows) else False


def flat(x: np.ndarray) -> np.ndarray:
    """(B, everything else)."""
    return x.reshape(x.shape[0], -1)


def equal_rows(c: Call, name: str) -> bool:
    """Whether the rows of keys or values of some item are all equal."""
    rows = key_rows(c, name)
    return bool((rows == rows[:, :1]).all(axis=(1, 2)).any())


def far_larger(items: np.ndarray) -> bool:
    sizes = np.abs(items).max(axis=1)
    return bool(sizes.min() > 0 and sizes.max() > 1000 * sizes.min())


def outlier(rows: np.ndarray) -> bool:
    """(B, n, width): whether in some item one of the n is a hundred times larger than the next."""
    if rows.shape[1] < 2 or rows.size == 0:
        return False
    sizes = np.sort(np.abs(rows).max(axis=2), axis=1)
    return bool(((sizes[:, -1] > 100 * sizes[:, -2]) & (sizes[:, -2] > 0)).any())


def units(rows: np.ndarray) -> bool:
    return bool(((rows == 0) | (rows == 1)).all() and (rows.sum(axis=-1) == 1).all())


def nan_for_some(c: Call) -> bool:
    """Whether NaN stands in a key or value that some queries of its item may attend to, and others not."""
    nan = np.isnan(key_rows(c, "keys")).any(axis=-1) | np.isnan(key_rows(c, "values")).any(axis=-1)
    mask = full(c)[..., z(c).past :]
    return bool((nan & mask.any(axis=(1, 2)) & ~mask.all(axis=(1, 2))).any())


def by_head_bias(c: Call) -> bool:
    bias = arr(c, "bias")
    return bias is not None and bias.ndim >= 3 and bias.shape[-3] > 1


def shares_rows(a: Call, b: Call) -> bool:
    """Whether a key of b is that of a at its place."""
    x, y = key_rows(a, "keys"), key_rows(b, "keys")
    n = min(x.shape[1], y.shape[1])
    return x.shape[0] == y.shape[0] and x.shape[2] == y.shape[2] and bool((x[:, :n] == y[:, :n]).all(axis=-1).any())


def size_of(x: np.ndarray | None) -> float:
    """The largest size of a finite number in it."""
    return 0.0 if x is None else float(np.abs(x[np.isfinite(x)]).max(initial=0.0))


# Orders ----------------------------------------------------------------------------------------------


def last(e: list[Call]) -> Call | None:
    return e[-1] if e else None


def after(e: list[Call], holds: Callable[[Call], bool]) -> bool:
    """Whether the call directly before is such."""
    return bool(e) and holds(e[-1])


def once(e: list[Call], holds: Callable[[Call], bool]) -> bool:
    """Whether some call before is such."""
    return any(holds(earlier) for earlier in e)


def run_of(c: Call, e: list[Call], goes_on: Callable[[Call, Call], bool]) -> int:
    """How many calls, this one and those directly before it, go on from one to the next."""
    calls = [*e, c]
    count = 1
    while count < len(calls) and goes_on(calls[-count - 1], calls[-count]):
        count += 1
    return count


def same(a: Call, b: Call, *names: str) -> bool:
    """Whether these arrays of both held the same, each at its call."""
    return all(a.digests.get(name) == b.digests.get(name) for name in names)


def same_inputs(a: Call, b: Call) -> bool:
    """Whether both are the same call."""
    return shape(a) == shape(b) and same(a, b, *ARRAYS) and _rest(a) == _rest(b)


def _rest(c: Call) -> tuple[object, ...]:
    mask = m(c)
    return mask.causal, mask.window, mask.query_offset if isinstance(mask.query_offset, int) else None


def same_object(a: Call, b: Call, name: str) -> bool:
    return arr(a, name) is not None and arr(a, name) is arr(b, name)


def steps_on(a: Call, b: Call) -> bool:
    """b is the next step of a sequence: its past is as long as all keys of a."""
    return z(b).past > 0 and z(b).past == z(a).lk and z(a).b == z(b).b
