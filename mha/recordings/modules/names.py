"""The names of arrays in files of recorded calls, and which files have such names."""

import os
import re
from pathlib import Path

from mha.recordings.modules.recorder import METADATA_KEY
from mha_core.errors import SpecError
from mha_core.files.mistaken import taken_by
from mha_core.files.tensorfile import Header, read_header

CALL = re.compile(r"(?:(?P<module>.+)/)?(?P<call>[0-9]+)/(?P<side>inputs|outputs)(?:/(?P<place>.+))?")
PARAMETER = re.compile(r"(?:(?P<module>.+)/)?parameters/(?P<name>.+)")

FORM = "MODULE/CALL/inputs/NAME, MODULE/CALL/outputs/NAME or MODULE/parameters/NAME"


def header_of(path: str | os.PathLike[str]) -> Header:
    """Return the safetensors header of a recording.

    Raises:
        SpecError: the file is no whole safetensors file; the message names the command that reads this kind of file.
        FileNotFoundError: there is no such file.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"no such file: {path}; {taken_by(path)}")
    try:
        return read_header(path)
    except SpecError as error:
        again = "record it or copy it again"
        if Path(path).suffix == ".safetensors":
            raise SpecError(
                f"{error}; {again if Path(path).stat().st_size == 0 or 'cut off' in str(error) else taken_by(path)}"
            ) from error
        raise SpecError(f"{path} is no recording: {taken_by(path)}") from error


def holds_arrays(path: str | os.PathLike[str]) -> bool:
    """Return whether a file holds the plain arrays of recorded calls, and not a recording of `mha.capture`.

    Raises:
        SpecError: the file is neither an `.npz` file nor a whole safetensors file.
        FileNotFoundError: there is no such file.
    """
    if Path(path).suffix == ".npz" and Path(path).is_file():
        return True
    header = header_of(path)
    return METADATA_KEY not in header.metadata and any(CALL.fullmatch(name) for name in header.arrays)
