"""Cut heads out of a layer: rows of the projections to queries, keys and values, columns of the output projection.

Widths of heads and of the output stay, so the layer goes where it was. Of grouped heads only whole groups can be
cut, or as many query heads of each group that is kept.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mha.formats import create, format_of, open_checkpoint
from mha.formats.layer import check_same, read_layer
from mha.heads.subject import Layer, Subject
from mha_core import AttentionConfig, AttentionInputs, SpecError, layouts
from mha_core.call.masks import AttentionMask
from mha_core.files.writing import written_whole
from mha_core.weights import Weights, check_weights

Place = tuple[int, int]
"""(layer, head)."""


def kept_groups(config: AttentionConfig, kept: Collection[int]) -> list[int]:
    """The groups, heads of keys and values, that are left if these query heads are kept.

    Raises:
        SpecError: no head is left, there is no such head, or groups would be left with different numbers of heads.

    >>> kept_groups(AttentionConfig(8, 4, num_kv_heads=2), [0, 1]), kept_groups(AttentionConfig(8, 4), [1, 3])
    ([0], [1, 3])
    >>> kept_groups(AttentionConfig(8, 4, num_kv_heads=2), [0, 1, 2])
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: heads can be cut by whole groups, or as many of each group that is kept. \
Group 0 would keep heads 0, 1 and group 1 head 2.
    """
    size = config.num_heads // config.num_kv_heads
    unknown = sorted(set(kept) - set(range(config.num_heads)))
    if unknown:
        raise SpecError(f"there is no head {unknown[0]}: heads are 0 to {config.num_heads - 1}")
    if not kept:
        raise SpecError("a layer needs at least one head; without any it is the bias of its output projection")
    groups = {
        group: [head for head in sorted(kept) if head // size == group]
        for group in sorted({head // size for head in kept})
    }
    first = next(iter(groups))
    for group, heads in groups.items():
        if len(heads) != len(groups[first]):
            raise SpecError(
                "heads can be cut by whole groups, or as many of each group that is kept. "
                f"Group {first} would keep {_heads(groups[first])} and group {group} {_heads(heads)}."
            )
    return list(groups)


def cut(config: AttentionConfig, weights: Weights, kept: Collection[int]) -> tuple[AttentionConfig, Weights]:
    """The layer with these query heads alone, in their order.

    Raises:
        SpecError: as `kept_groups`; or the layer has no projections.

    >>> from mha_core import init_weights
    >>> config = AttentionConfig(6, 3)
    >>> smaller, weights = cut(config, init_weights(config, seed=0), [0, 2])
    >>> smaller.num_heads, smaller.head_dim, weights["q_proj.weight"].shape, weights["out_proj.weight"].shape
    (2, 2, (4, 6), (6, 4))
    """
    if not config.projections:
        raise SpecError("a layer without projections has no rows to cut: its heads are its inputs")
    heads, groups = sorted(set(kept)), kept_groups(config, kept)
    smaller = replace(config, num_heads=len(heads), num_kv_heads=len(groups))
    rows = {
        "q_proj": _channels(heads, config.head_dim),
        "k_proj": _channels(groups, config.head_dim),
        "v_proj": _channels(groups, config.value_head_dim),
    }
    columns = _channels(heads, config.value_head_dim)
    found = dict(weights)
    for name, array in weights.items():
        projection = name.split(".")[0]
        if projection in rows:
            found[name] = np.ascontiguousarray(array[rows[projection]])
    found["out_proj.weight"] = np.ascontiguousarray(found["out_proj.weight"][:, columns])
    return smaller, check_weights(smaller, found)


def cut_inputs(config: AttentionConfig, inputs: AttentionInputs, kept: Collection[int]) -> AttentionInputs:
    """The inputs for the layer that `cut` gives: a mask, bias or past of each head is there for those that are kept."""
    heads, groups = sorted(set(kept)), kept_groups(config, kept)

    def of_mask(name: str, array: NDArray) -> NDArray:
        per_head = name in ("allowed", "bias") and array.ndim >= 3 and array.shape[-3] == config.num_heads > 1
        return np.take(array, heads, axis=-3) if per_head else array

    def of_groups(array: NDArray | None) -> NDArray | None:
        return None if array is None else array[:, groups]

    return replace(
        inputs,
        mask=inputs.mask.map_arrays(of_mask),
        dropout_keep=None if inputs.dropout_keep is None else inputs.dropout_keep[:, heads],
        past_keys=of_groups(inputs.past_keys),
        past_values=of_groups(inputs.past_values),
    )


def masked_inputs(config: AttentionConfig, inputs: AttentionInputs, kept: Collection[int]) -> AttentionInputs:
    """The inputs for the whole layer in which the other heads may attend to nothing: `allowed[:, head] = False`."""
    gate = np.isin(np.arange(config.num_heads), list(kept))[None, :, None, None]
    allowed = inputs.mask.allowed
    mask: AttentionMask = replace(inputs.mask, allowed=gate if allowed is None else allowed & gate)
    return replace(inputs, mask=mask)


def removed_first(subject: Subject, order: Sequence[Place], count: int) -> NDArray[np.bool_]:
    """Bool (layers, heads): the first `count` heads of an order, but for the last one of each layer, which is kept.

    Grouped heads go by whole groups, in the order in which the groups' last heads come.

    Raises:
        SpecError: so many can't be cut.
    """
    check_count(subject, count)
    removed = np.zeros(subject.shape, np.bool_)
    met = np.zeros(subject.shape, np.bool_)
    for layer, head in order:
        if removed.sum() >= count:
            break
        size = subject.layers[layer].group
        group = slice(head // size * size, head // size * size + size)
        met[layer, head] = True
        if met[layer, group].all() and removed[layer].sum() + size < subject.layers[layer].config.num_heads:
            removed[layer, group] = True
    return removed


def check_count(subject: Subject, count: int) -> None:
    """SpecError unless `count` heads can be cut: one of each layer, or its group, must stay."""
    sizes = {layer.group for layer in subject.layers}
    most = subject.total - sum(layer.group for layer in subject.layers)
    if not 0 <= count <= most:
        raise SpecError(
            f"at most {most} of {subject.total} heads of {subject.name} can be cut: every layer keeps one. Got {count}."
        )
    if len(sizes) > 1:
        listed = " and ".join(map(str, sorted(sizes)))
        raise SpecError(f"{subject.name} has layers with groups of {listed} heads, which can't be cut by number")
    if count % (size := sizes.pop()):
        raise SpecError(f"heads of {subject.name} can be cut by whole groups of {size} alone. Got {count}.")


def check_names(subject: Subject) -> None:
    """SpecError if two layers have one name: a recording has those whose weights changed between calls twice."""
    names = [layer.name for layer in subject.layers]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SpecError(f"{subject.name} has two layers called {twice}, which one file can't hold")


def kept_in(subject: Subject, removed: NDArray[np.bool_]) -> list[list[int]]:
    """Layer by layer the heads that are left."""
    return [
        np.flatnonzero(~row[: layer.config.num_heads]).tolist()
        for layer, row in zip(subject.layers, removed, strict=True)
    ]


def write_layers(path: Path, layers: Sequence[Layer]) -> None:
    """Write layers as one safetensors file of canonical weights, whole or not at all; `mha convert` takes it.

    Each layer's arrays have its name as prefix, and its config is in the file's metadata. They are read back first.

    Raises:
        SpecError: what was written reads otherwise.
    """
    configs = {layer.name: layer.config for layer in layers}
    with written_whole(path) as temporary:
        with create(temporary, format_of(Path("layers.safetensors")), layout="canonical", configs=configs) as add:
            for layer in layers:
                for name, array in layer.weights.items():
                    add(f"{layer.name}.{name}", np.ascontiguousarray(array))
        with open_checkpoint(temporary) as written:
            for layer in layers:
                config, weights, _ = read_layer(written, layouts.get("canonical"), layer.name)
                if config != layer.config:
                    raise SpecError(f"{layer.name}: what was written has another config")
                check_same(f"{layer.name}: what was written", layer.weights, weights)


def _channels(heads: Sequence[int], width: int) -> NDArray[np.int64]:
    """Channels h * width + i of these heads."""
    return (np.asarray(heads, np.int64)[:, None] * width + np.arange(width)).ravel()


def _heads(heads: Sequence[int]) -> str:
    return f"head{'s' if len(heads) > 1 else ''} {', '.join(map(str, heads))}"
