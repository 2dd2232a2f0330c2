"""Live Gluon blocks run on probes (see `mha_core.live.probe`), and left as they were."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backends.mxnet.native.cells import LARGE, legacy
from backends.mxnet.ops.framework import MXNET_DTYPES, mx, to_array, to_numpy
from mha_core.call.inputs import AttentionInputs
from mha_core.call.masks import additive_bias, allowed_keys
from mha_core.config import AttentionConfig
from mha_core.live.probe import Reading, Words, cannot_run, check_reading
from mha_core.weights import Weights

Call = Callable[[Any, AttentionConfig, AttentionInputs, str, mx.Context], Any]
"""(block, config, inputs, dtype, context) -> the output (B, Lq, Do)."""


def check_block(block: mx.gluon.Block, config: AttentionConfig, weights: Weights) -> None:
    """SpecError unless a block, called as its `forward` names its arguments, computes what its weights say."""
    name = type(block).__name__
    told = _arguments(block)
    found = next((way for way in WAYS if told[: len(way)] == way), None)
    if found is None:
        known = "; ".join(", ".join(way) for way in WAYS)
        raise cannot_run(name, f"its forward takes {', '.join(told) or 'nothing'}, and known are: {known}")
    call, words, semantics, native = WAYS[found]
    parameters = list(block.collect_params().values())
    dtypes = {np.dtype(parameter.dtype).name for parameter in parameters}
    if len(dtypes) != 1 or not dtypes <= set(MXNET_DTYPES):
        raise cannot_run(
            name, f"its parameters are {', '.join(sorted(dtypes))}; one of {' and '.join(MXNET_DTYPES)} can"
        )
    (dtype,) = dtypes
    context = parameters[0].list_ctx()[0]

    def run(inputs: AttentionInputs) -> Mapping[str, NDArray]:
        return {"output": to_numpy(semantics(call)(block, config, inputs, dtype, context))}

    with as_found(block):
        check_reading(Reading(name, config, weights, run, dtype, words, natives=(f"{SUBJECTS}:{native}",)))


def _arguments(block: mx.gluon.Block) -> tuple[str, ...]:
    """The names of a block's arguments; those of a HybridBlock are in `hybrid_forward`, after F."""
    if isinstance(block, mx.gluon.HybridBlock) and type(block).forward is mx.gluon.HybridBlock.forward:
        return tuple(inspect.signature(block.hybrid_forward).parameters)[1:]
    return tuple(inspect.signature(block.forward).parameters)


@contextmanager
def as_found(block: mx.gluon.Block) -> Iterator[None]:
    """Inside, the mode is evaluation without gradients; afterwards the block's state is put back."""
    parts: list[mx.gluon.Block] = []
    block.apply(parts.append)
    kept = [(part, dict(vars(part))) for part in parts]
    try:
        with mx.autograd.pause(train_mode=False):
            yield
    finally:
        for part, own in kept:
            for name in [name for name in vars(part) if name not in own]:
                del vars(part)[name]
            vars(part).update(own)


def _as_lens(block: Any, config: AttentionConfig, inputs: AttentionInputs, dtype: str, context: mx.Context) -> Any:
    """Call d2l.ai's layer, with lengths in the dtype of the scores, as npx.sequence_mask takes them."""
    lens = inputs.mask.valid_lens
    told = None if lens is None else _array(lens, dtype, context)
    return block(*_three(inputs, dtype, context), told)


def _as_ones(block: Any, config: AttentionConfig, inputs: AttentionInputs, dtype: str, context: mx.Context) -> Any:
    """Call a layer like GluonNLP's, with a mask of ones and zeros (B * H, Lq, Lk)."""
    allowed = _allowed(config, inputs)
    told = _array(allowed.reshape(-1, *allowed.shape[2:]), dtype, context) if inputs.mask.has_sources else None
    return block(*_three(inputs, dtype, context), told)


def _interleaved_self(
    block: Any, config: AttentionConfig, inputs: AttentionInputs, dtype: str, context: mx.Context
) -> Any:
    """Call a layer like Sockeye's: time-major, with lengths (B * H, Lq) and a bias (B * H, Lq, Lk)."""
    queries, _, _ = _three(inputs, dtype, context)
    return block(queries.swapaxes(0, 1), *_lengths_and_bias(config, inputs, dtype, context)).swapaxes(0, 1)


def _interleaved_encdec(
    block: Any, config: AttentionConfig, inputs: AttentionInputs, dtype: str, context: mx.Context
) -> Any:
    queries, keys, _ = (x.swapaxes(0, 1) for x in _three(inputs, dtype, context))
    return block(queries, keys, *_lengths_and_bias(config, inputs, dtype, context)).swapaxes(0, 1)


def _lengths_and_bias(
    config: AttentionConfig, inputs: AttentionInputs, dtype: str, context: mx.Context
) -> tuple[Any, Any]:
    allowed = _allowed(config, inputs)
    flat = allowed.reshape(-1, *allowed.shape[2:])
    if inputs.mask.valid_lens is not None:
        return _array(flat.sum(axis=-1), "int32", context), None
    if inputs.mask.bias is not None:
        added = np.broadcast_to(additive_bias(inputs.mask), allowed.shape).reshape(flat.shape)
        return None, _array(added, dtype, context)
    return None, _array(np.where(flat, 0.0, -LARGE), dtype, context) if inputs.mask.has_sources else None


def _allowed(config: AttentionConfig, inputs: AttentionInputs) -> NDArray[np.bool_]:
    return allowed_keys(inputs.mask, inputs.check(config), config.num_heads)


def _three(inputs: AttentionInputs, dtype: str, context: mx.Context) -> list[Any]:
    made = {id(array): _array(array, dtype, context) for array in (inputs.queries, inputs.keys, inputs.values)}
    return [made[id(array)] for array in (inputs.queries, inputs.keys, inputs.values)]


def _array(array: NDArray, dtype: str, context: mx.Context) -> Any:
    made = to_array(np.ascontiguousarray(array), dtype, context)
    return made if mx.util.is_np_array() else made.as_nd_ndarray()


SUBJECTS = "backends.mxnet.native.subjects"

WAYS: dict[tuple[str, ...], tuple[Call, Words, Callable[[Any], Any], str]] = {
    ("queries", "keys", "values", "valid_lens"): (
        _as_lens,
        Words(masks=("valid_lens",)),
        mx.util.use_np,
        "D2lMultiHeadAttentionSubject",
    ),
    ("queries", "keys", "values", "mask"): (
        _as_ones,
        Words(masks=("valid_lens", "allowed", "causal")),
        legacy,
        "DenseAttentionSubject",
    ),
    ("x", "lengths", "bias"): (
        _interleaved_self,
        Words(cross=False, values=False, masks=("valid_lens", "causal", "bias")),
        legacy,
        "InterleavedSelfAttentionSubject",
    ),
    ("x", "memory", "lengths", "bias"): (
        _interleaved_encdec,
        Words(values=False, masks=("valid_lens", "allowed", "bias")),
        legacy,
        "InterleavedEncDecAttentionSubject",
    ),
}
"""Arguments of a forward -> function that calls it, masks that it can express, the semantics of its arrays, and the
framework's own layer as a subject."""
