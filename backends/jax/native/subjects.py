"""Flax's attention layers, JAX's and Flax's attention operations, and d2l.ai's layer, as subjects.

    mha check --subject backends.jax.native.subjects:NnxMultiHeadAttentionSubject

The mask arguments of each are made from `mha_core.call.masks.allowed_keys`.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from numpy.typing import NDArray

from backends.jax.native.convert import D2L, LINEN, NNX, flat_arrays, to_d2l, to_linen, to_nnx
from backends.jax.native.run import Forward, JaxSubject, Stages, bool_mask
from backends.jax.native.trees import pure_dict
from backends.jax.ops.framework import JAX_DTYPES, to_array, to_numpy
from mha_core import AttentionConfig, AttentionInputs
from mha_core.call.masks import as_valid_lens
from mha_core.features import WIDTHS
from mha_core.layouts import canonical_gradients
from mha_core.subject import OPERATION, Capabilities
from mha_core.weights import Weights

# Layers -----------------------------------------------------------------------------------------------


class LinenMultiHeadDotProductAttentionSubject(JaxSubject):
    """A test subject: flax.linen.MultiHeadDotProductAttention, run by `apply`."""

    name = "flax.linen.MultiHeadDotProductAttention"
    capabilities = Capabilities("head_dim", *WIDTHS)

    def make(self, config: AttentionConfig, weights: Weights) -> tuple[Any, Forward]:
        layer, variables = to_linen(config, weights, dtype=self.dtype)

        def forward(params: Any, floats: Stages, mask: Array | None) -> Stages:
            return self.call(layer, {"params": params}, *_three(floats), mask=mask, deterministic=True)

        return variables["params"], forward

    def call(self, layer: nn.Module, variables: Any, *inputs: Array, **options: Any) -> Stages:
        output: Any = layer.apply(variables, *inputs, **options)
        return {"output": output}

    def canonical(self, config: AttentionConfig, gradients: Any) -> Mapping[str, NDArray]:
        return canonical_gradients(LINEN, config, flat_arrays(gradients))


class LinenMultiHeadDotProductAttentionSowedSubject(LinenMultiHeadDotProductAttentionSubject):
    """A test subject: flax.linen.MultiHeadDotProductAttention with sow_weights=True, which exposes the weights."""

    name = "flax.linen.MultiHeadDotProductAttention (sow_weights)"

    def call(self, layer: nn.Module, variables: Any, *inputs: Array, **options: Any) -> Stages:
        output, state = layer.apply(variables, *inputs, **options, sow_weights=True, mutable=["intermediates"])
        return {"weights": state["intermediates"]["attention_weights"][0], "output": output}


class NnxMultiHeadAttentionSubject(JaxSubject):
    """A test subject: flax.nnx.MultiHeadAttention without dropout. It calls jax.nn.dot_product_attention."""

    name = "flax.nnx.MultiHeadAttention"
    capabilities = Capabilities("head_dim", *WIDTHS)
    sow_weights: ClassVar[bool] = False

    def supports(self, config: AttentionConfig, inputs: AttentionInputs) -> str | None:
        why_not = super().supports(config, inputs)
        return why_not or ("keys and values of different widths" if config.key_dim != config.value_dim else None)

    def make(self, config: AttentionConfig, weights: Weights) -> tuple[Any, Forward]:
        layer = to_nnx(config, weights, dtype=self.dtype)
        graph, params, *rest = nnx.split(layer, nnx.Param, ...)

        def forward(params: Any, floats: Stages, mask: Array | None) -> Stages:
            layer = nnx.merge(graph, params, *rest)
            options: dict[str, Any] = {"mask": mask, "deterministic": True}
            if not self.sow_weights:
                return {"output": layer(*_three(floats), **options)}
            output, sowed = _capture(layer, *_three(floats), **options, sow_weights=True)
            return {"weights": pure_dict(sowed)["attention_weights"][0], "output": output}

        return params, forward

    def canonical(self, config: AttentionConfig, gradients: Any) -> Mapping[str, NDArray]:
        return canonical_gradients(NNX, config, flat_arrays(pure_dict(gradients)))


def _capture(layer: Any, *inputs: Array, **options: Any) -> tuple[Array, Any]:
    """The layer's output, and the intermediate arrays that it sowed."""
    if hasattr(nnx, "capture"):  # from flax 0.12.6 on, which deprecates the other way
        return nnx.capture(layer, nnx.Intermediate)(*inputs, **options)
    return layer(*inputs, **options), nnx.pop(layer, nnx.Intermediate)


class NnxMultiHeadAttentionSowedSubject(NnxMultiHeadAttentionSubject):
    """A test subject: flax.nnx.MultiHeadAttention with sow_weights=True. It exposes weights, on another code path."""

    name = "flax.nnx.MultiHeadAttention (sow_weights)"
    sow_weights = True


class NnxMultiHeadAttentionDropoutSubject(NnxMultiHeadAttentionSubject):
    """A test subject: flax.nnx.MultiHeadAttention with inactive dropout (deterministic=True), on another code path."""

    name = "flax.nnx.MultiHeadAttention (dropout_rate, deterministic)"

    def make(self, config: AttentionConfig, weights: Weights) -> tuple[Any, Forward]:
        return super().make(replace(config, dropout=config.dropout or 0.1), weights)


class D2lMultiHeadAttentionSubject(JaxSubject):
    """A test subject: d2l.ai's layer (`backends.jax.native.d2l`). It takes every mask as valid_lens."""

    name = "d2l.ai MultiHeadAttention in Flax"
    capabilities = Capabilities("head_dim", *WIDTHS, only_lengths=True)

    def supports(self, config: AttentionConfig, inputs: AttentionInputs) -> str | None:
        why_not = super().supports(config, inputs)
        if why_not is None and config.output_dim != config.num_heads * config.head_dim:
            return "an output of another width than num_heads * head_dim"
        return why_not

    def tell(self, config: AttentionConfig, inputs: AttentionInputs) -> dict[str, Any]:
        lens = as_valid_lens(inputs.mask, inputs.check(config), config.num_heads)
        return {"valid_lens": lens if inputs.mask.has_sources else None}

    def make(self, config: AttentionConfig, weights: Weights) -> tuple[Any, Forward]:
        layer, variables = to_d2l(config, weights, dtype=self.dtype)

        def forward(params: Any, floats: Stages, valid_lens: Array | None) -> Stages:
            answer: Any = layer.apply({"params": params}, *_three(floats), valid_lens)
            output, weights = answer
            return {"weights": weights.reshape(len(output), config.num_heads, *weights.shape[1:]), "output": output}

        return variables["params"], forward

    def canonical(self, config: AttentionConfig, gradients: Any) -> Mapping[str, NDArray]:
        return canonical_gradients(D2L, config, flat_arrays(gradients))


# Operations -------------------------------------------------------------------------------------------


class _OperationSubject(JaxSubject):
    """An operation on (B, L, heads, width) between plain projections with the canonical weights themselves.

    Without projections it is given the heads; the keys and values of the past stand before the new ones.
    """

    def make(self, config: AttentionConfig, weights: Weights) -> tuple[Any, Forward]:
        def project(params: Any, name: str, x: Array) -> Array:
            projected = jnp.matmul(x, params[f"{name}.weight"].T, precision="highest")
            return projected + params[f"{name}.bias"] if f"{name}.bias" in params else projected

        def split(params: Any, name: str, x: Array, shape: tuple[int, int], past: Array | None = None) -> Array:
            if x.ndim == 4:  # (B, heads, L, width), of the shape (heads, width)
                new = x.swapaxes(1, 2)
            else:
                new = (project(params, name, x) if params else x).reshape(*x.shape[:2], *shape)
            return new if past is None else jnp.concatenate([past.swapaxes(1, 2), new], axis=1)

        def forward(params: Any, floats: Stages, **told: Any) -> Stages:
            queries, keys, values = _three(floats)
            kv_heads, past = config.num_kv_heads, (floats.get("past_keys"), floats.get("past_values"))
            heads = self.call(
                split(params, "q_proj", queries, (config.num_heads, config.head_dim)),
                split(params, "k_proj", keys, (kv_heads, config.head_dim), past[0]),
                split(params, "v_proj", values, (kv_heads, config.value_head_dim), past[1]),
                _finite_bias(floats.get("bias")),
                scale=config.softmax_scale,
                **told,
            )
            merged = heads.reshape(*heads.shape[:2], config.num_heads * config.value_head_dim)
            output = project(params, "out_proj", merged) if params else merged
            return {"heads": heads.swapaxes(1, 2), "output": output}

        return {name: to_array(name, array.astype(JAX_DTYPES[self.dtype])) for name, array in weights.items()}, forward

    @abstractmethod
    def call(self, queries: Array, keys: Array, values: Array, bias: Array | None, **told: Any) -> Array:
        """(B, Lq, H, dv)."""

    def canonical(self, config: AttentionConfig, gradients: Any) -> Mapping[str, NDArray]:
        return {name: to_numpy(gradient) for name, gradient in gradients.items()}


class LinenDotProductAttentionSubject(_OperationSubject):
    """flax.linen.dot_product_attention."""

    name = "flax.linen.dot_product_attention"
    capabilities = Capabilities("bias", "head_dim", "value_head_dim", *WIDTHS, "past", "bare")

    def call(self, queries: Array, keys: Array, values: Array, bias: Array | None, **told: Any) -> Array:
        return nn.dot_product_attention(queries, keys, values, bias, told["mask"], deterministic=True)


class DotProductAttentionSubject(_OperationSubject):
    """A test subject: jax.nn.dot_product_attention with the whole mask as `mask`."""

    name = "jax.nn.dot_product_attention"
    capabilities = OPERATION.but("past", without=("value_head_dim",))

    def call(self, queries: Array, keys: Array, values: Array, bias: Array | None, **told: Any) -> Array:
        return jax.nn.dot_product_attention(queries, keys, values, bias, **told)


class _OwnWordsSubject(DotProductAttentionSubject):
    """jax.nn.dot_product_attention with a part of the mask as another argument, and the rest as `mask`."""

    def supports(self, config: AttentionConfig, inputs: AttentionInputs) -> str | None:
        return super().supports(config, inputs) or self.why_not(inputs)

    @abstractmethod
    def why_not(self, inputs: AttentionInputs) -> str | None:
        """None, or why the argument can't express its part of the mask."""


class DotProductAttentionCausalSubject(_OwnWordsSubject):
    """jax.nn.dot_product_attention(is_causal=True)."""

    name = "jax.nn.dot_product_attention (is_causal)"

    def why_not(self, inputs: AttentionInputs) -> str | None:
        if not inputs.mask.causal:
            return "a mask that is not causal"
        return "a query_offset other than 0" if np.any(inputs.mask.query_offset) else None

    def tell(self, config: AttentionConfig, inputs: AttentionInputs) -> dict[str, Any]:
        return {"is_causal": True, "mask": bool_mask(config, inputs, replace(inputs.mask, causal=False))}


class DotProductAttentionWindowSubject(_OwnWordsSubject):
    """A test subject: jax.nn.dot_product_attention(local_window_size=...). The window also expresses causal masks."""

    name = "jax.nn.dot_product_attention (local_window_size)"

    def why_not(self, inputs: AttentionInputs) -> str | None:
        if inputs.mask.window is None:
            return "a mask without a window"
        return "a query_offset for each item" if np.ndim(inputs.mask.query_offset) else None

    def tell(self, config: AttentionConfig, inputs: AttentionInputs) -> dict[str, Any]:
        mask, sizes, offset = inputs.mask, inputs.check(config), int(inputs.mask.query_offset)
        far = sizes.query_len + sizes.key_len + abs(offset)
        left, right = mask.window or (None, None)
        ahead = far if right is None else right
        # As in the definition, JAX does not count the query itself; but its queries start at 0, not at query_offset.
        window = (far if left is None else left - offset, (min(ahead, 0) if mask.causal else ahead) + offset)
        rest = replace(mask, window=None, causal=False)
        return {"local_window_size": window, "mask": bool_mask(config, inputs, rest)}


class DotProductAttentionLengthsSubject(_OwnWordsSubject):
    """A test subject: jax.nn.dot_product_attention(key_value_seq_lengths=...)."""

    name = "jax.nn.dot_product_attention (key_value_seq_lengths)"

    def why_not(self, inputs: AttentionInputs) -> str | None:
        lens = inputs.mask.valid_lens
        return None if np.ndim(lens) == 1 else "a mask without one length for each item"

    def tell(self, config: AttentionConfig, inputs: AttentionInputs) -> dict[str, Any]:
        mask = bool_mask(config, inputs, replace(inputs.mask, valid_lens=None))
        return {"key_value_seq_lengths": np.asarray(inputs.mask.valid_lens, np.int32), "mask": mask}


def _three(floats: Stages) -> tuple[Array, Array, Array]:
    return floats["queries"], floats["keys"], floats["values"]


def _finite_bias(bias: Array | None) -> Array | None:
    """The additive bias, of rank 4, with 0 in place of -inf: the bool mask excludes those keys already."""
    if bias is None:
        return None
    return jnp.where(jnp.isneginf(bias), 0.0, bias).reshape((1,) * (4 - bias.ndim) + bias.shape)
