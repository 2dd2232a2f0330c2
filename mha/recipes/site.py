"""Site: one attention layer of a live model, read, called and written as its recipe says."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import Precision
from mha.recipes.masks import check_implementation, mask_of
from mha.recipes.recipe import Recipe, completed, part
from mha_core import AttentionConfig, AttentionInputs, QueryKeyNorm, Rotary, RotaryInputs, SpecError
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
        key = self.recipe.dropout_key
        rate = getattr(self.core.config, key, None)
        return float(getattr(self.core, key, 0.0) if rate is None else rate)

    @property
    def turns(self) -> bool:
        """Whether it turns queries and keys with their positions."""
        return self.recipe.turn is not None and self.recipe.turn.acts(self.core)

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

    def inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, ran: bool = False) -> AttentionInputs:
        """Translate the arguments of a call of `core` into the terms of the definition.

        Args:
            args, kwargs: of the call.
            ran: whether it has run, so that a cache holds its own keys and values too.

        Raises:
            SpecError: the module is in training mode with dropout, the call has an argument or a cache that has no
                translation, or runs an attention implementation that is not understood.
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
        past = _past_of(core, given.pop("past_key_values", None), new_len=queries.shape[1] if ran else 0)
        tables = given.pop("position_embeddings", None)
        rotary = self._tables(tables) if self.turns else None
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
        inputs = AttentionInputs(states, keys, keys, translated, rotary=rotary, **past)
        inputs.check(self.config)
        return inputs

    def doubled(self, inputs: AttentionInputs) -> tuple[NDArray, NDArray]:
        """The tables of a call's queries as a model hands them to its modules: each number twice."""
        config, turn = self.config, self.recipe.turn
        assert turn is not None
        settings = Rotary(rotary_width(self.core, config.head_dim))
        made = tables_of_call(settings, None, inputs.mask.query_offset, inputs.check(config)).queries
        if turn.doubled == "halves":
            return np.concatenate([made.cos] * 2, axis=-1), np.concatenate([made.sin] * 2, axis=-1)
        return np.repeat(made.cos, 2, axis=-1), np.repeat(made.sin, 2, axis=-1)

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

        recipe, core = self.recipe, self.core
        for name, plain in recipe.refused.items():
            if getattr(core.config, name, plain) != plain:
                raise SpecError(f"{name}={getattr(core.config, name)!r} of the model's config has no translation")
        layout = recipe.layout(self.module)
        arrays = arrays_of(self.module, (*layout.required, *layout.optional))
        config, weights = layout.read(arrays, num_heads=int(part(core, recipe.heads)))
        config = completed(config, float(core.scaling), self.dropout)
        turn = recipe.turn if self.turns else None
        rotary = None if turn is None else Rotary(rotary_width(core, config.head_dim), turn.interleaved)
        norm, of_norm = _norms_of(core, recipe)
        softcap = getattr(core, recipe.softcap) if recipe.softcap else None
        config = replace(config, rotary=rotary, query_key_norm=norm, softcap=softcap)
        return config, check_weights(config, {**weights, **of_norm})

    def _tables(self, tables: Any) -> RotaryInputs:
        """The tables of the positions of a call; SpecError for others than a pair of doubled tables."""
        from mha.recipes.torch_arrays import to_array

        turn, cut = self.recipe.turn, []
        assert turn is not None
        if not (isinstance(tables, tuple) and len(tables) == 2):
            raise SpecError(f"position_embeddings must be a tuple (cos, sin). Got {type(tables).__name__}.")
        for table in map(to_array, tables):
            half = table.shape[-1] // 2
            once, again = table[..., :half], table[..., half:]
            if turn.doubled == "pairs":
                once, again = table[..., ::2], table[..., 1::2]
            if not np.array_equal(once, again):
                raise SpecError("position_embeddings turn the two channels of a pair by different angles")
            cut.append(once)
        return RotaryInputs(None, None, *cut)


def rotary_width(core: Any, head_dim: int) -> int:
    """How many channels of a head a module of transformers turns, by its config."""
    model, types = core.config, getattr(core.config, "layer_types", None)
    given = getattr(model, "rope_parameters", None) or {}
    own = given.get(types[core.layer_idx], given) if types else given  # some models have parameters for each kind
    share = own.get("partial_rotary_factor", getattr(model, "partial_rotary_factor", None))
    return int(head_dim * (1.0 if share is None else float(share)))


def _norms_of(core: Any, recipe: Recipe) -> tuple[QueryKeyNorm | None, dict[str, NDArray]]:
    """The query-key norm of a module and its weights by their canonical names; None and nothing without one."""
    from backends.torch.ops.framework import to_numpy

    norms = recipe.norms
    if norms is None or (norms.on and not getattr(core, norms.on, getattr(core.config, norms.on, False))):
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


def _past_of(core: Any, cache: Any, *, new_len: int) -> dict[str, NDArray]:
    """The past keys and values that a cache of transformers holds for a module; none in an empty one.

    Args:
        core: the module, which knows its place in the cache.
        cache: the cache, or None.
        new_len: how many of the last keys are of this call itself.

    Raises:
        SpecError: a cache that does not hold all keys, or another kind.
    """
    from mha.recipes.torch_arrays import to_array

    layers = getattr(cache, "layers", None)
    if cache is None or (layers is not None and len(layers) <= core.layer_idx):
        return {}
    if layers is None or type(layers[core.layer_idx]).__name__ not in CACHES:
        raise SpecError(f"past_key_values is a {type(cache).__name__}, which has no translation; use_cache=False")
    layer = layers[core.layer_idx]
    if not getattr(layer, "is_initialized", False) or layer.keys.shape[-2] <= new_len:
        return {}
    if new_len and layer.is_sliding:
        raise SpecError("past_key_values has forgotten keys of this call: its layer keeps a window alone")
    held = layer.keys.shape[-2] - new_len
    return {"past_keys": to_array(layer.keys[..., :held, :]), "past_values": to_array(layer.values[..., :held, :])}


class _StillSite(Site):
    """A Site whose weights stay as they are while it lasts."""

    def still(self) -> Site:
        return self

    def _read(self) -> tuple[AttentionConfig, Weights]:
        return self._once

    @cached_property
    def _once(self) -> tuple[AttentionConfig, Weights]:
        return super()._read()
