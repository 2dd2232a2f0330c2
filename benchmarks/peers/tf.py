"""TensorFlow's contestants, under tf.function: Keras's and KerasHub's layers, keras.ops, d2l.ai's."""

from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from backends.tf.native.convert import to_native
from backends.tf.ops.framework import TF_DTYPES, to_numpy, to_tensor
from backends.tf.weights import from_weights
from benchmarks.peers import PLAIN_ONLY, Contestant, Prepared, linear, turned
from benchmarks.settings import CACHE_GRADIENTS, IN_PLACE, Task

Layer = tuple[Callable[[tf.Tensor], tf.Tensor], Iterable[Any]]
"""A forward function, and the parameters."""


def set_threads(count: int) -> None:
    """Limit TensorFlow to that many threads, and have it say errors alone: each task is traced anew."""
    tf.get_logger().setLevel("ERROR")
    tf.config.threading.set_intra_op_parallelism_threads(count)
    tf.config.threading.set_inter_op_parallelism_threads(count)


def _ours(task: Task) -> Layer:
    layer = from_weights(task.config, task.weights, dtype=task.dtype)
    past: Any = {name: _tensor(array, task) for name, array in task.past.items()}
    lens = _as_it_is(task.valid_lens)
    return lambda x: layer(x, x, x, lens, training=task.gradients, **past, **task.keywords), layer.weights


def _keras_layer(task: Task) -> Layer:
    layout = "keras-gqa" if task.setting.num_kv_heads else "keras"
    layer = to_native(task.config, task.weights, layout, dtype=task.dtype)
    options: dict[str, Any] = {"use_causal_mask": task.setting.causal, "training": task.gradients}
    if task.valid_lens is not None:
        options["attention_mask"] = _as_it_is(task.allowed)[:, 0]  # (B, 1, Lk)
    return lambda x: layer(query=x, value=x, key=x, **options), layer.weights


def _dot_product_attention(task: Task) -> Layer:
    setting = task.setting
    variables = {name: tf.Variable(_tensor(array.T, task)) for name, array in task.weights.items()}
    past = [_tensor(array.swapaxes(1, 2), task) for array in task.past.values()]  # (B, Lp, G, d) each
    is_diagonal = setting.causal and setting.window is None
    mask = None if is_diagonal else _as_it_is(task.allowed)
    turns = task.turns and [_tensor(table[:, None], task) for table in task.turns]  # (L, 1, d) each

    def forward(x: tf.Tensor) -> tf.Tensor:
        queries, keys, values = (
            tf.reshape(linear(variables, name, x), (setting.batch, setting.length, heads, -1))
            for name, heads in task.heads_of.items()
        )
        queries, keys = (turned(part, turns, tf.concat) for part in (queries, keys))
        if past:
            keys, values = tf.concat([past[0], keys], axis=1), tf.concat([past[1], values], axis=1)
        summed = keras.ops.dot_product_attention(queries, keys, values, mask=mask, is_causal=is_diagonal)
        return linear(variables, "out_proj", tf.reshape(summed, (setting.batch, setting.length, -1)))

    return forward, variables.values()


def _d2l(task: Task) -> Layer:
    layer = to_native(task.config, task.weights, "d2l-tf", dtype=task.dtype)
    lens = _as_it_is(task.valid_lens)
    return lambda x: layer(x, x, x, lens, training=task.gradients), layer.weights


def _keras_hub(task: Task) -> Layer:
    from keras_hub.layers import CachedMultiHeadAttention

    native = to_native(task.config, task.weights, "keras", dtype=task.dtype)
    layer = CachedMultiHeadAttention.from_config(native.get_config())
    layer.build(task.x.shape, task.x.shape)
    layer.set_weights(native.get_weights())
    call = _with_cache(layer, task)
    return lambda x: call(x, x), layer.weights


def _keras_hub_llama(task: Task) -> Layer:
    from keras_hub.src.models.llama.llama_attention import LlamaAttention

    layer = LlamaAttention(task.config.num_heads, task.config.num_kv_heads, dtype=task.dtype)
    layer.build(task.x.shape)
    kernels = [task.weights[f"{name}.weight"].T for name in (*task.heads_of, "out_proj")]
    layer.set_weights([each.reshape(x.shape) for each, x in zip(kernels, layer.weights, strict=True)])
    return _with_cache(layer, task), layer.weights


def _with_cache(layer: Any, task: Task) -> Callable[..., tf.Tensor]:
    """A call of a layer of KerasHub's, which writes new keys and values into its cache (B, 2, Lk, G, d)."""
    options: dict[str, Any] = {"training": task.gradients}
    if task.allowed is not None:
        options["attention_mask"] = _as_it_is(task.allowed)[:, 0]  # (B or 1, Lq or 1, Lk)
    if not task.past:
        return lambda *given: layer(*given, **options)
    past = np.stack([array.swapaxes(1, 2) for array in task.past.values()], axis=1)
    room = [(0, 0), (0, 0), (0, task.setting.length), (0, 0), (0, 0)]
    options |= {"cache": _tensor(np.pad(past, room), task), "cache_update_index": task.setting.past}
    return lambda *given: layer(*given, **options)[0]


def _program(make: Callable[[Task], Layer], by_xla: bool = False) -> Callable[[Task], Prepared]:
    """Return what prepares a layer as one program."""

    def prepare(task: Task) -> Prepared:
        forward, parameters = make(task)
        leaves = [each.value if isinstance(each, keras.Variable) else each for each in parameters]
        x, cotangent = _tensor(task.x, task), _tensor(task.cotangent, task)

        @tf.function(autograph=False, jit_compile=by_xla or None)
        def compute(x: tf.Tensor, cotangent: tf.Tensor) -> tuple[tf.Tensor, ...]:
            if not task.gradients:
                return (forward(x),)
            with tf.GradientTape() as tape:
                tape.watch(x)
                output = forward(x)
            return output, *tape.gradient(output, [x, *leaves], cotangent)

        return Prepared(lambda: compute(x, cotangent), lambda found: tuple(map(to_numpy, found[:2])))

    return prepare


OF_KERAS_HUB = (
    Contestant(
        "KerasHub CachedMultiHeadAttention",
        _program(_keras_hub),
        lacks=(CACHE_GRADIENTS, "grouped heads", *PLAIN_ONLY[2:]),
    ),
    Contestant("KerasHub LlamaAttention", _program(_keras_hub_llama), lacks=(CACHE_GRADIENTS, IN_PLACE, "biases")),
)

CONTESTANTS = (
    Contestant("ours", _program(_ours)),
    # Its layers with grouped heads are of another class.
    Contestant("Keras's layer", _program(_keras_layer), lacks=PLAIN_ONLY[1:]),
    Contestant("Keras's layer, jit_compile", _program(_keras_layer, by_xla=True), lacks=PLAIN_ONLY[1:]),
    Contestant("keras.ops.dot_product_attention", _program(_dot_product_attention)),
    *(OF_KERAS_HUB if find_spec("keras_hub") else ()),
    Contestant("d2l.ai's", _program(_d2l), lacks=("causal mask", *PLAIN_ONLY)),
)


def _tensor(array: Any, task: Task) -> tf.Tensor:
    return to_tensor(array, TF_DTYPES[task.dtype])


def _as_it_is(array: Any) -> Any:
    return None if array is None else tf.constant(array)
