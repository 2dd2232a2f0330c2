"""Checks the JSON files of a model's folder, so that `mha port` can refuse it before anything is loaded.

transformers reads the settings that its own class knows and ignores all others silently: code that the folder names,
another kind of positions, another arithmetic. A model of such a folder is not the one that was trained.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mha.models.config import contradiction
from mha.recipes import RECIPES, recipe_for_config
from mha_core import SpecError
from mha_core.errors import shown
from mha_core.files.outside import parse_json_object

POSITIONS = "absolute"
"""The only `position_embedding_type` whose attention is the definition's."""

OTHER_ARITHMETIC = re.compile(r"alibi|rope|rotary|relative|position_bias|sliding|window|softcap|qk_norm|logit_scale")
"""Keys of a config that change what attention computes, and that no class of the BERT family has."""

ABOUT_ATTENTION = re.compile(
    r"att(n|ention)|heads|head_dim|(^|_)(q|k|v|qk|kv|qkv|query|keys?|values?)(_|$)|(?<!loss_)scal|clip|softmax|logit"
    r"|position|sink|spars|quantiz|compress|lora|adapter"
)
"""Keys of a config that may change it as well."""

READ = frozenset(
    (
        *("_attn_implementation", "_attn_implementation_autoset", "attn_implementation", "output_attentions"),
        *("attention_dropout", "attention_probs_dropout_prob", "attn_pdrop", "head_dropout"),
        *("n_head", "n_heads", "num_heads", "attention_heads", "num_attention_heads"),
        *("encoder_attention_heads", "decoder_attention_heads", "decoder_num_attention_heads"),
        *("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "qkv_bias"),
        *("position_embedding_type", "quantization_config", "pruned_heads"),
        # Before, between and after the attention layers.
        *("add_cross_attention", "cross_attention_hidden_size", "max_position_embeddings", "n_positions"),
        *("max_source_positions", "max_target_positions", "static_position_embeddings"),
        *("scale_embedding", "layerscale_value", "add_bias_logits", "keys_to_ignore_at_inference"),
    )
)
"""Keys among those that this project reads, or that do not change the result of attention."""

NOTHING: tuple[Any, ...] = (None, False, "", {}, [])
"""Values of a setting that is switched off."""


def other_arithmetic(config: Mapping[str, Any]) -> str:
    """A setting that changes, or may change, what attention computes, in words; "" if there is none.

    The classes of the known families read no such setting, so the config was written for another class.

    >>> other_arithmetic({"hidden_size": 12, "attention_dropout": 0.1, "clip_qkv": None, "rope_theta": 1e4})
    'rope_theta=10000.0 changes what attention computes'
    >>> other_arithmetic({"clip_qkv": 8.0})
    'clip_qkv=8.0 may change what attention computes'
    """
    for key, value in config.items():
        if value in NOTHING or key in READ:
            continue
        if OTHER_ARITHMETIC.search(key):
            return f"{shown(key)}={shown(value)} changes what attention computes"
        if ABOUT_ATTENTION.search(key):
            return f"{shown(key)}={shown(value)} may change what attention computes"
    return ""


def check_folder(folder: Path) -> None:
    """Raise SpecError unless the folder's config is of the BERT family, and all its settings of attention are known."""
    config = _json(folder / "config.json")
    if config is None:
        raise SpecError(f"{folder} has no config.json; it must be a model's folder as save_pretrained writes it")
    family = recipe_for_config(config).family
    if family != "bert":
        raise SpecError(
            f"mha port takes sentence encoders of the bert family ({', '.join(RECIPES['bert'].model_types)}). "
            f"Got model type {config['model_type']!r}; docs/recipes.md has what there is for the family {family}."
        )
    for name in ("config.json", "tokenizer_config.json"):
        _refuse_own_code(folder / name, _json(folder / name) or {})
    _check_config(folder / "config.json", config)
    if (folder / "adapter_config.json").exists():
        raise SpecError(
            f"{folder} has an adapter_config.json: an adapter (LoRA and the like) changes what the layers compute. "
            "Merge it into the weights first"
        )


def _json(file: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None if there is no such file."""
    if not file.is_file():
        return None
    # A tokenizer without a limit has int(1e30) for it.
    return parse_json_object(file.read_bytes(), what=str(file), any_integer=True)


def _refuse_own_code(file: Path, content: Mapping[str, Any]) -> None:
    """Raise SpecError if the folder brings its own code: transformers would use one of its classes in its place."""
    own = content.get("auto_map")
    if own:
        named = ", ".join(map(str, own.values())) if isinstance(own, dict) else str(own)
        raise SpecError(
            f"{file} says that code of its own computes this model (auto_map: {named}); it is never run here"
        )


def _check_config(file: Path, config: Mapping[str, Any]) -> None:
    positions = config.get("position_embedding_type")
    if positions not in (None, POSITIONS):
        raise SpecError(
            f"{file}: position_embedding_type must be {POSITIONS!r}. Got {positions!r}, "
            "which adds to the scores what the definition does not have."
        )
    other = other_arithmetic(config)
    if other:
        raise SpecError(f"{file}: {other}, and is not understood here")
    if config.get("num_attention_heads") is None:
        raise SpecError(f"{file} must say num_attention_heads; without it, transformers takes a number of its own")
    if contradiction(config):
        raise SpecError(f"{file}: {contradiction(config)}")
    if config.get("quantization_config"):
        raise SpecError(
            f"{file}: quantization_config says that the weights are quantized, which is not understood here"
        )
