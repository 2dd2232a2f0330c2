"""PyTorch's contestants: nn.MultiheadAttention, linear around scaled_dot_product_attention, d2l.ai's."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from backends.torch.native.convert import to_native
from backends.torch.ops.framework import TORCH_DTYPES, to_numpy, to_tensor
from backends.torch.ops.heads import merge_heads, split_heads
from backends.torch.weights import from_weights
from benchmarks.peers import PLAIN_ONLY, Contestant, Prepared, turned
from benchmarks.settings import Task

set_threads = torch.set_num_threads


def _ours(task: Task) -> Prepared:
    layer = from_weights(task.config, task.weights, dtype=TORCH_DTYPES[task.dtype]).train(task.gradients)
    past: Any = {name: _tensor(array, task) for name, array in task.past.items()}
    lens = _as_it_is(task.valid_lens)
    return _prepared(lambda x: layer(x, x, x, lens, **past, **task.keywords), layer.parameters(), task)


def _multihead_attention(task: Task, training: bool) -> Prepared:
    layer = to_native(task.config, task.weights, dtype=TORCH_DTYPES[task.dtype]).train(training)
    masks: dict[str, Any] = {"need_weights": False}
    if task.valid_lens is not None:
        masks["key_padding_mask"] = ~_as_it_is(task.allowed)[:, 0, 0]
    elif task.setting.causal:
        masks |= {"attn_mask": ~_as_it_is(task.allowed)[0, 0], "is_causal": True}
    return _prepared(lambda x: layer(x, x, x, **masks)[0], layer.parameters(), task)


def _scaled_dot_product(task: Task) -> Prepared:
    """Linear functions around the operator; without gradients, new keys and values are written into the cache."""
    weights = {name: _tensor(array, task).requires_grad_() for name, array in task.weights.items()}
    is_diagonal = task.setting.causal and task.setting.window is None
    mask = None if is_diagonal else _as_it_is(task.allowed)
    turns = [_tensor(table, task) for table in task.turns or ()]  # (L, d) each
    room = [(0, 0), (0, 0), (0, 0 if task.gradients else task.setting.length), (0, 0)]
    past = [_tensor(np.pad(array, room), task) for array in task.past.values()]

    def project(name: str, x: Tensor) -> Tensor:
        return F.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    def after_past(number: int, new: Tensor) -> Tensor:
        if not past or task.gradients:
            return torch.cat([past[number], new], dim=2) if past else new
        past[number][:, :, task.setting.past :] = new
        return past[number]

    def forward(x: Tensor) -> Tensor:
        queries, keys, values = (split_heads(project(name, x), heads) for name, heads in task.heads_of.items())
        keys, values = after_past(0, turned(keys, turns, torch.cat)), after_past(1, values)
        queries, grouped = turned(queries, turns, torch.cat), queries.shape[1] != keys.shape[1]
        summed = F.scaled_dot_product_attention(queries, keys, values, mask, is_causal=is_diagonal, enable_gqa=grouped)
        return project("out_proj", merge_heads(summed))

    return _prepared(forward, weights.values(), task)


def _d2l(task: Task) -> Prepared:
    layer: Any = to_native(task.config, task.weights, "d2l-torch", dtype=TORCH_DTYPES[task.dtype]).train(task.gradients)
    lens = _as_it_is(task.valid_lens)
    return _prepared(lambda x: layer(x, x, x, lens), layer.parameters(), task)


_train, _eval = (partial(_multihead_attention, training=training) for training in (True, False))

CONTESTANTS = (
    Contestant("ours", _ours),
    Contestant("nn.MultiheadAttention, eval()", _eval, lacks=("gradients", *PLAIN_ONLY)),
    Contestant("nn.MultiheadAttention, train()", _train, lacks=PLAIN_ONLY),
    Contestant("scaled_dot_product_attention", _scaled_dot_product),
    Contestant("d2l.ai's", _d2l, lacks=("causal mask", *PLAIN_ONLY)),
)


def _prepared(forward: Callable[[Tensor], Tensor], parameters: Iterable[Tensor], task: Task) -> Prepared:
    x, cotangent = _tensor(task.x, task), _tensor(task.cotangent, task)
    leaves = [x.requires_grad_(), *parameters]

    def call() -> list[Tensor]:
        with torch.set_grad_enabled(task.gradients):
            output = forward(x)
        return [output.detach(), *(torch.autograd.grad(output, leaves, cotangent) if task.gradients else ())]

    return Prepared(call, lambda found: tuple(map(to_numpy, found[:2])))


def _tensor(array: Any, task: Task) -> Tensor:
    return to_tensor(array, TORCH_DTYPES[task.dtype], torch.device("cpu"))


def _as_it_is(array: Any) -> Any:
    return None if array is None else torch.tensor(array)
