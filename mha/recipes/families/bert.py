"""The BERT family: the output projection belongs to another module, before a residual and a LayerNorm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mha.recipes.recipe import Recipe
from mha_core import layouts
from mha_core.config import check_size
from mha_core.layouts import Layout

_NAMES = (
    "Bert",
    "BertGeneration",
    "Camembert",
    "Data2VecText",
    "Electra",
    "Ernie",
    "RoCBert",
    "Roberta",
    "RobertaPreLayerNorm",
    "XLMRoberta",
    "XLMRobertaXL",
)


class BertRecipe(Recipe):
    """`XAttention`, which holds `self` (the projections and the attention) and `output.dense`."""

    family = "bert"
    summary = "output.dense stands outside the self-attention, before dropout, residual and LayerNorm"
    classes = tuple(f"{name}{kind}Attention" for name in _NAMES for kind in ("Self", "Cross"))
    model_types = (
        "bert",
        "bert-generation",
        "camembert",
        "data2vec-text",
        "electra",
        "ernie",
        "roc_bert",
        "roberta",
        "roberta-prelayernorm",
        "xlm-roberta",
        "xlm-roberta-xl",
    )
    dropout_key = "attention_probs_dropout_prob"

    def matches(self, module: Any) -> bool:
        has_both = hasattr(module, "self") and hasattr(getattr(module, "output", None), "dense")
        return has_both and super().matches(module.self)

    def core(self, module: Any) -> Any:
        return module.self

    def out(self, module: Any) -> Any:
        return module.output.dense

    def layout(self, module: Any) -> Layout:
        return layouts.get("bert")

    def num_heads(self, module: Any) -> int:
        return int(module.self.num_attention_heads)

    @property
    def checkpoint_layouts(self) -> tuple[Layout, ...]:
        return (layouts.get("bert"),)

    def heads_in(self, model_config: Mapping[str, Any], prefix: str) -> int:
        return check_size("num_attention_heads", model_config["num_attention_heads"])


PLACE, RECIPES = 1, (BertRecipe(),)
"""Where the family stands in lists, and its recipes."""
