"""Rotary positions done wrong: which channels are a pair, which way they turn, and what turns at all."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from conformance.zoo.bug import Steps, Table, after, of_past, part, require
from mha_core.call.rotary import positions_of
from mha_core.parts.rotary import Rotary, pairs, rotate, tables
from mha_core.parts.rotary import Table as Angles
from mha_core.reference.state import State

BEGINS = ("rotary-", "rotation-", "rotated-")

Turn = Callable[[NDArray, Angles, Rotary], NDArray]
"""(x (B, heads, L, d), cosine and sine, settings) -> x turned another way."""

SIDES = ("queries", "keys")


has_rotary, settings_of = part("rotary", Rotary)


def _turned(turn: Turn, sides: tuple[str, ...] = SIDES, where: Callable[[Rotary], bool] = lambda s: True) -> Steps:
    """`turn` in place of the turn of queries, of keys or of both, in layers with such settings."""

    def of(side: str) -> Steps:
        def turned(state: State, right: NDArray) -> NDArray:
            return turn(state[f"normed_{side}"], getattr(state["rotary_tables"], side), settings_of(state))

        return after(f"rotated_{side}", turned, lambda state: has_rotary(state) and where(settings_of(state)))

    return {name: step for side in sides for name, step in of(side).items()}


def _channels(turn: Callable[[NDArray, NDArray, Angles], tuple[NDArray, NDArray]]) -> Turn:
    """A turn whose pairs are `turn(first channels, second ones, cosine and sine)`."""

    def turned(x: NDArray, table: Angles, settings: Rotary) -> NDArray:
        made = np.array(x)
        one, other = pairs(made, settings)
        cos, sin = table.cos[:, None], table.sin[:, None]
        one[...], other[...] = turn(*pairs(x, settings), Angles(cos, sin))
        return made

    return turned


def _overwritten(a: NDArray, b: NDArray, t: Angles) -> tuple[NDArray, NDArray]:
    turned = a * t.cos - b * t.sin
    return turned, b * t.cos + turned * t.sin


def _other_layout(x: NDArray, table: Angles, settings: Rotary) -> NDArray:
    return rotate(x, table, replace(settings, interleaved=not settings.interleaved))


def _with(**changes: object) -> Turn:
    """The turn of other settings."""
    return lambda x, table, settings: rotate(x, table, replace(settings, **changes))  # type: ignore[arg-type]  # each change is of its field's type


def _partner_of_head(x: NDArray, table: Angles, settings: Rotary) -> NDArray:
    """Channel i of the first r / 2 turns with channel i + d / 2."""
    half, apart = (settings.width or 0) // 2, x.shape[-1] // 2
    a, b = x[..., :half], x[..., apart : apart + half]
    cos, sin = table.cos[:, None], table.sin[:, None]
    made = np.array(x)
    made[..., :half], made[..., apart : apart + half] = a * cos - b * sin, b * cos + a * sin
    return made


def _apart(x: NDArray, table: Angles, settings: Rotary) -> NDArray:
    """The pairs (2 i, 2 i + 1) turned, and written as (i, i + r / 2)."""
    made = rotate(x, table, settings)
    turning = settings.turning(x.shape[-1])
    made[..., turning] = np.concatenate(pairs(made, settings), axis=-1)
    return made


def _full_width(of_channel: Callable[[NDArray, int], NDArray]) -> Turn:
    """Each channel c of the r that turn with the angle of pair `of_channel(c, r / 2)`, as with tables of width r."""

    def turned(x: NDArray, table: Angles, settings: Rotary) -> NDArray:
        width = settings.width or 0
        pair_of = of_channel(np.arange(width), width // 2)
        channels = np.zeros(x.shape[-1], dtype=np.int64)
        channels[settings.turning(x.shape[-1])] = pair_of
        first, second = pairs(channels, settings)
        cos, sin = table.cos[:, None], table.sin[:, None]
        a, b = pairs(x, settings)
        made = np.array(x)
        one, other = pairs(made, settings)
        one[...] = a * cos[..., first] - b * sin[..., first]
        other[...] = b * cos[..., second] + a * sin[..., second]
        return made

    return turned


def _all_channels(state: State, side: str) -> NDArray:
    """A side turned in all its channels, or in all but one, with the frequencies of that width."""
    x = state[f"normed_{side}"]
    positions = positions_of(state.inputs.rotary, state.inputs.mask.query_offset, state.sizes)[SIDES.index(side)]
    wider = replace(settings_of(state), width=x.shape[-1] // 2 * 2)
    return rotate(x, tables(wider, positions, 1), wider)


def _wide(side: str) -> Steps:
    def is_partial(state: State) -> bool:
        settings, given = state.config.rotary, state.inputs.rotary
        if settings is None or settings.rule is not None or settings.sections is not None:
            return False
        is_whole = (settings.width or 0) // 2 == state.config.head_dim // 2
        return not is_whole and (given is None or not given.has_tables)

    return after(f"rotated_{side}", lambda state, right: _all_channels(state, side), is_partial)


def _values(state: State, right: NDArray) -> NDArray:
    settings = settings_of(state)
    require(right.shape[-1] >= (settings.width or 0), "values narrower than what turns cannot turn unnoticed")
    return rotate(right, state["rotary_tables"].keys, settings)


def _turned_again(state: State, keys: NDArray) -> NDArray:
    settings, past = settings_of(state), state.sizes.past_len
    axes = () if settings.sections is None else (settings.axes, 1)
    positions = np.broadcast_to(np.arange(past), (*axes, past))
    return rotate(keys, tables(settings, positions, past), settings)


_row = Table("queries", "a' = a cos - b sin, b' = b cos + a sin, of queries and of new keys; channels beyond r stay.")
_pairs = Table("queries", "Pairs are channels (k, k + r / 2) of those that turn, or (2 k, 2 k + 1) if interleaved.")
_once = Table("keys", "Turn queries and new keys, each once: a cache holds keys that are turned, values never turn.")

TURN = (
    _row("rotary-ignored", "Queries and keys do not turn.", _turned(lambda x, table, s: x)),
    _row(
        "rotary-reversed",
        "Queries and keys turn in the other direction.",
        _turned(lambda x, table, s: rotate(x, Angles(table.cos, -table.sin), s)),
    ),
    _row(
        "rotary-without-sign",
        "A pair is mirrored: a cos + b sin in place of a cos - b sin.",
        _turned(_channels(lambda a, b, t: (a * t.cos + b * t.sin, b * t.cos + a * t.sin))),
    ),
    _row(
        "rotary-overwritten",
        "The second channel of a pair is computed from the first after that has turned.",
        _turned(_channels(_overwritten)),
    ),
    _row(
        "rotary-first-channels-only",
        "Only the first channel of each pair is written.",
        _turned(_channels(lambda a, b, t: (a * t.cos - b * t.sin, b))),
    ),
    _once("rotary-of-keys-missing", "Queries turn, keys do not.", _turned(lambda x, table, s: x, ("keys",))),
    _once(
        "rotary-of-queries-missing",
        "Keys turn, queries do not.",
        _turned(lambda x, table, s: x, ("queries",)),
        stage="queries",
    ),
    _once(
        "rotary-of-keys-reversed",
        "Keys turn in the other direction than queries.",
        _turned(lambda x, table, s: rotate(x, Angles(table.cos, -table.sin), s), ("keys",)),
    ),
    _once(
        "rotary-of-values", "Values turn as keys do.", after("projected_values", _values, has_rotary), stage="values"
    ),
    _once(
        "rotary-of-past-again",
        "Keys of the past turn once more.",
        of_past("keys", _turned_again, has_rotary),
        seen_in="mosaicml/examples#257",
    ),
)

PAIRS = (
    _pairs(
        "rotary-layout-exchanged",
        "Interleaved pairs are read as halves, halves as interleaved pairs.",
        _turned(_other_layout),
        seen_in="huggingface/transformers#25199, Dao-AILab/flash-attention#288",
    ),
    _pairs(
        "rotary-layout-of-keys-exchanged",
        "The pairs of keys are read in the other layout, those of queries are not.",
        _turned(_other_layout, ("keys",)),
        stage="keys",
        seen_in="ggml-org/llama.cpp#3364",
    ),
    *(
        _pairs(
            f"rotary-always-{name}",
            f"Channels are always read as {words}, whatever the layer says.",
            _turned(_with(interleaved=value), where=lambda s, value=value: s.interleaved is not value),  # type: ignore[misc]
        )
        for name, words, value in (("halves", "halves", False), ("interleaved", "interleaved pairs", True))
    ),
    *(
        _pairs(
            f"rotary-always-{end}",
            f"The {end} channels always turn, whatever the layer says.",
            _turned(_with(start=end), where=lambda s, end=end: s.start != end),  # type: ignore[misc]
            fix="Turn the first r channels of each head, or its last r where start says so.",
        )
        for end in ("first", "last")
    ),
    _pairs(
        "rotary-axes-taken-for-layout",
        "Axes that take turns over the pairs are taken for interleaved pairs.",
        _turned(_other_layout, where=lambda s: s.sections_interleaved),
        seen_in="xLLM-AI/xllm#2120",
    ),
    _pairs(
        "rotary-partner-of-head",
        "Channel k turns with channel k + d / 2 where it must with k + r / 2.",
        _turned(_partner_of_head, where=lambda s: not s.interleaved and s.start == "first"),
        seen_in="pie-project/pie#603",
    ),
    _pairs(
        "rotary-other-end",
        "The last channels turn in place of the first, or the first in place of the last.",
        _turned(lambda x, table, s: rotate(x, table, replace(s, start="last" if s.start == "first" else "first"))),
        fix="Turn the first r channels of each head, or its last r where start says so.",
    ),
    _pairs(
        "rotary-all-channels",
        "All channels turn where only r of them should.",
        *map(_wide, SIDES),
        fix="Turn r channels, and pass the others as they are.",
        seen_in="vllm-project/vllm#43199, huggingface/kernels-community#1143",
    ),
    _pairs(
        "rotary-pairs-taken-apart",
        "Interleaved pairs are turned and written as halves: the scores stay right.",
        _turned(_apart, where=lambda s: s.interleaved),
        seen_in="modular/modular#5647",
    ),
    _pairs(
        "rotary-tables-tiled",
        "Interleaved pairs meet tables tiled as [f0, f1, ..., f0, f1, ...], which are for halves.",
        _turned(_full_width(lambda c, pairs: c % pairs), where=lambda s: s.interleaved),
        seen_in="facebookresearch/vjepa2#15, Tongjilibo/bert4torch#1",
    ),
    _pairs(
        "rotary-tables-repeated",
        "Halves meet tables repeated as [f0, f0, f1, f1, ...], which are for interleaved pairs.",
        _turned(_full_width(lambda c, pairs: c // 2), where=lambda s: not s.interleaved),
    ),
)

BUGS = (*TURN, *PAIRS)
