"""Families of models whose attention follows from the layout of their arrays; their layers are "known".

A test runs a small model of each family, and reproduces its outputs from its file. Families with rotary positions, or
with terms of their own in the scores, are not here, even if their arrays have the same names.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mha import rotary
from mha.models.beside import ADAPTER, strange_files
from mha.models.config import ModelConfig, contradiction, side_of
from mha.models.places import dotted
from mha.models.settings import strange_setting
from mha.models.table import model_type
from mha.recipes import RECIPES
from mha.recipes.rows.refused import why_refused
from mha_core import SpecError
from mha_core.errors import shown

NO_MORE = ("BertForCausalLM",)
"""Classes that earlier releases had, in TensorFlow or Flax alone."""

SWITCHES = ("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "is_decoder", "add_cross_attention")
"""Settings by which a family's attention is computed; they must be true or false."""

NOTHING: tuple[Any, ...] = (None, False, "", {}, [])
"""Values of a setting that is switched off."""


@dataclass(frozen=True)
class Family:
    """A family of transformers' models whose attention computes in the same way.

    Attributes:
        name: the family's name.
        model_types: the `model_type` of the models' configs.
        layouts: the layouts that the attention layers may have.
        where: a regular expression for the prefixes of the attention layers, with "." between names.
        settings: the settings of a config that change the arithmetic, in words for the documentation.
        scale: (config, prefix, head width) -> the factor of the scores; None means 1 / sqrt(head width).
        causal: (config, prefix) -> whether the model calls this layer causally; None means that no layer is causal.
        head_keys: the keys of a config from which the family's classes read the number of heads. "{side}" stands for
            "encoder" or "decoder", as the prefix says.
    """

    name: str
    model_types: tuple[str, ...]
    layouts: tuple[str, ...]
    where: str
    settings: str
    scale: Callable[[Mapping[str, Any], str, int], float] | None = None
    causal: Callable[[Mapping[str, Any], str], bool] | None = None
    head_keys: tuple[str, ...] = ("num_attention_heads",)


def _self_attention(config: Mapping[str, Any], prefix: str) -> bool:
    return not prefix.endswith("crossattention")


def _of_decoder(config: Mapping[str, Any], prefix: str) -> bool:
    return prefix.endswith(".self_attn") and side_of(prefix) == "decoder"


def _scale_of_gpt2(config: Mapping[str, Any], prefix: str, head_dim: int) -> float:
    scale = head_dim**-0.5 if config.get("scale_attn_weights", True) else 1.0
    if config.get("scale_attn_by_inverse_layer_idx", False):
        numbers = [int(part) for part in prefix.split(".") if part.isdigit()]
        if len(numbers) != 1:
            raise SpecError(f"the scale of {prefix!r} depends on its layer's number, which its name does not tell")
        scale /= numbers[0] + 1.0
    return scale


IN_A_SIDE = r"(encoder|decoder)\.layers\.\d+\.(self_attn|encoder_attn)"
OF_BART = ("canonical", "bart-kernel")
SIDES = "any; each side by its own number of heads; the decoder's self-attention causal"

FAMILIES = (
    Family(
        "bert",
        RECIPES["bert"].model_types,
        ("bert", "bert-kernel"),
        r"layer\.\d+\.(attention|crossattention)",
        "`position_embedding_type` absolute or absent; causal if `is_decoder`",
        causal=lambda config, prefix: bool(config.get("is_decoder")) and _self_attention(config, prefix),
    ),
    Family(
        "gpt2",
        RECIPES["gpt2"].model_types,
        ("gpt2", "gpt2-cross", "gpt2-tf", "gpt2-cross-tf", "gpt2-flax", "gpt2-cross-flax"),
        r"h\.\d+\.(attn|crossattention)",
        "any: `scale_attn_weights` and `scale_attn_by_inverse_layer_idx` become the layer's scale; causal",
        scale=_scale_of_gpt2,
        causal=_self_attention,
        head_keys=("n_head", "num_attention_heads"),
    ),
    Family(
        "vit",
        RECIPES["vit"].model_types,
        ("vit", "vit-kernel", "llama", "llama-kernel"),
        r"layers?\.\d+\.attention",
        "any; of ViTMAE the encoder",
    ),
    *(
        Family(
            name,
            RECIPES[name].model_types,
            OF_BART,
            IN_A_SIDE,
            SIDES,
            causal=_of_decoder,
            head_keys=("{side}_attention_heads",),
        )
        for name in ("bart", "whisper")
    ),
    Family(
        "distilbert",
        ("distilbert",),
        ("distilbert", "distilbert-kernel"),
        r"transformer\.layer\.\d+\.attention",
        "any",
        head_keys=("n_heads", "num_attention_heads"),
    ),
    Family("opt", ("opt",), OF_BART, r"decoder\.layers\.\d+\.self_attn", "any; causal", causal=_of_decoder),
    Family(
        "clip",
        ("clip_text_model", "clip_vision_model"),
        OF_BART,
        r"encoder\.layers\.\d+\.self_attn",
        "any; a text or a vision model by itself; the text model causal",
        causal=lambda config, prefix: config["model_type"] == "clip_text_model",
    ),
)
"""All known families."""

MODEL_TYPES: Mapping[str, Family] = {model_type: family for family in FAMILIES for model_type in family.model_types}
"""`model_type` of a config -> family."""


@dataclass(frozen=True)
class KnownLayer:
    """A layer whose arithmetic is known from the model's config.

    Attributes:
        family: the model's family.
        num_heads: the number of heads.
        scale: the factor of the scores; None means 1 / sqrt(head width).
        causal: whether the model calls the layer causally.
    """

    family: Family
    num_heads: int
    scale: float | None
    causal: bool


def known_layer(config: ModelConfig, prefix: str, layouts: tuple[str, ...], rows: int, inputs: int) -> KnownLayer | str:
    """Return what the layer at `prefix` computes (KnownLayer); or, in words, why the config does not tell it.

    Call `changed` first: if it returns a reason, the result of `known_layer` is not valid.

    Args:
        layouts: names of the layouts that the layer's arrays fit.
        rows, inputs: the sizes of its query projection: the width of all heads together, and the width of its input.

    Raises:
        SpecError: the config contradicts itself or the layer.
    """
    family = MODEL_TYPES.get(config.model_type)
    if family is None:
        named = f"model type {shown(repr(config.model_type))}" if config.model_type else "no model_type"
        setting, refused = rotary.setting_of(config.content), why_refused(config.model_type)
        why = f"{config.path} names {named}, which {refused or 'is none of those that are known (docs/convert.md)'}"
        return why if setting is None else f"{why}; {rotary.refusal('it', shown(setting))}"
    if config.of_other_file:
        return config.of_other_file
    own = dotted(prefix)
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
    if own.endswith("crossattention") and config.content.get("add_cross_attention") is not True:
        return f"{config.path} does not say add_cross_attention, without which the model does not call {prefix!r}"
    number = [int(part) for part in own.split(".") if part.isdigit()][-1]
    if depth is None or number >= depth[1]:
        said = "does not say how many layers there are" if depth is None else f"says {depth[0]}={depth[1]}"
        return f"{config.path} {said}, and {prefix!r} is layer {number} counted from 0"
    usual = (rows // heads[1]) ** -0.5
    scale = usual if family.scale is None else family.scale(config.content, own, rows // heads[1])
    causal = family.causal is not None and family.causal(config.content, own)
    return KnownLayer(family, heads[1], None if scale == usual else scale, causal)


def place_of(family: Family, prefix: str) -> str:
    """Return the end of a prefix that matches the family's `where`; "" if the prefix does not match.

    >>> place_of(MODEL_TYPES["bert"], "text.bert.encoder.layer.3.attention")
    'layer.3.attention'
    """
    found = re.search(rf"(?:^|\.)({family.where})$", dotted(prefix))
    return found[1] if found else ""


def _heads_in_doubt(config: ModelConfig, family: Family, prefix: str, key: str) -> str:
    """Why the model may not take its number of heads from `key`, in words; "" if it does."""
    own = [name.format(side=side_of(prefix)) for name in family.head_keys]
    if key not in own:
        return f"models of type {config.model_type!r} call their heads {' or '.join(own)}, and not {key}"
    return contradiction(config.content)


def where_in_words(family: Family) -> str:
    """Return a readable pattern of the prefixes of the family's attention layers, for messages.

    >>> where_in_words(MODEL_TYPES["bert"])
    '...layer.N.(attention|crossattention)'
    """
    return "..." + family.where.replace("\\.", ".").replace("\\d+", "N").replace("?", "")


def changed(
    config: Mapping[str, Any], family: Family, folder: Path, is_left: Callable[[str], bool] = lambda name: False
) -> str:
    """Return in words what in a config or its folder may make a model compute something else; "" if nothing does.

    Args:
        config: the content of config.json; its `model_type` is one of the family's.
        folder: the folder of config.json.
        is_left: name of a file in this folder -> whether the user ignores it (a pattern of `leave`).
    """
    strange = strange_setting(config, config["model_type"])
    if strange:
        return strange
    if config.get("auto_map"):
        return of_own_code(config["auto_map"])
    architectures = config.get("architectures") or []
    known = {name for one in family.model_types for name in (*model_type(one).classes, *NO_MORE)}
    for name in architectures if isinstance(architectures, list) else [architectures]:
        if not isinstance(name, str) or name.removeprefix("TF").removeprefix("Flax") not in known:
            return f"architectures names {shown(name)}, which is no class of the family {family.name} in transformers"
    for key in ("quantization_config", "pruned_heads"):
        if config.get(key) not in NOTHING:
            return f"{key} says that its arrays are not those of the family"
    for key in SWITCHES:
        if not isinstance(config.get(key, False), bool):
            return f"{key} must be true or false. Got {shown(config[key])}"
    if (folder / ADAPTER).exists():
        return f"an {ADAPTER} beside it says that an adapter (LoRA and the like) changes what layers compute"
    files = strange_files(folder, config["model_type"])
    return next((reason for name, reason in files.items() if not is_left(name)), "")


def of_own_code(auto_map: Any) -> str:
    """Return a sentence about `auto_map`, the setting by which a config names its own model code."""
    named = ", ".join(map(str, auto_map.values())) if isinstance(auto_map, dict) else str(auto_map)
    return f"auto_map says that code of its own computes this model ({shown(named)}); it is never run here"
