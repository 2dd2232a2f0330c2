"""The seven stages, each with one name and one shape everywhere, and the Trace that carries them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from numpy.typing import NDArray

from mha_core.config import AttentionConfig

STAGES = ("queries", "keys", "values", "scores", "weights", "heads", "output")
"""The stages in the order in which they are computed.

    queries  (B, H, Lq, d)    projected, split, and normed and turned where the layer does so
    keys     (B, G, Lk, d)    the same of keys
    values   (B, G, Lk, dv)   projected and split
    scores   (B, H, Lq, Lk)   scaled, with additive bias, before exclusion; only where allowed
    weights  (B, H, Lq, Lk)   softmax over the allowed keys, exactly 0 elsewhere, before dropout
    heads    (B, H, Lq, dv)   weighted sum of values
    output   (B, Lq, Do)      heads concatenated and projected
"""

DONE_AT: Mapping[str, str] = {
    "queries": "the projection of the queries, its split into heads, and all that is done to them before the scores",
    "keys": "the projection of the keys, its split into heads, and all that is done to them",
    "values": "the projection of the values, its split into heads, and all that is done to them",
    "scores": "the scale, the softcap, all that is added to the scores, and which key head a query head reads",
    "weights": "the masks, the softmax, and any factor or mix of heads after it",
    "heads": "which value head a query head reads, dropout, and what is done to heads before they are merged",
    "output": "how heads are merged, and the output's projection",
}
"""Stage -> what is done there, in words."""

GRADIENT = "gradients."
"""Prefix of a gradient's name where stages and gradients are in one mapping."""


def is_gradient(name: str) -> bool:
    """Return whether a name in `Trace.arrays` is that of a gradient, "gradients.NAME".

    >>> is_gradient("gradients.keys"), is_gradient("keys")
    (True, False)
    """
    return name.startswith(GRADIENT)


def stage_shapes(config: AttentionConfig, batch: int, query_len: int, key_len: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of every stage.

    >>> stage_shapes(AttentionConfig(8, 2), batch=3, query_len=5, key_len=7)["weights"]
    (3, 2, 5, 7)
    """
    heads, kv_heads = config.num_heads, config.num_kv_heads
    return {
        "queries": (batch, heads, query_len, config.head_dim),
        "keys": (batch, kv_heads, key_len, config.head_dim),
        "values": (batch, kv_heads, key_len, config.value_head_dim),
        "scores": (batch, heads, query_len, key_len),
        "weights": (batch, heads, query_len, key_len),
        "heads": (batch, heads, query_len, config.value_head_dim),
        "output": (batch, query_len, config.output_dim),
    }


@dataclass(frozen=True, eq=False)
class Trace:
    """The result of one run: the seven stages as NumPy arrays, and gradients where they were asked for.

    A stage that an implementation does not expose is None. `scores` is meaningful only where attention is allowed.
    `gradients` is None unless the inputs had a cotangent. Its names are `queries`, `keys` and `values` (the layer's
    inputs, in their shapes), `past_keys` and `past_values` (if any), `bias` (the mask's additive bias, if any) and
    those of all weights.
    """

    queries: NDArray | None = None
    keys: NDArray | None = None
    values: NDArray | None = None
    scores: NDArray | None = None
    weights: NDArray | None = None
    heads: NDArray | None = None
    output: NDArray | None = None
    gradients: Mapping[str, NDArray] | None = field(default=None)

    def stages(self) -> Iterator[tuple[str, NDArray]]:
        """(name, array) of every stage that is not None, in order."""
        for name in STAGES:
            array = getattr(self, name)
            if array is not None:
                yield name, array

    def arrays(self) -> dict[str, NDArray]:
        """Return every array by name: the stages that are not None in order, then the gradients as "gradients.NAME".

        >>> import numpy as np
        >>> list(Trace(output=np.zeros((1, 2, 3)), gradients={"keys": np.zeros((1, 4, 3))}).arrays())
        ['output', 'gradients.keys']
        """
        gradients = self.gradients or {}
        return {**dict(self.stages()), **{f"{GRADIENT}{name}": array for name, array in gradients.items()}}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray]) -> Trace:
        """Return the Trace that has these `arrays()`; without a gradient among them, its gradients are None.

        >>> import numpy as np
        >>> trace = Trace(output=np.zeros((1, 2, 3)), gradients={"keys": np.zeros((1, 4, 3))})
        >>> Trace.of_arrays(trace.arrays()).arrays().keys() == trace.arrays().keys()
        True
        """
        gradients = {name.removeprefix(GRADIENT): a for name, a in arrays.items() if is_gradient(name)}
        stages = {name: array for name, array in arrays.items() if not is_gradient(name)}
        return cls(**stages, gradients=gradients or None)
