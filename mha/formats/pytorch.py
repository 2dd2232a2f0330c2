"""PyTorch's own files: read through its safe loader alone, which makes tensors and runs nothing."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mha.formats.checkpoint import Add, Checkpoint, Entry, bfloat16, not_whole
from mha_core import AttentionConfig, SpecError


@contextmanager
def open_file(path: Path) -> Iterator[Checkpoint]:
    """The tensors of a state_dict, or of dicts in dicts, whose names are then joined by dots."""
    try:
        content = _load(path)
    except UnpicklingError as error:
        raise _refused(path, error) from error
    except Exception as error:  # RuntimeError, EOFError, KeyError and more, by where the file ends
        raise not_whole(path, "PyTorch", error) from error
    if not isinstance(content, Mapping):
        raise SpecError(f"{path} must hold a state_dict. Got {type(content).__name__}.")
    yield Checkpoint(path, dict(_flat("", content)))


@contextmanager
def create(path: Path, *, layout: str, configs: Mapping[str, AttentionConfig]) -> Iterator[Add]:
    """Write a state_dict."""
    tensors: dict[str, torch.Tensor] = {}

    def add(name: str, array: NDArray) -> None:
        array = np.array(array, order="C")
        if str(array.dtype) == "bfloat16":
            tensors[name] = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        else:
            tensors[name] = torch.from_numpy(array)

    yield add
    torch.save(tensors, path)


def _load(path: Path) -> Any:
    with path.open("rb") as file:
        is_zip = file.read(4) == b"PK\x03\x04"
    with warnings.catch_warnings():
        # Said of every pickle that torch.save did not make, before it is refused.
        warnings.filterwarnings("ignore", message="Detected pickle protocol", category=UserWarning)
        # Only the newer, zipped format can be mapped into memory.
        return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)


def _refused(path: Path, error: UnpicklingError) -> SpecError:
    found = re.search(r"GLOBAL (\S+)", str(error)) or re.search(r"(?:class|function) (\S+\.\S+)", str(error))
    if found is None:  # PyTorch's own words would advise to switch its safety off
        detail = re.search(r"WeightsUnpickler error:\s*(.+)", str(error))
        reason = f"its safe loader stopped at: {detail[1]}" if detail else "its safe loader refuses it"
        return not_whole(path, "PyTorch", f"{reason}; nothing in it was run")
    return SpecError(
        f"{path} holds {found[1]}, which is no tensor: reading it would run code from the file, and is refused. "
        "Save the model's state_dict() instead."
    )


def _flat(prefix: str, content: Mapping[Any, Any]) -> Iterator[tuple[str, Entry]]:
    for key, value in content.items():
        name = f"{prefix}{key}"
        if isinstance(value, torch.Tensor):
            dtype = str(value.dtype).removeprefix("torch.")
            if value.layout is not torch.strided or value.is_quantized:
                dtype = f"{dtype} ({value.layout})"
            yield name, Entry(tuple(value.shape), dtype, partial(_to_numpy, value))
        elif isinstance(value, Mapping):
            yield from _flat(f"{name}.", value)


def _to_numpy(tensor: torch.Tensor) -> NDArray:
    tensor = tensor.detach().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(bfloat16())
    return tensor.numpy()
