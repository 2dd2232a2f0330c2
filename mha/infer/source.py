"""Reads the arrays of a file whose names are not used."""

from __future__ import annotations

from pathlib import Path

from numpy.typing import NDArray

from mha.formats import open_checkpoint
from mha_core.dtypes import DTYPES


def source_arrays(path: str | Path) -> dict[str, NDArray]:
    """Every floating-point array of a source that `mha convert` reads, by its name: a file, an index, a folder.

    Raises:
        SpecError: there is no such file, it is not whole, it holds code, or it is of no format that is known.
    """
    with open_checkpoint(path) as checkpoint:
        return {name: checkpoint.array(name) for name, entry in checkpoint.entries.items() if entry.dtype in DTYPES}
