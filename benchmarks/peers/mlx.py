"""MLX's contestant on the CPU, beside our layer in PyTorch: `mx.fast`'s attention between four projections."""

from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from benchmarks.peers import Contestant, Prepared, linear, torch
from benchmarks.settings import Task

DTYPES = ("float32", "bfloat16", "float16")

set_threads = torch.set_threads  # MLX has as many as its BLAS, which goes by the environment


def _layer(task: Task) -> Prepared:
    mx.set_default_device(mx.cpu)
    setting, width, rotary = task.setting, task.config.head_dim, task.config.rotary
    room = [(0, 0), (0, 0), (0, 0 if task.gradients else setting.length), (0, 0)]
    past = [_array(np.pad(array, room), task) for array in task.past.values()]
    diagonal = setting.causal and setting.window is None
    mask: Any = "causal" if diagonal else None if task.allowed is None else mx.array(task.allowed)
    names = list(task.weights)
    leaves = [_array(task.x, task), *(_array(task.weights[name].T, task) for name in names)]
    cotangent = _array(task.cotangent, task)

    def after_past(number: int, new: mx.array) -> mx.array:
        if not past or task.gradients:
            return mx.concatenate([past[number], new], axis=2) if past else new
        past[number][:, :, setting.past :] = new
        return past[number]

    def turned(part: mx.array) -> mx.array:
        if rotary is None:
            return part
        return mx.fast.rope(part, width, traditional=False, base=rotary.base, scale=1.0, offset=setting.past)

    def forward(x: mx.array, *arrays: mx.array) -> mx.array:
        weights = dict(zip(names, arrays, strict=True))
        queries, keys, values = (
            linear(weights, name, x).reshape(setting.batch, setting.length, heads, width).swapaxes(1, 2)
            for name, heads in task.heads_of.items()
        )
        keys, values = after_past(0, turned(keys)), after_past(1, values)
        scale = width**-0.5
        heads = mx.fast.scaled_dot_product_attention(turned(queries), keys, values, scale=scale, mask=mask)
        return linear(weights, "out_proj", heads.swapaxes(1, 2).flatten(2))

    def call() -> list[mx.array]:
        if task.gradients:
            (output,), gradients = mx.vjp(forward, leaves, [cotangent])
        else:
            output, gradients = forward(*leaves), []
        mx.eval(output, gradients, past)
        return [output, *gradients]

    return Prepared(call, lambda found: tuple(map(_back, found[:2])))


def _array(array: NDArray, task: Task) -> mx.array:
    return mx.array(np.ascontiguousarray(array), getattr(mx, task.dtype))


def _back(array: mx.array) -> NDArray:
    return np.array(array.astype(mx.float32))


CONTESTANTS = (torch.CONTESTANTS[0], Contestant("mx.fast's attention", _layer))
