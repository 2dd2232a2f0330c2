"""Multi-head attention as Flax linen modules.

>>> import jax
>>> from backends.jax import MultiHeadAttention
>>> layer = MultiHeadAttention(8, 2, num_kv_heads=1)
>>> x = jax.numpy.zeros((3, 5, 8))
>>> variables = layer.init(jax.random.key(0), x, x, x)
>>> jax.tree.map(jax.numpy.shape, variables["params"])  # kernels are (in, out)
{'k_proj': {'kernel': (8, 4)}, 'out_proj': {'kernel': (8, 8)}, 'q_proj': {'kernel': (8, 8)}, \
'v_proj': {'kernel': (8, 4)}}
"""

from backends.jax.layers import MultiHeadAttention
from backends.jax.positional import PositionalEncoding
from backends.jax.single_head import AdditiveAttention, DotProductAttention
from backends.jax.weights import from_weights, to_weights

__all__ = [
    "AdditiveAttention",
    "DotProductAttention",
    "MultiHeadAttention",
    "PositionalEncoding",
    "from_weights",
    "to_weights",
]
