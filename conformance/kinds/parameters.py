"""Bugs of parameters: a projection has another projection's numbers, or its own in another order or rounded."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import permutations, product

import numpy as np
from numpy.typing import NDArray

from conformance.kinds.made import bug_of, with_parameters
from conformance.zoo.bug import Bug, DoesNotApply
from conformance.zoo.forward.precision import FORMATS, to_integers
from mha_core import AttentionConfig
from mha_core.reference.forward import PROJECTED
from mha_core.reference.state import State, Step

MANY = {"weight and bias": "weights and biases", "weight": "weights"}


def parameters() -> Iterator[Bug]:
    """Yield bugs: a projection uses another projection's parameters, or the queries are added to the heads' outputs."""
    names = {"q_proj": "queries", "k_proj": "keys", "v_proj": "values"}
    kinds = {"weight and bias": ("weight", "bias"), "weight": ("weight",), "bias": ("bias",)}
    for (own, stage), other, words in product(names.items(), names, kinds):
        if own != other:
            said = f"The projection of {stage} has the {words} of {other}."
            steps = {own: partial(_tied, own, other, kinds[words])}
            yield bug_of(said, said, f"Use {own}.{words} instead of {other}.{words}.", steps, stage=stage)
    for others, words in product(permutations(names), ("weight and bias", "weight")):
        moved = {own: other for own, other in zip(names, others, strict=True) if own != other}
        if len(moved) > 1:
            read = [own[0] for other in names for own in names if moved.get(own, own) == other]
            said = f"rows [q; k; v] are read as [{'; '.join(read)}]"
            *before, last = (names[one] for one in moved)
            how = "permuted" if len(moved) > 2 else "exchanged"
            whose = f"The {MANY[words]} of {', '.join(before)} and {last} are {how}"
            said = f"{whose}, as where packed {said}."
            steps = {own: partial(_tied, own, other, kinds[words]) for own, other in moved.items()}
            yield bug_of(
                said, said, "Give each projection its own; packed blocks are q, k and v, in this order.", steps
            )
    said = "The queries of a head are added to its weighted sum."
    yield bug_of(said, said, "Add nothing to the heads.", {"heads": _with_queries})


def _tied(own: str, other: str, kinds: Sequence[str], state: State, beneath: Step) -> NDArray:
    given, changed = state.parameters, {}
    for kind in kinds:
        before, after = given.get(f"{own}.{kind}"), given.get(f"{other}.{kind}")
        if before is None and after is None:
            continue
        array = np.zeros_like(before) if after is None else np.asarray(after)  # a bias that it lacks adds nothing
        if array.shape != given[f"{own}.weight"].shape[: array.ndim]:
            raise DoesNotApply(f"{own} and {other} have other shapes")
        changed[f"{own}.{kind}"] = array
    return np.asarray(beneath(with_parameters(state, changed)))


def _with_queries(state: State, beneath: Step) -> NDArray:
    heads = np.asarray(beneath(state))
    if heads.shape != state["queries"].shape:
        raise DoesNotApply("values of another width than queries")
    return heads + state["queries"]


# In another order -----------------------------------------------------------------------------------------

INPUTS, OUTPUT = ("q_proj", "k_proj", "v_proj"), "out_proj"

SETS: Mapping[str, tuple[str, ...]] = {
    "q_proj, k_proj and v_proj": INPUTS,
    "q_proj and k_proj": ("q_proj", "k_proj"),
    "q_proj, k_proj, v_proj and out_proj": (*INPUTS, OUTPUT),
    **{name: (name,) for name in (*INPUTS, OUTPUT)},
}

KINDS = {"weights and biases": ("weight", "bias"), "weights": ("weight",), "biases": ("bias",)}

Rows = Callable[[NDArray, int], NDArray]
"""Indices of channels (heads * d,), and the number of heads -> the indices that are read."""

OF_HEADS: Mapping[str, Rows] = {
    "their heads in reverse order": lambda i, heads: i.reshape(heads, -1)[::-1].ravel(),
    "their heads rolled by 1": lambda i, heads: np.roll(i.reshape(heads, -1), 1, axis=0).ravel(),
    "(head, channel) read as (channel, head)": lambda i, heads: i.reshape(heads, -1).T.ravel(),
    "(channel, head) read as (head, channel)": lambda i, heads: i.reshape(-1, heads).T.ravel(),
    "the channels of each head in reverse order": lambda i, heads: i.reshape(heads, -1)[:, ::-1].ravel(),
    "first the even channels of each head": lambda i, heads: _of_each(i, heads, (slice(0, None, 2), slice(1, None, 2))),
    "the halves of each head taken in turn": lambda i, heads: _in_turn(i, heads),
}
"""Orders of the channels of one projection."""


def _of_each(i: NDArray, heads: int, parts: Sequence[slice]) -> NDArray:
    x = i.reshape(heads, -1)
    return np.concatenate([x[:, part] for part in parts], axis=1).ravel()


def _in_turn(i: NDArray, heads: int) -> NDArray:
    x = i.reshape(heads, -1)
    if x.shape[1] % 2:
        raise DoesNotApply("heads of an odd width")
    return x.reshape(heads, 2, -1).swapaxes(1, 2).ravel()


def reordered() -> Iterator[Bug]:
    """Yield bugs that reorder weights, biases or both, of one projection or of several at once."""
    for (words, rows), (names, some), kinds in product(OF_HEADS.items(), SETS.items(), KINDS):
        if kinds == "biases" and OUTPUT in some:  # whose channels belong to no head
            continue
        said = f"The {kinds} of {names} are read in another order{' than the weights' * (kinds == 'biases')}: {words}."
        steps = {PROJECTED[name][1]: partial(_by_heads, rows, KINDS[kinds], name) for name in some}
        yield bug_of(said, said, "Read each parameter in the order in which it was written.", steps)
    for (names, some), back in product(SETS.items(), (False, True)):
        if len(some) > 1:
            how = "read in the memory order of their transposes" if back else "used transposed, as (in, out)"
            said = f"The weights of {names} are {how}."
            steps = {PROJECTED[name][1]: partial(_transposed, back, name) for name in some}
            yield bug_of(said, said, "Transpose each weight once, when it is loaded: it is (out, in).", steps)
    for parts, kinds, back in product((2, 4, 0), KINDS, (False, True)):
        whole = "[q; k; v]"
        shards = "; ".join(f"q{n}; k{n}; v{n}" for n in range(1, parts + 1))
        split = f"[{shards}] ({parts} shards of heads)" if parts else "[q; k; v] of each head in turn"
        read, written = (split, whole) if back else (whole, split)
        said = f"The rows of the packed {kinds} lie as {written}, and are read as {read}."
        steps = {PROJECTED[name][1]: partial(_of_shards, parts, back, KINDS[kinds], name) for name in INPUTS}
        yield bug_of(said, said, f"Read what is packed as {written}.", steps)


def _heads_of(config: AttentionConfig, step: str) -> int:
    return config.num_heads if step in ("q_proj", OUTPUT) else config.num_kv_heads


def _changed(state: State, beneath: Step, arrays: Mapping[str, NDArray]) -> NDArray:
    return np.asarray(
        beneath(with_parameters(state, {name: x for name, x in arrays.items() if name in state.parameters}))
    )


def _by_heads(rows: Rows, kinds: Sequence[str], step: str, state: State, beneath: Step) -> NDArray:
    heads, found = _heads_of(state.config, step), {}
    for kind in kinds:
        given = state.parameters.get(f"{step}.{kind}")
        if given is None or (step == OUTPUT and kind == "bias"):
            continue
        axis = 1 if step == OUTPUT else 0
        found[f"{step}.{kind}"] = np.take(given, rows(np.arange(given.shape[axis]), heads), axis=axis)
    return _changed(state, beneath, found)


def _transposed(back: bool, step: str, state: State, beneath: Step) -> NDArray:
    given = state.parameters[f"{step}.weight"]
    if back and len({*given.shape}) == 2:  # of a square one that is the transposed one
        return _changed(state, beneath, {f"{step}.weight": given.T.reshape(given.shape)})
    if back or given.shape[0] != given.shape[1]:
        raise DoesNotApply("a weight that is square" if back else "a weight that is not square")
    return _changed(state, beneath, {f"{step}.weight": given.T})


def _of_shards(parts: int, back: bool, kinds: Sequence[str], name: str, state: State, beneath: Step) -> NDArray:
    """The numbers of `name`, where q, k and v are packed along their channels."""
    found, count = {}, parts or state.config.num_kv_heads
    for kind in kinds:
        names = [f"{one}.{kind}" for one in INPUTS if f"{one}.{kind}" in state.parameters]
        given = [np.asarray(state.parameters[one]) for one in names]
        if not given:
            continue
        if len(given) < len(INPUTS) or any(len(one) % count or one.shape[1:] != given[0].shape[1:] for one in given):
            raise DoesNotApply("projections that can't be packed so")
        whole = np.concatenate(given)
        ends = np.cumsum([len(one) for one in given])[:-1]
        pieces = [np.split(channels, count) for channels in np.split(np.arange(len(whole)), ends)]
        order = np.concatenate([piece for shard in zip(*pieces, strict=True) for piece in shard])
        read = whole[np.argsort(order) if back else order]
        found[f"{name}.{kind}"] = np.split(read, ends)[INPUTS.index(name)]
    return _changed(state, beneath, found)


# In fewer bits ------------------------------------------------------------------------------------------------

SCALED_BY: Mapping[str, int | None] = {"each output channel": 1, "each input channel": 0, "each matrix": None}
"""Parts of a matrix with a scale of their own -> the axis over which their numbers are looked at; None: all axes."""

Narrow = Callable[[NDArray, int, int | None], NDArray]
"""Weights, the number of bits, and the axis of a scale -> the numbers of the grid that are nearest."""


def _beyond(signed: bool, array: NDArray, bits: int, axis: int | None) -> NDArray:
    """Round so that the largest gets 2^(bits - 1), which is cut off; if `signed`, -2^(bits - 1), which is there."""
    low, least = -(2 ** (bits - 1)), array.min(axis=axis, keepdims=True, initial=0.0)
    size = np.maximum(-least, array.max(axis=axis, keepdims=True, initial=0.0))
    step = np.where(-least == size, size, -size) if signed else size
    step = np.where(step == 0.0, 1.0, step) / -low
    return np.clip(np.round(array / step), low, -low - 1) * step


def _between(array: NDArray, bits: int, axis: int | None) -> NDArray:
    least, most = (getattr(array, name)(axis=axis, keepdims=True, initial=0.0) for name in ("min", "max"))
    step = np.where(most == least, 1.0, most - least) / (2**bits - 1)
    zero = np.round(-least / step)
    return (np.clip(np.round(array / step) + zero, 0, 2**bits - 1) - zero) * step


GRIDS: Mapping[str, Narrow] = {
    "": to_integers,
    " In detail: the largest number is scaled to {half}, and clipped to {half} - 1.": partial(_beyond, False),
    " In detail: the number of the largest size is scaled to -{half}.": partial(_beyond, True),
    " In detail: from the least to the largest number, with a zero point.": _between,
}


KEEP = "Keep the parameters in the precision of the inputs."


def rounded() -> Iterator[Bug]:
    """Yield bugs that quantize weights to 8 or 4 bits (one scale per channel or matrix), or cast them to fewer bits."""
    every = {"all projections": (*INPUTS, OUTPUT), **{names: some for names, some in SETS.items() if len(some) < 4}}
    for (names, some), bits, (each, axis), (detail, narrow) in product(
        every.items(), (8, 4), SCALED_BY.items(), GRIDS.items()
    ):
        weights = f"weight{'s' * (len(some) > 1)} of {names} {'are' if len(some) > 1 else 'is'}"
        said = f"The {weights} {bits}-bit integers times a scale of {each}.{detail.format(half=2 ** (bits - 1))}"
        steps = {PROJECTED[name][1]: partial(_rounded, partial(narrow, bits=bits, axis=axis), name) for name in some}
        yield bug_of(said, said, KEEP, steps)
    for (names, some), (dtype, in_format) in product(every.items(), FORMATS.items()):
        if len(some) > 1:  # of one projection these are on file
            said = f"The weights of {names} are rounded to {dtype}, and their biases are not."
            yield bug_of(said, said, KEEP, {PROJECTED[name][1]: partial(_rounded, in_format, name) for name in some})


def _rounded(narrow: Callable[..., NDArray], step: str, state: State, beneath: Step) -> NDArray:
    name = f"{step}.weight"
    return _changed(state, beneath, {name: narrow(np.asarray(state.parameters[name]))})
