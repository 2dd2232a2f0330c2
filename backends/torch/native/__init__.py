"""The framework's own layers: their parameters in and out, and each as a subject of the suite.

>>> from backends.torch.native import from_native, layout_of, to_native
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from backends.torch.native.convert import from_native, layout_of, to_native

__all__ = ["from_native", "layout_of", "to_native"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.convert"), name)
