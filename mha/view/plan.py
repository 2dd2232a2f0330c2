"""Plan: which recorded calls make up which picture, before anything is computed.

A `Part` is one layer in one pass of the model. Calls of a layer that continue each other, as in decoding, are one
pass: the queries of the later ones stand below those of the earlier ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from math import ceil

import numpy as np

from mha.recordings.recording import Recording
from mha_core import AttentionConfig, AttentionInputs, SpecError
from mha_core.errors import listed


@dataclass(frozen=True)
class Part:
    """One layer in one forward pass of the model, which the page shows as one picture.

    Attributes:
        layer, kind, dtype, config: the recorded layer's; a layer without a name is called "layer".
        position: the position of the layer among all recorded layers.
        number: the number of the forward pass, from 0.
        calls: positions of the layer's calls in the recording; several if they continue one another with a cache.
        batch, query_len, key_len: the sizes of the picture: queries of all `calls`, and keys of the last one.
        is_cross: whether queries and keys are of different sequences, so that their positions can't be compared.
        heads: the heads that are shown.
        is_exact: True if every weight is shown, to three digits; False if one number is shown for a block of weights.
    """

    layer: str
    kind: str
    dtype: str
    config: AttentionConfig
    position: int
    number: int
    calls: tuple[int, ...]
    batch: int
    query_len: int
    key_len: int
    is_cross: bool
    heads: tuple[int, ...]
    is_exact: bool

    @property
    def kv_heads(self) -> tuple[int, ...]:
        """Return the key heads that the shown heads read, in order."""
        return tuple(dict.fromkeys(self.kv_head(head) for head in self.heads))

    def kv_head(self, head: int) -> int:
        """Return the key head that a query head reads."""
        return head // (self.config.num_heads // self.config.num_kv_heads)


EXACT_UP_TO = 128
"""Most tokens for which all weights are exact, unless layers or heads are chosen."""


def plan(recording: Recording, layers: Sequence[str] = (), heads: Sequence[int] = ()) -> tuple[Part, ...]:
    """Return the Parts (layers in forward passes) to show, layer by layer in the order of their first calls.

    Args:
        layers: names or positions of layers to show; wildcards work. (): all.
        heads: numbers of heads to show. (): all.

    Raises:
        SpecError: no layer has such a name or position, or a chosen layer has no such head.
    """
    by_name: dict[str, list[int]] = {}
    for position, call in enumerate(recording.calls):
        by_name.setdefault(recording.layers[call.layer].name or "layer", []).append(position)
    parts, names = [], list(by_name)
    for name in _chosen(names, layers):
        for number, calls in enumerate(_passes(recording, by_name[name])):
            layer = recording.layers[recording.calls[calls[-1]].layer]
            sizes = [recording.calls[call].inputs.check(layer.config) for call in calls]
            batch, query_len, key_len = sizes[-1].batch, sum(one.query_len for one in sizes), sizes[-1].key_len
            if not (batch and query_len and key_len):
                lengths = f"{batch} items, {query_len} queries, {key_len} keys"
                raise SpecError(f"a call of {name} has nothing to show: {lengths}; --layers chooses others")
            part = _part(name, layer.config, names.index(name), number, (batch, query_len, key_len), heads=heads)
            is_cross = _is_cross(recording.calls[calls[0]].inputs, layer.config)
            part = replace(part, kind=layer.kind, dtype=layer.dtype, calls=tuple(calls), is_cross=is_cross)
            parts.append(replace(part, is_exact=part.is_exact or bool(layers)))
    return tuple(parts)


def plan_of_model(
    sizes: Sequence[tuple[str, AttentionConfig]], lengths: Sequence[int], layers: Sequence[str], heads: Sequence[int]
) -> tuple[Part, ...]:
    """Return a Part for each chosen layer and each text. `sizes`: (name, config) of layers. `lengths`: tokens per text.

    `layers`, `heads` and the SpecErrors are as in `plan`.
    """
    names = [name for name, _ in sizes]
    chosen = _chosen(names, layers)
    parts = [
        _part(name, config, position, number, (1, length, length), heads=heads)
        for position, (name, config) in enumerate(sizes)
        if name in chosen
        for number, length in enumerate(lengths)
    ]
    return tuple(replace(part, is_exact=part.is_exact or bool(layers)) for part in parts)


def _part(
    name: str,
    config: AttentionConfig,
    position: int,
    number: int,
    sizes: tuple[int, int, int],
    *,
    heads: Sequence[int],
) -> Part:
    """The part of self-attention of these sizes (B, Lq, Lk), with the heads that were chosen."""
    wrong = [head for head in heads if not 0 <= head < config.num_heads]
    if wrong:
        raise SpecError(f"{name} has heads 0 to {config.num_heads - 1}. Got --heads {wrong[0]}.")
    shown = tuple(dict.fromkeys(heads)) or tuple(range(config.num_heads))
    exact = bool(heads) or max(sizes[1:]) <= EXACT_UP_TO
    return Part(name, "", "", config, position, number, (), *sizes, False, shown, exact)


def _chosen(names: list[str], patterns: Sequence[str]) -> list[str]:
    found = set()
    for pattern in patterns:
        matching = {name for i, name in enumerate(names) if pattern == str(i) or fnmatchcase(name, pattern)}
        if not matching:
            raise SpecError(f"no layer is named or numbered {pattern!r} (there are: {listed(names, 6)})")
        found |= matching
    return [name for name in names if not patterns or name in found]


def _passes(recording: Recording, calls: list[int]) -> list[list[int]]:
    """The calls of one layer, those that continue each other together."""
    passes: list[list[int]] = []
    for position in calls:
        if passes and _continues(recording, passes[-1][-1], position):
            passes[-1].append(position)
        else:
            passes.append([position])
    return passes


def _continues(recording: Recording, before: int, after: int) -> bool:
    """Whether a call is the next step of another: its past is as long as all keys were, or its keys are the same."""
    one, other = recording.calls[before], recording.calls[after]
    config = recording.layers[one.layer].config
    if config != recording.layers[other.layer].config:
        return False
    first, second = one.inputs.check(config), other.inputs.check(config)
    if first.batch != second.batch:
        return False
    if second.past_len:
        return second.past_len == first.key_len
    return (
        first.key_len == second.key_len
        and not first.past_len
        and _is_cross(one.inputs, config)
        and _is_cross(other.inputs, config)
        and np.array_equal(one.inputs.keys, other.inputs.keys, equal_nan=True)
        and not np.array_equal(one.inputs.queries, other.inputs.queries, equal_nan=True)
    )


def _is_cross(inputs: AttentionInputs, config: AttentionConfig) -> bool:
    """Whether keys are made of something else than queries. Without projections only the lengths can say so."""
    if inputs.queries.shape[-2] != inputs.keys.shape[-2]:
        return True
    if not config.projections:
        return False
    return not np.array_equal(inputs.queries, inputs.keys, equal_nan=True)


# Sizes: how many bytes a page takes, known before anything is computed.


MOST_BYTES = 32 * 2**20
"""Of a page: browsers take several times as much memory."""

MOST_HEADS = 2048
"""Most cells of the grid, each a button with a name."""

FRAME = 48_000
"""Bytes of the page without any head: its text, style and script."""

CELL = 1_100
"""Bytes of one head's cell in the grid, and of its measures."""

LINE = 1_600
"""Bytes of one layer's lines: its name, its sizes, how near it is to what was recorded."""

TOKEN = 24
"""Bytes of one token's name, on average."""


def block(part: Part) -> int:
    """Return the side of the square blocks of weights that are shown as one number; 1 if weights are exact."""
    return 1 if part.is_exact else ceil(max(part.query_len, part.key_len) / EXACT_UP_TO)


def data_bytes(part: Part, *, has_other: bool) -> int:
    """Return the size in bytes of one Part's arrays for one batch item.

    If weights are exact, each takes two bytes, one more byte if compared (`has_other`), and a bit for the mask. Each
    channel of a query or key then takes two bytes. If weights are not exact, each block of them takes one byte.
    """
    if not part.is_exact:
        side = block(part)
        return len(part.heads) * ceil(part.query_len / side) * ceil(part.key_len / side)
    places = part.query_len * part.key_len
    channels = len(part.heads) * part.query_len + len(part.kv_heads) * part.key_len
    return len(part.heads) * (places * (3 if has_other else 2) + ceil(places / 8)) + 2 * channels * part.config.head_dim


def page_bytes(parts: Sequence[Part], *, has_other: bool) -> int:
    """Return an upper bound on a page's bytes before compression. `has_other`: whether weights are compared."""
    total = FRAME
    for part in parts:
        lengths = (part.query_len + part.key_len) * TOKEN
        total += part.batch * (data_bytes(part, has_other=has_other) * 4 // 3 + 4 + CELL * len(part.heads) + lengths)
        total += LINE
    return total


def check_size(parts: Sequence[Part], *, has_other: bool) -> int:
    """Return the size from `page_bytes`. SpecError if it is too large; the message says how to choose fewer layers."""
    first = [part for part in parts if part.number == 0]
    heads = sum(len(part.heads) for part in first)
    layers = f"{len(first)} layers with {heads} heads"
    choose = "choose some with --layers (names or positions) and --heads"
    if heads > MOST_HEADS:
        raise SpecError(f"{layers} are too many for one page, which shows at most {MOST_HEADS} heads: {choose}")
    size = page_bytes(parts, has_other=has_other)
    if size > MOST_BYTES:
        largest = max(parts, key=lambda part: part.query_len * part.key_len)
        raise SpecError(
            f"the page would take up to {size / 1e6:.0f} MB for {layers}, up to {largest.query_len} queries x "
            f"{largest.key_len} keys; at most {MOST_BYTES / 1e6:.0f} MB: {choose}"
        )
    return size
