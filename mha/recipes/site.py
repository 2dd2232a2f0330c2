"""Site: one attention layer of a live model, read, called and written as its recipe says."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from conformance.bounds.precision import Precision
from mha.recipes.masks import check_implementation, mask_of
from mha.recipes.recipe import Recipe, completed, part
from mha_core import AttentionConfig, AttentionInputs, SpecError
from mha_core.weights import Weights, check_weights

HARMLESS = (
    *("cache_position", "num_items_in_batch", "output_attentions", "output_hidden_states", "position_ids"),
    *("return_dict", "use_cache"),
)
"""Arguments that models hand down to their attention modules, which make no use of them."""


@dataclass(frozen=True, eq=False)
class Site:
    """One attention layer of a live model; arrays are handed out as NumPy copies.

    Attributes:
        name: the module's name within the model, such as "encoder.layer.0.attention".
        module: the module.
        recipe: the recipe that reads it.
    """

    name: str
    module: Any
    recipe: Recipe

    @property
    def core(self) -> Any:
        """The module that is called with the hidden states and the mask."""
        return part(self.module, self.recipe.core)

    @property
    def out(self) -> Any:
        """The output projection."""
        return part(self.module, self.recipe.out)

    @property
    def out_is_separate(self) -> bool:
        """Whether the output projection is applied by another module than `core`."""
        return all(part is not self.out for part in self.core.modules())

    @property
    def config(self) -> AttentionConfig:
        """Its sizes, biases, scale and dropout."""
        return self._read()[0]

    @property
    def weights(self) -> Weights:
        """Its canonical weights, bit for bit (bfloat16: as float32, which holds them)."""
        return self._read()[1]

    @property
    def dropout(self) -> float:
        """The probability that a weight is dropped in training."""
        return float(getattr(self.core.config, self.recipe.dropout_key))

    @property
    def implementation(self) -> str:
        """The attention implementation that it runs; SpecError if it is not understood."""
        return check_implementation(str(self.core.config._attn_implementation))

    def put(self, weights: Mapping[str, NDArray]) -> None:
        """Write canonical weights into it, in its own dtype.

        Raises:
            SpecError: the weights do not fit its config; nothing is written.
        """
        from mha.recipes.torch_arrays import assign

        config = self.config
        checked = check_weights(config, weights)
        assign(self.module, self.recipe.layout(self.module).write(replace(config, scale=None), checked))

    def inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> AttentionInputs:
        """Translate the arguments of a call of `core` into the terms of the definition.

        Raises:
            SpecError: the module is in training mode with dropout, the call has a cache or an argument
                that has no translation, or runs an attention implementation that is not understood.
        """
        from backends.torch.ops.framework import refuse_autocast
        from mha.recipes.torch_arrays import dtype_name, to_array

        core, recipe = self.core, self.recipe
        refuse_autocast(core)
        implementation = self.implementation  # first: it decides what a mask is
        if core.training and self.dropout:
            raise SpecError(f"{type(core).__name__} is in training mode, where it drops weights; call model.eval()")
        given = inspect.signature(type(core).forward).bind(core, *args, **kwargs).arguments
        given.update(given.pop("kwargs", {}))
        del given["self"]
        queries, others = given.pop("hidden_states"), given.pop(recipe.other_states, None)
        masks = {name: given.pop(name, None) for name in {"attention_mask", recipe.other_mask}}
        mask = masks["attention_mask" if others is None else recipe.other_mask]
        is_causal = given.pop("is_causal", None)
        if given.pop("past_key_values", None) is not None:
            raise SpecError("past_key_values holds a cache; call the model with use_cache=False")
        unknown = [name for name, value in given.items() if value is not None and name not in HARMLESS]
        if unknown:
            raise SpecError(f"{type(core).__name__} was called with {unknown[0]!r}, which has no translation")
        states = to_array(queries)
        keys = states if others is None else to_array(others)
        translated = mask_of(
            None if mask is None else to_array(mask),
            "" if mask is None else dtype_name(mask),
            implementation,
            is_causal=getattr(core, "is_causal", False) if is_causal is None else is_causal,
            query_len=states.shape[1],
        )
        inputs = AttentionInputs(states, keys, keys, translated)
        inputs.check(self.config)
        return inputs

    def precision(self, dtype: str) -> Precision:
        """The Precision with which it computes, from which its bounds follow."""
        precision = Precision.of(dtype)
        if self.implementation == "sdpa":
            # PyTorch's fused kernel for CPUs: an online softmax over blocks of 512 keys, with a faster exp.
            return replace(precision, exp_ulps=20.0, key_block=512)
        return replace(precision, softmax="float32") if self.recipe.softmax_in_float32 else precision

    def still(self) -> Site:
        """The same, with config and weights read once, as they are now."""
        return _StillSite(self.name, self.module, self.recipe)

    def _read(self) -> tuple[AttentionConfig, Weights]:
        from mha.recipes.torch_arrays import arrays_of

        layout = self.recipe.layout(self.module)
        arrays = arrays_of(self.module, (*layout.required, *layout.optional))
        config, weights = layout.read(arrays, num_heads=int(getattr(self.core, self.recipe.heads)))
        return completed(config, float(self.core.scaling), self.dropout), weights


class _StillSite(Site):
    """A Site whose weights stay as they are while it lasts."""

    def still(self) -> Site:
        return self

    def _read(self) -> tuple[AttentionConfig, Weights]:
        return self._once

    @cached_property
    def _once(self) -> tuple[AttentionConfig, Weights]:
        return super()._read()
