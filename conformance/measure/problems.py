"""The isolating problems: each makes all steps but a few harmless.

One key has the weight 1 whatever it scores, so only values, heads and the output projection can show. Queries of 0 make
all scores equal, so weights are uniform over the keys that a mask lets in. Then scores are met, and what stands around
them, items of a batch, dropout, a past, and numbers that are not finite. `probes.py` has them in their order.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from itertools import combinations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import UNIT_ROUNDOFF
from conformance.cases.problem import Problem
from conformance.measure.asker import Asker
from conformance.measure.designs import BARE, MANY_HEADS, NO_BIASES, changed, differentiated, generic
from mha_core import AttentionConfig, AttentionMask, reference
from mha_core.errors import SpecError

Problems = Callable[[Asker], Sequence[Problem]]
SMALL, WIDE, SQUARE, LARGE, ONE = (3, 5), (4, 7), (4, 4), (6, 11), (1, 5)  # (Lq, Lk) of most calls


def each_layer(make: Callable[..., Problem], *lengths: tuple[int, int]) -> Problems:
    """Return a function: asker -> [make(config, ...) per config]. (Lq, Lk) of config i is lengths[i % len(lengths)]."""

    @lru_cache(maxsize=64)
    def made(config: AttentionConfig, query_len: int, key_len: int) -> Problem:
        return make(config, query_len=query_len, key_len=key_len)

    return lambda asker: [made(c, *lengths[place % len(lengths)]) for place, c in enumerate(asker.configs)]


def of_layer(
    make: Callable[..., Problem], query_len: int, key_len: int, config: AttentionConfig = MANY_HEADS
) -> Problems:
    """Return a function: asker -> [make(config, ...)], or [] if the weights of the asker's subject are fixed."""
    made = partial(make, config, query_len=query_len, key_len=key_len)
    return lambda asker: [] if asker.fixed_weights is not None else [made()]


def of(weights: Mapping[str, Any], **given: Any) -> Callable[..., Problem]:
    return lambda config, **lengths: generic(config, weights=weights, **given, **lengths)


def joined(*several: Problems) -> Problems:
    return lambda asker: [problem for problems in several for problem in problems(asker)]


def bias_alone(name: str) -> Problems:
    weights = {other: factor for other, factor in NO_BIASES.items() if other != f"{name}.bias"}
    make = each_layer(of(weights, values=0.0), (2, 1))
    return lambda asker: [problem for problem in make(asker) if getattr(problem.config.bias, name)]


def biases_apart(asker: Asker) -> list[Problem]:
    """Return plain calls of layers in which one projection alone has a bias, or alone has none."""
    names = [name.removesuffix(".bias") for name in NO_BIASES] if asker.fixed_weights is None else []
    flags = [{other: (other == name) == alone for other in names} for name in names for alone in (True, False)]
    return [generic(replace(config, bias=one)) for config in asker.configs[:1] if config.projections for one in flags]


def scored(config: AttentionConfig, query_len: int, key_len: int, *, weights: Any = NO_BIASES, **how: Any) -> Problem:
    """Return a problem like that of `zeroed`. Queries differ in norm, and lengths are at least head_dim + 3."""
    least = config.head_dim + 3
    plain = zeroed(config, max(query_len, least), max(key_len, least), seed=3, weights=weights, **how)
    return changed(plain, queries=plain.inputs.queries * np.geomspace(0.3, 3.0, plain.sizes.query_len)[:, None])


def zeroed(config: AttentionConfig, query_len: int, key_len: int, *, weights: Any = NO_BIASES, **how: Any) -> Problem:
    """Return a problem, by default without biases, in which key 0 scores 0. `how`: arguments of `generic`."""
    plain = generic(config, query_len=query_len, key_len=key_len, weights=weights, **how)
    return changed(plain, keys=np.where(np.arange(key_len)[:, None] == 0, 0.0, plain.inputs.keys))


def rows_of_sizes(asker: Asker) -> list[Problem]:
    """Return calls of 4 queries whose largest scores are about 0.1, 3, size / 8 and size, for two sizes."""
    far = 900.0 if asker.unit <= UNIT_ROUNDOFF["float64"] else 120.0  # where the exponential overflows
    found = []
    for config, size in product(asker.configs[:2], (30.0, far)):
        plain = generic(config, seed=1, query_len=WIDE[0], key_len=WIDE[1], weights=NO_BIASES)
        scores = np.abs(np.asarray(reference.run(plain.config, plain.weights, plain.inputs).scores))
        wanted = np.array([0.1, 3.0, size / 8.0, size]) / scores.max(axis=(1, 3))
        found.append(changed(plain, queries=plain.inputs.queries * wanted[..., None]))
    return found


def batches(asker: Asker) -> list[Problem]:
    """Several items without a mask."""
    return [generic(config, batch=n) for config, n in zip(asker.configs * 2, (2, 3, 4, 8), strict=False)]


def long(asker: Asker) -> list[Problem]:
    """Return problems with a few more queries or keys than fit into a block of 16, 32, 64 or 128."""
    lengths = ((17, 33), (65, 5), (3, 130), (130, 3))
    return [generic(config, query_len=a, key_len=b) for config in asker.configs[:1] for a, b in lengths]


Masks = list[tuple[tuple[int, int], dict[str, Any]]]
"""(Lq, Lk), and the fields of a mask."""

EQUAL: dict[str, Any] = {"queries": 0.0, "weights": NO_BIASES}  # what makes all scores equal, for `generic`


def masked(rows: Callable[[AttentionConfig], Masks], most: int = 2, **how: Any) -> Problems:
    """Return a function: asker -> [a problem of equal scores for each ((Lq, Lk), mask fields) in rows(config)]."""
    return lambda asker: [
        generic(config, query_len=lengths[0], key_len=lengths[1], mask=AttentionMask(**fields), **{**EQUAL, **how})
        for config in asker.configs[:most]
        for lengths, fields in rows(config)
    ]


def pattern(shape: tuple[int, ...], seed: int = 0) -> NDArray[np.bool_]:
    """Return a random bool mask (..., Lk). Each row allows at least two keys and excludes at least one."""
    rng = np.random.default_rng([seed, *shape])
    order = rng.permuted(np.broadcast_to(np.arange(shape[-1]), shape), axis=-1)
    return np.asarray(order < rng.integers(2, shape[-1], size=shape[:-1])[..., None])


def _infinite(allowed: NDArray) -> NDArray:
    return np.where(allowed, 0.0, -np.inf)


def lengths(config: AttentionConfig) -> Masks:
    rows = ((SMALL, 2), (SQUARE, 3), (WIDE, 5), (ONE, 3), (SMALL, [3, 2, 4]), (WIDE, [2, 6, 3, 5]))
    return [(size, {"valid_lens": np.array([lens])}) for size, lens in rows]


def causal(config: AttentionConfig) -> Masks:
    rows = ((SMALL, 0), (SQUARE, 0), (LARGE, 0), (SMALL, 1), (WIDE, 2), (ONE, 0), (ONE, 2))
    return [(size, {"causal": True, "query_offset": offset}) for size, offset in rows]


def window(config: AttentionConfig) -> Masks:
    found: Masks = [(WIDE, {"window": window}) for window in ((2, 1), (1, 3), (0, 2), (1, None), (None, 1))]
    return [
        *found,
        (SQUARE, {"window": (1, 0)}),
        (LARGE, {"window": (3, 2)}),
        (WIDE, {"window": (2, 1), "query_offset": 2}),
        (ONE, {"window": (1, 0), "query_offset": 2}),
    ]


def allowed(config: AttentionConfig) -> Masks:
    heads, key_len = config.num_heads, SMALL[1]
    shapes = ((1, 1, 1, key_len), SMALL, (heads, *SMALL), (1, heads, *SMALL), (key_len,), (heads, 1, key_len))
    found: Masks = [(SMALL, {"allowed": pattern(shape)}) for shape in shapes]
    found += [(SMALL, {"bias": _infinite(pattern(shape))}) for shape in (SMALL, (1, heads, *SMALL))]
    return [*found, (SQUARE, {"allowed": pattern((1, heads, *SQUARE))}), (ONE, {"allowed": pattern((1, heads, *ONE))})]


def two_sources(config: AttentionConfig) -> Masks:
    """Return masks with every pair of mask arguments and with all of them; each argument excludes different keys."""
    array = pattern((1, config.num_heads, *WIDE))
    kept = np.arange(WIDE[1]) == np.minimum(np.arange(WIDE[0]), 2)[:, None]
    given: dict[str, Any] = {
        "valid_lens": np.array([3]),
        "allowed": array | kept,
        "bias": _infinite(np.roll(array, 1, axis=2) | kept),
        "causal": True,
        "window": (2, 1),
    }
    return [(WIDE, {name: given[name] for name in names}) for names in (*combinations(given, 2), tuple(given))]


def masks_of_items(asker: Asker) -> list[Problem]:
    """Return problems whose masks differ by batch item; in some, B = Lq or B = Lk."""
    found = []
    lens = np.array([5, 2, 3, 6, 4, 7, 1])
    of_queries = np.array([[3, 2, 5, 6], [6, 3, 2, 4], [2, 5, 4, 3], [4, 6, 3, 2]])
    for config, batch in zip(asker.configs, (3, WIDE[0]), strict=False):
        rows: list[tuple[int, dict[str, Any]]] = [
            (batch, {"valid_lens": lens[:batch]}),
            (batch, {"valid_lens": of_queries[:batch]}),
            (batch, {"valid_lens": lens[:batch], "causal": True}),
            (batch, {"causal": True, "query_offset": np.array([2, 0, 1, 3])[:batch]}),
            (batch, {"bias": _infinite(pattern((batch, 1, *WIDE)))}),
            *((batch, {"allowed": pattern((batch, *s))}) for s in ((1, 1, WIDE[1]), (config.num_heads, *WIDE))),
            (WIDE[1], {"valid_lens": lens}),
        ]
        for items, fields in rows:
            how: dict[str, Any] = {"query_len": WIDE[0], "key_len": WIDE[1], "mask": AttentionMask(**fields)}
            found.append(generic(config, batch=items, **how, **EQUAL))
    return found


def one_source(config: AttentionConfig) -> Masks:
    some = pattern((1, config.num_heads, *SMALL))
    lens: dict[str, Any] = {"valid_lens": np.array([3])}
    return [(SMALL, {"causal": True}), *((size, lens) for size in (SMALL, SQUARE)), (SMALL, {"allowed": some})]


def biases(config: AttentionConfig) -> Masks:
    rng = np.random.default_rng(0)
    numbers, square = (rng.normal(size=(1, config.num_heads, *lengths)) for lengths in (SMALL, SQUARE))
    some = np.where(pattern(numbers.shape), numbers, -np.inf)
    shapes = (numbers, numbers[0, 0], numbers[0, :, :1], numbers[:, :1, :1])
    beside: list[dict[str, Any]] = [{"causal": True, "bias": numbers}, {"bias": some, "valid_lens": np.array([4])}]
    return [(SQUARE, {"bias": square}), *((SMALL, one) for one in (*({"bias": b} for b in (*shapes, some)), *beside))]


def biases_of_items(asker: Asker) -> list[Problem]:
    """Return problems with a bias for each head or batch item; in some, B = H or Lq = 1."""
    found = []
    for config in asker.configs[:2]:
        n, rng = config.num_heads, np.random.default_rng(1)
        for batch, shape in ((n, (n, *SMALL)), (n, (n, 1, *SMALL)), (2, (2, n, *SMALL))):
            found.append(generic(config, batch=batch, mask=AttentionMask(bias=rng.normal(size=shape))))
        found.append(generic(config, query_len=1, mask=AttentionMask(bias=rng.normal(size=(n, *ONE)))))
    return found


def bare_with(*rows: tuple[Mapping[str, Any], Mapping[str, Any]]) -> Problems:
    """Return a function: asker -> [a problem without projections for each (config fields, mask fields) in `rows`]."""

    def problems(asker: Asker) -> list[Problem]:
        some = rows if asker.fixed_weights is None else ()
        return [generic(replace(BARE[0], **how), mask=AttentionMask(**mask)) for how, mask in some]

    return problems


def empty(config: AttentionConfig) -> Masks:
    last = np.broadcast_to(np.arange(SMALL[1]) >= 3, SMALL)
    but_one = np.arange(SMALL[0])[:, None] != np.ones(SMALL)
    rows: list[dict[str, Any]] = [
        {"allowed": but_one},
        {"valid_lens": np.array([[2, 0, 4]])},
        {"valid_lens": np.array([0])},
        {"allowed": np.zeros((1, 1, 1, SMALL[1]), np.bool_)},
        {"bias": _infinite(but_one)},
        {"valid_lens": np.array([3]), "allowed": last},
    ]
    return [(SMALL, fields) for fields in rows]


def steep(asker: Asker) -> list[Problem]:
    """Return causal problems in which key j scores size * (j - Lk) for every query and head, for several sizes."""
    found = []
    for config in (one for one in asker.configs[:1] if one.projections):
        plain = generic(config, query_len=WIDE[0], key_len=WIDE[1], mask=AttentionMask(causal=True))
        weights: dict[str, Any] = {**NO_BIASES}
        for name in ("q_proj.weight", "k_proj.weight"):  # of the inputs channel 0 alone is not 0
            weights[name] = np.array(plain.weights[name])
            weights[name][:, 0] = np.arange(len(weights[name])) % config.head_dim == 0
        for size in (30.0, 3e3) if asker.precision.storage == "float16" else (30.0, 3e3, 3e4, 3e6, 3e9, 3e12):
            queries, keys = np.zeros_like(plain.inputs.queries), np.zeros_like(plain.inputs.keys)
            queries[..., 0], keys[..., 0] = size / config.softmax_scale, np.arange(WIDE[1]) - WIDE[1]
            found.append(changed(plain, weights, queries=queries, keys=keys))
    return found


SCALES, CAPS, RATES = (0.31, 1.7, 0.83), (0.8, 1.3, 0.6), (0.25, 0.4, 0.3)


def with_fields(*, weights: Any = NO_BIASES, **fields: Sequence[Any]) -> Problems:
    """Return a function: asker -> [a problem per config]. Config i has value i (cyclic) of each field in `fields`."""

    def problems(asker: Asker) -> list[Problem]:
        found = []
        for place, config in enumerate(asker.configs):
            with suppress(SpecError):
                other = replace(config, **{name: choice[place % len(choice)] for name, choice in fields.items()})
                found.append(scored(other, *SMALL, weights=weights))
        return found

    return problems


def dropped(config: AttentionConfig, rate: float, batch: int, *, training: bool = True) -> Problem:
    """Return a random problem with a rate of dropout; if `training`, the call has a keep-mask."""
    shape = (batch, config.num_heads, *SMALL)
    keep = np.random.default_rng(batch).random(shape) >= max(rate, 0.3) if training else None
    return generic(replace(config, dropout=rate), seed=1, batch=batch, dropout_keep=keep)


def with_dropout(*batches: int, training: bool = True) -> Problems:
    return lambda asker: [
        dropped(config, rate, batch, training=training)
        for batch in batches
        for config, rate in zip(asker.configs, RATES, strict=False)
    ]


def masked_dropout(asker: Asker) -> list[Problem]:
    """Return problems with a dropout keep-mask and an attention mask that has one argument."""
    layers = zip(asker.configs[:2], RATES, strict=False)
    calls = ((dropped(config, rate, 1), fields) for config, rate in layers for _, fields in one_source(config))
    return [changed(call, mask=AttentionMask(**fields)) for call, fields in calls]


def with_past(
    config: AttentionConfig, past: int, new: int, batch: int = 1, mask: AttentionMask | None = None, **how: Any
) -> Problem:
    """Return a random problem with `past` cached keys (0: none) and `new` new keys; by default Lq = past + new."""
    problem = generic(config, batch=batch, **{"query_len": past + new, **how}, key_len=new)
    rng = np.random.default_rng([past, new, batch])
    of_each = (batch, config.num_kv_heads, past)
    widths = {"past_keys": config.head_dim, "past_values": config.value_head_dim}
    given: dict[str, Any] = {name: rng.normal(size=(*of_each, width)) for name, width in widths.items() if past}
    return changed(problem, mask=mask or AttentionMask(), **given)


OF_PASTS = (SQUARE, SMALL, (2, 4))  # (lengths of a past, of what is new)


def own_keys(asker: Asker) -> list[Problem]:
    """Return calls in which query i attends to key i alone, with weight 1, whatever keys and scores are."""
    some = zip(asker.configs, OF_PASTS, strict=False)
    return [with_past(c, *lengths, mask=AttentionMask(allowed=np.eye(sum(lengths), dtype=bool))) for c, lengths in some]


def pasts(asker: Asker) -> list[Problem]:
    found = [with_past(config, *lengths) for config, lengths in zip(asker.configs, OF_PASTS, strict=False)]
    return found + [with_past(c, 3, 4, batch) for c, batch in zip(asker.configs, (2, 3), strict=False)]


def masked_pasts(asker: Asker) -> list[Problem]:
    found = []
    for config, batch in zip(asker.configs, (2, 3), strict=False):
        rows: tuple[dict[str, Any], ...] = (
            {"valid_lens": np.array([2, 5, 7])[:batch]},
            {"causal": True, "query_offset": 2},
            {"window": (2, 1), "query_offset": 3},
            {"allowed": pattern((batch, config.num_heads, 7, 7))},
        )
        found += [with_past(config, 3, 4, batch, AttentionMask(**fields)) for fields in rows]
    return found


def scored_pasts(asker: Asker) -> list[Problem]:
    """Calls with a past and what acts on scores."""
    found = []
    for config in asker.configs[:2]:
        bias = np.random.default_rng(0).normal(size=(1, config.num_heads, 7, 7))
        found.append(with_past(config, 3, 4, 1, AttentionMask(bias=bias)))
        found += [with_past(one, 3, 4) for one in (replace(config, softcap=CAPS[0]), replace(config, scale=SCALES[0]))]
    return found


def padding(name: str) -> Problems:
    """Return a function: asker -> calls with NaN, infinity or a large number in padded rows of the input `name`."""

    def problems(asker: Asker) -> list[Problem]:
        outside = np.arange(SMALL[1]) >= 3
        row = 1.0 + np.arange(SMALL[1])[:, None]  # equal large keys would be told apart by rounding alone
        masks = (AttentionMask(valid_lens=np.array([3])), AttentionMask(allowed=~outside[None, None, None]))
        found = []
        for config in asker.configs[:1]:
            for number in (np.nan, np.inf, 1e30):
                padded = np.where(outside[:, None], number * row, getattr(generic(config).inputs, name))
                given: dict[str, Any] = {name: padded}
                found += [generic(config, mask=mask, **given) for mask in masks]
        return found

    return problems


MOST = 12  # the greatest of the lengths that are asked one by one


def every_length(asker: Asker) -> list[Problem]:
    """Return plain calls of every length up to MOST, which show at which length a difference begins."""
    if not asker.configs or asker.fixed_weights is not None:
        return []
    few, many, config = range(1, MOST // 2 + 1), range(1, MOST + 1), asker.configs[0]
    lengths = [*((SMALL[0], n) for n in many), *((n, SMALL[1]) for n in many), *((n, n) for n in many)]
    found = [generic(config, query_len=queries, key_len=keys) for queries, keys in lengths]
    return [*found, *(generic(config, batch=n) for n in few), *(with_past(config, n, 2) for n in few)]


DRAWN = 100  # calls that are drawn


def drawn(asker: Asker) -> list[Problem]:
    """Return random problems of several features each, which refute bugs that fit problems of one feature by chance."""
    found = []
    for number in range(DRAWN if asker.configs else 0):
        rng = np.random.default_rng([DRAWN, number])
        often, names = (0.4, 0.12)[number % 2], ("softcap", "scale", "dropout", "past", "offset", *OF_MASKS)
        some = {name: rng.random() < often for name in names}  # few in every second call: not all may be taken
        config = asker.configs[number % len(asker.configs)]
        how: dict[str, Any] = {"softcap": 1.1, "scale": 0.45, "dropout": 0.3}
        with suppress(SpecError):  # a score that takes none
            config = replace(config, **{name: value for name, value in how.items() if some[name]})
        batch, new, past = int(rng.integers(2, 4)), int(rng.integers(4, 8)), int(rng.integers(1, 4)) * some["past"]
        query_len = int(rng.choice([1, 3, new, past + new]))
        shape = (batch, config.num_heads, query_len, past + new)
        mask = AttentionMask(**{name: OF_MASKS[name](rng, shape) for name in OF_MASKS if some[name]})
        offset: Any = past if past or not some["offset"] else rng.integers(-1, new, size=batch)
        problem = with_past(config, past, new, batch, query_len=query_len, seed=number)
        keep = rng.random(shape) >= config.dropout if config.dropout else None
        found.append(changed(problem, mask=replace(mask, query_offset=offset), dropout_keep=keep))
    return found


def _one_of(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape that a mask of (B, H, Lq, Lk) may have."""
    b, h, q, k = shape
    return [shape, (b, 1, q, k), (b, 1, 1, k), (h, q, k), (h, 1, k), (q, k)][rng.integers(6)]


OF_MASKS: Mapping[
    str, Callable[[np.random.Generator, tuple[int, ...]], Any]
] = {  # source of a mask -> one that is drawn for (B, H, Lq, Lk); some rows have no key then
    "causal": lambda rng, shape: True,
    "window": lambda rng, shape: (int(rng.integers(0, 5)), [None, 0, 1, 2][rng.integers(4)]),
    "valid_lens": lambda rng, shape: rng.integers(
        int(rng.random() < 0.8), shape[-1] + 1, size=shape[:1] if rng.random() < 0.7 else (shape[0], shape[2])
    ),
    "allowed": lambda rng, shape: rng.random(_one_of(rng, shape)) < 0.8,
    "bias": lambda rng, shape: np.where(
        rng.random(some := _one_of(rng, shape)) < rng.choice([0.0, 0.15]), -np.inf, rng.normal(size=some)
    ),
}


def with_gradients(asker: Asker) -> list[Problem]:
    """Return plain calls, then calls with one thing more."""
    found = [generic(config) for config in asker.configs]
    for config in asker.configs[:1]:
        masks = (
            AttentionMask(valid_lens=np.array([3, 1])),
            AttentionMask(causal=True),
            AttentionMask(allowed=pattern((2, 1, *SMALL)) & (np.arange(2) > 0)[:, None, None, None]),
            AttentionMask(bias=np.random.default_rng(0).normal(size=(config.num_heads, *SMALL))),
        )
        found += [generic(config, batch=2), *(generic(config, batch=2, mask=mask) for mask in masks)]
        found += [dropped(config, RATES[0], 2), with_past(config, *SMALL, batch=2)]
        found += [generic(replace(config, scale=SCALES[0])), generic(replace(config, softcap=CAPS[0]))]
        found.append(generic(replace(config, score="additive")))
    return [differentiated(problem) for problem in found]
