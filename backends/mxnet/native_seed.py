"""d2l.ai"s layer, where scripts look for it: see `backends.mxnet.native.d2l`."""

from backends.mxnet.native.d2l import SeedMultiHeadAttention

__all__ = ["SeedMultiHeadAttention"]
