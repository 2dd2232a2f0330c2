"""safetensors files. The configs stand in the metadata: of a layer at the top level as `save_weights` has it,
of one with a prefix under "mha_config:PREFIX".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save_file

from mha.formats.checkpoint import Add, Checkpoint, Entry, bfloat16, not_whole
from mha_core import AttentionConfig, SpecError
from mha_core.weights import METADATA_KEY

DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Name in the file -> name of the definition; others keep the file's."""


@contextmanager
def open_file(path: Path) -> Iterator[Checkpoint]:
    """What is in the file."""
    try:
        file = safe_open(path, framework="numpy")
    except Exception as error:  # SafetensorError is one of several
        raise not_whole(path, "safetensors", error) from error
    with file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  # not a dict: it has keys() alone
        entries = {}
        for name, part in slices.items():
            dtype = DTYPES.get(part.get_dtype(), part.get_dtype())
            entries[name] = Entry(tuple(part.get_shape()), dtype, partial(_load, path, name, dtype))
        configs = _configs(path, file.metadata() or {})
    yield Checkpoint(path, entries, configs)


@contextmanager
def create(path: Path, *, layout: str, configs: Mapping[str, AttentionConfig]) -> Iterator[Add]:
    """Write a file: arrays are kept until the end, because the format begins with all their names."""
    arrays: dict[str, NDArray] = {}

    def add(name: str, array: NDArray) -> None:
        arrays[name] = np.ascontiguousarray(array)

    yield add
    metadata = {config_key(prefix): json.dumps(config.to_dict()) for prefix, config in configs.items()}
    save_file(arrays, path, metadata=metadata)


def _load(path: Path, name: str, dtype: str) -> NDArray:
    if dtype == "bfloat16":
        bfloat16()  # says what is missing, if it is
    # Opened each time: what is mapped stays in memory, all that has been read of it, until it is closed.
    with safe_open(path, framework="numpy") as file:
        array: NDArray = file.get_tensor(name)
        return array


def config_key(prefix: str) -> str:
    """Under which metadata key the config of the layer at `prefix` stands."""
    return f"{METADATA_KEY}:{prefix}" if prefix else METADATA_KEY


def _configs(path: Path, metadata: Mapping[str, str]) -> dict[str, Mapping[str, Any]]:
    configs: dict[str, Mapping[str, Any]] = {}
    for key, text in metadata.items():
        name, _, prefix = key.partition(":")
        if name != METADATA_KEY:
            continue
        try:
            fields = json.loads(text)
        except json.JSONDecodeError as error:
            raise SpecError(f"{path}: the config {key!r} in its metadata is not JSON: {error}") from error
        if not isinstance(fields, dict):
            raise SpecError(f"{path}: the config {key!r} in its metadata must be a JSON object. Got {fields!r}.")
        configs[prefix] = fields
    return configs
