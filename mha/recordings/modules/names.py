"""How arrays are named that stand for calls, and which files hold such."""

from __future__ import annotations

import os
import re
from pathlib import Path

from mha.recordings.modules.recorder import METADATA_KEY
from mha_core.files.tensorfile import read_header

CALL = re.compile(r"(?:(?P<module>.+)/)?(?P<call>[0-9]+)/(?P<side>inputs|outputs)(?:/(?P<place>.+))?")
PARAMETER = re.compile(r"(?:(?P<module>.+)/)?parameters/(?P<name>.+)")

FORM = "MODULE/CALL/inputs/NAME, MODULE/CALL/outputs/NAME or MODULE/parameters/NAME"


def holds_arrays(path: str | os.PathLike[str]) -> bool:
    """Return True if a file holds calls as plain arrays.

    Raises:
        SpecError: it is neither `.npz` nor a whole safetensors file.
        FileNotFoundError: there is no such file.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"no such file: {path}")
    if Path(path).suffix == ".npz":
        return True
    header = read_header(path)
    return METADATA_KEY not in header.metadata and any(CALL.fullmatch(name) for name in header.arrays)
