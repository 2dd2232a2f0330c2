"""safetensors files, whose metadata holds the layers' configs: that of a layer without a prefix at the key that
`save_weights` uses, that of a layer with a prefix at the key "mha_config:PREFIX".
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from mha.formats.checkpoint import Add, Checkpoint, Entry, bfloat16, collect, reading
from mha_core import AttentionConfig
from mha_core.errors import shown
from mha_core.files.outside import parse_json_object
from mha_core.files.tensorfile import SEAL, UNSEALED, read_header, seal_file
from mha_core.weights import METADATA_KEY

DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Name in the file -> name of the definition; others keep the file's."""

KEPT_OPEN = 256 << 20
"""Bytes that are read before the file is closed and opened again."""

OS_ERROR = re.compile(r"\(os error (\d+)\)")
"""Where the package says what the system answered, such as that the disk is full."""


@contextmanager
def open_file(path: Path) -> Iterator[Checkpoint]:
    """Open the file as a Checkpoint, whose arrays are read on demand."""
    with reading(path, "safetensors"):
        # First, since it says best what is wrong with a file that is none; but not what is missing of one.
        try:
            file = safe_open(path, framework="numpy")
        except SafetensorError as error:
            if "not fully covered" in str(error):
                read_header(path)
            raise
    arrays = _Arrays(path)
    with file:
        header = read_header(path)
        entries = collect(path, ((name, arrays.entry(name, file.get_slice(name))) for name in file.keys()))  # noqa: SIM118  # not a dict
        configs = _configs(path, header.metadata)
    try:
        yield Checkpoint(path, entries, configs, metadata=header.metadata)
    finally:
        arrays.close()


@contextmanager
def create(
    path: Path, *, layout: str, configs: Mapping[str, AttentionConfig], metadata: Mapping[str, str]
) -> Iterator[Add]:
    """Return a context that writes the file when it ends. Until then all arrays are in memory."""
    arrays: dict[str, NDArray] = {}

    def add(name: str, array: NDArray) -> None:
        arrays[name] = np.ascontiguousarray(array)

    yield add
    texts = {config_key(prefix): json.dumps(config.to_dict()) for prefix, config in configs.items()}
    try:
        save_file(arrays, path, metadata={**texts, **metadata, SEAL: UNSEALED})
    except SafetensorError as error:
        if (found := OS_ERROR.search(str(error))) is None:
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1]))) from error
    seal_file(path)


class _Arrays:
    """Reads a file's arrays, and opens the file again after every KEPT_OPEN bytes.

    All that was read of a mapped file stays in memory until it is closed; and opening it takes time for every name.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._open, self._read = path, ExitStack(), KEPT_OPEN
        self._file: Any = None

    def entry(self, name: str, part: Any) -> Entry:
        dtype = DTYPES.get(part.get_dtype(), part.get_dtype())
        return Entry(tuple(part.get_shape()), dtype, partial(self._load, name, dtype))

    def close(self) -> None:
        self._open.close()
        self._file = None

    def _load(self, name: str, dtype: str) -> NDArray:
        if dtype == "bfloat16":
            bfloat16()  # says what is missing, if it is
        if self._file is None or self._read >= KEPT_OPEN:
            self.close()
            self._file, self._read = self._open.enter_context(safe_open(self._path, framework="numpy")), 0
        array: NDArray = self._file.get_tensor(name)
        self._read += array.nbytes
        return array


def config_key(prefix: str) -> str:
    """Return the metadata key of the config of the layer at `prefix`."""
    return f"{METADATA_KEY}:{prefix}" if prefix else METADATA_KEY


def _configs(path: Path, metadata: Mapping[str, str]) -> dict[str, Mapping[str, Any]]:
    configs: dict[str, Mapping[str, Any]] = {}
    for key, text in metadata.items():
        name, _, prefix = key.partition(":")
        if name != METADATA_KEY:
            continue
        configs[prefix] = parse_json_object(text, what=f"{path}: the config {shown(repr(key))} in its metadata")
    return configs
