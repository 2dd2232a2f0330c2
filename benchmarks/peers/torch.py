"""PyTorch's contestants: nn.MultiheadAttention, d2l.ai's, and linear functions around an attention function."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from threading import RLock
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from backends.torch.native.convert import to_native
from backends.torch.ops.framework import TORCH_DTYPES, to_numpy, to_tensor
from backends.torch.ops.heads import split_heads
from backends.torch.weights import from_weights
from benchmarks.peers import PLAIN_ONLY, Contestant, Prepared, turned
from benchmarks.settings import COMPILED, Task

Attend: TypeAlias = Callable[..., Tensor]
"""Queries (B, H, L, d), keys and values (B, G, Lk, d) -> heads (B, L, H, d)."""

ISOLATED: Any = {"isolate_recompiles": True}  # the types of torch.compile lack it in PyTorch 2.13

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


def _between_linears(attention: Callable[[Task], Attend], task: Task) -> Prepared:
    """Linear functions around attention; without gradients, new keys and values are written into the cache."""
    attend = attention(task)
    weights = {name: _tensor(array, task).requires_grad_() for name, array in task.weights.items()}
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
        return project("out_proj", attend(turned(queries, turns, torch.cat), keys, values).flatten(2))

    return _prepared(forward, weights.values(), task)


def _scaled_dot_product(task: Task) -> Attend:
    is_causal, mask, enable_gqa = *_masks(task), task.setting.num_kv_heads is not None

    def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        heads = F.scaled_dot_product_attention(queries, keys, values, mask, is_causal=is_causal, enable_gqa=enable_gqa)
        return heads.transpose(1, 2)

    return attend


def _transformers(task: Task) -> Attend:
    """Return the function that transformers calls for `attn_implementation="sdpa"`."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    is_causal, mask = _masks(task)
    module: Any = SimpleNamespace(num_key_value_groups=task.config.num_heads // task.config.num_kv_heads)
    return lambda *operands: sdpa_attention_forward(module, *operands, mask, is_causal=is_causal)[0]


def _flex(task: Task) -> Attend:
    """The function, compiled as its documentation has it, and the mask as a rule for blocks.

    It is a program of its own: PyTorch 2.13 can't compile it for a CPU together with the linear functions before it.
    """
    setting, lens, block_mask = task.setting, _as_it_is(task.valid_lens), None

    def allowed(item: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        if lens is not None:
            return key < lens[item]
        behind = query - key
        return (behind >= 0) & (behind < (setting.window or setting.key_len))

    if setting.causal or lens is not None:
        items = None if lens is None else setting.batch
        block_mask = create_block_mask(allowed, items, None, setting.length, setting.key_len, device="cpu")
    compute = partial(_compiled(flex_attention), block_mask=block_mask, enable_gqa=setting.num_kv_heads is not None)
    return torch.compiler.disable(lambda *operands: compute(*operands).transpose(1, 2))


def _masks(task: Task) -> tuple[bool, Tensor | None]:
    """Return whether the mask is causal alone, and the mask as bools (B or 1, 1, Lq or 1, Lk) if it is not."""
    is_causal = task.setting.causal and task.setting.window is None
    return is_causal, None if is_causal else _as_it_is(task.allowed)


def _d2l(task: Task) -> Prepared:
    layer: Any = to_native(task.config, task.weights, "d2l-torch", dtype=TORCH_DTYPES[task.dtype]).train(task.gradients)
    lens = _as_it_is(task.valid_lens)
    return _prepared(lambda x: layer(x, x, x, lens), layer.parameters(), task)


_train, _eval = (partial(_multihead_attention, training=training) for training in (True, False))

OF_TRANSFORMERS = (
    [Contestant("transformers' sdpa", partial(_between_linears, _transformers))] if find_spec("transformers") else []
)

CONTESTANTS = (
    Contestant("ours", _ours),
    Contestant("nn.MultiheadAttention, eval()", _eval, lacks=("gradients", *PLAIN_ONLY)),
    Contestant("nn.MultiheadAttention, train()", _train, lacks=PLAIN_ONLY),
    Contestant("scaled_dot_product_attention", partial(_between_linears, _scaled_dot_product)),
    *OF_TRANSFORMERS,
    Contestant("flex_attention, compiled", partial(_between_linears, _flex), lacks=("gradients",)),
    Contestant("d2l.ai's", _d2l, lacks=("causal mask", *PLAIN_ONLY)),
)


def _prepared(forward: Callable[[Tensor], Tensor], parameters: Iterable[Tensor], task: Task) -> Prepared:
    x, cotangent = _tensor(task.x, task), _tensor(task.cotangent, task)
    leaves = [x.requires_grad_(), *parameters]
    forward = _compiled(forward) if task.setting.form == COMPILED else forward

    def call() -> list[Tensor]:
        with torch.set_grad_enabled(task.gradients):
            output = forward(x)
        return [output.detach(), *(torch.autograd.grad(output, leaves, cotangent) if task.gradients else ())]

    return Prepared(call, lambda found: tuple(map(to_numpy, found[:2])))


def _compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The function compiled for the sizes of one task; other tasks have programs of their own."""
    with suppress(ImportError):  # the compiler uses it if it is there: a lock for processes would outlive this one
        import_module("tqdm").tqdm.set_lock(RLock())
    compiled: Any = torch.compile(function, dynamic=False, **ISOLATED)
    return compiled


def _tensor(array: Any, task: Task) -> Tensor:
    return to_tensor(array, TORCH_DTYPES[task.dtype], torch.device("cpu"))


def _as_it_is(array: Any) -> Any:
    return None if array is None else torch.tensor(array)
