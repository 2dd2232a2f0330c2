"""Reads the class and settings of attention layers from the config.json inside a .keras archive.

The archive keeps a layer's arrays under a path that Keras makes of class names and their order; the config has
the same layers, in the same order, with all their constructor arguments.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mha.formats.readers.zips import open_zip, read_member
from mha.models.config import FILE, LARGEST
from mha_core.errors import shown
from mha_core.files.outside import parse_json_object

LAYOUTS = {"MultiHeadAttention": "keras", "GroupQueryAttention": "keras-gqa"}
"""Class in keras.layers -> the layout of its arrays."""

HEADS = {"MultiHeadAttention": ("num_heads", "key_dim"), "GroupQueryAttention": ("num_query_heads", "head_dim")}
"""Class -> its settings for the number of query heads and the width of keys."""

PATHS = {"GroupQueryAttention": "grouped_query_attention"}
"""Class -> its name in paths, where that does not follow from the name of the class."""

MODELS = ("Functional", "Sequential", "Model")
"""The classes of Keras whose config lists all their layers."""

ANY = (
    *("name", "trainable", "dropout", "use_bias", "seed", "activity_regularizer"),
    *(f"{what}_{kind}" for what in ("kernel", "bias") for kind in ("initializer", "regularizer", "constraint")),
    *("num_heads", "key_dim", "value_dim", "output_shape", "head_dim", "num_query_heads", "num_key_value_heads"),
)
"""Settings that do not change the result outside training, or that the arrays show."""

ONLY: Mapping[str, tuple[Any, ...]] = {
    "use_gate": (False, None),
    "sliding_window": (None,),
    "attention_axes": (None, 1, [1], [-2]),
    "flash_attention": (None, False, True),
}
"""Settings that change the result -> the values with which a layer computes what its layout means."""


@dataclass(frozen=True)
class KerasLayer:
    """An attention layer in a .keras archive.

    Attributes:
        layout: the layout of its arrays; "" if its class is not in keras.layers.
        changed: in words, a setting by which it computes something else than other layers of this layout; "" if none.
        heads: (number of query heads, width of keys) in the config, to compare with the arrays; () if unknown.
        causal: whether the model calls it with use_causal_mask; None if only some of the calls do so.
    """

    layout: str
    changed: str
    heads: tuple[Any, ...] = ()
    causal: bool | None = None


def archive_layers(path: Path) -> tuple[dict[str, KerasLayer], str]:
    """Return (dict: path of a layer's arrays -> KerasLayer; in words, why a layer may be missing in the dict)."""
    try:
        with open_zip(path) as archive:
            if archive.getinfo(FILE).file_size > LARGEST:
                return {}, f"its {FILE} has more than {LARGEST} bytes"
            config = parse_json_object(read_member(archive, FILE), what=FILE)
        return dict(_walk(config, "")), f"its {FILE} lists no attention layer of keras.layers there"
    except Exception as error:  # of a damaged archive, or of a config of another form
        return {}, f"its {FILE} can't be read: {type(error).__name__}"


def _walk(model: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, KerasLayer]]:
    """Every attention layer in a model, nested ones too. Layers within layers of other classes are not listed there."""
    if model["class_name"] not in MODELS or not str(model["module"]).startswith("keras"):
        return
    seen: Counter[str] = Counter()
    for layer in model["config"]["layers"]:
        kind = layer["class_name"]
        name = PATHS.get(kind) or _snake(kind)
        path = f"{prefix}layers/{name}" + (f"_{seen[name]}" if seen[name] else "")
        seen[name] += 1
        if kind in LAYOUTS:
            yield path, _layer(layer)
        elif kind in MODELS:
            yield from _walk(layer, f"{path}/")


def _layer(layer: Mapping[str, Any]) -> KerasLayer:
    kind = layer["class_name"]
    if layer["module"] != "keras.layers" or layer.get("registered_name") not in (None, kind):
        return KerasLayer("", f"its class is {shown(layer['module'])}.{kind}, not the one of keras.layers")
    config, names = layer["config"], HEADS[kind]
    flags = {bool(node["kwargs"].get("use_causal_mask")) for node in layer.get("inbound_nodes") or [{"kwargs": {}}]}
    causal = flags.pop() if len(flags) == 1 else None
    return KerasLayer(LAYOUTS[kind], _changed(layer), tuple(config.get(name) for name in names), causal)


def _changed(layer: Mapping[str, Any]) -> str:
    for key, value in layer["config"].items():
        if key == "dtype":
            kind = value.get("class_name") if isinstance(value, dict) else "DTypePolicy"
            if kind != "DTypePolicy":
                return f"its dtype policy is a {shown(kind)}"
        elif key in ONLY:
            if value not in ONLY[key]:
                return f"{key} is {shown(value)}, and the layout's layers have {ONLY[key][0]}"
        elif key not in ANY:
            return f"it has the setting {shown(key)}, which is not known here"
    shapes = (layer.get("build_config") or {}).get("shapes_dict") or {}
    rank = len(shapes.get("query_shape") or (0, 0, 0))
    return f"its queries have {rank} axes" if rank != 3 else ""


def _snake(name: str) -> str:
    """The name that Keras gives a layer in paths, by its class.

    >>> _snake("MultiHeadAttention"), _snake("LSTMCell")
    ('multi_head_attention', 'lstm_cell')
    """
    name = re.sub(r"\W+", "", name)
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()
