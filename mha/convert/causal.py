"""Layers that their models call causally: whether recorded calls show it, and what the target's call needs then."""

import numpy as np

from mha_core import AttentionInputs
from mha_core.layouts import Layout

OTHERWISE = "a mask in which query i may attend to keys 0 to i"

CALLS = {
    "canonical": "causal=True, in this project's layers",
    **dict.fromkeys(
        ("torch", "torch-separate"),
        "attn_mask=torch.nn.Transformer.generate_square_subsequent_mask(L), and is_causal=True beside it",
    ),
    **dict.fromkeys(("keras", "keras-gqa"), "use_causal_mask=True"),
    "linen": "mask=flax.linen.make_causal_mask(x[..., 0])",
    "nnx": "mask=flax.nnx.make_causal_mask(x[..., 0])",
    **dict.fromkeys(
        ("d2l-torch", "d2l-tf", "d2l-jax", "d2l-mxnet"), "valid_lens of shape (B, L), in each row 1, 2, ..., L"
    ),
    **dict.fromkeys(("bert", "bert-kernel"), "is_decoder=True in the config of its model"),
    **dict.fromkeys(
        ("gpt2", "gpt2-tf", "gpt2-flax", "llama", "llama-kernel"),
        "nothing more in GPT-2 and Llama, whose layers mask the future by themselves",
    ),
    "bart-kernel": "nothing more in a decoder of BART and its kin, which masks the future by itself",
    "mxnet-selfatt": "-inf added to the scores of later keys, between the two operators",
}
"""Layout -> what a call of its framework's layer needs to be causal."""


def causal_call(layout: Layout) -> str:
    """Return in words what a call of a layer of this layout must contain so that no query attends to a later key.

    >>> from mha_core.layouts import get
    >>> causal_call(get("keras"))
    'use_causal_mask=True'
    """
    return CALLS.get(layout.name, OTHERWISE)


def is_causal(inputs: AttentionInputs) -> bool:
    """Return whether one source of the mask alone keeps every query from all later keys."""
    mask, length = inputs.mask, inputs.queries.shape[-2]
    if mask.causal:
        return True
    if length == 1 or inputs.keys.shape[-2] != length:
        return False
    later = np.triu(np.ones((length, length), dtype=bool), k=1)
    allowed = [] if mask.allowed is None else [np.asarray(mask.allowed)]
    allowed += [] if mask.bias is None else [~np.isneginf(mask.bias)]
    if np.ndim(mask.valid_lens) == 2:
        allowed.append(np.arange(length) < np.asarray(mask.valid_lens)[..., None])
    return any(not (array & later).any() for array in allowed)
