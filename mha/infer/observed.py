"""One recorded call of a layer, and the arrays of a file whose names are not used."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mha.formats import open_checkpoint
from mha.formats.checkpoint import spec_errors
from mha.formats.readers import npz
from mha_core import AttentionMask, SpecError
from mha_core.call.arguments import CallSizes
from mha_core.call.call import Call, LayerSpec
from mha_core.call.checks import check_call, check_valid_lens
from mha_core.call.masks import allowed_keys
from mha_core.dtypes import DTYPES, check_dtype, check_held, round_to
from mha_core.errors import shown
from mha_core.files.tensorfile import read_tensors

NAMES = ("queries", "keys", "values", "output", "valid_lens", "allowed", "bias", "causal", "query_offset", "dtype")
"""What a record can hold; `queries` and `output` are required."""


@dataclass(frozen=True, eq=False)
class Observed:
    """A recorded call: the inputs of a layer and its output.

    Args:
        queries, keys, values: (B, Lq, Dq), (B, Lk, Dk), (B, Lk, Dv).
        output: (B, Lq, Do).
        masks: name in words -> possible mask. If the recording does not say whether the layer is causal, there are two:
            without and with the causal mask. Else there is one, the recorded mask.
        dtype: the dtype that the layer computed in.
    """

    queries: NDArray
    keys: NDArray
    values: NDArray
    output: NDArray
    masks: Mapping[str, AttentionMask]
    dtype: str

    @cached_property
    def sizes(self) -> CallSizes:
        """B, Lq and Lk."""
        batch, query_len, _ = self.queries.shape
        return CallSizes(batch, query_len, self.keys.shape[1])

    @cached_property
    def mask_heads(self) -> int:
        """H where a mask is given per head; else 1."""
        return max(map(_heads_of, self.masks.values()))

    @cached_property
    def allowed(self) -> dict[str, NDArray[np.bool_]]:
        """Return name of a mask -> bool (B, 1 or H, Lq, Lk): True where a query may attend to a key."""
        return {name: allowed_keys(mask, self.sizes, self.mask_heads) for name, mask in self.masks.items()}

    @cached_property
    def usable_rows(self) -> list[tuple[int, int, int]]:
        """Return (item, query, number of keys) of each query that can be used.

        A query can be used if it and its row of the output are finite, and if every head has an allowed key for it
        under each possible mask. The number of keys is the smallest over all masks and heads.
        """
        counts = [allowed.sum(axis=-1).min(axis=1) for allowed in self.allowed.values()]
        fewest = np.min(counts, axis=0)  # (B, Lq)
        finite = np.isfinite(self.output).all(axis=-1) & np.isfinite(self.queries).all(axis=-1)
        return [(int(b), int(i), int(fewest[b, i])) for b, i in np.argwhere((fewest > 0) & finite)]

    @classmethod
    def of(cls, recorded: Mapping[str, Any]) -> Self:
        """Return the Observed from a dict: name in NAMES -> array. `keys` default to `queries`, `values` to `keys`.

        "dtype" (a string) is the dtype that the layer computed in. Default: the dtype of "output". Arrays may have a
        wider dtype, such as float32 for a bfloat16 layer, but each number must be representable in the layer's dtype.

        Raises:
            SpecError: an array is missing, unknown, does not fit the others, or holds numbers that "dtype" lacks.

        >>> x = np.ones((1, 3, 4))
        >>> list(Observed.of({"queries": x, "output": x}).masks)
        ['no mask', 'causal']
        """
        unknown = [name for name in recorded if name not in NAMES]
        if unknown:
            hint = (
                ""
                if {"queries", "output"} <= set(recorded)
                else '; numpy.savez("call.npz", queries=x, output=y) writes one'
            )
            raise SpecError(f"a record has no array {unknown[0]!r} (it may have: {', '.join(NAMES)}){hint}")
        missing = [name for name in ("queries", "output") if name not in recorded]
        if missing:
            raise SpecError(f"a record needs {missing[0]!r} (it needs queries and output; keys default to queries)")
        dtype = check_dtype(str(np.asarray(recorded.get("dtype", _dtype_of("output", recorded["output"])))))
        queries, output = (_rounded(name, recorded[name], dtype) for name in ("queries", "output"))
        keys = _rounded("keys", recorded["keys"], dtype) if "keys" in recorded else queries
        values = _rounded("values", recorded["values"], dtype) if "values" in recorded else keys
        masks = _masks(recorded, queries.shape, keys.shape, dtype)
        for mask in masks.values():
            check_call(Call(queries, keys, values, mask), LayerSpec(_heads_of(mask)))
            if mask.valid_lens is not None:
                check_valid_lens(mask.valid_lens, keys.shape[1])
        if output.ndim != 3 or output.shape[:2] != queries.shape[:2]:
            raise SpecError(
                f"output must have shape (B, Lq, Do) with (B, Lq)={queries.shape[:2]}, as queries. Got {output.shape}."
            )
        if not np.isfinite(output).all(axis=-1).any():
            raise SpecError("output must have a row of finite numbers. Got none.")
        return cls(queries, keys, values, output, masks, dtype)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return the recorded call in an .npz or safetensors file, whose arrays have names from NAMES ("queries", ...).

        Raises:
            SpecError: there is no such file, it has another format, it is truncated, or it holds no recorded call.
        """
        with naming(path):
            return cls.of(load_arrays(Path(path)))


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Return a context whose SpecErrors name the file."""
    try:
        yield
    except SpecError as error:
        if str(path) in str(error):
            raise
        raise SpecError(f"{path}: {error}") from error


def source_arrays(path: str | Path) -> dict[str, NDArray]:
    """Return name -> array, for the floating-point arrays of a file of weights, an index of shards or a folder.

    Raises:
        SpecError: there is no such file, it is not whole, it holds code, or its format is not known.
    """
    with open_checkpoint(path) as checkpoint:
        return {name: checkpoint.array(name) for name, entry in checkpoint.entries.items() if entry.dtype in DTYPES}


def load_arrays(file: Path) -> dict[str, NDArray]:
    """Return name -> array for every array of the file. Pickled Python objects in it are never loaded."""
    if not file.is_file():
        raise SpecError(f"there is no file {file}")
    with spec_errors(file, "it is not a whole .npz or safetensors file of arrays"):
        with file.open("rb") as opened:
            is_zip = opened.read(2) == b"PK"
        if not is_zip:
            return read_tensors(file)[0]
        with npz.open_file(file) as archive:
            return {name: entry.load() for name, entry in archive.entries.items()}


def _heads_of(mask: AttentionMask) -> int:
    """H where the mask is given per head; else 1."""
    return max((np.shape(array)[-3] for array in (mask.allowed, mask.bias) if np.ndim(array) > 2), default=1)


def _dtype_of(name: str, array: Any) -> str:
    dtype = str(np.asarray(array).dtype)
    if dtype not in DTYPES:
        raise SpecError(f"{name} must be floating-point ({', '.join(DTYPES)}). Got {dtype}.")
    return dtype


def _rounded(name: str, array: Any, dtype: str) -> NDArray:
    _dtype_of(name, array)
    check_held(name, array, dtype)
    return round_to(np.asarray(array), dtype)


def _flag(name: str, value: Any) -> bool:
    """The value as a bool: one bool, or the integer 0 or 1, in an array of any shape. SpecError for anything else."""
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biu" or array.item() not in (0, 1):
        raise SpecError(f"{name} must be True or False. Got {array.dtype} {array.shape}: {shown(array.ravel()[:1])}.")
    return bool(array.item())


def _masks(
    recorded: Mapping[str, Any], queries: tuple[int, ...], keys: tuple[int, ...], dtype: str
) -> dict[str, AttentionMask]:
    """The possible masks, by a name in words: also a causal one where the record does not say `causal`."""
    given = {name: np.asarray(recorded[name]) for name in ("valid_lens", "allowed") if name in recorded}
    if "bias" in recorded:
        given["bias"] = _rounded("bias", recorded["bias"], dtype)
    stated = AttentionMask(given.get("valid_lens"), given.get("allowed"), given.get("bias"))
    words = " and ".join(given) or "no mask"
    also_causal = f"{words} and causal" if given else "causal"
    offset = np.asarray(recorded.get("query_offset", 0))
    if offset.dtype.kind not in "iu":
        raise SpecError(f"query_offset must be an integer, or one for each item. Got {offset.dtype}.")
    position = int(offset) if offset.ndim == 0 else offset
    if "causal" in recorded or "query_offset" in recorded:
        if _flag("causal", recorded.get("causal", True)):
            return {also_causal: replace(stated, causal=True, query_offset=position)}
        return {words: stated}
    masks = {words: stated}
    if len(queries) == 3 and len(keys) == 3 and queries[1] > 1:
        masks[also_causal] = replace(stated, causal=True)
        if keys[1] != queries[1]:
            masks[f"{also_causal}, aligned at the last key"] = replace(
                stated, causal=True, query_offset=keys[1] - queries[1]
            )
    return masks
