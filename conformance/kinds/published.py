"""Published variants of attention in closed form: other weights, products, positions and norms than the definition's.

Each is tried as it is. Variants with learned numbers, such as a bias of each distance, are left out.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.kinds.made import bug_of, with_inputs
from conformance.zoo.bug import Bug, DoesNotApply
from conformance.zoo.forward.precision import FORMATS
from conformance.zoo.forward.softmax import open_scores
from mha_core.call.masks import additive_bias
from mha_core.parts.query_key_norm import QueryKeyNorm, norm
from mha_core.reference.forward import cap, softmax
from mha_core.reference.state import State, Step

TAKE_SOFTMAX = "Take the softmax of the scores."
FILLED = "padding's scores"
NO_FILLING = "Give what was filled up scores of -inf before the softmax, or fill nothing up."
BLOCKS = (2, 4, 8, 16, 32, 64)

Weigh = Callable[[State], NDArray]
"""A call -> its weights (B, H, Lq, Lk); those of excluded keys are set to 0 afterwards."""


def weightings() -> Iterator[Bug]:
    """Yield bugs that compute attention weights in other ways than as the softmax of the scores."""
    for words, weigh in WEIGHTINGS.items():
        sentence = f"Attention weights are {words}, in place of the softmax of the scores."
        fix = NO_FILLING if FILLED in words else TAKE_SOFTMAX
        yield bug_of(sentence, sentence, fix, {"weights": partial(_masked, weigh)})


def _masked(weigh: Weigh, state: State, beneath: Step) -> NDArray:
    if not state["scores"].size:
        return np.asarray(beneath(state))
    return np.where(state["allowed"], weigh(state), 0.0)


def _over(x: NDArray, total: NDArray) -> NDArray:
    return x / np.where(total == 0.0, 1.0, total)


def _softmax(state: State, scores: NDArray) -> NDArray:
    return softmax(scores, np.broadcast_to(state["allowed"], scores.shape))


def _softpick(eps: float, state: State) -> NDArray:
    scores = open_scores(state)
    highest = scores.max(axis=-1, keepdims=True)
    highest = np.where(np.isneginf(highest), 0.0, highest)
    x = np.where(state["allowed"], np.exp(scores - highest) - np.exp(-highest), 0.0)
    return _over(np.maximum(x, 0.0), np.abs(x).sum(axis=-1, keepdims=True) + eps)


def _laplace(state: State) -> NDArray:
    return 0.5 * (1.0 + np.vectorize(math.erf)((state["scores"] - 0.5**0.5) / (0.5 / math.pi) ** 0.5))


def _clipped(low: float, high: float, state: State) -> NDArray:
    return np.clip((high - low) * _softmax(state, state["scores"]) + low, 0.0, 1.0)


def _broken(last_first: bool, state: State) -> NDArray:
    way = slice(None, None, -1 if last_first else 1)
    beta = np.where(state["allowed"], 1.0 / (1.0 + np.exp(-state["scores"])), 0.0)[..., way]
    left = np.cumprod(np.concatenate([np.ones_like(beta[..., :1]), 1.0 - beta[..., :-1]], axis=-1), axis=-1)
    return (beta * left)[..., way]


def _entmax(power: int, state: State) -> NDArray:
    """Sparsemax (power 1) or entmax-1.5 (power 2): max(x - t, 0) ** power, where t makes the row sum to 1."""
    x = np.where(state["allowed"], state["scores"] / power, -np.inf)
    high = x.max(axis=-1, keepdims=True)
    low, high = high - 1.0, high
    for _ in range(60):  # halving the interval gives all digits
        middle = (low + high) / 2.0
        above = (np.maximum(x - middle, 0.0) ** power).sum(axis=-1, keepdims=True) >= 1.0
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return np.maximum(x - low, 0.0) ** power


def _padded(size: int, state: State) -> NDArray:
    scores, count = open_scores(state), -state.sizes.key_len % size
    if not count:
        return _softmax(state, state["scores"])
    highest = np.maximum(scores.max(axis=-1, keepdims=True), 0.0)
    powers = np.exp(scores - highest)
    return powers / (powers.sum(axis=-1, keepdims=True) + count * np.exp(-highest))


def _products(state: State, q: NDArray, k: NDArray) -> NDArray:
    """(B, H, Lq, Lk) of queries (B, H, Lq, .) and keys (B, G, Lk, .)."""
    return np.asarray(q @ _repeated(state, k).swapaxes(-1, -2))


def _repeated(state: State, x: NDArray) -> NDArray:
    return np.repeat(x, state.config.num_heads // x.shape[1], axis=1)


def _scores(state: State, products: NDArray) -> NDArray:
    """The scores of other products of queries and keys: scaled, capped, with the additive bias."""
    found, mask = cap(state, products * state.config.softmax_scale), state.inputs.mask
    return found if mask.bias is None else found + additive_bias(mask)


def _difference(share: float, state: State) -> NDArray:
    q, k, half = state["queries"], state["keys"], state.config.head_dim // 2
    if state.config.score == "additive":
        raise DoesNotApply("the additive score has no halves")
    parts = (_products(state, q[..., some], k[..., some]) for some in (slice(None, half), slice(half, None)))
    first, second = (_softmax(state, _scores(state, part)) for part in parts)
    return first - share * second


def _efficient(state: State) -> NDArray:
    def over(x: NDArray, axis: int) -> NDArray:
        return np.exp(x - x.max(axis=axis, keepdims=True))

    queries, keys = over(state["queries"], -1), _repeated(state, over(state["keys"], -2))
    total = np.broadcast_to(state["allowed"], state["scores"].shape) @ keys
    return np.asarray(_over(queries / queries.sum(axis=-1, keepdims=True), total) @ keys.swapaxes(-1, -2))


def _linear(feature: Callable[[NDArray], NDArray], scaled: bool, state: State) -> NDArray:
    factor = state.config.softmax_scale if scaled else 1.0
    x = _products(state, feature(factor * state["queries"]), feature(state["keys"]))
    return _over(x, np.where(state["allowed"], x, 0.0).sum(axis=-1, keepdims=True))


def _above(least: Callable[[State], float], again: bool, state: State) -> NDArray:
    found = _softmax(state, state["scores"])
    found = np.where(found >= least(state), found, 0.0)
    return _over(found, found.sum(axis=-1, keepdims=True)) if again else found


def _number(number: float, state: State) -> float:
    return number


LEAST: Mapping[str, Callable[[State], float]] = {
    **{f"{number:g}": partial(_number, number) for number in (0.001, 0.01, 0.05, 0.1)},
    "1 / Lk": lambda s: 1.0 / s.sizes.key_len,
}
"""Weights from which on they are kept."""

FEATURES: Mapping[str, Callable[[NDArray], NDArray]] = {
    "elu(x) + 1": lambda x: np.where(x > 0.0, x + 1.0, np.exp(np.minimum(x, 0.0))),
    "relu(x)": lambda x: np.maximum(x, 0.0),
    "relu(x)^2": lambda x: np.maximum(x, 0.0) ** 2,
    "exp(x)": np.exp,
}
"""Features of queries and keys in linear attention."""

WEIGHTINGS: Mapping[str, Weigh] = {
    **{
        f"relu(exp(s) - 1) of each score s, divided by the sum of |exp(s) - 1| (softpick, eps {eps:g})": (
            partial(_softpick, eps)
        )
        for eps in (1e-8, 1e-6, 0.0)
    },
    "sign(s) * softmax(|s|) of the scores s": lambda s: np.sign(s["scores"]) * _softmax(s, np.abs(s["scores"])),
    "0.5 * (1 + erf((s - sqrt(0.5)) / sqrt(0.5 / pi))) of each score s (the Laplace function of MEGA)": _laplace,
    "sigmoid(s) of each score s, times 1 - sigmoid(s) of every later key (stick-breaking)": partial(_broken, True),
    "sigmoid(s) of each score s, times 1 - sigmoid(s) of every earlier key (stick-breaking)": partial(_broken, False),
    "the sparsemax of the scores": partial(_entmax, 1),
    "the entmax-1.5 of the scores": partial(_entmax, 2),
    "softmax(queries, over channels) @ softmax(keys, over positions)^T (efficient attention)": _efficient,
    **{
        f"clip({high - low:g} * softmax(scores) - {abs(low):g}, 0, 1)": partial(_clipped, low, high)
        for low, high in product((-0.03, -0.003, -0.1, 0.0), (1.0, 1.03))
        if (low, high) != (0.0, 1.0)
    },
    "sigmoid(s - ln Lk) of each score s": lambda s: 1.0 / (1.0 + s.sizes.key_len * np.exp(-s["scores"])),
    "the softmax, plus 1 for the key of the query's own number": lambda s: (
        _softmax(s, s["scores"]) + np.eye(s.sizes.query_len, s.sizes.key_len)
    ),
    **{
        f"the softmax, with all below {words} set to 0{', and each row divided by its sum again' * again}": partial(
            _above, least, again
        )
        for (words, least), again in product(LEAST.items(), (False, True))
    },
    **{
        f"the softmax of the first half of a head's channels less {share:g} times that of the second half "
        "(differential attention)": partial(_difference, share)
        for share in (0.2, 0.5, 0.8, 1.0)
    },
    **{
        f"f(q) . f(k) with f(x) = {words}{', of queries times the scale,' * scaled} divided by their sum "
        "(linear attention)": partial(_linear, feature, scaled)
        for (words, feature), scaled in product(FEATURES.items(), (False, True))
    },
    **{
        f"the softmax over keys padded with zeros to a multiple of {n}, where the {FILLED} of 0 count in the sum": (
            partial(_padded, n)
        )
        for n in BLOCKS
    },
}
"""Words -> the weights."""


# Other products -------------------------------------------------------------------------------------------


def cosines(state: State, beneath: Step) -> NDArray | None:
    """Return the cosine similarities (B, H, Lq, Lk) of queries and keys; None for the additive score."""
    if state.config.score == "additive":
        return None
    return _products(state, *(_over(x, np.linalg.norm(x, axis=-1, keepdims=True)) for x in _both(state)))


def nearness(state: State, beneath: Step) -> NDArray | None:
    """Return -|q - k|^2 (B, H, Lq, Lk) for each query q and key k; None for the additive score."""
    if state.config.score == "additive":
        return None
    q, k = _both(state)
    squares = (q**2).sum(axis=-1)[..., None], (_repeated(state, k) ** 2).sum(axis=-1)[:, :, None]
    return 2.0 * _products(state, q, k) - squares[0] - squares[1]


def _both(state: State) -> tuple[NDArray, NDArray]:
    return np.asarray(state["queries"]), np.asarray(state["keys"])


# Which key head a query head reads ------------------------------------------------------------------------

READS: Mapping[str, Callable[[NDArray, int, int], NDArray]] = {
    "min(h, G - 1)": lambda h, heads, groups: np.minimum(h, groups - 1),
    "min(h // G, G - 1)": lambda h, heads, groups: np.minimum(h // groups, groups - 1),
    "G - 1": lambda h, heads, groups: 0 * h + groups - 1,
    "G - 1 - h // (H / G)": lambda h, heads, groups: groups - 1 - h * groups // heads,
}
"""The key/value head that query head h reads, of (h, H, G)."""


def reads() -> Iterator[Bug]:
    """Yield bugs in which a query head reads the wrong key head, the wrong value head, or both."""
    steps = {"keys": KEYED, "values": ("heads",), "keys and values": (*KEYED, "heads")}
    for (words, read), what in product(READS.items(), steps):
        sentence = f"Query head h reads {what} of key/value head {words}."
        hidden = partial(_hidden_by, read)
        changes = {"unscaled": partial(_scored_by, read), "heads": partial(_summed_by, read), "additive_hidden": hidden}
        yield bug_of(
            sentence,
            sentence,
            "Let query head h read key/value head h // (H / G): repeat_interleave, numpy.repeat.",
            {step: changes[step] for step in steps[what]},
        )


KEYED = ("unscaled", "additive_hidden")
"""The steps that read keys."""


def _of_heads(read: Callable[..., NDArray], state: State, name: str) -> NDArray:
    heads, groups = state.config.num_heads, state.config.num_kv_heads
    return np.asarray(state[name][:, read(np.arange(heads), heads, groups)])


def _scored_by(read: Callable[..., NDArray], state: State, beneath: Step) -> NDArray:
    if state.config.score == "additive":
        return np.asarray(beneath(state))
    return np.asarray(state["queries"] @ _of_heads(read, state, "keys").swapaxes(-1, -2))


def _hidden_by(read: Callable[..., NDArray], state: State, beneath: Step) -> Any:
    if state.config.score != "additive":
        return beneath(state)
    weights = (state.parameters[f"score.{name}.weight"].T for name in ("query", "key"))
    both = (state["queries"], _of_heads(read, state, "keys"))
    from_query, from_key = (x @ w for x, w in zip(both, weights, strict=True))
    return np.tanh(from_query[:, :, :, None, :] + from_key[:, :, None, :, :])


def _summed_by(read: Callable[..., NDArray], state: State, beneath: Step) -> NDArray:
    return np.asarray(state["kept_weights"] @ _of_heads(read, state, "values"))


# Norms, precisions and shifts -----------------------------------------------------------------------------

NORMED = {
    "The output is normed": ("output", "all its channels"),
    "The merged heads are normed": ("merged", "all their channels"),
    "The weighted sum of each head is normed": ("heads", "its channels"),
    "The values of each head are normed": ("projected_values", "its channels"),
}


def norms() -> Iterator[Bug]:
    """Yield bugs that apply a norm without parameters where the reference has no norm."""
    for (words, (step, over)), kind, eps in product(NORMED.items(), ("rms", "layer"), (1e-6, 1e-5, 1e-12)):
        settings = QueryKeyNorm(kind, "head", eps=eps, weight="none")  # type: ignore[arg-type]  # a Literal of these
        how = {"rms": "RMSNorm", "layer": "LayerNorm"}[kind]
        sentence = f"{words} over {over}, as {how} without weights does (eps {eps:g})."
        yield bug_of(sentence, sentence, "Leave this norm out.", {step: partial(_norm, settings)})


def _norm(settings: QueryKeyNorm, state: State, beneath: Step) -> NDArray:
    x = np.asarray(beneath(state))
    return norm(x if x.ndim == 4 else x[:, None], settings, None, None).result.reshape(x.shape) if x.size else x


LOG2E = math.log2(math.e)

IN_FORMAT: Mapping[str, Callable[[Callable[[NDArray], NDArray], State], Any]] = {
    "The scale is rounded to {}.": lambda narrow, s: s["unscaled"] * narrow(np.array(s.config.softmax_scale)),
    "The factor of the scores before exp2, scale * log2(e), is rounded to {}.": lambda narrow, s: (
        s["unscaled"] * (narrow(np.array(s.config.softmax_scale * LOG2E)) / LOG2E)
    ),
    "Queries times the scale are rounded to {}.": lambda narrow, s: _products(
        s, narrow(s["queries"] * s.config.softmax_scale), s["keys"]
    ),
    "Queries and keys, each times the root of the scale, are rounded to {}.": lambda narrow, s: _products(
        s, *(narrow(s[name] * s.config.softmax_scale**0.5) for name in ("queries", "keys"))
    ),
}


def scales() -> Iterator[Bug]:
    """Yield bugs that round the scale, or what it multiplies."""
    for (words, made), (name, narrow) in product(IN_FORMAT.items(), FORMATS.items()):
        sentence = words.format(name)
        step = partial(_in_format, partial(made, narrow))
        yield bug_of(sentence, sentence, "Scale and score in the precision of the inputs.", {"similarity": step})


def _in_format(made: Callable[[State], Any], state: State, beneath: Step) -> NDArray:
    if state.config.score == "additive":
        return np.asarray(beneath(state))
    return np.asarray(made(state), np.float64)


def shifts() -> Iterator[Bug]:
    """Yield bugs that take half of each token's channels from the previous or the next token."""
    for part, by in product(("first", "last"), (1, -1)):
        near = "before" if by == 1 else "after"
        sentence = f"Token shift: the {part} half of each input's channels is from the position {near} it, or 0."
        steps = dict.fromkeys(("query_inputs", "key_inputs", "value_inputs"), partial(_shifted, part, by))
        yield bug_of(sentence, sentence, "Take the inputs as they are.", steps)


def _shifted(part: str, by: int, state: State, beneath: Step) -> NDArray:
    x = np.asarray(beneath(state))
    half, none = x.shape[-1] // 2, np.zeros_like(x[:, :1])
    moved = np.concatenate([none, x[:, :-1]] if by == 1 else [x[:, 1:], none], axis=1)[:, : x.shape[1]]
    some = (moved, x) if part == "first" else (x, moved)
    return np.concatenate([some[0][..., :half], some[1][..., half:]], axis=-1)


def sinusoids() -> Iterator[Bug]:
    """Yield bugs that add sinusoidal position encodings to the inputs, or to the projected queries and keys."""
    inputs = ("query_inputs", "key_inputs", "value_inputs")
    sets = {
        "all inputs": inputs,
        "the inputs of queries and keys": inputs[:2],
        "queries and keys": ("queries", "new_keys"),
    }
    for (words, steps), halves in product(sets.items(), (False, True)):
        order = "all sines, then all cosines" if halves else "sines and cosines in turn"
        sentence = f"Sinusoidal positions ({order}) are added to {words}."
        yield bug_of(
            sentence, sentence, "Add positions outside of the layer.",
            {step: partial(_placed, halves, step.startswith("quer")) for step in steps},
        )  # fmt: skip


def _placed(halves: bool, of_queries: bool, state: State, beneath: Step) -> NDArray:
    x = np.asarray(beneath(state))
    length, width = x.shape[-2:]
    first = np.reshape(state.inputs.mask.query_offset, (-1, 1)) if of_queries else np.full((1, 1), state.sizes.past_len)
    angle = (first + np.arange(length))[..., None] / 10000.0 ** (2.0 * np.arange(-(-width // 2)) / width)
    both = (np.sin(angle), np.cos(angle))
    added = np.concatenate(both, axis=-1) if halves else np.stack(both, axis=-1).reshape(*angle.shape[:-1], -1)
    return x + (added if x.ndim == 3 else added[:, None])[..., :width]


def logarithms() -> Iterator[Bug]:
    """Yield bugs that scale queries by the logarithm of the position, or of the number of keys."""
    for base in (math.e, 2.0, *range(3, 9), 16, 32, 64):
        over = "" if base == math.e else f" / ln({base:g})"
        for words, count in (("position + 1", _position), ("Lk", _keys)):
            sentence = f"Queries are multiplied by max(1, ln({words}){over})."
            yield bug_of(sentence, sentence, "Take queries as they are.", {"queries": partial(_grown, base, count)})


def _position(state: State) -> NDArray:
    offset = np.reshape(state.inputs.mask.query_offset, (-1, 1))
    return np.asarray(offset + np.arange(state.sizes.query_len) + 1.0)


def _keys(state: State) -> NDArray:
    return np.full((1, 1), float(state.sizes.key_len))


def _grown(base: float, count: Callable[[State], NDArray], state: State, beneath: Step) -> NDArray:
    factor = np.log(np.maximum(count(state), base)) / math.log(base)
    return np.asarray(beneath(state) * factor[:, None, :, None])


# Dropout ------------------------------------------------------------------------------------------------


def dropouts() -> Iterator[Bug]:
    """Yield bugs that share dropout's keep-mask along one or more of its axes: items, heads, queries, keys."""
    named = ("items", "heads", "queries", "keys")
    for count in range(1, 16):
        axes = [axis for axis in range(4) if count >> axis & 1]
        over = " and ".join(named[axis] for axis in axes)
        for kept in (False, True):
            shape = ", ".join("1" if axis in axes else size for axis, size in enumerate(("B", "H", "Lq", "Lk")))
            more = " In detail: what is kept is divided by the share that is kept, not by 1 - p." * kept
            sentence = f"Dropout is one mask ({shape}) for all {over}.{more}"
            fix = f"Draw a keep-mask of the weights' shape, (B, H, Lq, Lk).{' Divide by 1 - p.' * kept}"
            yield bug_of(sentence, sentence, fix, {"kept_weights": partial(_shared, axes, kept)})


def _shared(axes: list[int], kept: bool, state: State, beneath: Step) -> NDArray:
    keep = state.inputs.dropout_keep
    if keep is None:
        return np.asarray(beneath(state))
    first = keep[tuple(slice(0, 1) if axis in axes else slice(None) for axis in range(4))]
    if kept:
        return np.asarray(state["weights"] * _over(first, first.mean(axis=(1, 2, 3), keepdims=True)))
    changed = with_inputs(state, dropout_keep=np.broadcast_to(first, keep.shape))
    return np.asarray(beneath(changed))
