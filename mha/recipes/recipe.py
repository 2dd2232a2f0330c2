"""Recipe: how one family of Hugging Face attention modules is read, called and written."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from numpy.typing import NDArray

from conformance.bounds.precision import Precision
from mha.recipes.masks import check_implementation, mask_of
from mha_core import AttentionConfig, AttentionInputs, SpecError
from mha_core.layouts import Layout
from mha_core.weights import Weights, check_weights

HARMLESS = (
    "cache_position",
    "num_items_in_batch",
    "output_attentions",
    "output_hidden_states",
    "position_ids",
    "return_dict",
    "use_cache",
)
"""Arguments that models hand down to their attention modules, which make no use of them."""


@dataclass(frozen=True, eq=False)
class ModuleCall:
    """The arguments of one call of an attention module, by name, and the dtype of its mask."""

    states: NDArray
    other_states: NDArray | None
    mask: NDArray | None
    mask_dtype: str
    is_causal: bool | None


class Recipe(ABC):
    """Reads, calls and writes the live modules of one family of transformers; arrays are returned as NumPy copies.

    Attributes:
        family: its name.
        summary: its particulars, in a line.
        classes: names of its attention modules, whose code differs in names alone.
        model_types: the `model_type` of the configs whose checkpoints hold such layers.
        other_states: the argument that holds the inputs of keys and values of a cross-attention.
        other_mask: the argument that holds the mask of a cross-attention.
        dropout_key: the key of a model's config for the dropout of the attention weights.
        softmax_in_float32: whether "eager" computes its softmax in float32 in every dtype.
    """

    family: ClassVar[str]
    summary: ClassVar[str]
    classes: ClassVar[tuple[str, ...]]
    model_types: ClassVar[tuple[str, ...]]
    other_states: ClassVar[str] = "encoder_hidden_states"
    other_mask: ClassVar[str] = "attention_mask"
    dropout_key: ClassVar[str]
    softmax_in_float32: ClassVar[bool] = False

    def matches(self, module: Any) -> bool:
        """Whether this recipe is for `module`: by its very class, because a subclass may compute anything."""
        kind = type(module)
        return kind.__name__ in self.classes and kind.__module__.startswith("transformers.models.")

    def core(self, module: Any) -> Any:
        """The part of `module` that is called with the hidden states and the mask."""
        return module

    @abstractmethod
    def out(self, module: Any) -> Any:
        """The output projection: the heads, merged, go into it and the output comes out."""

    @abstractmethod
    def layout(self, module: Any) -> Layout:
        """How its arrays are named and packed."""

    @abstractmethod
    def num_heads(self, module: Any) -> int:
        """H."""

    def config(self, module: Any) -> AttentionConfig:
        """Sizes, biases, scale and dropout of a live module."""
        return self._read(module)[0]

    def weights(self, module: Any) -> Weights:
        """Canonical weights of a live module, bit for bit (bfloat16: as float32, which holds them)."""
        return self._read(module)[1]

    def put(self, module: Any, weights: Mapping[str, NDArray]) -> None:
        """Write canonical weights into a live module, in its own dtype.

        Raises:
            SpecError: the weights do not fit the module's config; nothing is written.
        """
        from mha.recipes.torch_arrays import assign

        config = self.config(module)
        checked = check_weights(config, weights)
        assign(module, self.layout(module).write(replace(config, scale=None), checked))

    def inputs(self, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> AttentionInputs:
        """Translate the arguments of a call of `core(module)` into the terms of the definition.

        Raises:
            SpecError: the module is in training mode with dropout, the call has a cache or an argument
                that has no translation, or runs an attention implementation that is not understood.
        """
        from backends.torch.ops.framework import refuse_autocast

        core = self.core(module)
        refuse_autocast(core)
        check_implementation(str(core.config._attn_implementation))  # first: it decides what a mask is
        if core.training and self.dropout(module):
            raise SpecError(f"{type(core).__name__} is in training mode, where it drops weights; call model.eval()")
        call = self._call(core, args, kwargs)
        keys = call.states if call.other_states is None else call.other_states
        causal = getattr(core, "is_causal", False) if call.is_causal is None else call.is_causal
        mask = mask_of(
            call.mask,
            call.mask_dtype,
            implementation_of(core),
            is_causal=causal,
            query_len=call.states.shape[1],
        )
        inputs = AttentionInputs(call.states, keys, keys, mask)
        inputs.check(self.config(module))
        return inputs

    def precision(self, module: Any, dtype: str) -> Precision:
        """The Precision with which a live module computes, from which its bounds follow."""
        precision = Precision.of(dtype)
        if implementation_of(self.core(module)) == "sdpa":
            # PyTorch's fused kernel for CPUs: an online softmax over blocks of 512 keys, with a faster exp.
            return replace(precision, exp_ulps=20.0, key_block=512)
        return replace(precision, softmax="float32") if self.softmax_in_float32 else precision

    def scale(self, module: Any) -> float:
        """The factor of the scores."""
        return float(self.core(module).scaling)

    def dropout(self, module: Any) -> float:
        """The probability that a weight is dropped in training."""
        return float(getattr(self.core(module).config, self.dropout_key))

    # Of a checkpoint: names and arrays as the file has them, and the model's config as a dict.

    @property
    @abstractmethod
    def checkpoint_layouts(self) -> tuple[Layout, ...]:
        """The layouts that its checkpoints may have; where two fit, the first."""

    @abstractmethod
    def heads_in(self, model_config: Mapping[str, Any], prefix: str) -> int:
        """The heads of the layer at `prefix`."""

    def scale_in(self, model_config: Mapping[str, Any], prefix: str, head_dim: int) -> float:
        """The factor of the scores of the layer at `prefix`."""
        return head_dim**-0.5

    def _read(self, module: Any) -> tuple[AttentionConfig, Weights]:
        from mha.recipes.torch_arrays import arrays_of

        layout = self.layout(module)
        arrays = arrays_of(module, (*layout.required, *layout.optional))
        config, weights = layout.read(arrays, num_heads=self.num_heads(module))
        return completed(config, self.scale(module), self.dropout(module)), weights

    def _call(self, core: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ModuleCall:
        from mha.recipes.torch_arrays import dtype_name, to_array

        given = inspect.signature(type(core).forward).bind(core, *args, **kwargs).arguments
        given.update(given.pop("kwargs", {}))
        del given["self"]
        states = given.pop("hidden_states")
        other = given.pop(self.other_states, None)
        mask_names = {"attention_mask", self.other_mask}
        masks = {name: given.pop(name, None) for name in mask_names}
        mask = masks["attention_mask" if other is None else self.other_mask]
        is_causal = given.pop("is_causal", None)
        if given.pop("past_key_values", None) is not None:
            raise SpecError("past_key_values holds a cache; call the model with use_cache=False")
        unknown = [name for name, value in given.items() if value is not None and name not in HARMLESS]
        if unknown:
            raise SpecError(f"{type(core).__name__} was called with {unknown[0]!r}, which has no translation")
        return ModuleCall(
            states=to_array(states),
            other_states=None if other is None else to_array(other),
            mask=None if mask is None else to_array(mask),
            mask_dtype="" if mask is None else dtype_name(mask),
            is_causal=is_causal,
        )


def implementation_of(core: Any) -> str:
    """The attention implementation that a module runs; SpecError if it is not understood."""
    return check_implementation(str(core.config._attn_implementation))


def completed(config: AttentionConfig, scale: float, dropout: float) -> AttentionConfig:
    """The config with scale and dropout filled in; the scale only where it is not 1 / sqrt(head_dim).

    >>> completed(AttentionConfig(8, 2), 0.5, 0.1).scale is None, completed(AttentionConfig(8, 2), 1.0, 0.1).scale
    (True, 1.0)
    """
    usual = config.head_dim**-0.5
    return replace(config, scale=None if scale == usual else scale, dropout=dropout)
