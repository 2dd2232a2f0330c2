"""Bugs of a port: weights that were written in one order and read in another.

They join the zoo when a recording is diagnosed. The orders themselves stand in `mha_core.layouts`; each bug
writes the right weights in one of them and reads the arrays in another.
"""

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from conformance.zoo.bug import Bug, DoesNotApply
from mha_core import AttentionConfig, SpecError
from mha_core.config import PROJECTIONS
from mha_core.layouts import Layout
from mha_core.layouts.packed import PackedLayout
from mha_core.reference import forward
from mha_core.reference.forward import PART_OF, PROJECTED
from mha_core.reference.state import State, Step
from mha_core.weights import Weights

LETTER = {"q_proj": "q", "k_proj": "k", "v_proj": "v"}

FIX = "Read a packed weight in the order in which its layer writes it: `mha convert --from LAYOUT` does."
FIX_HEADS = "Take the channels apart as (h, d): reshape(H, d, ...)."
FIX_CHANNELS = "Exchange both axes of the channels first: reshape(d, H, ...).swapaxes(0, 1)."

JOINED, APART = "[0, d/2, 1, d/2 + 1, ...]", "[0, 2, ..., 1, 3, ...]"
"""Orders of the rows of a head, in words."""

Packs = tuple[tuple[str, ...], ...]
QKV: Packs = (("q_proj", "k_proj", "v_proj"),)
KV: Packs = (("q_proj",), ("k_proj", "v_proj"))


def _layout(packs: Packs, *, interleaved: bool = False, transposed: bool = False) -> Layout:
    """A packed layout of these projections; its array names and sizes do not depend on the order inside an array."""
    names = {f"{position}.weight": projections for position, projections in enumerate(packs)}
    return PackedLayout(
        "+".join("".join(LETTER[projection] for projection in projections) for projections in packs),
        "packed",
        framework="",
        packs=names,
        out="out.weight",
        bias_of={name: name.replace("weight", "bias") for name in (*names, "out.weight")},
        interleaved=interleaved,
        transposed=transposed,
        one_switch=False,
    )


def _reread(written: Layout, read: Layout, config: AttentionConfig, weights: Weights) -> Mapping[str, NDArray]:
    """Weights that were written in the layout `written` and are read back as if it were `read`."""
    try:
        there, right = written.write(config, weights), read.write(config, weights)
        # A transposed matrix is read as it lies in memory.
        arrays = {name: array.reshape(right[name].shape) for name, array in there.items()}
        return read.read(arrays, num_heads=config.num_heads)[1]
    except SpecError as error:
        raise DoesNotApply(str(error)) from error


def _with_weights(
    change: Callable[[AttentionConfig, Weights], Mapping[str, NDArray]], projections: Collection[str]
) -> dict[str, Step]:
    """The reference's steps for these projections, each of which applies `change` to the weights before it runs."""

    def step(name: str, state: State) -> NDArray:
        return forward.FORWARD[name](replace(state, parameters=change(state.config, state.parameters)))

    return {made: partial(step, made) for name, (_, made) in PROJECTED.items() if name in projections}


def channels_mixed(
    projections: Collection[str],
    config: AttentionConfig,
    weights: Weights,
    *,
    back: bool = False,
    kinds: str = "weight",
) -> Mapping[str, NDArray]:
    """Return the weights (name -> array) with channels reordered from (head, channel) to (channel, head).

    A layer that confuses the two orders computes what the reference computes with these weights.

    Args:
        projections: the projections whose channels are reordered; other weights are not changed.
        config, weights: the config and the weights of the layer.
        back: whether to reorder in the other direction, from (channel, head) to (head, channel).
        kinds: the arrays that are reordered: "weight", or "weight bias".
    """

    def mixed(name: str, array: NDArray) -> NDArray:
        projection, _, kind = name.rpartition(".")
        if projection not in projections or kind not in kinds.split() or (projection == "out_proj" and kind == "bias"):
            return array
        heads = config.num_heads if projection in ("q_proj", "out_proj") else config.num_kv_heads
        axis = int(projection == "out_proj")
        sizes = (-1, heads) if back else (heads, -1)
        parted = array.reshape(*array.shape[:axis], *sizes, *array.shape[axis + 1 :])
        return parted.swapaxes(axis, axis + 1).reshape(array.shape)

    return {name: mixed(name, array) for name, array in weights.items()}


def _read_as_in_out(config: AttentionConfig, weights: Weights) -> Mapping[str, NDArray]:
    """The weights of queries, keys and values, each read from memory as (in, out)."""
    names = [f"{projection}.weight" for projection in PROJECTIONS[:3]]
    return {**weights, **{name: weights[name].reshape(weights[name].shape[::-1]).T for name in names}}


def _bug(
    name: str,
    sentence: str,
    change: Callable[[AttentionConfig, Weights], Mapping[str, NDArray]],
    projections: Collection[str] = PROJECTIONS[:3],
    *,
    fix: str = FIX,
    seen_in: str = "",
) -> Bug:
    """A bug that changes the weights of some projections; it first shows in the stage of the first of them."""
    forward = _with_weights(change, projections)
    first = next(iter(forward))
    return Bug(name, sentence, PART_OF.get(first, first), fix, forward=forward, seen_in=seen_in)


def _exchanged(order: tuple[str, ...], config: AttentionConfig, weights: Weights) -> Mapping[str, NDArray]:
    """The weights where each projection holds those of another, packed or not: those of grouped heads can't be."""
    with suppress(DoesNotApply):
        return _reread(_layout((order,)), _layout(QKV), config, weights)
    held = dict(weights)
    for own, other in zip(PROJECTIONS, order, strict=False):
        for kind in ("weight", "bias"):
            mine, theirs = f"{own}.{kind}", f"{other}.{kind}"
            if (mine in weights) != (theirs in weights):
                raise DoesNotApply(f"{mine} or {theirs} is not there")
            if mine in weights:
                if weights[mine].shape != weights[theirs].shape:
                    raise DoesNotApply(f"{mine} and {theirs} have other shapes")
                held[mine] = weights[theirs]
    return held


def _pairs_moved(config: AttentionConfig, weights: Weights, *, apart: bool) -> Mapping[str, NDArray]:
    """The weights whose rows of queries stand in the other order of rotary pairs, in each head.

    Args:
        config, weights: of the layer.
        apart: the first of each pair, then the second ones; else pairs of a first and a second one.
    """
    heads, width = config.num_heads, config.head_dim
    if width % 2 or width < 4:
        raise DoesNotApply(f"heads {width} wide have no two orders of pairs")
    order = np.arange(width).reshape((-1, 2) if apart else (2, -1)).T.ravel()
    rows = (np.arange(heads)[:, None] * width + order).ravel()
    return {name: array[rows] if name.startswith("q_proj.") else array for name, array in weights.items()}


def _of_order(order: tuple[str, ...]) -> Bug:
    letters = [LETTER[projection] for projection in order]
    moved = {own: other for own, other in zip(PROJECTIONS[:3], order, strict=True) if own != other}
    if len(moved) == 2:
        said, fix = f"{' and '.join(moved)} are exchanged, weights and biases", "Exchange them."
    else:
        said = "; ".join(f"{other} is read as {own}" for own, other in moved.items()) + ", weights and biases"
        fix = "Give each projection its own."
    return _bug(
        f"packed-order-{''.join(letters)}",
        f"{said}: as where a packed weight [{'; '.join(letters)}] is read as [q; k; v].",
        partial(_exchanged, order),
        list(moved),
        fix=f"{fix} Of a packed weight, `mha convert --from LAYOUT` reads the order.",
    )


@cache
def packing_bugs() -> tuple[Bug, ...]:
    """Return all bugs in reading packed or separate weights, such as q, k, v in another order, or transposed matrices.

    >>> [bug.id for bug in packing_bugs()][:2]
    ['packed-per-head-read-as-thirds', 'packed-keys-values-per-head-read-as-halves']
    """
    per_head, halves = _layout(KV, interleaved=True), _layout(KV)
    return (
        _bug(
            "packed-per-head-read-as-thirds",
            "A weight packed head by head, (head, [q, k, v], width) as MXNet's interleaved operators have it, "
            "is read as [q; k; v], as torch.nn.MultiheadAttention has it.",
            partial(_reread, _layout(QKV, interleaved=True), _layout(QKV)),
        ),
        _bug(
            "packed-keys-values-per-head-read-as-halves",
            "A weight of keys and values packed head by head, (head, [k, v], width) as MXNet's encoder-decoder "
            "operators have it, is read as [k; v].",
            partial(_reread, per_head, halves),
            PROJECTIONS[1:3],
            seen_in="awslabs/sockeye#985",
        ),
        _bug(
            "packed-keys-values-halves-read-per-head",
            "A packed weight [k; v] is read head by head, (head, [k, v], width).",
            partial(_reread, halves, per_head),
            PROJECTIONS[1:3],
        ),
        _bug(
            "packed-in-out-read-as-it-lies",
            "A packed weight (in, out), as GPT-2's Conv1D has it, is read as (out, in): reshaped where a "
            "transposition is due.",
            partial(_reread, _layout(QKV, transposed=True), _layout(QKV)),
        ),
        _bug(
            "channels-d-h-read-as-h-d",
            "Weights of queries, keys and values whose channels stand as (d, h) are read as (h, d).",
            partial(channels_mixed, PROJECTIONS[:3], kinds="weight bias"),
            fix=FIX_CHANNELS,
        ),
        _bug(
            "channels-d-h-read-as-h-d-in-weights",
            "Weights of queries, keys and values whose channels stand as (d, h) are read as (h, d), and biases right.",
            partial(channels_mixed, PROJECTIONS[:3]),
            fix=FIX_CHANNELS,
        ),
        _bug(
            "channels-h-d-read-as-d-h-in-weights",
            "Weights of queries, keys and values whose channels stand as (h, d) are read as (d, h), and biases right.",
            partial(channels_mixed, PROJECTIONS[:3], back=True),
            fix=FIX_HEADS,
        ),
        _bug(
            "each-weight-read-as-in-out",
            "The weights of queries, keys and values are each transposed, or reshaped where that is due.",
            _read_as_in_out,
            fix="A weight is (out, in), and a kernel (in, out): transpose each on the way, once.",
        ),
        _bug(
            "output-channels-d-h-read-as-h-d",
            "The output weight, whose input channels stand as (d, h), is read as (h, d).",
            partial(channels_mixed, PROJECTIONS[3:]),
            PROJECTIONS[3:],
            fix=FIX_CHANNELS,
        ),
        *(
            _bug(
                f"rows-of-pairs-{name}",
                f"In each head the rows of the queries stand as {own}, or those of the keys as {other}: rows that "
                "were permuted for one form of rotary positions, in one of the two alone.",
                partial(_pairs_moved, apart=apart),
                PROJECTIONS[:1],
                fix="Permute rows and biases of queries and keys alike, or neither.",
            )
            for name, apart, own, other in (("joined", False, JOINED, APART), ("apart", True, APART, JOINED))
        ),
        *map(_of_order, list(permutations(PROJECTIONS[:3]))[1:]),
    )
