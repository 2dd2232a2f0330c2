"""Live Gluon blocks run on probes (see `mha_core.live.probe`), and left as they were."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backends.mxnet.native.cells import LARGE, legacy
from backends.mxnet.ops.framework import MXNET_DTYPES, mx, to_array, to_numpy
from mha_core import AttentionConfig, AttentionInputs
from mha_core.call.masks import additive_bias, allowed_keys
from mha_core.live.probe import Reading, Words, cannot_run, check_reading
from mha_core.weights import Weights

ToArray = Callable[..., Any]
"""(array, dtype) -> an array of MXNet, in the block's dtype unless another is said."""

Call = Callable[[Any, AttentionConfig, AttentionInputs, ToArray], Any]
"""(block, config, inputs, array) -> the output (B, Lq, Do)."""


def check_block(block: mx.gluon.Block, config: AttentionConfig, weights: Weights) -> None:
    """Raise SpecError unless a block computes attention with these weights, or if `forward` has unknown arguments."""
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

    def array(given: NDArray, own: str = dtype) -> Any:
        made = to_array(np.ascontiguousarray(given), own, context)
        return made if mx.util.is_np_array() else made.as_nd_ndarray()

    def run(inputs: AttentionInputs) -> Mapping[str, NDArray]:
        return {"output": to_numpy(semantics(call)(block, config, inputs, array))}

    with as_found(block):
        check_reading(Reading(name, config, weights, run, dtype, words, natives=(f"{SUBJECTS}:{native}",)))


def _arguments(block: mx.gluon.Block) -> tuple[str, ...]:
    """The names of a block's arguments; those of a HybridBlock are in `hybrid_forward`, after F."""
    if isinstance(block, mx.gluon.HybridBlock) and type(block).forward is mx.gluon.HybridBlock.forward:
        return tuple(inspect.signature(block.hybrid_forward).parameters)[1:]
    return tuple(inspect.signature(block.forward).parameters)


@contextmanager
def as_found(block: mx.gluon.Block) -> Iterator[None]:
    """Return a context in evaluation mode without gradients. On exit, `block` and its children are as before."""
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


def _as_lens(block: Any, config: AttentionConfig, inputs: AttentionInputs, array: ToArray) -> Any:
    """Call d2l.ai's layer, with lengths in the dtype of the scores, as npx.sequence_mask takes them."""
    lens = inputs.mask.valid_lens
    return block(*_three(inputs, array), None if lens is None else array(lens))


def _as_ones(block: Any, config: AttentionConfig, inputs: AttentionInputs, array: ToArray) -> Any:
    """Call a layer like GluonNLP's, with a mask of ones and zeros (B * H, Lq, Lk)."""
    told = array(_allowed(config, inputs)) if inputs.mask.has_sources else None
    return block(*_three(inputs, array), told)


def _interleaved_self(block: Any, config: AttentionConfig, inputs: AttentionInputs, array: ToArray) -> Any:
    """Call a layer like Sockeye's: time-major, with lengths (B * H, Lq) and a bias (B * H, Lq, Lk)."""
    queries, _, _ = _three(inputs, array)
    return block(queries.swapaxes(0, 1), *_lengths_and_bias(config, inputs, array)).swapaxes(0, 1)


def _interleaved_encdec(block: Any, config: AttentionConfig, inputs: AttentionInputs, array: ToArray) -> Any:
    queries, keys, _ = (x.swapaxes(0, 1) for x in _three(inputs, array))
    return block(queries, keys, *_lengths_and_bias(config, inputs, array)).swapaxes(0, 1)


def _lengths_and_bias(config: AttentionConfig, inputs: AttentionInputs, array: ToArray) -> tuple[Any, Any]:
    mask, allowed = inputs.mask, _allowed(config, inputs)
    if mask.valid_lens is not None:
        return array(allowed.sum(axis=-1), "int32"), None
    if mask.bias is not None:
        whole = inputs.check(config).batch, config.num_heads, *allowed.shape[1:]
        return None, array(np.broadcast_to(additive_bias(mask), whole).reshape(allowed.shape))
    return None, array(np.where(allowed, 0.0, -LARGE)) if mask.has_sources else None


def _allowed(config: AttentionConfig, inputs: AttentionInputs) -> NDArray[np.bool_]:
    """Bool (B * H, Lq, Lk)."""
    allowed = allowed_keys(inputs.mask, inputs.check(config), config.num_heads)
    return allowed.reshape(-1, *allowed.shape[2:])


def _three(inputs: AttentionInputs, array: ToArray) -> list[Any]:
    made = {id(given): array(given) for given in (inputs.queries, inputs.keys, inputs.values)}
    return [made[id(given)] for given in (inputs.queries, inputs.keys, inputs.values)]


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
