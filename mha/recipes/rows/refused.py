"""Families of transformers whose attention the definition can't express, each with the reason."""

from dataclasses import dataclass
from typing import Any

NO_PART = "the definition has no"


@dataclass(frozen=True)
class Refused:
    """A family of models whose attention layers can't be read.

    Attributes:
        family: its name.
        reason: the part of its arithmetic that the reference does not have, in words.
        models: published models with such layers.
        model_types: the `model_type` of these models' configs.
    """

    family: str
    reason: str
    models: tuple[str, ...]
    model_types: tuple[str, ...]


REFUSED = (
    Refused("bitnet", f"{NO_PART} norm over the merged heads, before the output projection", ("BitNet",), ("bitnet",)),
    Refused("jetmoe", "queries and outputs are projected by experts that each token chooses", ("JetMoe",), ("jetmoe",)),
    Refused(
        "gpt_oss",
        f"{NO_PART} sink, a logit of each head that joins the softmax",
        ("GPT-OSS", "Granite-SWA"),
        ("gpt_oss", "granite_swa", "granitemoe_swa"),
    ),
    Refused(
        "mimo", f"{NO_PART} sink, a logit of each head that joins the softmax", ("MiMo-V2-Flash",), ("mimo_v2_flash",)
    ),
    Refused(
        "gated",
        f"{NO_PART} gate on the merged heads",
        ("Qwen3-Next, 3.5", "AFMoE", "Step 3.7, Laguna"),
        ("afmoe", "laguna", "qwen3_next", "qwen3_5_text", "step3p7"),
    ),
    Refused(
        "ministral3",
        f"{NO_PART} scale of queries that grows with their position (llama_4_scaling_beta)",
        ("Ministral 3",),
        ("ministral3",),
    ),
    Refused(
        "llama4",
        f"{NO_PART} chunks of keys (attention_chunk_size), and no scale of queries that grows with their position "
        "(attn_temperature_tuning)",
        ("Llama 4",),
        ("llama4_text",),
    ),
    Refused(
        "latent",
        f"{NO_PART} latent projections, by two matrices with a norm between them",
        ("DeepSeek-V2, V3", "GLM-4-MoE-Lite, Kimi-K2", "MiniCPM 3"),
        ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3"),
    ),
    Refused(
        "alibi",
        "a bias by distance (ALiBi) comes as a tensor of its own beside the mask",
        ("BLOOM", "MPT", "Falcon-RW"),
        ("bloom", "mpt"),
    ),
    Refused(
        "t5",
        f"{NO_PART} bias by relative position whose table is a weight",
        ("T5, mT5, UMT5", "Swin", "Swin v2"),
        ("mt5", "swin", "swinv2", "t5", "umt5"),
    ),
    Refused(
        "sam", f"{NO_PART} bias by row and column that depends on the queries", ("SAM",), ("sam", "sam_vision_model")
    ),
    Refused(
        "deberta",
        f"{NO_PART} products of contents with positions (disentangled attention)",
        ("DeBERTa v1, v2",),
        ("deberta", "deberta-v2"),
    ),
    Refused(
        "wavlm", f"{NO_PART} bias by relative position with a gate that depends on the queries", ("WavLM",), ("wavlm",)
    ),
    Refused(
        "gemma4", "some layers read the keys and values of another", ("Gemma 3n, 4",), ("gemma3n_text", "gemma4_text")
    ),
)
"""Every such family."""


def why_refused(model_type: Any) -> str:
    """Return in words why the layers of models of this type are refused; "" if they are not.

    >>> why_refused("mpt"), why_refused("llama")
    ("can't be expressed: a bias by distance (ALiBi) comes as a tensor of its own beside the mask", '')
    """
    return next((f"can't be expressed: {row.reason}" for row in REFUSED if model_type in row.model_types), "")
