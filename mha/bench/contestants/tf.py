"""TensorFlow's contestants: Keras's layers and KerasHub's, keras.ops.dot_product_attention, d2l.ai's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from backends.tf.backend import TensorFlowBackend
from backends.tf.native.convert import to_native
from backends.tf.ops import framework
from backends.tf.ops.framework import TF_DTYPES, to_numpy, to_tensor
from backends.tf.weights import from_weights
from mha.bench.contestants.contestant import (
    NONE_HELD,
    CannotRun,
    Contestant,
    Kind,
    Prepared,
    Scores,
    Task,
    optional,
    unable,
)
from mha.bench.workload import Answer

Forward = Callable[[tf.Tensor], tf.Tensor]

Wrap = Callable[[Any], Any]
"""A wrapper of a computation: tf.function, or EAGER."""

PLAIN: Wrap = partial(tf.function, autograph=False)
XLA: Wrap = partial(tf.function, autograph=False, jit_compile=True)


def EAGER(function: Any) -> Any:
    """Return the function itself, which runs operation by operation."""
    return function


def set_threads(count: int) -> str:
    tf.config.threading.set_intra_op_parallelism_threads(count)
    tf.config.threading.set_inter_op_parallelism_threads(count)
    return f"tf.config.threading: intra_op {count}, inter_op {count}"


BACKEND = TensorFlowBackend()
versions, devices, dtypes = BACKEND.versions, BACKEND.devices, BACKEND.dtypes


def product(size: int, dtype: str, device: str) -> Callable[[], Any]:
    with tf.device(framework.device_of(device)):
        a = tf.ones((size, size), TF_DTYPES[dtype])

    def call() -> tf.Tensor:
        with tf.device(framework.device_of(device)):
            found = tf.matmul(a, a)
        _wait(device)
        return found

    return call


# Ours ----------------------------------------------------------------------------------------------------


def _ours(task: Task, wrap: Wrap) -> Prepared:
    workload = task.workload
    layer = from_weights(workload.config, workload.weights, dtype=task.dtype)
    given = {**workload.given(lambda array: _tensor(array, task), tf.constant), **workload.positions}
    given["training"] = task.differentiates
    return _prepared(layer.weights, lambda x: layer(x, x, x, **given), task, wrap)


# Peers ---------------------------------------------------------------------------------------------------


def _keras_layer(task: Task, wrap: Wrap, layout: str) -> Prepared:
    workload = task.workload
    unable(workload, grouped=layout == "keras-gqa")
    if layout == "keras-gqa" and not workload.is_grouped:
        raise CannotRun("without grouped heads it is keras.layers.MultiHeadAttention")
    layer = to_native(workload.config, workload.weights, layout, dtype=task.dtype)
    options: dict[str, Any] = {"use_causal_mask": workload.setting.causal, "training": task.differentiates}
    if workload.within_lens is not None:
        options["attention_mask"] = tf.constant(workload.within_lens[:, None])  # (B, 1, Lk)
    return _prepared(layer.weights, lambda x: layer(query=x, value=x, key=x, **options), task, wrap)


_multi_head_attention = partial(_keras_layer, layout="keras")
_group_query_attention = partial(_keras_layer, layout="keras-gqa")


def _dot_product_attention(task: Task, wrap: Wrap) -> Prepared:
    workload = task.workload
    setting = workload.setting
    variables = {name: tf.Variable(_tensor(array.T, task)) for name, array in workload.weights.items()}
    past = [_tensor(array.swapaxes(1, 2), task) for array in workload.past]  # (B, Lp, G, d)
    mask = None if workload.within_lens is None else tf.constant(workload.within_lens[:, None, None])  # (B, 1, 1, Lk)
    if setting.window is not None:
        mask = tf.constant(workload.allowed)[None, None]  # (1, 1, Lq, Lk)
    is_diagonal = setting.causal and setting.window is None
    turns = None if workload.turns is None else [_tensor(table[:, None], task) for table in workload.turns]  # (L, 1, d)

    def turned(x: tf.Tensor) -> tf.Tensor:
        """(B, L, heads, d), turned as model libraries write it."""
        if turns is None:
            return x
        first, second = tf.split(x, 2, axis=-1)
        return x * turns[0] + tf.concat((-second, first), axis=-1) * turns[1]

    def project(name: str, x: tf.Tensor) -> tf.Tensor:
        projected = tf.matmul(x, variables[f"{name}.weight"])
        return projected + variables[f"{name}.bias"] if f"{name}.bias" in variables else projected

    def forward(x: tf.Tensor) -> tf.Tensor:
        queries, keys, values = (
            tf.reshape(project(name, x), (setting.batch, setting.length, count, -1))
            for name, count in workload.heads_of.items()
        )
        queries, keys = turned(queries), turned(keys)
        if past:
            keys, values = tf.concat([past[0], keys], axis=1), tf.concat([past[1], values], axis=1)
        summed = keras.ops.dot_product_attention(queries, keys, values, mask=mask, is_causal=is_diagonal)
        return project("out_proj", tf.reshape(summed, (setting.batch, setting.length, -1)))

    return _prepared(list(variables.values()), forward, task, wrap)


def _keras_hub_llama(task: Task, wrap: Wrap) -> Prepared:
    """The layer of KerasHub's Llama; a past is in its cache, which has room for the new keys."""
    workload = task.workload
    setting, (heads, kv_heads, width) = workload.setting, workload.heads
    if not setting.rotary:
        raise CannotRun("it always has rotary positions")
    llama = optional("keras_hub.src.models.llama.llama_attention")
    layer = llama.LlamaAttention(heads, kv_heads, dtype=task.dtype)
    layer.build((None, None, setting.embed_dim))
    kernels = {name: _tensor(workload.weights[f"{name}.weight"].T, task) for name in (*workload.heads_of, "out_proj")}
    for name, own in (("q_proj", layer._query_dense), ("k_proj", layer._key_dense), ("v_proj", layer._value_dense)):
        own.kernel.assign(tf.reshape(kernels[name], (setting.embed_dim, -1, width)))
    layer._output_dense.kernel.assign(tf.reshape(kernels["out_proj"], (heads, width, -1)))
    given: dict[str, Any] = {"training": task.differentiates}
    if workload.allowed is not None:
        given["attention_mask"] = tf.constant(workload.allowed)[None]
    if not workload.past:
        return _prepared(layer.weights, lambda x: layer(x, **given), task, wrap)
    cache = tf.stack([_tensor(array.swapaxes(1, 2), task) for array in workload.past], axis=1)  # (B, 2, Lp, G, d)
    given |= {"cache": tf.pad(cache, [[0, 0], [0, 0], [0, setting.length], [0, 0], [0, 0]])}
    return _prepared(layer.weights, lambda x: layer(x, cache_update_index=setting.past, **given)[0], task, wrap)


def _d2l(task: Task, wrap: Wrap) -> Prepared:
    workload = task.workload
    unable(workload, causal=False)
    layer = to_native(workload.config, workload.weights, "d2l-tf", dtype=task.dtype)
    lens = None if workload.valid_lens is None else tf.constant(workload.valid_lens)
    return _prepared(layer.weights, lambda x: layer(x, x, x, lens, training=task.differentiates), task, wrap)


def _contestant(
    name: str, kind: Kind, make: Callable[[Task, Wrap], Prepared], scores: Scores, wrap: Wrap = PLAIN
) -> Contestant:
    def on_device(task: Task) -> Prepared:
        with tf.device(framework.device_of(task.device)):
            return make(task, wrap)

    return Contestant(name, kind, on_device, scores)


BY_XLA = Scores(2, 5)
"""XLA keeps scores and weights apart."""

CONTESTANTS = (
    _contestant("ours", "ours", _ours, NONE_HELD),
    _contestant("ours, eager", "variant", _ours, NONE_HELD, EAGER),
    _contestant("ours, jit_compile", "variant", _ours, Scores(2, 3), XLA),
    _contestant("keras.layers.MultiHeadAttention", "peer", _multi_head_attention, Scores(1, 4)),
    _contestant("keras.layers.MultiHeadAttention, jit_compile", "peer", _multi_head_attention, BY_XLA, XLA),
    _contestant("keras.layers.GroupQueryAttention", "peer", _group_query_attention, Scores(1, 4)),
    _contestant("keras.layers.GroupQueryAttention, jit_compile", "peer", _group_query_attention, BY_XLA, XLA),
    _contestant("matmul, keras.ops.dot_product_attention", "peer", _dot_product_attention, Scores(1, 4)),
    _contestant("keras_hub's LlamaAttention", "peer", _keras_hub_llama, Scores(2, 4)),
    _contestant("keras_hub's LlamaAttention, jit_compile", "peer", _keras_hub_llama, BY_XLA, XLA),
    _contestant("d2l.ai's", "peer", _d2l, Scores(1, 3)),
)


# What they share -----------------------------------------------------------------------------------------


def _prepared(variables: list[Any], forward: Forward, task: Task, wrap: Wrap) -> Prepared:
    x, cotangent = _tensor(task.workload.x, task), _tensor(task.workload.cotangent, task)
    leaves = [variable.value if isinstance(variable, keras.Variable) else variable for variable in variables]

    def compute(x: tf.Tensor, cotangent: tf.Tensor) -> tuple[tf.Tensor, ...]:
        if not task.differentiates:
            return (forward(x),)
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = forward(x)
        return output, *tape.gradient(output, [x, *leaves], cotangent)

    computed = wrap(compute)

    def call() -> Any:
        with framework.full_precision(), tf.device(framework.device_of(task.device)):
            found = computed(x, cotangent)
        _wait(task.device)
        return found

    on_gpu = (lambda: _gpu_memory(call, task.device)) if task.device != "cpu" else None
    return Prepared(call, lambda found: Answer(*map(to_numpy, found[:2])), extra_memory=on_gpu)


def _tensor(array: Any, task: Task) -> tf.Tensor:
    return to_tensor(array, TF_DTYPES[task.dtype])


def _wait(device: str) -> None:
    if device != "cpu":
        tf.test.experimental.sync_devices()


def _gpu_memory(call: Callable[[], Any], device: str) -> int:
    name = device.upper()
    tf.config.experimental.reset_memory_stats(name)
    before = tf.config.experimental.get_memory_info(name)["current"]
    call()
    return tf.config.experimental.get_memory_info(name)["peak"] - before
