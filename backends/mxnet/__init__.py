"""Multi-head attention as Gluon blocks, for MXNet 1.9.1.

The layers work on `mx.np` arrays whether or not the caller has called `npx.set_np()`, and never call it.
Without it MXNet itself still cannot: step a `gluon.Trainer` over `mx.np` parameters, initialise a layer
through a block around it, or run `backward` over arrays without elements.

>>> from backends.mxnet import MultiHeadAttention
>>> MultiHeadAttention(8, 2, query_dim=8, key_dim=8, value_dim=8)
MultiHeadAttention(
  (q_proj): Dense(8 -> 8, linear)
  (k_proj): Dense(8 -> 8, linear)
  (v_proj): Dense(8 -> 8, linear)
  (out_proj): Dense(8 -> 8, linear)
)
"""

from backends.mxnet.layers import MultiHeadAttention
from backends.mxnet.positional import PositionalEncoding
from backends.mxnet.single_head import AdditiveAttention, DotProductAttention
from backends.mxnet.weights import from_weights, to_weights

__all__ = [
    "AdditiveAttention",
    "DotProductAttention",
    "MultiHeadAttention",
    "PositionalEncoding",
    "from_weights",
    "to_weights",
]
