"""`mx`: MXNet, imported so that it works beside newer NumPy releases: see `backends.mxnet.ops.framework`."""

from backends.mxnet.ops.framework import mx

__all__ = ["mx"]
