"""The table of known model types: the settings, classes and arrays that their classes in transformers have.

`python -m tests.mha.models.make_table` writes it from the installed release, so that reading it needs no transformers.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("table.json")


@dataclass(frozen=True)
class ModelType:
    """A row of the table of `model_type`s: settings and array names of transformers' classes for one `model_type`.

    Attributes:
        config: the name of the config class.
        settings: the keys that this class takes or writes.
        classes: the names of the model classes.
        prefixes: the prefixes, such as "bert", that the main model's arrays may have in a model with a head.
        body: the names of the main model's arrays, without such a prefix; "#" stands for a number.
        heads: the names of all other arrays. They belong to heads for tasks, such as classification.
    """

    config: str
    settings: frozenset[str]
    classes: tuple[str, ...]
    prefixes: tuple[str, ...]
    body: frozenset[str]
    heads: frozenset[str]


@cache
def _table() -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


@cache
def model_type(name: str) -> ModelType:
    """Return the row of a `model_type`, one of `mha.models.families.MODEL_TYPES`.

    >>> bert = model_type("bert")
    >>> bert.config, "is_decoder" in bert.settings, "encoder.layer.#.attention.self.query.bias" in bert.body
    ('BertConfig', True, True)
    """
    row = _table()["models"][name]
    return ModelType(
        config=row["config"],
        settings=frozenset((*row["settings"], *_table()["settings"])),
        classes=tuple(row["classes"]),
        prefixes=tuple(row["prefixes"]),
        body=frozenset(_whole(row["body"])),
        heads=frozenset(_whole(row["heads"])),
    )


def has_row(name: str) -> bool:
    """Return whether the table has a row of this `model_type`."""
    return name in _table()["models"]


@cache
def generation_settings() -> frozenset[str]:
    """Return the keys of a config that transformers uses only to generate text."""
    return frozenset(_table()["generation"])


def _whole(names: Iterable[str]) -> Iterable[str]:
    """The names, with "x.weight" and "x.bias" for "x.*"."""
    for name in names:
        yield from (f"{name[:-1]}weight", f"{name[:-1]}bias") if name.endswith(".*") else (name,)
