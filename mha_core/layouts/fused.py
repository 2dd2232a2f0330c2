"""Layouts of decoders and encoders that keep queries, keys and values in one linear module, heads perhaps grouped."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from mha_core.config import PROJECTIONS, AttentionConfig
from mha_core.errors import SpecError
from mha_core.layouts.layout import (
    Layout,
    as_many_key_heads,
    config_of,
    copied,
    heads_or_error,
    plain_score,
    zero_filled,
)
from mha_core.weights import Weights, check_weights

Order = Callable[[int, int, int], NDArray[np.int64]]
"""H, G, d -> where the rows of queries, then keys, then values, stand in the fused matrix."""


def in_a_row(heads: int, groups: int, width: int) -> NDArray[np.int64]:
    """Return the row numbers of queries, then keys, then values, in a matrix that has them in this order: 0, 1, 2..."""
    return np.arange((heads + 2 * groups) * width)


def by_groups(heads: int, groups: int, width: int) -> NDArray[np.int64]:
    """Return the row numbers of queries, then keys, then values, in a fused matrix of groups (queries, key, value).

    >>> by_groups(4, 2, 1)
    array([0, 1, 4, 5, 2, 6, 3, 7])
    """
    rows = np.arange((heads + 2 * groups) * width).reshape(groups, heads // groups + 2, width)
    return np.concatenate([rows[:, :-2].reshape(-1), rows[:, -2].reshape(-1), rows[:, -1].reshape(-1)])


def by_quarters(heads: int, groups: int, width: int) -> NDArray[np.int64]:
    """Return the row numbers of queries, then keys, then values, in a matrix of 4 blocks, each (queries, values, keys).

    >>> by_quarters(4, 4, 1)
    array([ 0,  3,  6,  9,  2,  5,  8, 11,  1,  4,  7, 10])
    """
    if heads % 4:
        raise SpecError(f"rows in four blocks need a multiple of 4 heads. Got {heads}.")
    queries, values, keys = np.moveaxis(np.arange(3 * heads * width).reshape(4, 3, -1), 1, 0)
    return np.concatenate([queries.reshape(-1), keys.reshape(-1), values.reshape(-1)])


class FusedLayout(Layout):
    """A layout with two modules: one matrix for queries, keys and values together, and an output projection.

    All heads have the same width d. The number of key heads follows from the shapes of both matrices.

    Args:
        fused, out: the names of the two modules.
        order: (H, G, d) -> the row numbers of queries, then keys, then values, such as `in_a_row`.
        grouped: whether there may be fewer key heads than query heads.
        foreign: see `Layout`.
        of: the library whose layers have this layout; the attribute `summary` begins with it.
    """

    def __init__(
        self,
        name: str,
        summary: str,
        fused: str,
        out: str,
        *,
        order: Order,
        grouped: bool = True,
        foreign: str = "",
        of: str = "Hugging Face ",
    ) -> None:
        self.name, self.summary, self.framework = name, f"{of}{summary}", "torch"
        self.order, self.grouped = order, grouped
        self.required = (f"{fused}.weight", f"{out}.weight")
        self.optional = (f"{fused}.bias", f"{out}.bias")
        self.foreign = (foreign,) if foreign else ()

    def read(
        self, arrays: Mapping[str, NDArray], *, num_heads: int | None = None, num_kv_heads: int | None = None
    ) -> tuple[AttentionConfig, Weights]:
        self._check_names(arrays)
        heads = heads_or_error(self, num_heads)
        found = {name: np.asarray(array) for name, array in arrays.items()}
        for name, array in found.items():
            if array.ndim != (2 if name in self.required else 1):
                raise SpecError(
                    f"{name} must be a {'matrix' if name in self.required else 'vector'}. Got {array.shape}."
                )
        (fused, out), (bias, out_bias) = self.required, self.optional
        columns, rows = found[out].shape[1], found[fused].shape[0]
        width = columns // heads
        groups = (rows - columns) // (2 * width) if width else 0
        if columns % heads:
            raise SpecError(
                f"{fused} has {rows} rows and {out} {columns} columns: {columns} is no multiple of {heads} heads "
                "(num_heads)."
            )
        if columns != heads * width or groups < 1 or rows != (heads + 2 * groups) * width or heads % groups:
            raise SpecError(
                f"{fused} must have rows for the queries, keys and values of heads that are {out}'s {columns} columns "
                f"over num_heads={heads} wide. Got {rows} rows."
            )
        if not self.grouped and groups != heads:
            raise SpecError(f"layout {self.name!r} has as many key heads as query heads, {heads}. Got {groups}.")
        order, cuts = self.order(heads, groups, width), (columns, columns + groups * width)
        parts = dict(zip(PROJECTIONS, np.split(found[fused][order], cuts), strict=False))
        weights = {f"{p}.weight": part for p, part in parts.items()} | {"out_proj.weight": found[out]}
        if bias in found:
            if len(found[bias]) != rows:
                raise SpecError(f"{bias} must have {rows} numbers, as {fused} has rows. Got {len(found[bias])}.")
            split = np.split(found[bias][order], cuts)
            weights.update({f"{p}.bias": part for p, part in zip(PROJECTIONS, split, strict=False)})
        if out_bias in found:
            weights["out_proj.bias"] = found[out_bias]
        config = config_of(weights, num_heads=heads, num_kv_heads=num_kv_heads)
        return config, copied(config, weights)

    def write(self, config: AttentionConfig, weights: Mapping[str, NDArray]) -> dict[str, NDArray]:
        plain_score(self, config)
        checked = check_weights(config, weights)
        if not self.grouped:
            as_many_key_heads(self, config)
        for name, size, wanted in (
            ("value_head_dim", config.value_head_dim, config.head_dim),
            ("key_dim", config.key_dim, config.query_dim),
            ("value_dim", config.value_dim, config.query_dim),
        ):
            if size != wanted:
                raise SpecError(f"layout {self.name!r} packs rows of one size: {name} must be {wanted}. Got {size}.")
        order = self.order(config.num_heads, config.num_kv_heads, config.head_dim)
        (fused, out), (bias, out_bias) = self.required, self.optional

        def packed(parts: list[NDArray]) -> NDArray:
            rows = np.concatenate(parts)
            placed = np.empty_like(rows)
            placed[order] = rows
            return placed

        arrays = {
            fused: packed([checked[f"{p}.weight"] for p in PROJECTIONS[:3]]),
            out: np.array(checked["out_proj.weight"], order="C"),
        }
        biases = zero_filled(config, checked, *PROJECTIONS[:3])
        if biases is not None:
            arrays[bias] = packed(biases)
        if "out_proj.bias" in checked:
            arrays[out_bias] = np.array(checked["out_proj.bias"])
        return arrays

    def fits(self, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """Return whether `Layout.fits` is true, and the fused matrix's rows fit the output projection's columns.

        If `grouped`, there must be more rows than columns; else exactly three times as many.
        """
        fused, out = self.required
        if not super().fits(shapes) or fused not in shapes or out not in shapes:
            return super().fits(shapes)
        rows, columns = shapes[fused][0], shapes[out][1]
        return rows > columns if self.grouped else rows == len(PROJECTIONS[:3]) * columns


FUSED_LAYOUTS = (
    FusedLayout(
        "gpt-neox",
        "GPT-NeoX, Persimmon and Falcon: query_key_value (G, H / G + 2, d rows), dense",
        *("query_key_value", "dense"),
        order=by_groups,
    ),
    FusedLayout(
        "gpt-bigcode",
        "GPT-BigCode: c_attn (G, H / G + 2, d rows), c_proj, both not transposed",
        *("c_attn", "c_proj"),
        order=by_groups,
        foreign="q_attn.weight",
    ),
    FusedLayout(
        "phi3", "Phi-3: qkv_proj (all queries, all keys, all values), o_proj", "qkv_proj", "o_proj", order=in_a_row
    ),
    FusedLayout("dbrx", "DBRX: Wqkv (all queries, all keys, all values), out_proj", "Wqkv", "out_proj", order=in_a_row),
    FusedLayout(
        "nanogpt",
        "nanoGPT and minGPT: c_attn (all queries, all keys, all values), c_proj, both not transposed",
        *("c_attn", "c_proj"),
        order=in_a_row,
        grouped=False,
        foreign="q_attn.weight",
        of="",
    ),
    FusedLayout("modernbert", "ModernBERT: Wqkv (3, H, d rows), Wo", "Wqkv", "Wo", order=in_a_row, grouped=False),
    FusedLayout(
        "codegen",
        "CodeGen: qkv_proj (4, queries and values and keys of H / 4 heads), out_proj",
        *("qkv_proj", "out_proj"),
        order=by_quarters,
        grouped=False,
    ),
)
"""Every layout of this kind."""
