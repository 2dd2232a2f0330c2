"""Multi-head attention as Keras layers on TensorFlow.

>>> import tensorflow as tf
>>> from backends.tf import MultiHeadAttention
>>> layer = MultiHeadAttention(8, 2, name="mha")
>>> layer(tf.zeros((3, 5, 8)), tf.zeros((3, 7, 6)), tf.zeros((3, 7, 4))).shape
TensorShape([3, 5, 8])
>>> [variable.path for variable in layer.weights][:2]
['mha/q_proj/kernel', 'mha/k_proj/kernel']
"""

from backends.tf.layers import MultiHeadAttention
from backends.tf.positional import PositionalEncoding
from backends.tf.single_head import AdditiveAttention, DotProductAttention
from backends.tf.weights import from_weights, to_weights

__all__ = [
    "AdditiveAttention",
    "DotProductAttention",
    "MultiHeadAttention",
    "PositionalEncoding",
    "from_weights",
    "to_weights",
]
