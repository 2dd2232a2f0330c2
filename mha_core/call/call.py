"""Call: all arguments of one call of a layer. LayerSpec: the properties of the layer that they must fit.

`forward`, `call` or `__call__` of each framework makes a Call of its explicit arguments, inside what is compiled
(`causal` and `window` are static, so it is never an argument of `jax.jit` or `tf.function`); everything below takes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, TypeVar

from mha_core.call.arguments import Dim, settled
from mha_core.call.masks import AttentionMask
from mha_core.call.rotary import RotaryInputs
from mha_core.config import AttentionConfig
from mha_core.heads import HeadShapes
from mha_core.parts.rotary import Rotary

Array = TypeVar("Array")
Widths = tuple[Dim, Dim, Dim]
"""(Dq, Dk, Dv): how wide queries, keys and values are; None where any width will do, or is not known yet."""

FLOATS = ("queries", "keys", "values", "past_keys", "past_values")
"""The fields of a Call that hold floats of the layer's dtype."""

LEAVES = (*FLOATS, "bias")
"""What of a call has a gradient, where it is given: its floats, and the additive bias of its mask."""


@dataclass(frozen=True, eq=False)
class Call(Generic[Array]):
    """One call of a layer, in the arrays of one framework.

    Args:
        queries, keys, values: (B, Lq, Dq), (B, Lk, Dk), (B, Lk, Dv). Of a layer without projections
            also (B, H, Lq, d), (B, G, Lk, d), (B, G, Lk, dv): split into heads.
        mask: the AttentionMask that the caller gave. It says which keys each query may attend to.
        dropout_keep: bool (B, H, Lq, Lk), True keeps a weight; None if dropout is off or the layer draws the mask.
        past_keys, past_values: (B, G, Lp, d), (B, G, Lp, dv), both or none: a decoding cache. Past keys stand before
            new ones; Lk counts both, in the mask too.
        rotary: the positions of queries and new keys, in a layer with rotary positions. None: query i stands at
            query_offset + i, new key j at Lp + j.

    >>> import numpy as np
    >>> x = np.zeros((2, 4, 6))
    >>> Call(x, x, x, AttentionMask(causal=True)).map(lambda name, array: array.astype("float32")).queries.dtype
    dtype('float32')
    """

    queries: Array
    keys: Array
    values: Array
    mask: AttentionMask = field(default_factory=AttentionMask)
    dropout_keep: Array | None = None
    past_keys: Array | None = None
    past_values: Array | None = None
    rotary: RotaryInputs | None = None

    def map(self, convert: Any) -> Call[Any]:
        """Return this call with `convert(name, array)` in place of each array, except the arrays of the mask.

        A list as `dropout_keep` becomes a NumPy array first (see `mha_core.call.arguments`).
        """
        floats = {name: getattr(self, name) for name in FLOATS}
        given = {**floats, "dropout_keep": settled("dropout_keep", self.dropout_keep)}
        changes: dict[str, Any] = {name: x if x is None else convert(name, x) for name, x in given.items()}
        if self.rotary is not None:
            changes["rotary"] = self.rotary.map_arrays(convert)
        return replace(self, **changes)

    def for_one_head(self, insert_axis: Callable[[Any], Any]) -> Call[Any]:
        """Return this call with a head axis in `mask` and `dropout_keep`, as a layer with one head takes them.

        `insert_axis` makes an array (B, Lq, Lk) into (B, 1, Lq, Lk). Queries, keys and values do not change.
        """
        mask, keep = self.mask.for_one_head(insert_axis), self.dropout_keep
        return replace(self, mask=mask, dropout_keep=insert_axis(keep) if len(getattr(keep, "shape", ())) > 0 else keep)


class LayerSpec(NamedTuple):
    """The properties of a layer that a call must fit, in any framework.

    Args:
        num_heads: H.
        widths: the layer's (Dq, Dk, Dv); None where it takes any.
        head_shapes: (number, width) of the heads of queries, keys and values; None for a layer without heads.
        split: whether queries, keys and values may be given split into heads.
        dtype: the dtype in which the layer computes, by name; None where it computes in the dtype of its inputs.
        rotary: the settings of its rotary positions; None without them.
    """

    num_heads: int = 1
    widths: Widths = (None, None, None)
    head_shapes: HeadShapes | None = None
    split: bool = False
    dtype: str | None = None
    rotary: Rotary | None = None

    @classmethod
    def of(cls, config: AttentionConfig, widths: Widths | None = None, dtype: str | None = None) -> LayerSpec:
        """Return the LayerSpec of a config. `widths` replaces its (Dq, Dk, Dv), where None stands for any width."""
        own = (config.query_dim, config.key_dim, config.value_dim) if widths is None else widths
        return cls(config.num_heads, own, config.head_shapes, not config.projections, dtype, config.rotary)
