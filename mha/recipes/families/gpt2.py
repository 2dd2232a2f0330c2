"""GPT-2: packed Conv1D matrices (in, out), causal by itself, and a scale that may depend on the layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mha.recipes.recipe import Recipe
from mha_core import SpecError, layouts
from mha_core.config import check_size
from mha_core.errors import shown
from mha_core.layouts import Layout


class GPT2Recipe(Recipe):
    """`GPT2Attention`, self and cross."""

    family = "gpt2"
    summary = "one packed, transposed matrix; causal inside the module; the scale may be 1 or depend on the layer"
    classes = ("GPT2Attention",)
    model_types = ("gpt2",)
    other_mask = "encoder_attention_mask"
    dropout_key = "attn_pdrop"

    def out(self, module: Any) -> Any:
        return module.c_proj

    def layout(self, module: Any) -> Layout:
        return layouts.get("gpt2-cross" if module.is_cross_attention else "gpt2")

    def num_heads(self, module: Any) -> int:
        return int(module.num_heads)

    @property
    def checkpoint_layouts(self) -> tuple[Layout, ...]:
        return layouts.get("gpt2-cross"), layouts.get("gpt2")

    def heads_in(self, model_config: Mapping[str, Any], prefix: str) -> int:
        return check_size("n_head", model_config["n_head"])

    def scale_in(self, model_config: Mapping[str, Any], prefix: str, head_dim: int) -> float:
        scale = head_dim**-0.5 if _switch(model_config, "scale_attn_weights", True) else 1.0
        if _switch(model_config, "scale_attn_by_inverse_layer_idx", False):
            scale /= float(_layer_index(prefix) + 1)
        return scale


def _switch(model_config: Mapping[str, Any], name: str, default: bool) -> bool:
    """A field of the config that is true or false. SpecError for anything else."""
    value = model_config.get(name, default)
    if not isinstance(value, bool):
        raise SpecError(f"{name} in the model's config must be true or false. Got {shown(repr(value))}.")
    return value


def _layer_index(prefix: str) -> int:
    """3 for "transformer.h.3.attn"."""
    numbers = [int(part) for part in prefix.split(".") if part.isdigit()]
    if len(numbers) != 1:
        raise SpecError(f"the scale of {prefix!r} depends on its layer's number, which its name does not tell")
    return numbers[0]


PLACE, RECIPES = 2, (GPT2Recipe(),)
"""Where the family stands in lists, and its recipes."""
