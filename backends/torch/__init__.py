"""Multi-head attention as PyTorch modules.

>>> from backends.torch import MultiHeadAttention
>>> MultiHeadAttention(8, 2, query_dim=8, key_dim=8, value_dim=8)
MultiHeadAttention(
  embed_dim=8, num_heads=2, score='scaled_dot'
  (q_proj): Linear(in_features=8, out_features=8, bias=False)
  (k_proj): Linear(in_features=8, out_features=8, bias=False)
  (v_proj): Linear(in_features=8, out_features=8, bias=False)
  (out_proj): Linear(in_features=8, out_features=8, bias=False)
)
"""

from backends.torch.layers import MultiHeadAttention
from backends.torch.positional import PositionalEncoding
from backends.torch.single_head import AdditiveAttention, DotProductAttention
from backends.torch.weights import from_weights, to_weights

__all__ = [
    "AdditiveAttention",
    "DotProductAttention",
    "MultiHeadAttention",
    "PositionalEncoding",
    "from_weights",
    "to_weights",
]
