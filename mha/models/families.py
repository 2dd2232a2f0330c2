"""Families of models whose attention follows from the layout of their arrays; their layers are "known".

A test runs a small model of each family, and reproduces its outputs from its file. Families with rotary positions, or
with terms of their own in the scores, are not here, even if their arrays have the same names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mha import rotary
from mha.models.config import ModelConfig, contradiction, side_of
from mha.models.folder import NOTHING, other_arithmetic
from mha.recipes import RECIPES
from mha_core import SpecError
from mha_core.errors import shown

OWN_CLASS = re.compile(
    r"((Text|Vision)?Model(WithProjection)?|PreTrainedModel|MainLayer|Encoder|Decoder|Backbone|MTModel"
    r"|(LMHead|DoubleHeads)Model|For[A-Z]\w*)(Module)?"
)
"""Ends of the names of transformers' own classes, after the family's name."""


@dataclass(frozen=True)
class Family:
    """Models of transformers whose attention has the same arithmetic.

    Attributes:
        name: the family's name.
        classes: `model_type` of a config -> prefix of the names of its classes in transformers.
        layouts: the layouts that their arrays may have.
        where: regular expression of its attention layers' prefixes, with "." between names.
        beside: names that may stand below such a prefix and do not change what attention computes.
        scale: the factor of the scores, from config, prefix and head width; None where it is 1 / sqrt(head width).
        settings: the settings of a config that matter, in words, for the documentation.
        causal: whether a layer has a causal mask of its own.
        head_keys: the config's keys for the number of heads; its classes read no other key. "{side}" is
            "encoder" or "decoder", by the prefix.
    """

    name: str
    classes: Mapping[str, str]
    layouts: tuple[str, ...]
    where: str
    beside: tuple[str, ...] = ()
    scale: Callable[[Mapping[str, Any], str, int], float] | None = None
    settings: str = ""
    causal: bool = False
    head_keys: tuple[str, ...] = ("num_attention_heads",)


FAMILIES = (
    Family(
        "bert",
        {
            "bert": "Bert",
            "bert-generation": "BertGeneration",
            "camembert": "Camembert",
            "data2vec-text": "Data2VecText",
            "electra": "Electra",
            "ernie": "Ernie",
            "roc_bert": "RoCBert",
            "roberta": "Roberta",
            "roberta-prelayernorm": "RobertaPreLayerNorm",
            "xlm-roberta": "XLMRoberta",
            "xlm-roberta-xl": "XLMRobertaXL",
        },
        ("bert", "bert-kernel"),
        r"layer\.\d+\.(attention|crossattention)",
        beside=("output.LayerNorm.*", "LayerNorm.*", "self_attn_layer_norm.*"),
        settings="`position_embedding_type` absolute or absent",
    ),
    Family(
        "gpt2",
        {"gpt2": "GPT2"},
        ("gpt2", "gpt2-cross", "gpt2-tf", "gpt2-cross-tf", "gpt2-flax", "gpt2-cross-flax"),
        r"h\.\d+\.(attn|crossattention)",
        beside=("bias", "masked_bias"),  # the causal mask and the number that it puts, as older versions stored them
        scale=RECIPES["gpt2"].scale_in,
        settings="any: `scale_attn_weights` and `scale_attn_by_inverse_layer_idx` become the layer's scale",
        causal=True,
        head_keys=("n_head", "num_attention_heads"),
    ),
    Family(
        "vit",
        {
            "audio-spectrogram-transformer": "AST",
            "deit": "DeiT",
            "dinov2": "Dinov2",
            "dinov2_with_registers": "Dinov2WithRegisters",
            "ijepa": "IJepa",
            "pixio": "Pixio",
            "vit": "ViT",
            "vit_mae": "ViTMAE",
            "vit_msn": "ViTMSN",
            "vivit": "Vivit",
        },
        ("vit", "vit-kernel", "llama", "llama-kernel"),
        r"layers?\.\d+\.attention",
        settings="any; of ViTMAE the encoder",
    ),
    Family(
        "bart",
        {
            "bart": "Bart",
            "blenderbot": "Blenderbot",
            "blenderbot-small": "BlenderbotSmall",
            "m2m_100": "M2M100",
            "marian": "Marian",
            "mbart": "MBart",
            "pegasus": "Pegasus",
            "plbart": "PLBart",
        },
        ("canonical", "bart-kernel"),
        r"(encoder|decoder)\.layers\.\d+\.(self_attn|encoder_attn)",
        settings="any; each side by its own number of heads",
        head_keys=("{side}_attention_heads",),
    ),
    Family(
        "whisper",
        {"whisper": "Whisper"},
        ("canonical", "bart-kernel"),
        r"(encoder|decoder)\.layers\.\d+\.(self_attn|encoder_attn)",
        settings="any; each side by its own number of heads",
        head_keys=("{side}_attention_heads",),
    ),
    Family(
        "distilbert",
        {"distilbert": "DistilBert"},
        ("distilbert", "distilbert-kernel"),
        r"transformer\.layer\.\d+\.attention",
        settings="any",
        head_keys=("n_heads", "num_attention_heads"),
    ),
    Family(
        "opt",
        {"opt": "OPT"},
        ("canonical", "bart-kernel"),
        r"decoder\.layers\.\d+\.self_attn",
        settings="any",
        causal=True,
    ),
    Family(
        "clip",
        {"clip_text_model": "CLIP", "clip_vision_model": "CLIP"},
        ("canonical", "bart-kernel"),
        r"encoder\.layers\.\d+\.self_attn",
        settings="any; a text or a vision model by itself",
    ),
)
"""All known families."""

MODEL_TYPES: Mapping[str, Family] = {model_type: family for family in FAMILIES for model_type in family.classes}
"""`model_type` of a config -> family."""


@dataclass(frozen=True)
class KnownLayer:
    """The facts from a config about one layer whose arithmetic is known.

    Attributes:
        family: of the model.
        num_heads: H.
        scale: the factor of the scores; None where it is 1 / sqrt(head width).
    """

    family: Family
    num_heads: int
    scale: float | None


def known_layer(config: ModelConfig, prefix: str, layouts: tuple[str, ...], rows: int, inputs: int) -> KnownLayer | str:
    """The facts about the layer at `prefix`; or, in words, why the config does not make its arithmetic known.

    Args:
        config: the model's config.
        prefix: the layer's prefix.
        layouts: names of the layouts that its arrays fit.
        rows, inputs: sizes of its query projection: the width of all heads together, and the input width.

    Raises:
        SpecError: the config contradicts itself or the layer.
    """
    family = MODEL_TYPES.get(config.model_type)
    if family is None:
        named = f"model type {shown(repr(config.model_type))}" if config.model_type else "no model_type"
        setting = rotary.setting_of(config.content)
        why = f"{config.path} names {named}, which is none of those that are known (docs/convert.md)"
        return why if setting is None else f"{why}: {rotary.refusal('it', shown(setting))}"
    changed = _changed(config, family)
    if changed:
        return f"{config.path}: {changed}"
    dotted = _dotted(prefix)
    if not set(layouts) & set(family.layouts) or not place_of(family, prefix):
        return (
            f"models of type {config.model_type!r} have attention of layout {' or '.join(family.layouts)} at "
            f"{where_in_words(family)}; {prefix!r}, of layout {' or '.join(layouts)}, is something else"
        )
    heads = config.heads(prefix)
    if heads is None:
        return f"{config.path} does not say how many heads there are"
    doubt = _heads_in_doubt(config, family, prefix, heads[0])
    if doubt:
        return f"{config.path}: {doubt}"
    width, depth = config.width(), config.depth(prefix)
    if width is None or (rows, inputs) != (width[1], width[1]) or rows % heads[1]:
        said = "says no width" if width is None else f"says {width[0]}={width[1]} and {heads[0]}={heads[1]}"
        return f"{config.path} {said}, and the projection of queries is {rows}x{inputs}"
    number = [int(part) for part in dotted.split(".") if part.isdigit()][-1]
    if depth is None or number >= depth[1]:
        said = "does not say how many layers there are" if depth is None else f"says {depth[0]}={depth[1]}"
        return f"{config.path} {said}, and {prefix!r} is layer {number} counted from 0"
    usual = (rows // heads[1]) ** -0.5
    scale = usual if family.scale is None else family.scale(config.content, dotted, rows // heads[1])
    return KnownLayer(family, heads[1], None if scale == usual else scale)


def place_of(family: Family, prefix: str) -> str:
    """The part of a prefix that names an attention layer of this family, without the path of the model; "" if none.

    >>> place_of(MODEL_TYPES["bert"], "text.bert.encoder.layer.3.attention")
    'layer.3.attention'
    """
    found = re.search(rf"(?:^|\.)({family.where})$", _dotted(prefix))
    return found[1] if found else ""


def _dotted(prefix: str) -> str:
    return prefix.replace("/", ".").replace("_._", ".")  # "layer_._0" in TensorFlow


def _heads_in_doubt(config: ModelConfig, family: Family, prefix: str, key: str) -> str:
    """Why the model may not take its number of heads from `key`, in words; "" if it does."""
    own = [name.format(side=side_of(prefix)) for name in family.head_keys]
    if key not in own:
        return f"models of type {config.model_type!r} call their heads {' or '.join(own)}, and not {key}"
    return contradiction(config.content)


def where_in_words(family: Family) -> str:
    """The prefixes of a family's attention layers, as a pattern for messages.

    >>> where_in_words(MODEL_TYPES["bert"])
    '...layer.N.(attention|crossattention)'
    """
    return "..." + family.where.replace("\\.", ".").replace("\\d+", "N").replace("?", "")


def _changed(config: ModelConfig, family: Family) -> str:
    """The setting of the config that changes the family's arithmetic, in words; "" if none does."""
    content = config.content
    if (config.path.parent / "adapter_config.json").exists():
        return "an adapter_config.json beside it says that an adapter changes what the layers compute"
    if content.get("auto_map"):
        return "auto_map says that code of its own computes this model"
    architectures = content.get("architectures") or []
    own = family.classes[config.model_type]
    for name in architectures if isinstance(architectures, list) else [architectures]:
        kind = str(name).removeprefix("TF").removeprefix("Flax")
        if not (kind.startswith(own) and OWN_CLASS.fullmatch(kind.removeprefix(own))):
            return f"architectures names {shown(name)}, which is no {own}... of transformers"
    if content.get("position_embedding_type") not in (None, "absolute"):
        return f"position_embedding_type is {shown(content['position_embedding_type'])} and not absolute"
    other = other_arithmetic(content)
    if other:
        return other
    for key in ("quantization_config", "pruned_heads"):
        if content.get(key) not in NOTHING:
            return f"{key} says that its arrays are not those of the family"
    for key in ("scale_attn_weights", "scale_attn_by_inverse_layer_idx"):
        if not isinstance(content.get(key, False), bool):
            raise SpecError(f"{config.path}: {key} must be true or false. Got {shown(content[key])}.")
    return ""
