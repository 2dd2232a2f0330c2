"""The attention masks of Hugging Face transformers, as sources of an AttentionMask.

A mask arrives at an attention module in one of three forms, and what it means depends on the
implementation that the model runs: "sdpa" reads a bool mask (True = may attend) and makes None
causal where the module says so; "eager" adds whatever it gets, and None masks nothing.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mha_core import AttentionMask, SpecError
from mha_core.call.masks import allowed_keys
from mha_core.call.sizes import CallSizes
from mha_core.parts.chunked_mask import first_of_chunk

IMPLEMENTATIONS = ("eager", "sdpa")
"""The attention implementations that are understood, as `attn_implementation` names them."""

_LOWEST = {"float64": float(np.finfo(np.float32).min), "bfloat16": -(2.0 - 2.0**-7) * 2.0**127}


def mask_of(
    mask: NDArray | None, dtype: str, implementation: str, *, is_causal: bool = False, query_len: int = 2
) -> AttentionMask:
    """Translate the mask of a module's call into an AttentionMask.

    A float entry that is the lowest number of its dtype, or -inf, excludes its key; any other number,
    -10000 as well, is a bias. In a row of excluded keys alone the original differs from the definition, see
    docs/recipes.md.

    Args:
        mask: bool or float, broadcastable to (B, H, Lq, Lk), or None.
        dtype: the name of its dtype; "bfloat16" arrives as a float32 array.
        implementation: one of IMPLEMENTATIONS.
        is_causal: whether the module is causal where it is given no mask.
        query_len: Lq. A single query sees all keys even then, because it is the last one of a sequence.

    Raises:
        SpecError: another implementation, or a mask that this implementation does not read so.

    >>> found = mask_of(np.array([[0.0, -0.5, np.finfo(np.float32).min]], np.float32), "float32", "eager")
    >>> found.allowed, found.bias
    (array([[ True,  True, False]]), array([[ 0. , -0.5,  0. ]], dtype=float32))
    """
    check_implementation(implementation)
    if mask is None:
        return AttentionMask(causal=is_causal and implementation == "sdpa" and query_len > 1)
    if mask.dtype == np.bool_:
        if implementation == "eager":
            raise SpecError(
                "attention_mask is bool, which attention implementation 'eager' adds to the scores as 0 and 1. "
                "Give it as float: 0 to attend, torch.finfo(dtype).min not to."
            )
        return AttentionMask(allowed=np.array(mask))
    if mask.dtype.kind != "f":
        raise SpecError(f"attention_mask must be bool or float inside the model. Got {mask.dtype}.")
    excluded = mask <= _LOWEST.get(dtype, float(np.finfo(mask.dtype).min))
    bias = np.where(excluded, mask.dtype.type(0.0), mask)
    return AttentionMask(allowed=~excluded if excluded.any() else None, bias=bias if bias.any() else None)


def in_chunks(mask: AttentionMask, sizes: CallSizes) -> AttentionMask:
    """The mask of a call without what its layer's chunks say already, and with the place where the first one begins.

    A model counts chunks from the first token behind an item's padding, and gives its layers one mask with chunks and
    all else. A cache may have forgotten keys, so a chunk may begin before the first one that it holds.

    Args:
        mask: as `mask_of` gives it.
        sizes: of the call, with the size of the layer's chunks.

    Raises:
        SpecError: a query may attend to keys of two chunks.

    >>> own = np.tril(np.ones((5, 5), bool))
    >>> own[3:, :3] = own[0] = own[:, 0] = False
    >>> found = in_chunks(AttentionMask(allowed=own), CallSizes(batch=1, query_len=5, key_len=5, chunk_size=2))
    >>> found.chunk_start, found.causal, found.allowed
    (array([1]), True, array([[[[False,  True,  True,  True,  True]]]]))
    """
    assert sizes.chunk_size is not None
    heads = np.shape(mask.allowed)[-3] if np.ndim(mask.allowed) > 2 else 1
    offset = sizes.key_len - sizes.query_len
    # Positions are the places of the keys; a causal mask of PyTorch counts queries from the first key.
    seen = allowed_keys(mask, sizes._replace(chunk_size=None), heads)
    starts = np.array([_first_chunk(item.any(axis=0), offset, sizes.chunk_size) for item in seen], dtype=np.int64)
    causal = not np.triu(seen, offset + 1).any()
    said = AttentionMask(causal=causal, query_offset=offset, chunk_start=starts)
    reach = allowed_keys(said, sizes, 1)
    padding = (reach & ~seen).any(axis=2, keepdims=True) & ~seen.any(axis=2, keepdims=True)
    rest = (seen | ~reach) & ~padding
    if (rest == rest[:, :, :1]).all():
        rest = rest[:, :, :1]
    return replace(said, allowed=None if rest.all() else rest, bias=mask.bias)


def _first_chunk(seen: NDArray[np.bool_], offset: int, size: int) -> int:
    """The first place of some chunk, by the keys that each query sees: bool (Lq, Lk)."""
    rows = np.flatnonzero(seen.any(axis=-1))
    first = seen[rows].argmax(axis=-1)
    last = np.maximum(seen.shape[-1] - 1 - seen[rows, ::-1].argmax(axis=-1), rows + offset)
    first = np.minimum(first, rows + offset)
    for start in np.unique(first):
        if np.array_equal(first_of_chunk(first, start, size), first_of_chunk(last, start, size)):
            return int(start)
    if len(rows):
        raise SpecError(f"attention_mask lets a query attend to keys of two chunks of {size} (attention_chunk_size)")
    return 0


def check_implementation(name: str) -> str:
    """Return `name` if it is one of IMPLEMENTATIONS; raise SpecError otherwise."""
    if name not in IMPLEMENTATIONS:
        raise SpecError(
            f"attention implementation {name!r} is not understood (understood: {', '.join(IMPLEMENTATIONS)}). "
            "Load the model with attn_implementation='eager'."
        )
    return name
