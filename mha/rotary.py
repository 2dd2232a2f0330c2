"""Layers that turn queries and keys with the position (rotary positions), of families without a recipe."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

SETTINGS = (
    *("rope_theta", "rope_parameters", "rope_scaling", "rotary_dim", "rotary_pct", "rotary_emb_base", "rotary_base"),
    *("rotary_emb_fraction", "partial_rotary_factor"),
)
"""Settings of a model's config that only rotary positions have."""

MODEL_TYPES = frozenset(
    (
        *("codegen", "cohere", "cohere2", "deepseek_v2", "deepseek_v3", "falcon", "gemma", "gemma2", "gemma3", "glm"),
        *("gemma3_text", "glm4", "gpt_neox", "gpt_neox_japanese", "gpt_oss", "gptj", "granite", "llama", "llama4"),
        *("mistral", "mixtral", "modernbert", "nemotron", "nomic_bert", "olmo", "olmo2", "persimmon", "phi", "phi3"),
        *("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "roformer", "smollm3", "stablelm", "starcoder2"),
    )
)
"""The `model_type` of configs whose models turn queries and keys, whatever else the config says."""

_CLASS = re.compile(r"rotary|rope(?![a-z])", re.IGNORECASE)


def setting_of(config: Mapping[str, Any]) -> str | None:
    """Return the setting in a model's config that shows rotary positions: its name, or its name and value.

    Return None if there is no such setting, or if another setting says that positions are used in another way.

    >>> setting_of({"model_type": "llama", "rope_theta": 10000.0}), setting_of({"model_type": "falcon", "alibi": False})
    ('rope_theta', "model_type 'falcon'")
    >>> setting_of({"rope_theta": 10000.0, "position_embedding_type": "absolute"}) is None  # as ESM's has both
    True
    """
    kind = config.get("position_embedding_type")
    if (isinstance(kind, str) and not _CLASS.search(kind)) or config.get("alibi") is True:
        return None
    for key in SETTINGS:
        if config.get(key) is not None:
            return key
    if isinstance(kind, str):
        return f"position_embedding_type {kind!r}"
    model_type = config.get("model_type")
    return f"model_type {model_type!r}" if isinstance(model_type, str) and model_type in MODEL_TYPES else None


def part_of(module: Any, inside: Iterable[tuple[str, Any]]) -> str | None:
    """Return the config setting or submodule name that shows rotary positions, or None. `inside`: (name, submodule)."""
    own = getattr(module, "config", None)
    described = getattr(own, "to_dict", None)
    setting = setting_of(described()) if callable(described) and "transformers" in type(own).__module__ else None
    return setting or next((name for name, part in inside if is_rotary(part)), None)


def is_rotary(module: Any) -> bool:
    """Return whether the name of a module's class is one for rotary positions, such as LlamaRotaryEmbedding or RoPE."""
    return bool(_CLASS.search(type(module).__name__))


TURNS = "turns queries and keys with their positions"


def refusal(what: str, evidence: str) -> str:
    """Return the refusal in words."""
    return (
        f"{what} {TURNS} (rotary positions: {evidence}), which is read of live models of the families in "
        "docs/recipes.md alone"
    )
