"""AttentionInputs: all inputs of one run of a layer, as NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha_core.call.arguments import CallSizes, is_numbers, settled, with_fields
from mha_core.call.call import FLOATS, LEAVES, Call, LayerSpec
from mha_core.call.checks import check_call, check_numbers
from mha_core.call.masks import AttentionMask
from mha_core.call.rotary import TABLES, RotaryInputs, tables_of_call
from mha_core.config import AttentionConfig
from mha_core.dtypes import DTYPES, round_to
from mha_core.errors import SpecError
from mha_core.heads import merge_heads


@dataclass(frozen=True, eq=False)
class AttentionInputs:
    """The inputs of one run: the arguments of the layer, and a cotangent if gradients are asked for.

    Args:
        queries, keys, values: (B, Lq, Dq), (B, Lk, Dk), (B, Lk, Dv). Of a layer without projections
            also (B, H, Lq, d), (B, G, Lk, d), (B, G, Lk, dv): split into heads.
        mask: which keys each query may attend to.
        dropout_keep: bool (B, H, Lq, Lk); True keeps a weight. Its presence makes this a training step.
        cotangent: (B, Lq, Do), the gradient of some loss with respect to the output; None: no gradients are computed.
        past_keys, past_values: (B, G, Lp, d), (B, G, Lp, dv), the stages `keys` and `values` of earlier steps of
            decoding. They stand before the new ones; Lk counts both, in the mask and in every stage. The mask's
            `query_offset` must be Lp.
        rotary: the positions of queries and new keys, or tables of their angles, in a layer with rotary positions;
            None: queries are counted from `query_offset`, new keys from Lp.

    A list as dropout_keep, and a list or number as the mask's bias, become arrays of NumPy here.

    Raises:
        SpecError: a list that is no array.
    """

    queries: NDArray
    keys: NDArray
    values: NDArray
    mask: AttentionMask = field(default_factory=AttentionMask)
    dropout_keep: NDArray | None = None
    cotangent: NDArray | None = None
    past_keys: NDArray | None = None
    past_values: NDArray | None = None
    rotary: RotaryInputs | None = None

    def __post_init__(self) -> None:
        changes: dict[str, object] = {}
        for name in ("queries", "keys", "values", "cotangent", "past_keys", "past_values"):
            given = getattr(self, name)
            changes[name] = settled(name, given) if isinstance(given, np.ndarray) else given
        if is_numbers(self.mask.bias):
            changes["mask"] = self.mask.with_bias_in(str(getattr(changes["queries"], "dtype", "")))
        changes["dropout_keep"] = settled("dropout_keep", self.dropout_keep)
        for name, value in changes.items():
            if value is not getattr(self, name):
                object.__setattr__(self, name, value)  # the dataclass is frozen

    @property
    def call(self) -> Call[NDArray]:
        """Return the arguments of the layer: everything except the cotangent."""
        past = (self.past_keys, self.past_values)
        return Call(self.queries, self.keys, self.values, self.mask, self.dropout_keep, *past, self.rotary)

    @property
    def is_training(self) -> bool:
        """Return whether this is a training step, which is so if `dropout_keep` is given."""
        return self.dropout_keep is not None

    def leaves(self) -> dict[str, NDArray]:
        """Return name -> array, for the floating-point arrays of the call that have gradients.

        >>> x = np.ones((1, 2, 6))
        >>> list(AttentionInputs(x, x, x).leaves())
        ['queries', 'keys', 'values']
        """
        given = {name: self.mask.bias if name == "bias" else getattr(self, name) for name in LEAVES}
        return {name: array for name, array in given.items() if array is not None}

    def tables(self) -> dict[str, NDArray]:
        """Return name -> array, for the floating-point arrays that have no gradient, such as rotary tables."""
        given = {} if self.rotary is None else {name: getattr(self.rotary, name) for name in TABLES}
        return {name: array for name, array in given.items() if array is not None}

    def call_with(self, leaves: Mapping[str, Any], convert: Callable[[str, NDArray], Any]) -> Call[Any]:
        """Return this call in a framework's arrays.

        Args:
            leaves: name -> the framework's array, for every array in `leaves()` and `tables()`.
            convert: (name, array) -> the framework's array. It is called for all other arrays: lengths, offsets, masks.
        """

        def of(name: str, array: NDArray) -> Any:
            return leaves[name] if name in leaves else convert(name, array)

        mask, rotary = self.mask.map_arrays(of), None if self.rotary is None else self.rotary.map_arrays(of)
        keep = None if self.dropout_keep is None else convert("dropout_keep", self.dropout_keep)
        return Call(mask=mask, dropout_keep=keep, rotary=rotary, **{name: leaves.get(name) for name in FLOATS})

    @property
    def is_split(self) -> bool:
        """Return whether queries, keys and values are split into heads already."""
        return self.queries.ndim == 4

    def merged(self) -> AttentionInputs:
        """Return these inputs with the heads of queries, keys and values merged, if they are split."""
        if not self.is_split:
            return self
        return replace(
            self, queries=merge_heads(self.queries), keys=merge_heads(self.keys), values=merge_heads(self.values)
        )

    def traceable(self, config: AttentionConfig, *, sizes: bool = True) -> AttentionInputs:
        """Return these inputs with rotary tables in place of positions, if a traced layer can't compute the angles.

        Some frequency rules need the largest position. A traced layer does not know it in three cases: the call gives
        positions, `query_offset` is an array, or the sizes of the call are unknown (`sizes=False`).
        """
        settings, given = config.rotary, self.rotary
        counted = sizes and not (given is not None and given.is_placed) and isinstance(self.mask.query_offset, int)
        if settings is None or settings.is_per_position or counted:
            return self
        return replace(self, rotary=self.rotary_tables(config))

    def rotary_tables(self, config: AttentionConfig, rows: tuple[int, ...] | None = None) -> RotaryInputs | None:
        """Return rotary tables for new keys and queries at `rows` (None: all), or None if `config` has no rotary."""
        if config.rotary is None:
            return None
        made = tables_of_call(config.rotary, self.rotary, self.mask.query_offset, self.check(config))
        cos, sin = (table if rows is None else table[:, rows] for table in made.queries)
        return RotaryInputs(None, None, cos, sin, *made.keys)

    def check(self, config: AttentionConfig, dtype: str | None = None) -> CallSizes:
        """Return the sizes of this run. SpecError if the inputs do not fit `config`, or `dtype` (None: any dtype)."""
        sizes = check_call(self.call, LayerSpec.of(config, dtype=dtype))
        check_numbers(self.mask.valid_lens, self.mask.query_offset, sizes.key_len)
        if config.rotary is not None:
            tables_of_call(config.rotary, self.rotary, self.mask.query_offset, sizes)  # checks the positions' numbers
        if self.cotangent is not None:
            output = (sizes.batch, sizes.query_len, config.output_dim)
            if self.cotangent.shape != output or str(self.cotangent.dtype) not in DTYPES:
                raise SpecError(
                    f"cotangent must be floating-point of the output's shape {output}. "
                    f"Got {self.cotangent.dtype} {self.cotangent.shape}."
                )
        return sizes

    def rounded(self, dtype: str) -> AttentionInputs:
        """Return these inputs with every floating-point array rounded to `dtype` (see `round_to`)."""
        given = {name: getattr(self, name) for name in (*FLOATS, "cotangent")}
        changes: dict[str, Any] = {name: round_to(array, dtype) for name, array in given.items() if array is not None}
        if self.mask.bias is not None:
            changes["mask"] = with_fields(self.mask, bias=round_to(self.mask.bias, dtype))
        if self.rotary is not None:
            changes["rotary"] = self.rotary.map_arrays(
                lambda name, array: round_to(array, dtype) if name in TABLES else array
            )
        return with_fields(self, **changes)

    def as_float64(self) -> AttentionInputs:
        """These inputs with every floating-point array in float64."""
        return self.rounded("float64")


def read_only(array: NDArray) -> NDArray:
    """Return a view of `array` that cannot be written through."""
    view = np.asarray(array).view()
    view.flags.writeable = False
    return view
