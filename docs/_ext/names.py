"""What the frameworks are called on the pages, in the order in which they stand there."""

from __future__ import annotations

FRAMEWORKS = {"torch": "PyTorch", "tf": "TensorFlow", "jax": "JAX", "mxnet": "MXNet"}
