"""Checks the JSON files of a model's folder, so that `mha port` can refuse it before anything is loaded.

transformers reads the settings that its own class knows and ignores all others silently: code that the folder names,
another kind of positions, another arithmetic. A model of such a folder is not the one that was trained.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from mha.models.config import contradiction
from mha.models.families import MODEL_TYPES, changed, of_own_code
from mha.recipes import RECIPES
from mha_core import SpecError
from mha_core.files.outside import parse_json_object


def is_encoder(config: Mapping[str, Any]) -> bool:
    """Return whether a config is of the BERT family: a sentence embedding is the mean over its last hidden states."""
    return config.get("model_type") in RECIPES["bert"].model_types


def check_folder(folder: Path, leave: Collection[str] = ()) -> None:
    """Raise SpecError unless all settings of attention in the config of a BERT's folder are known.

    Args:
        folder: the folder.
        leave: patterns of the names of files in it that are left out.
    """
    file = folder / "config.json"
    config = _json(file)
    if config is None:
        raise SpecError(
            f"{folder} has no config.json; it must be a model's folder as save_pretrained writes it; weights alone are "
            f"read by `mha convert {folder} --list`"
        )
    family = MODEL_TYPES[config["model_type"]]
    reason = changed(config, family, folder, lambda name: any(fnmatchcase(name, one) for one in leave))
    if reason:
        raise SpecError(f"{file}: {reason}")
    if config.get("num_attention_heads") is None:
        raise SpecError(f"{file} must say num_attention_heads; without it, transformers takes a number of its own")
    if contradiction(config):
        raise SpecError(f"{file}: {contradiction(config)}")
    own = (_json(folder / "tokenizer_config.json") or {}).get("auto_map")
    if own:
        raise SpecError(f"{folder / 'tokenizer_config.json'}: {of_own_code(own)}")


def _json(file: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None if there is no such file."""
    if not file.is_file():
        return None
    # A tokenizer without a limit has int(1e30) for it.
    return parse_json_object(file.read_bytes(), what=str(file), any_integer=True)
