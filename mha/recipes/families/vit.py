"""ViT and its relatives: no mask, a bias switch for queries, keys and values together, a float32 softmax."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mha.recipes.recipe import Recipe
from mha_core import layouts
from mha_core.config import check_size
from mha_core.layouts import Layout

_NAMES = ("AST", "DeiT", "Dinov2", "Dinov2WithRegisters", "IJepa", "Pixio", "ViT", "ViTMAE", "ViTMSN", "Vivit")


class ViTRecipe(Recipe):
    """`ViTAttention`: q_proj, k_proj, v_proj, o_proj; before transformers 5 they had BERT's names."""

    family = "vit"
    summary = "qkv_bias=False leaves a bias in o_proj alone; eager has its softmax in float32, also in float64"
    classes = tuple(f"{name}Attention" for name in _NAMES)
    model_types = (
        "audio-spectrogram-transformer",
        "deit",
        "dinov2",
        "dinov2_with_registers",
        "ijepa",
        "pixio",
        "vit",
        "vit_mae",
        "vit_msn",
        "vivit",
    )
    dropout_key = "attention_probs_dropout_prob"
    softmax_in_float32 = True

    def out(self, module: Any) -> Any:
        return module.o_proj

    def layout(self, module: Any) -> Layout:
        return layouts.get("llama")  # the same four names

    def num_heads(self, module: Any) -> int:
        return int(module.num_attention_heads)

    @property
    def checkpoint_layouts(self) -> tuple[Layout, ...]:
        return layouts.get("vit"), layouts.get("llama")

    def heads_in(self, model_config: Mapping[str, Any], prefix: str) -> int:
        return check_size("num_attention_heads", model_config["num_attention_heads"])


PLACE, RECIPES = 3, (ViTRecipe(),)
"""Where the family stands in lists, and its recipes."""
