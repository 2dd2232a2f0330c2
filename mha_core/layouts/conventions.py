"""Weights from one convention of rotary pairs into the other, in which the layer computes the same."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mha_core.config import AttentionConfig
from mha_core.errors import SpecError
from mha_core.parts.query_key_norm import NORMS
from mha_core.parts.rotary import Rotary
from mha_core.weights import Weights, check_weights


def order_of_channels(settings: Rotary, head_dim: int, *, interleaved: bool) -> NDArray[np.int64]:
    """Return indices (d,) that reorder a head's channels, from one convention of rotary pairs to the other.

    Args:
        settings: the layer's rotary settings, whose own `interleaved` is not used.
        head_dim: d.
        interleaved: True: pairs (k, k + r / 2) become (2 k, 2 k + 1). False: the reverse.

    >>> order_of_channels(Rotary(width=8), head_dim=8, interleaved=False)
    array([0, 2, 4, 6, 1, 3, 5, 7])
    >>> order_of_channels(Rotary(width=4), head_dim=6, interleaved=True)
    array([0, 2, 1, 3, 4, 5])
    """
    order = np.arange(head_dim)
    turning = settings.turning(head_dim)
    own = order[turning]
    shape = (2, -1) if interleaved else (-1, 2)
    order[turning] = own.reshape(shape).T.reshape(-1)
    return order


def with_pairs(config: AttentionConfig, weights: Weights, *, interleaved: bool) -> tuple[AttentionConfig, Weights]:
    """Return config and weights of the layer with rotary pairs (2 k, 2 k + 1) if `interleaved`, else (k, k + r / 2).

    Rows of q_proj and k_proj are reordered, and so are biases, norm weights and the additive score's matrices. The
    channels of projected queries and keys, and so of a cache, have the new order. Every other result stays the same.

    Raises:
        SpecError: a layer without rotary positions or without projections, or weights that do not fit.

    >>> from mha_core import init_weights
    >>> config = AttentionConfig(8, 2, rotary=True)
    >>> there = with_pairs(config, init_weights(config, seed=0), interleaved=True)
    >>> back = with_pairs(*there, interleaved=False)
    >>> back[0] == config, bool((back[1]["q_proj.weight"] == init_weights(config, seed=0)["q_proj.weight"]).all())
    (True, True)
    """
    rotary = config.rotary
    if rotary is None or not config.projections:
        lacking = "rotary positions" if rotary is None else "projections"
        raise SpecError(f"pairs belong to a layer with {lacking}. This one has none.")
    moved = dict(check_weights(config, weights))
    if rotary.interleaved != interleaved:
        order = order_of_channels(rotary, config.head_dim, interleaved=interleaved)
        for name, array in moved.items():
            if name.startswith(("q_proj.", "k_proj.", *(f"{norm}." for norm in NORMS))):
                by_head = array.reshape(-1, config.head_dim, *array.shape[1:])
                moved[name] = by_head[:, order].reshape(array.shape)
            elif name in ("score.query.weight", "score.key.weight"):
                moved[name] = array[:, order]
    changed = replace(config, rotary=replace(rotary, interleaved=interleaved))
    return changed, check_weights(changed, moved)
