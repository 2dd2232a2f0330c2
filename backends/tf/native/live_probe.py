"""Live layers of Keras run on probes (see `mha_core.live.probe`), and left as they were."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from backends.tf.ops.framework import TF_DTYPES, full_precision, to_numpy, to_tensor
from mha_core import AttentionConfig, AttentionInputs, AttentionMask
from mha_core.call.masks import allowed_keys
from mha_core.dtypes import DTYPES
from mha_core.live.probe import Reading, RunProbe, Words, cannot_run, check_reading
from mha_core.weights import Weights

KERAS_WORDS = Words(masks=("valid_lens", "allowed", "causal"))
D2L_WORDS = Words(masks=("valid_lens",))

SUBJECTS = "backends.tf.native.subjects"
KERAS = ("MultiHeadAttentionSubject", "MultiHeadAttentionScoresSubject")
KERAS_GROUPED = ("GroupQueryAttentionSubject", "GroupQueryAttentionScoresSubject")
D2L = ("D2lMultiHeadAttentionSubject",)


def check_keras(layer: keras.Layer, config: AttentionConfig, weights: Weights, window: Any) -> None:
    """Raise SpecError unless Keras's `layer(query, value, key)` computes attention with these weights and window."""

    def run(inputs: AttentionInputs) -> Mapping[str, NDArray]:
        queries, keys, values = tensors(layer, inputs.queries, inputs.keys, inputs.values)
        told: dict[str, Any] = {"use_causal_mask": inputs.mask.causal}
        if inputs.mask.has_sources and not inputs.mask.causal:
            allowed = allowed_keys(inputs.mask, inputs.check(config), config.num_heads)
            told["attention_mask"] = tf.constant(per_item(allowed))
        # Half of the probes with scores, where the layer runs other code, and half without.
        scores = inputs.queries.shape[0] > 1
        found = layer(queries, values, key=keys, **told, return_attention_scores=scores, training=False)
        output, shown = found if scores else (found, None)
        return {"output": to_numpy(output)} | ({} if shown is None else {"weights": to_numpy(shown)})

    def meant(inputs: AttentionInputs) -> AttentionInputs:
        mask: AttentionMask = replace(inputs.mask, window=window, bias=None, query_offset=0)
        return replace(inputs, mask=mask)

    natives = KERAS if isinstance(layer, keras.layers.MultiHeadAttention) else KERAS_GROUPED
    _check(layer, config, weights, run, words=KERAS_WORDS, natives=natives, meant=meant)


def check_d2l(layer: keras.Layer, config: AttentionConfig, weights: Weights) -> None:
    """Raise SpecError unless `layer(queries, keys, values, valid_lens)` computes attention with these weights."""

    def run(inputs: AttentionInputs) -> Mapping[str, NDArray]:
        lens = None if inputs.mask.valid_lens is None else tf.constant(inputs.mask.valid_lens)
        return {"output": to_numpy(layer(*tensors(layer, inputs.queries, inputs.keys, inputs.values), lens))}

    _check(layer, config, weights, run, words=D2L_WORDS, natives=D2L)


def _check(
    layer: keras.Layer,
    config: AttentionConfig,
    weights: Weights,
    run: RunProbe,
    *,
    words: Words,
    natives: tuple[str, ...],
    meant: Callable[[AttentionInputs], AttentionInputs] | None = None,
) -> None:
    name = f"{type(layer).__name__} {layer.name!r}"
    if tf.inside_function():
        raise cannot_run(name, "this runs while TensorFlow traces a function, where arrays have no numbers")
    dtype = str(layer.compute_dtype)
    if dtype not in DTYPES:
        raise cannot_run(name, f"it computes in {dtype}")
    specs = tuple(f"{SUBJECTS}:{native}" for native in natives)
    with as_found(layer):
        check_reading(Reading(name, config, weights, run, dtype, words, meant, specs))


def per_item(allowed: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return a mask (B, H, Lq, Lk) as (B, Lq, Lk), the shape in Keras's docs, if all heads are equal; else unchanged.

    >>> per_item(np.ones((2, 3, 4, 5), bool)).shape
    (2, 4, 5)
    """
    return allowed[:, 0] if (allowed == allowed[:, :1]).all() else allowed


def tensors(layer: keras.Layer, *arrays: NDArray) -> list[tf.Tensor]:
    """Return the arrays as tensors of the layer's compute dtype; an array that is given twice becomes one tensor."""
    made = {id(array): to_tensor(array, TF_DTYPES[layer.compute_dtype]) for array in arrays}
    return [made[id(array)] for array in arrays]


@contextmanager
def as_found(layer: keras.Layer) -> Iterator[None]:
    """Return a context in which no tape records. Its end restores the layer's state.

    The state: variables that are not trained (random seeds too), losses, and tensors that the layer and its sublayers
    store, such as the weights of the last call.
    """
    parts = list(layer._flatten_layers(include_self=True, recursive=True))
    kept = [(part, {name: value for name, value in vars(part).items() if _is_kept(value)}) for part in parts]
    losses = [(part, list(part._losses)) for part in parts]
    untrained = [(variable, variable.value.numpy().copy()) for variable in layer.non_trainable_variables]
    with tf.init_scope(), full_precision():
        try:
            yield
        finally:
            for variable, before in untrained:
                if not np.array_equal(variable.value.numpy(), before):
                    variable.assign(before)
            for part, own in kept:
                for name in [name for name, value in vars(part).items() if _is_kept(value) and name not in own]:
                    del vars(part)[name]
                vars(part).update(own)  # not by assignment: Keras would track it
            for part, own_losses in losses:
                part._losses[:] = own_losses


def _is_kept(value: Any) -> bool:
    return value is None or isinstance(value, tf.Tensor)
