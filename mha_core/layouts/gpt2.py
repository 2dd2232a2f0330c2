"""Layouts of GPT-2's attention in Hugging Face's three frameworks: its Conv1D, self-attention and cross-attention.

They have equal names, but different shapes: PyTorch's Conv1D keeps (in, out), TensorFlow's also (in, out), but with
biases of shape (1, out), and Flax's a kernel (out, in), which it transposes in every call.
"""

from collections.abc import Mapping
from typing import Any

from mha_core.config import PROJECTIONS
from mha_core.layouts.packed import PackedLayout

SELF: Mapping[str, tuple[str, ...]] = {"c_attn": PROJECTIONS[:3]}
CROSS: Mapping[str, tuple[str, ...]] = {"q_attn": PROJECTIONS[:1], "c_attn": PROJECTIONS[1:3]}
"""Module -> the projections in its matrix; c_proj is the output projection."""


def _layout(
    name: str,
    summary: str,
    packs: Mapping[str, tuple[str, ...]],
    *,
    framework: str,
    separator: str = "/",
    matrix: str = "weight",
    transposed: bool = True,
    bias_is_row: bool = False,
) -> PackedLayout:
    named = {module: f"{module}{separator}{matrix}" for module in (*packs, "c_proj")}
    return PackedLayout(
        name,
        f"Hugging Face GPT-2{summary}",
        framework=framework,
        packs={named[module]: projections for module, projections in packs.items()},
        out=named["c_proj"],
        bias_of={matrix_name: f"{module}{separator}bias" for module, matrix_name in named.items()},
        transposed=transposed,
        separator=separator,
        bias_is_row=bias_is_row,
        # A cross-attention has all that a self-attention has, by name; so has one with a single key head.
        foreign=() if "q_attn" in packs else (f"q_attn{separator}{matrix}", f"q_attn{separator}bias"),
        checks_sizes=True,
    )


TORCH: Mapping[str, Any] = {"framework": "torch", "separator": "."}
TF: Mapping[str, Any] = {"framework": "tf", "bias_is_row": True}
FLAX: Mapping[str, Any] = {"framework": "jax", "matrix": "kernel", "transposed": False}

OF_CROSS = "'s cross-attention"

GPT2_LAYOUTS = (
    _layout("gpt2", ": c_attn (E, 3E), c_proj, both transposed (Conv1D)", SELF, **TORCH),
    _layout("gpt2-cross", f"{OF_CROSS}: q_attn (E, E), c_attn (E, 2E), c_proj, transposed (Conv1D)", CROSS, **TORCH),
    _layout("gpt2-tf", " in TensorFlow: c_attn/weight (E, 3E), biases (1, 3E)", SELF, **TF),
    _layout("gpt2-cross-tf", f"{OF_CROSS} in TensorFlow: q_attn, c_attn/weight (E, 2E), biases (1, 2E)", CROSS, **TF),
    _layout("gpt2-flax", " in Flax: c_attn/kernel (3E, E), not transposed", SELF, **FLAX),
    _layout("gpt2-cross-flax", f"{OF_CROSS} in Flax: q_attn, c_attn/kernel (2E, E), not transposed", CROSS, **FLAX),
)
"""Every layout of this kind."""
