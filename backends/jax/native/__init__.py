"""Flax' own layers: their parameters in and out, and each as a subject of the suite.

>>> from backends.jax.native import from_linen, from_nnx, to_linen, to_nnx
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from backends.jax.native.convert import from_linen, from_nnx, from_seed, to_linen, to_nnx, to_seed

__all__ = ["from_linen", "from_nnx", "from_seed", "to_linen", "to_nnx", "to_seed"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.convert"), name)
