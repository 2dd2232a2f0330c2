"""Keras's own attention layers as subjects.

    mha check --subject backends.tf.native.subjects:MultiHeadAttentionSubject

Each class is one path of one layer. The mask arguments of a layer are made here from the definition's mask, by
`mha_core.call.masks`: Keras takes a bool mask where True attends, a causal flag aligned top-left, and nothing else;
d2l.ai's takes lengths alone.
"""

import warnings
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from backends.tf.native.convert import layout_of, to_native, variables
from backends.tf.native.live_probe import per_item
from backends.tf.ops import framework
from backends.tf.ops.framework import TF_DTYPES, to_numpy, to_tensor
from mha_core import AttentionConfig, AttentionInputs, Trace
from mha_core.backend import Run
from mha_core.call.masks import allowed_keys, as_valid_lens
from mha_core.features import WIDTHS
from mha_core.layouts import canonical_gradients
from mha_core.subject import OPERATION, Capabilities, NativeSubject
from mha_core.weights import Weights

Tensors = Mapping[str, tf.Tensor]
"""Stage or leaf by name."""


class TfSubject(NativeSubject):
    """A base of TensorFlow's test subjects: it runs a layer and its backward pass, with NumPy arrays in and out."""

    @abstractmethod
    def make(self, config: AttentionConfig, weights: Weights) -> Any:
        """Return an object with these weights: a layer, or tensors by name."""

    @abstractmethod
    def parameters(self, layer: Any) -> Tensors:
        """Return name -> parameter tensor whose gradient is computed. The names are the layer's own."""

    @abstractmethod
    def call(self, layer: Any, config: AttentionConfig, inputs: AttentionInputs, leaves: Tensors) -> Tensors:
        """Run the layer on `leaves`, the inputs with gradients. Return stage name -> array that the layer exposes."""

    @abstractmethod
    def canonical(self, layer: Any, config: AttentionConfig, gradients: Mapping[str, NDArray]) -> Mapping[str, NDArray]:
        """Return gradients of `parameters` under the canonical names."""

    def prepare(self, config: AttentionConfig, weights: Weights) -> Run:
        device, dtype = framework.device_of(self.device), TF_DTYPES[self.dtype]
        with tf.device(device):
            layer = self.make(config, weights)

        def run(inputs: AttentionInputs) -> Trace:
            with framework.full_precision(), tf.device(device):
                leaves = {name: to_tensor(array, dtype) for name, array in inputs.leaves().items()}
                wanted = leaves, self.parameters(layer)
                with tf.GradientTape() as tape:
                    tape.watch(wanted)
                    stages = self._quietly(layer, config, inputs, leaves)
                shown: Any = {name: to_numpy(stage) for name, stage in stages.items()}
                if inputs.cotangent is None:
                    return Trace(**shown)
                zero = tf.UnconnectedGradients.ZERO  # where no path leads to a leaf
                cotangent = to_tensor(inputs.cotangent, dtype)
                found = tape.gradient(stages["output"], wanted, cotangent, unconnected_gradients=zero)
            of_leaves, own = ({name: to_numpy(gradient) for name, gradient in part.items()} for part in found)
            return Trace(**shown, gradients={**of_leaves, **self.canonical(layer, config, own)})

        return run

    def supports(self, config: AttentionConfig, inputs: AttentionInputs) -> str | None:
        reason = super().supports(config, inputs)
        if reason is None and self.dtype == "float32" and has_open_nan(config, inputs):
            return (
                "a NaN that may be attended to: what TensorFlow's float32 softmax makes of it depends on the processor"
            )
        return reason

    def _quietly(self, layer: Any, config: AttentionConfig, inputs: AttentionInputs, leaves: Tensors) -> Tensors:
        """`call`, without Keras's warning that a softmax over one key is 1."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "You are using a softmax over axis")
            return self.call(layer, config, inputs, leaves)


def has_open_nan(config: AttentionConfig, inputs: AttentionInputs) -> bool:
    """Return whether NaN is in a query or key of an allowed (query, key) pair, so that the pair's score is NaN.

    In the row of this score, a float32 softmax gives 0 on processors where TensorFlow uses oneDNN, and NaN on others.
    """
    allowed = allowed_keys(inputs.mask, inputs.check(config), config.num_heads).any(axis=1)  # (B, Lq, Lk)
    if inputs.is_split or not allowed.size:
        return False
    queries, keys = (np.isnan(x).any(axis=-1) for x in (inputs.queries, inputs.keys))
    return bool((allowed & (queries[:, :, None] | keys[:, None, :])).any())


# Keras's layers -------------------------------------------------------------------------------------------


class _LayerSubject(TfSubject):
    """A layer, made from the weights in its layout."""

    layout: ClassVar[str]

    def make(self, config: AttentionConfig, weights: Weights) -> keras.Layer:
        # All kernels are replaced: Keras's layers need draw none, which takes as long as a call.
        options = {} if self.layout == "d2l-tf" else {"kernel_initializer": "zeros"}
        return to_native(config, weights, self.layout, dtype=self.dtype, **options)

    def parameters(self, layer: keras.Layer) -> Tensors:
        return {name: variable.value for name, variable in variables(layer).items()}

    def canonical(
        self, layer: keras.Layer, config: AttentionConfig, gradients: Mapping[str, NDArray]
    ) -> Mapping[str, NDArray]:
        return canonical_gradients(layout_of(layer), config, gradients)


class MultiHeadAttentionSubject(_LayerSubject):
    """A test subject: keras.layers.MultiHeadAttention, which runs keras.ops.dot_product_attention without dropout.

    A layer with a dropout rate runs its own softmax instead, even outside training.

    Attributes:
        scores: the argument `return_attention_scores`; if True, the layer runs a softmax of its own.
    """

    name: ClassVar[str] = "keras.layers.MultiHeadAttention"
    layout: ClassVar[str] = "keras"
    capabilities: ClassVar[Capabilities] = Capabilities("head_dim", "value_head_dim", *WIDTHS)
    scores: ClassVar[bool] = False

    def call(self, layer: keras.Layer, config: AttentionConfig, inputs: AttentionInputs, leaves: Tensors) -> Tensors:
        given = {"query": leaves["queries"], "value": leaves["values"], "key": leaves["keys"]}
        told = told_to_keras(config, inputs)
        if told["attention_mask"] is not None:
            told["attention_mask"] = tf.constant(per_item(told["attention_mask"]))
        found = layer(**given, **told, return_attention_scores=self.scores, training=False)
        return dict(zip(("output", "weights"), found if self.scores else (found,), strict=False))


class MultiHeadAttentionScoresSubject(MultiHeadAttentionSubject):
    """A test subject: keras.layers.MultiHeadAttention with `return_attention_scores=True`, for weights per head."""

    name = "keras.layers.MultiHeadAttention (return_attention_scores)"
    scores = True


class GroupQueryAttentionSubject(MultiHeadAttentionSubject):
    """A test subject: keras.layers.GroupQueryAttention on the fused path; its output is as wide as its queries."""

    name = "keras.layers.GroupQueryAttention"
    layout = "keras-gqa"
    capabilities = MultiHeadAttentionSubject.capabilities.but("grouped", without=("value_head_dim",))

    def supports(self, config: AttentionConfig, inputs: AttentionInputs) -> str | None:
        reason = super().supports(config, inputs)
        if reason is None and config.output_dim != config.query_dim:
            return "output_dim other than query_dim"
        return reason


class GroupQueryAttentionScoresSubject(GroupQueryAttentionSubject):
    """A test subject: keras.layers.GroupQueryAttention with `return_attention_scores=True`, for weights per head."""

    name = "keras.layers.GroupQueryAttention (return_attention_scores)"
    scores = True


def told_to_keras(config: AttentionConfig, inputs: AttentionInputs) -> dict[str, Any]:
    """Return the mask as Keras's arguments `use_causal_mask` and `attention_mask`.

    Keras aligns causal masks top-left, so the flag is True only for a causal mask with query_offset=0. Other masks
    are in `attention_mask`, bool (B, H, Lq, Lk), True = may attend; None if they allow all keys.
    """
    mask, flag = inputs.mask, inputs.mask.causal and not np.any(inputs.mask.query_offset)
    allowed = allowed_keys(replace(mask, causal=mask.causal and not flag), inputs.check(config), config.num_heads)
    return {"use_causal_mask": flag, "attention_mask": None if allowed.all() else allowed}


# keras.ops -------------------------------------------------------------------------------------------------


class DotProductAttentionSubject(TfSubject):
    """A test subject: keras.ops.dot_product_attention on (B, L, heads, width), with matrix products as projections."""

    name = "keras.ops.dot_product_attention"
    capabilities = OPERATION

    def supports(self, config: AttentionConfig, inputs: AttentionInputs) -> str | None:
        if config.num_kv_heads == 1 < config.num_heads:
            return "one key head for several query heads: on TensorFlow it is not repeated, and the operation fails"
        return super().supports(config, inputs)

    def make(self, config: AttentionConfig, weights: Weights) -> Tensors:
        return {name: to_tensor(array, TF_DTYPES[self.dtype]) for name, array in weights.items()}

    def parameters(self, layer: Tensors) -> Tensors:
        return layer

    def call(self, layer: Tensors, config: AttentionConfig, inputs: AttentionInputs, leaves: Tensors) -> Tensors:
        def project(name: str, x: tf.Tensor) -> tf.Tensor:
            if not config.projections:
                return x
            projected = tf.matmul(x, layer[f"{name}.weight"], transpose_b=True)
            return projected + layer[f"{name}.bias"] if f"{name}.bias" in layer else projected

        def split(name: str, leaf: str, heads: int, width: int) -> tf.Tensor:
            x = leaves[leaf]
            if inputs.is_split:
                return tf.transpose(x, (0, 2, 1, 3))
            return tf.reshape(project(name, x), (*x.shape[:2], heads, width))

        told = told_to_keras(config, inputs)
        heads = keras.ops.dot_product_attention(
            split("q_proj", "queries", config.num_heads, config.head_dim),
            split("k_proj", "keys", config.num_kv_heads, config.head_dim),
            split("v_proj", "values", config.num_kv_heads, config.value_head_dim),
            bias=leaves.get("bias"),
            mask=told["attention_mask"],
            # In its own dtype: the operation rounds a Python number to float32.
            scale=tf.constant(config.softmax_scale, TF_DTYPES[self.dtype]),
            is_causal=told["use_causal_mask"],
        )
        merged = tf.reshape(heads, (*heads.shape[:2], config.num_heads * config.value_head_dim))
        return {"heads": tf.transpose(heads, (0, 2, 1, 3)), "output": project("out_proj", merged)}

    def canonical(
        self, layer: Tensors, config: AttentionConfig, gradients: Mapping[str, NDArray]
    ) -> Mapping[str, NDArray]:
        return gradients


# d2l.ai's layer --------------------------------------------------------------------------------------------


class D2lMultiHeadAttentionSubject(_LayerSubject):
    """A test subject: d2l.ai's layer. Its only mask is valid_lens, (B,) or (B, Lq), which can express a causal mask."""

    name = "d2l.ai MultiHeadAttention in TensorFlow"
    layout = "d2l-tf"
    capabilities = Capabilities("head_dim", *WIDTHS, only_lengths=True)

    def supports(self, config: AttentionConfig, inputs: AttentionInputs) -> str | None:
        reason = super().supports(config, inputs)
        if reason is not None:
            return reason
        if config.output_dim != config.num_heads * config.head_dim:
            return "output_dim other than num_heads * head_dim"
        if 0 in (*inputs.queries.shape, *inputs.keys.shape):
            return "empty inputs: its reshape to -1 can't tell their sizes"
        return None

    def call(self, layer: keras.Layer, config: AttentionConfig, inputs: AttentionInputs, leaves: Tensors) -> Tensors:
        mask = inputs.mask
        lens = tf.constant(as_valid_lens(mask, inputs.check(config), config.num_heads)) if mask.has_sources else None
        output = layer(leaves["queries"], leaves["keys"], leaves["values"], lens)
        weights = layer.attention.attention_weights
        return {"weights": tf.reshape(weights, (-1, config.num_heads, *weights.shape[1:])), "output": output}
