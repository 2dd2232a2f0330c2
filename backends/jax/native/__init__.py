"""The framework's own layers: their parameters in and out, and each as a subject of the suite.

>>> from backends.jax.native import from_native, layout_of, to_native
"""

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
