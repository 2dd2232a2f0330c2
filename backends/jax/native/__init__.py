"""The framework's own layers: their parameters in and out, and each as a subject of the suite.

>>> from backends.jax.native import from_native, layout_of, to_native
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from backends.jax.native.convert import (
        from_d2l,
        from_linen,
        from_native,
        from_nnx,
        layout_of,
        to_d2l,
        to_linen,
        to_native,
        to_nnx,
    )

__all__ = [
    "from_d2l",
    "from_linen",
    "from_native",
    "from_nnx",
    "layout_of",
    "to_d2l",
    "to_linen",
    "to_native",
    "to_nnx",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.convert"), name)
