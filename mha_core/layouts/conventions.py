"""Weights from one convention into another in which the layer computes the same: pairs, offsets of a norm, the scale.

Each function moves or recomputes numbers exactly, to the bit, or refuses. What it gives has the new config.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mha_core.config import AttentionConfig
from mha_core.errors import SpecError
from mha_core.parts.query_key_norm import NORMS
from mha_core.parts.rotary import Rotary
from mha_core.weights import Weights, check_weights


def order_of_channels(settings: Rotary, head_dim: int, *, interleaved: bool) -> NDArray[np.int64]:
    """(d,): new channel -> old channel of a head, when rotary pairs become (2 k, 2 k + 1), or (k, k + r / 2).

    Args:
        settings: the layer's rotary settings; their own `interleaved` does not count.
        head_dim: d.
        interleaved: whether pairs are to be (2 k, 2 k + 1).

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
    """Return the same layer with pairs (2 k, 2 k + 1), or (k, k + r / 2): rows of q_proj and k_proj in another order.

    Biases, norm weights and the additive score's matrices are reordered too; values and output stay. The stages
    `queries` and `keys`, and so a cache, have the new order of channels; every other result is the same.

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


def with_norm_offset(config: AttentionConfig, weights: Weights, offset: int) -> tuple[AttentionConfig, Weights]:
    """Return the same layer with the weights of its query-key norm kept as w (offset 0), or as w - 1 (offset 1).

    Raises:
        SpecError: a layer without such weights; or a number that the dtype of the weights can't hold exactly.

    >>> from mha_core import QueryKeyNorm, weight_shapes
    >>> config = AttentionConfig(4, 2, query_key_norm=QueryKeyNorm(offset=1))
    >>> weights = {name: np.full(shape, 0.25) for name, shape in weight_shapes(config).items()}
    >>> with_norm_offset(config, weights, 0)[1]["q_norm.weight"]
    array([1.25, 1.25])
    """
    norm = config.query_key_norm
    if norm is None or norm.weight == "none":
        raise SpecError("an offset belongs to the weights of a query-key norm. This layer has none.")
    moved = dict(check_weights(config, weights))
    step = norm.offset - offset
    for name in (f"{norm_name}.weight" for norm_name in NORMS):
        changed_array = moved[name] + moved[name].dtype.type(step)
        lost = changed_array - moved[name].dtype.type(step) != moved[name]
        exact = moved[name].astype(np.float64) + step == changed_array.astype(np.float64)
        if (lost | ~exact).any():
            place = int(np.argmax(lost | ~exact))
            raise SpecError(
                f"{name}[{place}] = {moved[name][place]!r} with {step:+d} is no number of {moved[name].dtype}, so the "
                "layer would compute something else: keep the offset, or convert in float64"
            )
        moved[name] = changed_array
    changed = replace(config, query_key_norm=replace(norm, offset=offset))
    return changed, check_weights(changed, moved)


def with_scale(config: AttentionConfig, weights: Weights, scale: float | None) -> tuple[AttentionConfig, Weights]:
    """Return the same layer with another scale of the scores, and q_proj (or q_norm) multiplied to make up for it.

    Args:
        config, weights: the layer, whose score is "scaled_dot".
        scale: the new one; None for 1 / sqrt(head_dim).

    Raises:
        SpecError: the quotient of the scales is no power of two, so that products with it are not exact; or the norm
            of the queries undoes a scale, and has no weights to hold it.

    >>> from mha_core import init_weights
    >>> config = AttentionConfig(8, 2)
    >>> folded = with_scale(config, init_weights(config, seed=0), 1.0)
    >>> folded[0].scale, bool((folded[1]["q_proj.weight"] == 0.5 * init_weights(config, seed=0)["q_proj.weight"]).all())
    (1.0, True)
    """
    if config.score != "scaled_dot":
        raise SpecError(f"a scale belongs to score='scaled_dot'. Got score={config.score!r}.")
    changed = replace(config, scale=scale)
    factor = config.softmax_scale / changed.softmax_scale
    if np.frexp(factor)[0] not in (0.5, -0.5):
        raise SpecError(
            f"scale {config.softmax_scale:g} in place of {changed.softmax_scale:g} leaves a factor of {factor:g}, "
            "which is no power of two: the weights times it would be rounded"
        )
    norm, holder = config.query_key_norm, "q_proj"
    if norm is not None:
        holder = "q_norm"
        if norm.weight == "none" or norm.offset:
            raise SpecError("the query-key norm undoes a scale of the queries, and has no weights that could hold it")
    elif not config.projections:
        raise SpecError("a layer without projections has no weights that could hold a scale")
    moved = {
        name: array * array.dtype.type(factor) if name.startswith(f"{holder}.") else array
        for name, array in check_weights(config, weights).items()
    }
    return changed, check_weights(changed, moved)
