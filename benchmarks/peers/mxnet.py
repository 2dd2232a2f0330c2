"""MXNet's contestants, imperative: the interleaved operators, and batch_dot, each between dense layers."""

from collections.abc import Callable
from typing import Any

import numpy as np

from backends.mxnet.native.cells import LARGE, legacy
from backends.mxnet.native.convert import to_native
from backends.mxnet.ops.framework import mx, to_array, to_numpy
from backends.mxnet.ops.heads import merge_heads, split_heads
from backends.mxnet.weights import from_weights
from benchmarks.peers import PLAIN_ONLY, Contestant, Prepared, turned
from benchmarks.settings import Task


@mx.util.use_np
def _ours(task: Task) -> Prepared:
    layer = from_weights(task.config, task.weights, dtype=task.dtype)
    past: Any = {name: _array(array, task) for name, array in task.past.items()}
    lens = None if task.valid_lens is None else mx.np.array(task.valid_lens, dtype="int64")
    return _prepared(lambda x: layer(x, x, x, lens, **past, **task.keywords), task, mx.util.use_np)


@legacy
def _selfatt(task: Task) -> Prepared:
    block = to_native(task.config, task.weights, "mxnet-selfatt", dtype=task.dtype)
    lengths = bias = None
    if task.valid_lens is not None:  # int32 (B * H, Lq), as Sockeye gives them to the softmax
        per_head = np.repeat(task.valid_lens, task.config.num_heads)[:, None]
        whole = np.broadcast_to(per_head, (len(per_head), task.setting.length))
        lengths = to_array(whole, "int32", mx.cpu()).as_nd_ndarray()
    elif task.allowed is not None:
        bias = _excluded(task)[0].as_nd_ndarray()  # (1, Lq, Lk)

    def forward(x: Any) -> Any:
        output = block(x, lengths, bias)
        block.shown = {}  # it would keep its stages beyond its call
        return output

    return _prepared(forward, task, legacy)


@mx.util.use_np
def _batch_dot(task: Task) -> Prepared:
    """d2l.ai's formulation, with a past, grouped heads, rotary positions and any mask."""
    heads, kv_heads, width = task.config.num_heads, task.config.num_kv_heads, task.config.head_dim
    weights = {name: _array(array, task) for name, array in task.weights.items()}
    for weight in weights.values() if task.gradients else ():
        weight.attach_grad()
    past = [_array(array, task) for array in task.past.values()]
    turns = task.turns and [_array(table, task) for table in task.turns]  # (L, d) each
    mask = None if task.allowed is None else _excluded(task)

    def project(name: str, x: Any) -> Any:
        weight, bias = weights[f"{name}.weight"], weights.get(f"{name}.bias")
        given = (x, weight) if bias is None else (x, weight, bias)
        return mx.npx.fully_connected(*given, num_hidden=len(weight), no_bias=bias is None, flatten=False)

    def forward(x: Any) -> Any:
        queries, keys, values = (split_heads(project(name, x), count) for name, count in task.heads_of.items())
        queries, keys = (turned(part, turns, mx.np.concatenate) for part in (queries, keys))
        if past:
            keys, values = (mx.np.concatenate(pair, axis=2) for pair in zip(past, (keys, values), strict=True))
        if heads != kv_heads:
            keys, values = (mx.np.repeat(part, heads // kv_heads, axis=1) for part in (keys, values))
        batch, _, length, _ = queries.shape
        queries, keys, values = (part.reshape(-1, part.shape[2], width) for part in (queries, keys, values))
        scores = mx.npx.batch_dot(queries, keys, transpose_b=True) / width**0.5  # (B * H, Lq, Lk)
        if mask is not None:
            scores = (scores.reshape(batch, heads, length, -1) + mask).reshape(scores.shape)
        summed = mx.npx.batch_dot(mx.npx.softmax(scores), values)
        return project("out_proj", merge_heads(summed.reshape(batch, heads, length, width)))

    return _prepared(forward, task, mx.util.use_np)


CONTESTANTS = (
    Contestant("ours", _ours),
    Contestant("interleaved_matmul_selfatt", _selfatt, lacks=PLAIN_ONLY),
    Contestant("batch_dot", _batch_dot),
)


def _prepared(forward: Callable[[Any], Any], task: Task, semantics: Any) -> Prepared:
    """A forward function on x in its layout: (L, B, E) under `legacy`; gradients of parameters are kept in these."""
    time_major = semantics is legacy

    def array(numbers: Any) -> Any:
        return _array(numbers.swapaxes(0, 1), task).as_nd_ndarray() if time_major else _array(numbers, task)

    x, cotangent = array(task.x), array(task.cotangent)
    if task.gradients:
        x.attach_grad()

    @semantics
    def call() -> list[Any]:
        with mx.autograd.record() if task.gradients else mx.autograd.pause():
            output = forward(x)
        if task.gradients:
            output.backward(cotangent)
        mx.nd.waitall()
        return [output.detach(), *([x.grad] if task.gradients else ())]

    def read(found: list[Any]) -> tuple[Any, ...]:
        return tuple(part.swapaxes(0, 1) if time_major else part for part in map(to_numpy, found))

    return Prepared(call, read)


def _array(array: Any, task: Task) -> Any:
    return to_array(array, task.dtype, mx.cpu())


def _excluded(task: Task) -> Any:
    """What is added to scores, of the shape of `Task.allowed`: a large negative number where a key is excluded."""
    assert task.allowed is not None
    return _array(np.where(task.allowed, np.float32(0), np.float32(-LARGE)), task)
