"""Recipes of decoders whose projections are apart, as Llama's, and that turn queries and keys with their positions."""

from dataclasses import replace
from typing import Any

from mha.recipes.recipe import Norms, Recipe
from mha.recipes.rows.plain import attentions
from mha.recipes.turns import Turn
from mha_core import QueryKeyNorm

LLAMA = Recipe(
    family="llama",
    models=(
        *("Llama 1/2", "Llama 3.x", "Mistral", "Mixtral", "Qwen 2/2.5", "StarCoder 2", "Granite 3", "Gemma 1"),
        *("Nemotron", "MiniMax-Text (its softmax layers)", "Qwen 2-VL, 2.5-VL", "SmolLM 2"),
    ),
    summary="pairs (k, k + r / 2) turn by the tables that the model makes; grouped heads",
    classes=(
        *attentions("Arcee", "Gemma", "Granite", "GraniteMoe", "Llama", "MiniMax", "Ministral", "Mistral"),
        *attentions("Mixtral", "Nemotron", "Qwen2", "Qwen2Moe", "Qwen2VL", "Qwen2_5_VL", "SeedOss", "Starcoder2"),
    ),
    model_types=(
        *("arcee", "gemma", "granite", "granitemoe", "llama", "minimax", "ministral", "mistral"),
        *("mixtral", "nemotron", "qwen2", "qwen2_moe", "qwen2_vl_text", "qwen2_5_vl_text", "seed_oss", "starcoder2"),
    ),
    layouts=("llama",),
    heads="config.num_attention_heads",
    dropout_key="attention_dropout",
    out="o_proj",
    softmax_in_float32=True,
    turn=Turn(),
    scale="attention_multiplier (Granite)",
)


def like_llama(family: str, classes: tuple[str, ...], summary: str, **changes: Any) -> Recipe:
    changes = {"model_types": (family,), "models": (), "scale": "", **changes}
    return replace(LLAMA, family=family, classes=tuple(attentions(*classes)), summary=summary, **changes)


RMS = Norms(QueryKeyNorm("rms", product="dtype"))
_ALL = Norms(QueryKeyNorm("rms", scope="all", weight="per_head"))

DECODERS = (
    LLAMA,
    like_llama(
        "gemma2",
        ("Gemma2",),
        "a softcap of the scores; a scale of its own",
        softcap="attn_logit_softcapping",
        scale="query_pre_attn_scalar",
        models=("Gemma 2",),
    ),
    like_llama(
        "smollm3",
        ("SmolLM3",),
        "every fourth layer does not turn",
        turn=Turn(acts=lambda core: bool(core.use_rope)),
        models=("SmolLM 3",),
    ),
    like_llama(
        "qwen3",
        ("Dots1", "Qwen3", "Qwen3Moe", "Qwen3VLMoeText", "Qwen3VLText"),
        "RMS norm of each head before the rotation",
        norms=RMS,
        model_types=("dots1", "qwen3", "qwen3_moe", "qwen3_vl_moe_text", "qwen3_vl_text"),
        models=("Qwen 3", "Qwen 3-VL"),
    ),
    like_llama(
        "exaone4",
        ("Exaone4",),
        "RMS norm of each head; layers without a window do not turn",
        norms=RMS,
        turn=Turn(acts=lambda core: core.sliding_window is None or bool(core.is_sliding)),
        models=("Exaone 4",),
    ),
    like_llama(
        "gemma3",
        ("Gemma3",),
        "RMS norm of each head, whose weights are kept less 1; a scale of its own",
        norms=Norms(QueryKeyNorm("rms", offset=1), eps="eps"),
        model_types=("gemma3_text",),
        models=("Gemma 3",),
        scale="query_pre_attn_scalar",
    ),
    like_llama(
        "hunyuan",
        ("HunYuanDenseV1",),
        "RMS norm of each head after the rotation",
        norms=Norms(QueryKeyNorm("rms", order="after", product="dtype"), "query_layernorm", "key_layernorm"),
        model_types=("hunyuan_v1_dense",),
        models=("Hunyuan",),
    ),
    like_llama(
        "olmo",
        ("Olmo",),
        "as Llama; clip_qkv, where it is set, is refused",
        refused={"clip_qkv": None},
        models=("OLMo 1",),
    ),
    like_llama(
        "olmo2",
        ("MiniMaxM2", "Olmo2", "Olmo3", "Olmoe"),
        "RMS norm of the whole projection, before it is split into heads; clip_qkv, where it is set, is refused",
        norms=_ALL,
        refused={"clip_qkv": None},
        model_types=("minimax_m2", "olmo2", "olmo3", "olmoe"),
        models=("OLMo 2/3", "MiniMax-M2"),
    ),
    like_llama(
        "stablelm",
        ("StableLm",),
        "a share of each head turns; LayerNorm of each head by weights of its own, if qk_layernorm",
        norms=Norms(QueryKeyNorm("layer", weight="per_head"), "q_layernorm", "k_layernorm", "eps", "qk_layernorm"),
        models=("StableLM", "StableLM-2 12B"),
    ),
    like_llama(
        "cohere",
        ("Cohere",),
        "pairs (2 k, 2 k + 1); LayerNorm of each head by weights of its own, if use_qk_norm",
        turn=Turn(interleaved=True, doubled="pairs"),
        norms=Norms(QueryKeyNorm("layer", weight="per_head"), on="use_qk_norm"),
        models=("Command-R", "Command-R+"),
    ),
    like_llama(
        "cohere2",
        ("Cohere2",),
        "pairs (2 k, 2 k + 1); layers without a window do not turn",
        turn=Turn(True, "pairs", lambda core: core.sliding_window is not None),
        models=("Command-R7B",),
    ),
    like_llama(
        "glm",
        ("Ernie4_5", "Glm", "Glm4", "Helium"),
        "pairs (2 k, 2 k + 1), of a share of each head",
        turn=Turn(interleaved=True),
        model_types=("ernie4_5", "glm", "glm4", "helium"),
        models=("Helium, ERNIE 4.5", "GLM-4"),
    ),
)
"""The recipes of decoders whose projections are apart, as Llama's."""
