"""Families of transformers whose attention the definition can't express, each with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

NO_PART = "the definition has no"


@dataclass(frozen=True)
class Refused:
    """A family without a recipe.

    Attributes:
        family: its name.
        reason: what of its arithmetic is not in the definition.
        models: published models with such layers.
        classes: its attention modules.
        model_types: the `model_type` of their configs.
    """

    family: str
    reason: str
    models: tuple[str, ...]
    classes: tuple[str, ...]
    model_types: tuple[str, ...]

    def matches(self, module: Any) -> bool:
        """Return whether `module` is one of its attention modules."""
        kind = type(module)
        return kind.__name__ in self.classes and kind.__module__.startswith("transformers.models.")


REFUSED = (
    Refused(
        "bitnet",
        f"{NO_PART} norm over the merged heads, before the output projection",
        ("BitNet",),
        ("BitNetAttention",),
        ("bitnet",),
    ),
    Refused(
        "jetmoe",
        "queries and outputs are projected by experts that each token chooses",
        ("JetMoe",),
        ("JetMoeAttention",),
        ("jetmoe",),
    ),
    Refused(
        "gpt_oss",
        f"{NO_PART} sink, a logit of each head that joins the softmax",
        ("GPT-OSS", "Granite-SWA"),
        ("GptOssAttention", "GraniteMoeSWAAttention", "GraniteSWAAttention"),
        ("gpt_oss", "granite_swa", "granitemoe_swa"),
    ),
    Refused(
        "mimo",
        f"{NO_PART} sink, a logit of each head that joins the softmax",
        ("MiMo-V2-Flash",),
        ("MiMoV2FlashAttention",),
        ("mimo_v2_flash",),
    ),
    Refused(
        "gated",
        f"{NO_PART} gate on the merged heads",
        ("Qwen3-Next, 3.5", "AFMoE", "Step 3.7, Laguna"),
        ("AfmoeAttention", "LagunaAttention", "Qwen3NextAttention", "Qwen3_5Attention", "Step3p7Attention"),
        ("afmoe", "laguna", "qwen3_next", "qwen3_5_text", "step3p7"),
    ),
    Refused(
        "ministral3",
        f"{NO_PART} scale of queries that grows with their position (llama_4_scaling_beta)",
        ("Ministral 3",),
        ("Ministral3Attention",),
        ("ministral3",),
    ),
    Refused(
        "llama4",
        f"{NO_PART} chunks of keys (attention_chunk_size), and no scale of queries that grows with their position "
        "(attn_temperature_tuning)",
        ("Llama 4",),
        ("Llama4TextAttention",),
        ("llama4_text",),
    ),
    Refused(
        "latent",
        f"{NO_PART} latent projections, by two matrices with a norm between them",
        ("DeepSeek-V2, V3", "GLM-4-MoE-Lite, Kimi-K2", "MiniCPM 3"),
        ("DeepseekV2Attention", "DeepseekV3Attention", "Glm4MoeLiteAttention", "MiniCPM3Attention"),
        ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3"),
    ),
    Refused(
        "alibi",
        "a bias by distance (ALiBi) comes as a tensor of its own beside the mask",
        ("BLOOM", "MPT", "Falcon-RW"),
        ("BloomAttention", "MptAttention"),
        ("bloom", "mpt"),
    ),
    Refused(
        "t5",
        f"{NO_PART} bias by relative position whose table is a weight",
        ("T5, mT5, UMT5", "Swin", "Swin v2"),
        ("MT5Attention", "SwinAttention", "Swinv2SelfAttention", "T5Attention", "UMT5Attention"),
        ("mt5", "swin", "swinv2", "t5", "umt5"),
    ),
    Refused(
        "sam",
        f"{NO_PART} bias by row and column that depends on the queries",
        ("SAM",),
        ("SamVisionAttention", "SamVisionSdpaAttention"),
        ("sam", "sam_vision_model"),
    ),
    Refused(
        "deberta",
        f"{NO_PART} products of contents with positions (disentangled attention)",
        ("DeBERTa v1, v2",),
        ("DisentangledSelfAttention",),
        ("deberta", "deberta-v2"),
    ),
    Refused(
        "wavlm",
        f"{NO_PART} bias by relative position with a gate that depends on the queries",
        ("WavLM",),
        ("WavLMAttention",),
        ("wavlm",),
    ),
    Refused(
        "gemma4",
        "some layers read the keys and values of another",
        ("Gemma 3n, 4",),
        ("Gemma3nTextAttention", "Gemma4TextAttention"),
        ("gemma3n_text", "gemma4_text"),
    ),
)
"""Every such family."""


def why_refused(model_type: Any) -> str:
    """Return why layers of a model of this type are refused, in words; "" if they are not.

    >>> why_refused("mpt"), why_refused("llama")
    ("can't be expressed: a bias by distance (ALiBi) comes as a tensor of its own beside the mask", '')
    """
    return next((f"can't be expressed: {row.reason}" for row in REFUSED if model_type in row.model_types), "")
