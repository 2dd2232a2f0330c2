"""The attention masks of Hugging Face transformers, as sources of an AttentionMask.

A mask arrives at an attention module in one of three forms, and what it means depends on the
implementation that the model runs: "sdpa" reads a bool mask (True = may attend) and makes None
causal where the module says so; "eager" adds whatever it gets, and None masks nothing.
"""

import numpy as np
from numpy.typing import NDArray

from mha_core import AttentionMask, SpecError
from mha_core.seam import LOWEST

IMPLEMENTATIONS = ("eager", "sdpa")
"""The attention implementations that are understood, as `attn_implementation` names them."""


def mask_of(
    mask: NDArray | None, dtype: str, implementation: str, *, is_causal: bool = False, query_len: int = 2
) -> AttentionMask:
    """Return the AttentionMask that equals the mask argument of a transformers module.

    In a float mask, -inf and the lowest number of the dtype exclude a key. Any other number is a bias, -10000 too. An
    exception: in a row without any other number, the lowest number is a bias too. It swallows all scores, so that
    softmax gives the mean over all values.

    Args:
        mask: bool or float, broadcastable to (B, H, Lq, Lk), or None.
        dtype: the name of its dtype; "bfloat16" arrives as a float32 array.
        implementation: one of IMPLEMENTATIONS, such as "sdpa".
        is_causal: whether the module is causal if `mask` is None.
        query_len: Lq. A single query sees all keys even if `is_causal`, because it is the last one of a sequence.

    Raises:
        SpecError: the implementation is unknown, or gives a mask of this dtype another meaning.

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
    excluded = mask <= LOWEST.get(dtype, float(np.finfo(mask.dtype).min))
    excluded &= ~(excluded.all(axis=-1, keepdims=True) & np.isfinite(mask))
    bias = np.where(excluded, mask.dtype.type(0.0), mask)
    return AttentionMask(allowed=~excluded if excluded.any() else None, bias=bias if bias.any() else None)


def check_implementation(name: str) -> str:
    """Return `name` if it is one of IMPLEMENTATIONS; raise SpecError otherwise."""
    if name not in IMPLEMENTATIONS:
        raise SpecError(
            f"attention implementation {name!r} is not understood (understood: {', '.join(IMPLEMENTATIONS)}). "
            "Load the model with attn_implementation='eager'."
        )
    return name
