"""How other layers name, shape and pack their attention weights: to canonical weights and back, in NumPy alone."""

from __future__ import annotations

from mha_core.errors import SpecError
from mha_core.layouts.gpt2 import GPT2_LAYOUTS
from mha_core.layouts.gradients import canonical_gradients
from mha_core.layouts.kernels import KERNEL_LAYOUTS
from mha_core.layouts.layout import Layout, config_of
from mha_core.layouts.matrices import MATRIX_LAYOUTS
from mha_core.layouts.packed import PACKED_LAYOUTS

__all__ = ["LAYOUTS", "Layout", "canonical_gradients", "config_of", "get"]

LAYOUTS: dict[str, Layout] = {
    layout.name: layout for layout in (*MATRIX_LAYOUTS, *PACKED_LAYOUTS, *GPT2_LAYOUTS, *KERNEL_LAYOUTS)
}
"""Every layout by name."""


def get(name: str) -> Layout:
    """The layout of this name.

    >>> get("pytorch")
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: layout 'pytorch' is not known (known: canonical, d2l-torch, d2l-mxnet, d2l-tf, \
d2l-jax, bert, vit, distilbert, llama, bert-kernel, vit-kernel, distilbert-kernel, bart-kernel, llama-kernel, \
torch, torch-separate, mxnet-selfatt, mxnet-encdec, gpt2, gpt2-cross, gpt2-tf, gpt2-cross-tf, gpt2-flax, \
gpt2-cross-flax, keras, keras-gqa, linen, nnx)
    """
    if name not in LAYOUTS:
        raise SpecError(f"layout {name!r} is not known (known: {', '.join(LAYOUTS)})")
    return LAYOUTS[name]
