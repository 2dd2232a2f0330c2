"""How far errors of the layers within their bounds can move a model's embeddings, or its logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha.port.decoder import Decoder
from mha.port.encoder import Encoder
from mha.recipes import Site

DRAWS = 8
"""How many times the outputs of all layers are moved by their bounds, with other signs each time."""


def allowed_move(
    encoder: Encoder | Decoder, batch: Any, slacks: Sequence[tuple[Site, NDArray]], embeddings: NDArray
) -> float:
    """How far the embeddings may move: every layer's output is moved by what it may be off, with random signs.

    Args:
        encoder: the model.
        batch: its texts.
        slacks: each layer, and how far each number of its output (B, L, E) may be off.
        embeddings: those of the batch.

    Returns:
        The largest difference of the embeddings in DRAWS draws of the signs.
    """
    import torch

    rng = np.random.default_rng(0)
    moved = 0.0
    for _ in range(DRAWS):
        with ExitStack() as hooks:
            for site, slack in slacks:
                signs = rng.choice([-1.0, 1.0], size=slack.shape)
                offset = torch.from_numpy(signs * slack)
                handle = site.out.register_forward_hook(_moving(offset))
                hooks.callback(handle.remove)
            moved = max(moved, float(np.abs(encoder.embed(batch) - embeddings).max()))
    return moved


def _moving(offset: Any) -> Callable[[Any, Any, Any], Any]:
    """A forward hook that adds `offset` to a module's output."""
    return lambda _module, _args, output: output + offset.to(output.dtype)
