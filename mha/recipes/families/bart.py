"""BART and Whisper: encoder, decoder and cross-attention are one class; Whisper's keys have no bias."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mha.recipes.recipe import Recipe
from mha_core import layouts
from mha_core.config import check_size
from mha_core.layouts import Layout

_NAMES = ("Bart", "Blenderbot", "BlenderbotSmall", "M2M100", "MBart", "Marian", "Pegasus", "PLBart")


class BartRecipe(Recipe):
    """`BartAttention`; with `key_value_states` it is a cross-attention."""

    family = "bart"
    summary = "encoder, decoder (causal) and cross-attention are one class, told apart by the call"
    classes: ClassVar[tuple[str, ...]] = tuple(f"{name}Attention" for name in _NAMES)
    model_types: ClassVar[tuple[str, ...]] = (
        "bart",
        "blenderbot",
        "blenderbot-small",
        "m2m_100",
        "marian",
        "mbart",
        "pegasus",
        "plbart",
    )
    other_states = "key_value_states"
    dropout_key = "attention_dropout"

    def out(self, module: Any) -> Any:
        return module.out_proj

    def layout(self, module: Any) -> Layout:
        return layouts.get("canonical")

    def num_heads(self, module: Any) -> int:
        return int(module.num_heads)

    @property
    def checkpoint_layouts(self) -> tuple[Layout, ...]:
        return (layouts.get("canonical"),)

    def heads_in(self, model_config: Mapping[str, Any], prefix: str) -> int:
        side = "decoder" if "decoder" in prefix.split(".") else "encoder"
        return check_size(f"{side}_attention_heads", model_config[f"{side}_attention_heads"])


class WhisperRecipe(BartRecipe):
    """`WhisperAttention`: BART's, but keys never have a bias, and the queries are scaled before they are split.

    That is the same definition: its stage "queries" is before the scale.
    """

    family = "whisper"
    summary = "no bias in k_proj; the scale is applied to the queries, not to the scores"
    classes = ("WhisperAttention",)
    model_types = ("whisper",)


PLACE, RECIPES = 4, (BartRecipe(), WhisperRecipe())
"""Where the family stands in lists, and its recipes."""
