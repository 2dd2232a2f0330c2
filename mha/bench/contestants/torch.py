"""PyTorch's contestants: nn.MultiheadAttention, Linear around scaled_dot_product_attention, Llama's, d2l.ai's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from backends.torch.backend import TorchBackend
from backends.torch.native.convert import to_native
from backends.torch.ops import framework
from backends.torch.ops.framework import TORCH_DTYPES, to_numpy, to_tensor
from backends.torch.ops.heads import merge_heads, split_heads
from backends.torch.weights import from_weights
from mha.bench.contestants.contestant import NONE_HELD, CannotRun, Contestant, Prepared, Scores, Task, optional, unable
from mha.bench.workload import Answer
from mha_core.config import PROJECTIONS

Forward = Callable[[Tensor], Tensor]


def set_threads(count: int) -> str:
    torch.set_num_threads(count)
    return f"torch.set_num_threads({count})"


BACKEND = TorchBackend()
versions, devices, dtypes = BACKEND.versions, BACKEND.devices, BACKEND.dtypes


def product(size: int, dtype: str, device: str) -> Callable[[], Any]:
    place: Any = {"dtype": TORCH_DTYPES[dtype], "device": framework.device_of(device)}
    a, b, out = torch.ones(size, size, **place), torch.ones(size, size, **place), torch.empty(size, size, **place)

    def call() -> Tensor:
        torch.mm(a, b, out=out)
        _wait(device)
        return out

    return call


# Ours ----------------------------------------------------------------------------------------------------


def _ours(task: Task) -> Prepared:
    workload, place = task.workload, _place(task)
    layer = from_weights(workload.config, workload.weights, **place).train(task.differentiates)
    lens: Any = partial(torch.tensor, device=place["device"])
    given = workload.given(lambda array: _tensor(array, task), lens)
    return _prepared(layer, lambda x: layer(x, x, x, **given, **workload.positions), task)


# Peers ---------------------------------------------------------------------------------------------------


def _multihead_attention(training: bool) -> Callable[[Task], Prepared]:
    def make(task: Task) -> Prepared:
        workload = task.workload
        unable(workload)
        if task.differentiates and not training:
            raise CannotRun("with gradients it does as in train()")
        layer = to_native(workload.config, workload.weights, **_place(task)).train(training)
        within_lens, allowed = _constant(workload.within_lens, task), _constant(workload.allowed, task)
        masks: dict[str, Any] = {"need_weights": False}
        if within_lens is not None:
            masks["key_padding_mask"] = ~within_lens
        if allowed is not None:
            masks |= {"attn_mask": ~allowed, "is_causal": True}
        return _prepared(layer, lambda x: layer(x, x, x, **masks)[0], task)

    return make


def _scaled_dot_product(task: Task) -> Prepared:
    past = [_tensor(array, task) for array in task.workload.past]
    return _with_linear(task, _Past(*past).update if past else lambda keys, values: (keys, values))


def _cache_in_place(task: Task) -> Prepared:
    """Linear layers and the operator, with a cache into which new keys and values are written in place."""
    workload = task.workload
    if not workload.past:
        raise CannotRun("without a past there is no cache")
    if task.differentiates:
        raise CannotRun("what is written in place has no gradients")
    room = [(0, 0), (0, 0), (0, workload.setting.length), (0, 0)]
    caches = [_tensor(np.pad(array, room), task) for array in workload.past]

    def after_past(*new: Tensor) -> tuple[Tensor, Tensor]:
        for cache, part in zip(caches, new, strict=True):
            cache[:, :, workload.setting.past :] = part
        return caches[0], caches[1]

    return _with_linear(task, after_past)


def _with_linear(task: Task, after_past: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Prepared:
    """Four Linear layers around the operator, which is given all keys and values by `after_past`."""
    workload = task.workload
    layers: Any = nn.ModuleDict()
    for name in PROJECTIONS:
        rows, columns = workload.weights[f"{name}.weight"].shape
        layers[name] = nn.Linear(columns, rows, bias=f"{name}.bias" in workload.weights, device="meta")
    layers.load_state_dict({name: _tensor(array, task) for name, array in workload.weights.items()}, assign=True)
    is_diagonal = workload.setting.causal and workload.setting.window is None
    mask = None if workload.within_lens is None else _constant(workload.within_lens[:, None, None], task)
    if workload.setting.window is not None:
        mask = _constant(workload.allowed, task)
    turns = _turns(task)

    def forward(x: Tensor) -> Tensor:
        queries, keys, values = (
            split_heads(layers[name](x), heads)  # (B, H or G, L, d)
            for name, heads in workload.heads_of.items()
        )
        if turns is not None:
            queries, keys = (x * turns[0] + _half_turned(x) * turns[1] for x in (queries, keys))
        keys, values = after_past(keys, values)
        summed = F.scaled_dot_product_attention(
            queries, keys, values, mask, is_causal=is_diagonal, enable_gqa=workload.is_grouped
        )
        return layers["out_proj"](merge_heads(summed))

    return _prepared(layers, forward, task)


def _half_turned(x: Tensor) -> Tensor:
    """(..., d): the second half, negative, before the first, as model libraries turn."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


class _Past:
    """What transformers' caches do in a layer's call, without keeping the new keys: each call then is the same."""

    def __init__(self, *past: Tensor) -> None:
        self._past = past

    def update(self, keys: Tensor, values: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        return torch.cat([self._past[0], keys], dim=2), torch.cat([self._past[1], values], dim=2)


def _llama(implementation: str) -> Callable[[Task], Prepared]:
    """The layer of transformers' Llama; its tables and masks are made before, as its model makes them once."""

    def make(task: Task) -> Prepared:
        workload, place = task.workload, _place(task)
        turns = _turns(task)
        if turns is None:
            raise CannotRun("it always has rotary positions")
        llama = optional("transformers.models.llama.modeling_llama")
        heads, kv_heads, width = workload.heads
        config = llama.LlamaConfig(
            hidden_size=workload.config.embed_dim,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=width,
            attn_implementation=implementation,
        )
        layer = llama.LlamaAttention(config, layer_idx=0).to(**place).train(task.differentiates)
        layer.load_state_dict(
            {name.replace("out_proj", "o_proj"): _tensor(array, task) for name, array in workload.weights.items()}
        )
        given: dict[str, Any] = {"position_embeddings": tuple(table[None] for table in turns)}
        given["past_key_values"] = _Past(*(_tensor(x, task) for x in workload.past)) if workload.past else None
        allowed = _constant(workload.allowed, task)
        if implementation == "eager" and allowed is not None:
            given["attention_mask"] = torch.zeros(allowed.shape, **place).masked_fill(~allowed, -torch.inf)[None, None]
        elif workload.setting.window is not None and allowed is not None:
            given["attention_mask"] = allowed[None, None]  # else its own causal mask is taken
        return _prepared(layer, lambda x: layer(x, **{"attention_mask": None, **given})[0], task)

    return make


def _d2l(task: Task) -> Prepared:
    workload = task.workload
    unable(workload, causal=False)
    place = _place(task)
    layer: Any = to_native(workload.config, workload.weights, "d2l-torch", **place).train(task.differentiates)
    lens = _constant(workload.valid_lens, task)

    def forward(x: Tensor) -> Tensor:
        output = layer(x, x, x, lens)
        layer.attention.attention_weights = None  # it would keep them beyond its call
        return output

    return _prepared(layer, forward, task)


CONTESTANTS = (
    Contestant("ours", "ours", _ours, NONE_HELD),
    Contestant("nn.MultiheadAttention, eval()", "peer", _multihead_attention(training=False), Scores(1, 2)),
    Contestant("nn.MultiheadAttention, train()", "peer", _multihead_attention(training=True), NONE_HELD),
    Contestant("Linear, scaled_dot_product_attention", "peer", _scaled_dot_product, NONE_HELD),
    Contestant("Linear, scaled_dot_product_attention, cache in place", "peer", _cache_in_place, NONE_HELD),
    Contestant("transformers' LlamaAttention, sdpa", "peer", _llama("sdpa"), NONE_HELD),
    Contestant("transformers' LlamaAttention, eager", "peer", _llama("eager"), Scores(3, 5)),
    Contestant("d2l.ai's", "peer", _d2l, Scores(2, 3)),
)


# What they share -----------------------------------------------------------------------------------------


def _prepared(layer: nn.Module, forward: Forward, task: Task) -> Prepared:
    x, cotangent = _tensor(task.workload.x, task), _tensor(task.workload.cotangent, task)
    leaves = [x.requires_grad_(), *layer.parameters()]

    def output() -> list[Tensor]:
        with torch.no_grad():
            found = [forward(x)]
        _wait(task.device)
        return found

    def both() -> list[Tensor]:
        found = forward(x)
        gradients = torch.autograd.grad(found, leaves, cotangent)
        _wait(task.device)
        return [found.detach(), *gradients]

    call = both if task.differentiates else output
    on_gpu = (lambda: _gpu_memory(call, task.device)) if task.device != "cpu" else None
    return Prepared(call, lambda found: Answer(*map(to_numpy, found[:2])), extra_memory=on_gpu)


def _place(task: Task) -> dict[str, Any]:
    return {"device": framework.device_of(task.device), "dtype": TORCH_DTYPES[task.dtype]}


def _tensor(array: Any, task: Task) -> Tensor:
    return to_tensor(array, TORCH_DTYPES[task.dtype], framework.device_of(task.device))


def _constant(array: Any, task: Task) -> Tensor | None:
    """A mask, as it is; None for none."""
    return None if array is None else torch.tensor(array, device=_place(task)["device"])


def _turns(task: Task) -> tuple[Tensor, ...] | None:
    """Cosine and sine, (L, d) each; None without rotary positions."""
    turns = task.workload.turns
    return None if turns is None else tuple(_tensor(table, task) for table in turns)


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(framework.device_of(device))


def _gpu_memory(call: Callable[[], Any], device: str) -> int:
    place = framework.device_of(device)
    torch.cuda.reset_peak_memory_stats(place)
    before = torch.cuda.memory_allocated(place)
    call()
    return torch.cuda.max_memory_allocated(place) - before
