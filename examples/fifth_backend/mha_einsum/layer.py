"""EinsumAttention: a layer as this framework's users have it, with arrays of its own names."""

from collections.abc import Mapping
from typing import Any

from mha_parity.core import AttentionInputs, AttentionMask
from numpy.typing import NDArray

from mha_einsum.attention import attend
from mha_einsum.layout import EINSUM


class EinsumAttention:
    """Multi-head attention.

    Args:
        arrays: "query.matrix" (H d, Dq), "query.offset" (H d,), and so on, as the layout "einsum" has them.
        num_heads: H.
    """

    def __init__(self, arrays: Mapping[str, NDArray], num_heads: int) -> None:
        self.arrays, self.num_heads = dict(arrays), num_heads

    def __call__(
        self,
        queries: NDArray,
        keys: NDArray,
        values: NDArray,
        valid_lens: NDArray | None = None,
        *,
        allowed: NDArray | None = None,
        bias: NDArray | None = None,
        causal: bool = False,
        query_offset: Any = 0,
        window: tuple[int | None, int | None] | None = None,
        dropout_keep: NDArray | None = None,
        return_weights: bool = False,
    ) -> Any:
        """The output (B, Lq, Do); with return_weights, also the weights (B, H, Lq, Lk)."""
        config, weights = EINSUM.read(self.arrays, num_heads=self.num_heads)
        mask = AttentionMask(valid_lens, allowed, bias, causal, query_offset, window)
        trace = attend(config, weights, AttentionInputs(queries, keys, values, mask, dropout_keep))
        return (trace.output, trace.weights) if return_weights else trace.output
