"""MXNet's contestants: the interleaved operators between Gluon Dense layers, and d2l.ai's; imperative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from backends.mxnet.backend import MXNetBackend
from backends.mxnet.native.cells import LARGE, legacy
from backends.mxnet.native.convert import to_native
from backends.mxnet.ops import framework
from backends.mxnet.ops.framework import mx, to_array, to_numpy
from backends.mxnet.ops.heads import merge_heads, split_heads
from backends.mxnet.weights import from_weights
from mha.bench.contestants.contestant import NONE_HELD, CannotRun, Contestant, Prepared, Scores, Task, unable
from mha.bench.workload import Answer
from mha_core.config import PROJECTIONS

Forward = Callable[[Any], Any]


def set_threads(count: int) -> str:
    return f"OMP_NUM_THREADS={count}"


BACKEND = MXNetBackend()
versions, devices, dtypes = BACKEND.versions, BACKEND.devices, BACKEND.dtypes


def product(size: int, dtype: str, device: str) -> Callable[[], Any]:
    ctx = framework.context_of(device)
    a = mx.nd.ones((size, size), dtype=dtype, ctx=ctx)

    @legacy
    def call() -> Any:
        # Not `dot`: on a CPU this one reaches oneDNN.
        found = mx.nd.FullyConnected(a, a, num_hidden=size, no_bias=True, flatten=False)
        mx.nd.waitall()
        return found

    return call


# Ours ----------------------------------------------------------------------------------------------------


@mx.util.use_np
def _ours(task: Task) -> Prepared:
    workload, ctx = task.workload, framework.context_of(task.device)
    layer = from_weights(workload.config, workload.weights, dtype=task.dtype, ctx=ctx)
    given = workload.given(
        lambda array: to_array(array, task.dtype, ctx), lambda lens: mx.np.array(lens, dtype="int64", ctx=ctx)
    )
    return _prepared(lambda x: layer(x, x, x, **given, **workload.positions), task, mx.util.use_np)


# Peers ---------------------------------------------------------------------------------------------------


@legacy
def _selfatt(task: Task) -> Prepared:
    unable(task.workload)
    block = _native(task, "mxnet-selfatt")
    lengths, bias = _masks(task)
    return _prepared(lambda x: block(x, lengths, bias), task, legacy, block, time_major=True)


@legacy
def _encdec(task: Task) -> Prepared:
    workload = task.workload
    unable(workload, past=True)
    if not workload.past:
        raise CannotRun("without a past, the operators for self-attention are the ones to take")
    block = _native(task, "mxnet-encdec")
    past = np.stack(workload.past, axis=3)  # (B, H, Lp, 2, d)
    past = past.transpose(2, 0, 1, 3, 4).reshape(workload.setting.past, workload.setting.batch, -1)
    cache = _legacy_array(past, task)

    def forward(x: Any) -> Any:
        return block.attend(block.ff_q(x), mx.nd.concat(cache, block.ff_kv(x), dim=0), None, None)

    return _prepared(forward, task, legacy, block, time_major=True)


@mx.util.use_np
def _d2l(task: Task) -> Prepared:
    workload = task.workload
    unable(workload, causal=False)
    block = _native(task, "d2l-mxnet")
    ctx = framework.context_of(task.device)
    lens = None if workload.valid_lens is None else to_array(workload.valid_lens, task.dtype, ctx)
    return _prepared(lambda x: block(x, x, x, lens), task, mx.util.use_np, block)


@mx.util.use_np
def _batch_dot(task: Task) -> Prepared:
    """d2l.ai's formulation with a past or with grouped heads, for which its layer has no arguments."""
    workload = task.workload
    setting, (heads, kv_heads, width) = workload.setting, workload.heads
    if not workload.past and not workload.is_grouped and not setting.rotary:
        raise CannotRun("without a past, grouped heads and rotary positions it is d2l.ai's formulation")
    ctx = framework.context_of(task.device)
    layers = {}
    for name in PROJECTIONS:
        rows, columns = workload.weights[f"{name}.weight"].shape
        bias = f"{name}.bias" in workload.weights
        layers[name] = mx.gluon.nn.Dense(rows, in_units=columns, flatten=False, dtype=task.dtype, use_bias=bias)
        for part in ("weight", "bias") if bias else ("weight",):
            parameter = getattr(layers[name], part)
            parameter.initialize(init=mx.init.Zero(), ctx=ctx)
            parameter.set_data(to_array(workload.weights[f"{name}.{part}"], task.dtype, ctx))
    past = [to_array(array, task.dtype, ctx) for array in workload.past]
    turns = None if workload.turns is None else [to_array(table, task.dtype, ctx) for table in workload.turns]  # (L, d)
    excluded = _excluded(task)
    bias_of_mask = None if excluded is None else to_array(excluded, task.dtype, ctx)

    def turned(x: Any) -> Any:
        """(B, heads, L, d), turned as model libraries write it."""
        if turns is None:
            return x
        first, second = mx.np.split(x, 2, axis=-1)
        return x * turns[0] + mx.np.concatenate((-second, first), axis=-1) * turns[1]

    def forward(x: Any) -> Any:
        queries, keys, values = (
            split_heads(layers[name](x), heads)  # (B, H or G, L, d)
            for name, heads in workload.heads_of.items()
        )
        queries, keys = turned(queries), turned(keys)
        if past:
            keys = mx.np.concatenate([past[0], keys], axis=2)
            values = mx.np.concatenate([past[1], values], axis=2)
        if heads != kv_heads:
            keys, values = (mx.np.repeat(part, heads // kv_heads, axis=1) for part in (keys, values))
        queries, keys, values = (part.reshape(-1, part.shape[2], width) for part in (queries, keys, values))
        scores = mx.npx.batch_dot(queries, keys, transpose_b=True) / width**0.5
        weights = mx.npx.softmax(scores if bias_of_mask is None else scores + bias_of_mask)
        summed = mx.npx.batch_dot(weights, values).reshape(setting.batch, heads, setting.length, width)
        return layers["out_proj"](merge_heads(summed))

    return _prepared(forward, task, mx.util.use_np)


CONTESTANTS = (
    Contestant("ours", "ours", _ours, NONE_HELD),
    Contestant("Dense, interleaved_matmul_selfatt", "peer", _selfatt, Scores(2, 5)),
    Contestant("Dense, interleaved_matmul_encdec", "peer", _encdec, Scores(2, 5)),
    Contestant("d2l.ai's", "peer", _d2l, Scores(2, 6)),
    Contestant("Dense, batch_dot", "peer", _batch_dot, Scores(2, 6)),
)


# What they share -----------------------------------------------------------------------------------------


def _prepared(forward: Forward, task: Task, semantics: Any, block: Any = None, *, time_major: bool = False) -> Prepared:
    """Prepare a forward function: makes x in the contestant's layout; gradients of parameters are kept in these.

    `block` is what keeps its stages in `shown`, which is emptied: the gradients need no more than the tape has.
    """

    def array(numbers: Any) -> Any:
        ordered = numbers.swapaxes(0, 1) if time_major else numbers
        return _legacy_array(ordered, task) if semantics is legacy else _np_array(ordered, task)

    x, cotangent = array(task.workload.x), array(task.workload.cotangent)
    if task.differentiates:
        x.attach_grad()

    def output_of(x: Any) -> Any:
        output = forward(x)
        if block is not None:
            block.shown = {}
        return output

    @semantics
    def call() -> list[Any]:
        if task.differentiates:
            with mx.autograd.record():
                output = output_of(x)
            output.backward(cotangent)
            found = [output.detach(), x.grad]
        else:
            with mx.autograd.pause():
                found = [output_of(x)]
        mx.nd.waitall()
        return found

    def read(found: list[Any]) -> Answer:
        arrays = map(to_numpy, found)
        return Answer(*(part.swapaxes(0, 1) if time_major else part for part in arrays))

    # MXNet has no counters of a GPU's memory.
    return Prepared(call, read, extra_memory=None if task.device == "cpu" else lambda: None)


def _native(task: Task, layer: str) -> Any:
    config, weights = task.workload.config, task.workload.weights
    return to_native(config, weights, layer, dtype=task.dtype, ctx=framework.context_of(task.device))


def _np_array(array: Any, task: Task) -> Any:
    return to_array(array, task.dtype, framework.context_of(task.device))


def _legacy_array(array: Any, task: Task) -> Any:
    return _np_array(array, task).as_nd_ndarray()


def _masks(task: Task) -> tuple[Any, Any]:
    """Masks as Sockeye makes them: lengths int32 (B * H, Lq) for the softmax, a bias to add (B * H, Lq, Lk)."""
    workload, ctx = task.workload, framework.context_of(task.device)
    setting, (heads, _, _) = workload.setting, workload.heads
    lengths = bias = None
    if workload.valid_lens is not None:
        per_head = np.repeat(workload.valid_lens, heads)[:, None]
        whole = np.broadcast_to(per_head, (len(per_head), setting.length))
        lengths = to_array(whole, "int32", ctx).as_nd_ndarray()
    excluded = _excluded(task)
    if excluded is not None:
        bias = _legacy_array(excluded, task)
    return lengths, bias


def _excluded(task: Task) -> Any:
    """(1, Lq, Lk): what is added to scores, a large negative number where positions exclude a key; None for nothing."""
    allowed = task.workload.allowed
    return None if allowed is None else np.where(allowed, np.float32(0), np.float32(-LARGE))[None]
