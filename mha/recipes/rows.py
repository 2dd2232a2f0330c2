"""The recipes, a row a family."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from mha.recipes.recipe import Norms, Recipe, Turn
from mha_core import QueryKeyNorm, SpecError
from mha_core.errors import shown


def _scale_of_gpt2(model_config: Mapping[str, Any], prefix: str, head_dim: int) -> float:
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


def _attentions(*models: str, kinds: tuple[str, ...] = ("",)) -> Iterator[str]:
    """The names of the attention classes of these models."""
    return (f"{model}{kind}Attention" for model in models for kind in kinds)


BERT = Recipe(
    family="bert",
    summary="output.dense stands outside the self-attention, before dropout, residual and LayerNorm",
    classes=(
        *_attentions("Bert", "BertGeneration", "Camembert", "Data2VecText", "Electra", kinds=("Self", "Cross")),
        *_attentions("Ernie", "RoCBert", "Roberta", "RobertaPreLayerNorm", kinds=("Self", "Cross")),
        *_attentions("XLMRoberta", "XLMRobertaXL", kinds=("Self", "Cross")),
    ),
    model_types=(
        *("bert", "bert-generation", "camembert", "data2vec-text", "electra", "ernie", "roc_bert", "roberta"),
        *("roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl"),
    ),
    layouts=("bert",),
    checkpoint_layouts=("bert",),
    heads="num_attention_heads",
    heads_key="num_attention_heads",
    dropout_key="attention_probs_dropout_prob",
    out="output.dense",
    core="self",
)

GPT2 = Recipe(
    family="gpt2",
    summary="one packed, transposed matrix; causal inside the module; the scale may be 1 or depend on the layer",
    classes=("GPT2Attention",),
    model_types=("gpt2",),
    layouts=("gpt2", "gpt2-cross"),
    checkpoint_layouts=("gpt2-cross", "gpt2"),
    heads="num_heads",
    heads_key="n_head",
    dropout_key="attn_pdrop",
    out="c_proj",
    other_mask="encoder_attention_mask",
    scale_in=_scale_of_gpt2,
)

VIT = Recipe(
    family="vit",
    summary="qkv_bias=False leaves a bias in o_proj alone; eager has its softmax in float32, also in float64",
    classes=(
        *_attentions("AST", "DeiT", "Dinov2", "Dinov2WithRegisters", "IJepa", "Pixio", "ViT", "ViTMAE", "ViTMSN"),
        "VivitAttention",
    ),
    model_types=(
        *("audio-spectrogram-transformer", "deit", "dinov2", "dinov2_with_registers", "ijepa", "pixio"),
        *("vit", "vit_mae", "vit_msn", "vivit"),
    ),
    layouts=("llama",),  # the same four names; before transformers 5 they had BERT's
    checkpoint_layouts=("vit", "llama"),
    heads="num_attention_heads",
    heads_key="num_attention_heads",
    dropout_key="attention_probs_dropout_prob",
    out="o_proj",
    softmax_in_float32=True,
)

BART = Recipe(
    family="bart",
    summary="encoder, decoder (causal) and cross-attention are one class, told apart by the call",
    classes=(
        *_attentions("Bart", "Blenderbot", "BlenderbotSmall", "M2M100"),
        *_attentions("MBart", "Marian", "Pegasus", "PLBart"),
    ),
    model_types=("bart", "blenderbot", "blenderbot-small", "m2m_100", "marian", "mbart", "pegasus", "plbart"),
    layouts=("canonical",),
    checkpoint_layouts=("canonical",),
    heads="num_heads",
    heads_key="{side}_attention_heads",
    dropout_key="attention_dropout",
    out="out_proj",
    other_states="key_value_states",
)

WHISPER = replace(  # it scales the queries before they are split: its stage "queries" is before the scale
    BART,
    family="whisper",
    summary="no bias in k_proj; the scale is applied to the queries, not to the scores",
    classes=("WhisperAttention",),
    model_types=("whisper",),
)

LLAMA = Recipe(
    family="llama",
    summary="pairs (k, k + r / 2) turn by the tables that the model makes; grouped heads",
    classes=(
        *_attentions("Arcee", "Gemma", "Granite", "GraniteMoe", "Llama", "Ministral", "Mistral", "Mixtral"),
        *_attentions("Nemotron", "Qwen2", "Qwen2Moe", "SeedOss", "Starcoder2"),
    ),
    model_types=(
        *("arcee", "gemma", "granite", "granitemoe", "llama", "ministral", "mistral", "mixtral"),
        *("nemotron", "qwen2", "qwen2_moe", "seed_oss", "starcoder2"),
    ),
    layouts=("llama",),
    checkpoint_layouts=("llama",),
    heads="config.num_attention_heads",
    heads_key="num_attention_heads",
    dropout_key="attention_dropout",
    out="o_proj",
    softmax_in_float32=True,
    turn=Turn(),
)


def _like_llama(family: str, classes: tuple[str, ...], summary: str, **changes: Any) -> Recipe:
    changes = {"model_types": (family,), **changes}
    return replace(LLAMA, family=family, classes=tuple(_attentions(*classes)), summary=summary, **changes)


_RMS = Norms(QueryKeyNorm("rms", product="dtype"))
_ALL = Norms(QueryKeyNorm("rms", scope="all", weight="per_head"))

DECODERS = (
    LLAMA,
    _like_llama("gemma2", ("Gemma2",), "a softcap of the scores; a scale of its own", softcap="attn_logit_softcapping"),
    _like_llama(
        "smollm3", ("SmolLM3",), "every fourth layer does not turn", turn=Turn(acts=lambda core: bool(core.use_rope))
    ),
    _like_llama(
        "qwen3",
        ("Dots1", "Qwen3", "Qwen3Moe"),
        "RMS norm of each head before the rotation",
        norms=_RMS,
        model_types=("dots1", "qwen3", "qwen3_moe"),
    ),
    _like_llama(
        "exaone4",
        ("Exaone4",),
        "RMS norm of each head; layers without a window do not turn",
        norms=_RMS,
        turn=Turn(acts=lambda core: core.sliding_window is None or bool(core.is_sliding)),
    ),
    _like_llama(
        "gemma3",
        ("Gemma3",),
        "RMS norm of each head, whose weights are kept less 1; a scale of its own",
        norms=Norms(QueryKeyNorm("rms", offset=1), eps="eps"),
        model_types=("gemma3_text",),
    ),
    _like_llama(
        "hunyuan",
        ("HunYuanDenseV1",),
        "RMS norm of each head after the rotation",
        norms=Norms(QueryKeyNorm("rms", order="after", product="dtype"), "query_layernorm", "key_layernorm"),
        model_types=("hunyuan_v1_dense",),
    ),
    _like_llama(
        "olmo", ("Olmo",), "projections are clipped if clip_qkv is set, which is refused", refused={"clip_qkv": None}
    ),
    _like_llama(
        "olmo2",
        ("MiniMaxM2", "Olmo2", "Olmo3", "Olmoe"),
        "RMS norm of the whole projection, before it is split into heads",
        norms=_ALL,
        refused={"clip_qkv": None},
        model_types=("minimax_m2", "olmo2", "olmo3", "olmoe"),
    ),
    _like_llama(
        "stablelm",
        ("StableLm",),
        "a share of each head turns; LayerNorm of each head by weights of its own, if qk_layernorm",
        norms=Norms(QueryKeyNorm("layer", weight="per_head"), "q_layernorm", "k_layernorm", "eps", "qk_layernorm"),
    ),
    _like_llama(
        "cohere",
        ("Cohere",),
        "pairs (2 k, 2 k + 1); LayerNorm of each head by weights of its own, if use_qk_norm",
        turn=Turn(interleaved=True, doubled="pairs"),
        norms=Norms(QueryKeyNorm("layer", weight="per_head"), on="use_qk_norm"),
    ),
    _like_llama(
        "cohere2",
        ("Cohere2",),
        "pairs (2 k, 2 k + 1); layers without a window do not turn",
        turn=Turn(True, "pairs", lambda core: core.sliding_window is not None),
    ),
    _like_llama(
        "glm",
        ("Ernie4_5", "Glm", "Glm4", "Helium"),
        "pairs (2 k, 2 k + 1), of a share of each head",
        turn=Turn(interleaved=True),
        model_types=("ernie4_5", "glm", "glm4", "helium"),
    ),
)
"""The recipes of decoders whose projections are apart, as Llama's."""

RECIPES: Mapping[str, Recipe] = {recipe.family: recipe for recipe in (BERT, GPT2, VIT, BART, WHISPER, *DECODERS)}
"""Every recipe by family."""
