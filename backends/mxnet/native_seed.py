"""d2l.ai's layer under an older name: see `backends.mxnet.native.d2l`."""

from backends.mxnet.native.d2l import D2lMultiHeadAttention as SeedMultiHeadAttention

__all__ = ["SeedMultiHeadAttention"]
