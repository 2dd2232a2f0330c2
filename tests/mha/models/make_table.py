"""Write `table.json`: the settings, classes and arrays of the known model types, from the installed transformers.

    python -m tests.mha.models.make_table

A test compares the file with what this module makes of the release that is installed. Nothing else imports it, so
`mha convert` needs no transformers.
"""

import inspect
import json
import re
from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

from mha.models.config import DEPTH_KEYS
from mha.models.families import MODEL_TYPES
from mha.models.table import FILE

VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"is_decoder": True, "add_cross_attention": True},
    {"word_embed_proj_dim": 4},
)
"""Settings with which a class makes arrays that it does not make by default; each boolean is turned over besides."""

SMALL = (*DEPTH_KEYS, "encoder_layers", "decoder_layers", "decoder_num_hidden_layers")
"""Settings that are 1, because every layer of a model has the same arrays."""


def table() -> dict[str, Any]:
    """Return the whole table as a dict of JSON values."""
    import transformers

    base = _settings_of(transformers.PreTrainedConfig)
    return {
        "transformers": transformers.__version__,
        "settings": sorted(base),
        "generation": sorted(transformers.GenerationConfig._get_default_generation_params()),
        "models": {model_type: _model(model_type, base) for model_type in MODEL_TYPES},
    }


def _model(model_type: str, base: set[str]) -> dict[str, Any]:
    from transformers import MODEL_MAPPING
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = CONFIG_MAPPING[model_type]
    main = MODEL_MAPPING[kind]
    arrays = {cls: _arrays(cls, kind) for cls in dict.fromkeys((main, *_classes(kind)))}
    prefixes = {cls.base_model_prefix for cls in arrays}
    body = {_below(name, prefixes) for name in arrays[main]}
    heads = set()
    for cls, names in arrays.items():
        body |= {_below(name, prefixes) for name in names if name.startswith(f"{cls.base_model_prefix}.")}
        heads |= {_below(name, prefixes) for name in names}
    return {
        "config": kind.__name__,
        "settings": sorted(_settings_of(kind) - base),
        "classes": sorted(cls.__name__ for cls in arrays),
        "prefixes": sorted(prefixes),
        "body": _short(body),
        "heads": _short(heads - body),
    }


def _below(name: str, prefixes: set[str]) -> str:
    """The name without the one of these prefixes that it begins with."""
    first, _, rest = name.partition(".")
    return rest if first in prefixes else name


def _settings_of(kind: Any) -> set[str]:
    """The keys that a config class has in its signature, takes under another name, or writes."""
    written = set(kind().to_dict()) | {field.name for field in fields(kind)}
    return written | set(kind.attribute_map)


def _classes(kind: Any) -> Iterator[Any]:
    """The public model classes of a config class."""
    from transformers import PreTrainedModel

    module = import_module(kind.__module__.replace(".configuration_", ".modeling_"))
    for name in module.__all__:
        found = getattr(module, name)
        is_model = inspect.isclass(found) and issubclass(found, PreTrainedModel)
        if is_model and found.config_class is kind and not name.endswith("PreTrainedModel"):
            yield found


def _arrays(cls: Any, kind: Any) -> set[str]:
    """The names of a class's arrays, as it has them and as its checkpoints do; "#" stands for a number."""
    import torch
    from transformers.core_model_loading import revert_weight_conversion
    from transformers.initialization import no_init_weights

    switches = [{field.name: not field.default} for field in fields(kind) if isinstance(field.default, bool)]
    known = {field.name for field in fields(kind)}
    small = {key: 1 for key in SMALL if key in known}
    names: set[str] = set()
    for changes in (*VARIANTS, *switches):
        if not known.issuperset(changes):
            continue
        try:
            with torch.device("meta"), no_init_weights():
                model = cls(kind(**small, **changes))
        except ValueError:  # cross-attention needs a decoder
            continue
        arrays = model.state_dict()
        names |= {*arrays, *revert_weight_conversion(model, dict(arrays))}
    return {re.sub(r"(?<=\.)\d+(?=\.)", "#", name) for name in names}


def _short(names: set[str]) -> list[str]:
    """The names in order; "x.*" stands for "x.weight" and "x.bias"."""
    both = {name[: -len(".bias")] for name in names if name.endswith(".bias")}
    both = {name for name in both if f"{name}.weight" in names}
    rest = {name for name in names if name.rpartition(".")[0] not in both or not name.endswith((".weight", ".bias"))}
    return sorted(rest | {f"{name}.*" for name in both})


def main() -> None:
    """Write the file."""
    found = table()
    models = found.pop("models")
    lines = [f"  {json.dumps(name)}: {json.dumps(value)},\n" for name, value in found.items()]
    rows = ",\n".join(f"    {json.dumps(name)}: {json.dumps(value)}" for name, value in models.items())
    Path(FILE).write_text("{\n" + "".join(lines) + '  "models": {\n' + rows + "\n  }\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
