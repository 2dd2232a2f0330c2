"""Checkpoint: the contents of a file of weights of any format; and the errors for a file that is not whole."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, is_zipfile

import numpy as np
from numpy.typing import NDArray

from mha_core import SpecError
from mha_core.dtypes import DTYPES
from mha_core.errors import install_command, one_line, shown
from mha_core.files.tensorfile import EMPTY, TEXT, check_name, looks_like

Add = Callable[[str, NDArray], None]
"""Puts one array into a file that is being written."""

GROWTH = 20
"""How many times the size of a file all its arrays together may take when they are unpacked."""

ALWAYS_FINE = 64 << 20
"""Bytes that the arrays may take in any case, however small the file."""


@dataclass(frozen=True)
class Entry:
    """An array in a file, not read yet: its shape, its dtype, and a function `load` that reads it."""

    shape: tuple[int, ...]
    dtype: str
    load: Callable[[], NDArray]


@dataclass(frozen=True)
class Checkpoint:
    """An open file of weights.

    Attributes:
        path: the file.
        entries: full name -> Entry (an array not read yet), in the file's order.
        configs: prefix of a layer -> its config as a dict, where the file holds one.
        others: full name -> kind in words, for all items that are no arrays (such as numbers and texts).
        metadata: name -> text, for the file's other metadata, if its format has a place for that.
    """

    path: Path
    entries: Mapping[str, Entry]
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    others: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)

    def array(self, name: str) -> NDArray:
        """Return one array exactly as it is in the file; bfloat16 numbers in the dtype of ml_dtypes.

        Raises:
            SpecError: the array can't be read, or its dtype is not float64, float32, float16 or bfloat16.
        """
        entry = self.entries[name]
        if entry.dtype not in DTYPES:
            raise SpecError(f"{self.path}: {name} must be of {', '.join(DTYPES)}. Got {entry.dtype}.")
        with spec_errors(self.path, f"{name} can't be read"):
            array = entry.load()
            if array.shape != entry.shape or array.dtype.name != entry.dtype:
                raise ValueError(f"it is {array.dtype} {array.shape} where the file says {entry.dtype} {entry.shape}")
            return array


def largest_claim(size: int) -> int:
    """Return the largest number of bytes that the arrays in a file of `size` bytes may take in memory.

    A file whose arrays would take more is damaged, or meant to fill memory: trained weights hardly compress.
    """
    return ALWAYS_FINE + GROWTH * size


def check_growth(path: Path, claimed: int, what: str) -> None:
    """Raise SpecError if `what` (in words) would take `claimed` bytes, too many for the file (see `largest_claim`)."""
    size = path.stat().st_size
    if claimed > largest_claim(size):
        raise SpecError(
            f"{path}: {what} would take {claimed} bytes, and the file has {size}; at most {GROWTH} times a file's size "
            f"and {ALWAYS_FINE >> 20} MiB are read"
        )


def collect(path: Path, named: Iterable[tuple[str, Entry]]) -> dict[str, Entry]:
    """Return name -> Entry (an array not read yet) for the arrays of a file, in the file's order.

    Raises:
        SpecError: a name occurs twice or is not printable, or the arrays claim far more bytes than the file has.
    """
    entries: dict[str, Entry] = {}
    claimed = 0
    for name, entry in named:
        check_name(path, name)
        if name in entries:
            raise SpecError(f"{path}: {shown(repr(name))} stands there twice")
        entries[name] = entry
        # The longest axis too: of an array without numbers, it costs nothing to claim.
        claimed += max(prod(entry.shape) * _itemsize(entry.dtype), *entry.shape, 0)
    check_growth(path, claimed, "its arrays")
    return entries


def _itemsize(dtype: str) -> int:
    """Bytes of one number; 0 for dtypes that can't be read anyway."""
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize if dtype in DTYPES else 0


def bfloat16() -> np.dtype:
    """Return NumPy's dtype for bfloat16, from the package ml_dtypes."""
    try:
        import ml_dtypes
    except ModuleNotFoundError as error:
        raise SpecError(f"bfloat16 arrays need the package 'ml_dtypes': {install_command('convert')}") from error
    return np.dtype(ml_dtypes.bfloat16)


@contextmanager
def spec_errors(path: Path, what: str) -> Iterator[None]:
    """Return a context that turns any exception into a SpecError, whose message has `path`, `what` and the exception.

    Libraries may raise any exception on a damaged or hostile file.
    """
    try:
        yield
    except SpecError:
        raise
    except Exception as error:  # each library has its own, and a broken file brings out odd ones
        raise SpecError(f"{path}: {what}: {one_line(error)}") from error


class Refused(ValueError):
    """An error: a file has something unsafe that no file of weights needs. The message names it."""


@contextmanager
def reading(path: Path, form: str) -> Iterator[None]:
    """Return a context that turns exceptions into SpecErrors: "refused" for Refused, "not a whole file" for others."""
    try:
        yield
    except SpecError:
        raise
    except Refused as error:
        raise SpecError(f"{path} is refused: {error}") from error
    except Exception as error:  # each library has its own, and a damaged file brings out odd ones
        raise not_whole(path, form, error) from error


def not_whole(path: Path, form: str, error: Exception | str) -> SpecError:
    """Return a SpecError: "PATH is not a whole FORM file", and what the reader of this format reports (`error`)."""
    looks = looks_like(path)
    hint = f"; it looks like {looks}" if looks and looks.partition(" ")[0] != form.partition(" ")[0] else ""
    why = error if isinstance(error, str) else one_line(error)
    if isinstance(error, BadZipFile) and looks.startswith("zip") and not is_zipfile(path):  # which looks for its end
        why, hint = f"it is cut off, at {path.stat().st_size:,} bytes: write, copy or download it again", ""
    elif looks in (EMPTY, TEXT):  # of which no library says more
        why, hint = f"it looks like {looks}", ""
    return SpecError(f"{path} is not a whole {form} file: {why}{hint}")
