"""Site: one attention layer of a live model, read, called and written as its recipe says."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import Precision
from mha.recipes.masks import check_implementation, mask_of
from mha.recipes.recipe import Recipe, completed, part, setting
from mha_core import AttentionConfig, AttentionInputs, QueryKeyNorm, SpecError
from mha_core.call.rotary import tables_of_call
from mha_core.parts.query_key_norm import NORMS
from mha_core.weights import Weights, check_weights

HARMLESS = (
    *("cache_position", "num_items_in_batch", "output_attentions", "output_hidden_states", "output_router_logits"),
    *("position_ids", "return_dict", "use_cache"),
)
"""Arguments that models hand down to their attention modules, which make no use of them."""


CACHES = ("DynamicLayer", "DynamicSlidingWindowLayer")
"""The classes of a cache's layers that hold the keys and values of the past in their order."""


@dataclass(frozen=True, eq=False)
class Site:
    """One attention layer of a live transformers model; its methods return NumPy copies of arrays.

    Attributes:
        name: the module's name within the model, such as "encoder.layer.0.attention".
        module: the module.
        recipe: the description of its class: names of parameters, masks, positions.
    """

    name: str
    module: Any
    recipe: Recipe

    @property
    def core(self) -> Any:
        """Return the module that is called with the hidden states and the mask."""
        return part(self.module, self.recipe.core)

    @property
    def out(self) -> Any:
        """Return the output projection."""
        return part(self.module, self.recipe.out)

    @property
    def out_is_separate(self) -> bool:
        """Return whether the output projection is in another module than `core`, as in BERT."""
        return all(part is not self.out for part in self.core.modules())

    @property
    def config(self) -> AttentionConfig:
        """Return the layer's sizes, biases, scale and dropout."""
        return self._read()[0]

    @property
    def weights(self) -> Weights:
        """Return the layer's weights by canonical name, bit for bit. bfloat16 becomes float32, which is exact."""
        return self._read()[1]

    @property
    def dropout(self) -> float:
        """Return the probability that a weight is dropped in training."""
        key, core = self.recipe.dropout_key, self.core
        rate: Any = getattr(getattr(core, "config", None), key, None)
        rate = getattr(core, key, getattr(core, "dropout", 0.0)) if rate is None else rate
        number: Any = getattr(rate, "p", rate)  # of a number, or of a module of PyTorch
        return float(number)

    @property
    def implementation(self) -> str:
        """Return the name of the layer's attention implementation, such as "sdpa". SpecError if it is unknown."""
        return self.recipe.only or check_implementation(str(self.core.config._attn_implementation))

    def put(self, weights: Mapping[str, NDArray]) -> None:
        """Write weights, given by canonical name, into the layer in its own dtype.

        Raises:
            SpecError: the shapes do not fit the layer's config. Then nothing is written.
        """
        from mha.recipes.torch_arrays import assign

        config = self.config
        checked = check_weights(config, weights)
        assign(self.module, self.recipe.layout(self.module).write(replace(config, scale=None), checked))

    def inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, ran: bool = False) -> AttentionInputs:
        """Return the arguments of a call of `core` as AttentionInputs.

        Args:
            args, kwargs: the arguments of the call.
            ran: whether the call is over, so that the cache already holds the call's own keys and values.

        Raises:
            SpecError: the module is in training mode with dropout, its attention implementation is unknown, or the call
                has an argument or a cache that AttentionInputs can't express.
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
        cache, new_len = given.pop(recipe.cache, None), queries.shape[1] if ran else 0
        past = self._past(cache, new_len=new_len)
        rotary = None if recipe.turn is None else recipe.turn.take(core, given, queries.shape[1])
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
        if recipe.scales_mask and translated.bias is not None:
            translated = replace(
                translated, bias=translated.bias * translated.bias.dtype.type(self.config.softmax_scale)
            )
        if recipe.sees is not None:
            past_len = past["past_keys"].shape[2] if past else 0
            seen = recipe.sees(core, states.shape[1], past_len + keys.shape[1])
            translated = replace(translated, allowed=seen if translated.allowed is None else translated.allowed & seen)
        inputs = AttentionInputs(states, keys, keys, translated, rotary=rotary, **past)
        inputs.check(self.config)
        return inputs

    def tables(self, inputs: AttentionInputs) -> Mapping[str, Any]:
        """Return the keyword arguments that give the module the rotary tables (or positions) of a call's queries."""
        turn, config = self.recipe.turn, self.config
        if turn is None:
            return {}
        settings = turn.settings(self.core, config.head_dim)
        made = tables_of_call(settings, None, inputs.mask.query_offset, inputs.check(config)).queries
        return turn.give(self.core, made.cos, made.sin)

    def precision(self, dtype: str) -> Precision:
        """Return the Precision of the layer's arithmetic in `dtype`, from which error bounds are computed."""
        precision = Precision.of(dtype)
        if self.implementation == "sdpa":
            # PyTorch's fused kernel for CPUs: an online softmax over blocks of 512 keys, with a faster exp.
            return replace(precision, exp_ulps=20.0, key_block=512)
        return replace(precision, softmax="float32") if self.recipe.softmax_in_float32 else precision

    def still(self) -> Site:
        """Return a copy of this Site that reads config and weights once, so that later changes don't show."""
        return _StillSite(self.name, self.module, self.recipe)

    def _read(self) -> tuple[AttentionConfig, Weights]:
        from mha.recipes.torch_arrays import arrays_of

        recipe, core = self.recipe, self.core
        for name, plain in recipe.refused.items():
            # A limit of infinity is none. DBRX of transformers does not run with None, which it hands to torch.clamp.
            if setting(core, name, plain) not in (plain, math.inf):
                raise SpecError(f"{name}={setting(core, name)!r} of the model's config has no translation")
        layout = recipe.layout(self.module)
        arrays = arrays_of(self.module, (*layout.required, *layout.optional))
        config, weights = layout.read(arrays, num_heads=int(part(core, recipe.heads)))
        config = completed(config, recipe.scale_of(core), self.dropout)
        rotary = None
        if recipe.turn is not None and recipe.turn.acts(core):
            rotary = recipe.turn.settings(core, config.head_dim)
        norm, of_norm = _norms_of(core, recipe)
        softcap = getattr(core, recipe.softcap) if recipe.softcap else None
        config = replace(config, rotary=rotary, query_key_norm=norm, softcap=softcap)
        return config, check_weights(config, {**weights, **of_norm})

    def _past(self, cache: Any, *, new_len: int) -> dict[str, NDArray]:
        """The past keys and values that a cache of transformers holds for the module; none in an empty one.

        Args:
            cache: the cache, or None.
            new_len: how many of the last keys are of this call itself.

        Raises:
            SpecError: a cache that does not hold all keys, or another kind.
        """
        from mha.recipes.torch_arrays import to_array

        core, layers = self.core, getattr(cache, "layers", None)
        place = getattr(core, self.recipe.place, None)
        if cache is None or (layers is not None and place is not None and len(layers) <= place):
            return {}
        if layers is None or place is None or type(layers[place]).__name__ not in CACHES:
            raise SpecError(f"past_key_values is a {type(cache).__name__}, which has no translation; use_cache=False")
        layer = layers[place]
        if not getattr(layer, "is_initialized", False) or layer.keys.shape[-2] <= new_len:
            return {}
        if new_len and layer.is_sliding:
            raise SpecError("past_key_values has forgotten keys of this call: its layer keeps a window alone")
        held, found = layer.keys.shape[-2] - new_len, {}
        for name, tensor in (("past_keys", layer.keys), ("past_values", layer.values)):
            found[name] = array = to_array(tensor[..., :held, :])
            if self.recipe.repeated(core):
                groups = self.config.num_kv_heads
                own = array.reshape(len(array), groups, -1, *array.shape[2:])
                if not np.array_equal(own, np.broadcast_to(own[:, :, :1], own.shape)):
                    raise SpecError("past_key_values has different numbers for the query heads of one key head")
                found[name] = own[:, :, 0]
        return found


def _norms_of(core: Any, recipe: Recipe) -> tuple[QueryKeyNorm | None, dict[str, NDArray]]:
    """The query-key norm of a module and its weights by their canonical names; None and nothing without one."""
    from backends.torch.ops.framework import to_numpy

    norms = recipe.norms
    if norms is None or (norms.on and not setting(core, norms.on, False)):
        return None, {}
    found: dict[str, NDArray] = {}
    for name, where in zip(NORMS, (norms.queries, norms.keys), strict=True):
        module = part(core, where)
        for kind in ("weight", "bias"):
            parameters = [array for key, array in module.named_parameters() if key.rpartition(".")[2] == kind]
            if parameters:  # one, or one for each head
                found[f"{name}.{kind}"] = np.concatenate([to_numpy(array).reshape(-1) for array in parameters])
    eps = next(getattr(inner, norms.eps) for inner in part(core, norms.queries).modules() if hasattr(inner, norms.eps))
    return replace(norms.settings, eps=float(eps), bias="q_norm.bias" in found), found


class _StillSite(Site):
    """A Site whose weights stay as they are while it lasts."""

    def still(self) -> Site:
        return self

    def _read(self) -> tuple[AttentionConfig, Weights]:
        return self._once

    @cached_property
    def _once(self) -> tuple[AttentionConfig, Weights]:
        return super()._read()
