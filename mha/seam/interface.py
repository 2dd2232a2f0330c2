"""The seam of transformers: `AttentionInterface.get_interface`, by which a model finds its attention function.

A model calls what it returns with `(module, query, key, value, attention_mask, scaling=, dropout=, ...)`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from mha_core import SpecError
from mha_core.seam import Handover, Seen, number, refuse_unknown

HARMLESS = frozenset(
    (
        *("cache_position", "num_items_in_batch", "output_attentions", "output_hidden_states", "output_router_logits"),
        *("position_ids", "position_embeddings", "return_dict", "use_cache", "sliding_window", "hidden_states"),
        *("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "cu_seqlens", "logits_to_keep"),
        *("max_seqlen", "interpolate_pos_encoding", "spatial_shapes", "grid_thw"),
    )
)
"""Arguments that models hand down, which eager and sdpa functions do not read: a window is in the mask already, and
packed sequences are cut before the call. Each call is compared with the definition all the same."""

SINKS = ("s_aux", "sinks")
"""The names of scores that stand in the denominator alone."""

_ARGUMENTS = inspect.signature(
    lambda module, query, key, value, attention_mask=None, dropout=0.0, scaling=None, **kwargs: None
)


@contextmanager
def replaced_interface(wrap: Callable[[Callable[..., Any], bool], Callable[..., Any]]) -> Iterator[None]:
    """A context in which models get `wrap(function, eager)` in place of each attention function that they look up.

    `eager` says whether it is the model's own, which adds its mask to the scores; others read masks as SDPA does.
    Nothing is done where transformers is not imported.
    """
    transformers = sys.modules.get("transformers")
    if transformers is None:
        yield
        return
    from transformers.modeling_utils import AttentionInterface

    own = AttentionInterface.get_interface

    def get_interface(self: Any, implementation: Any, default: Any) -> Any:
        function = own(self, implementation, default)
        return wrap(function, function is default)

    AttentionInterface.get_interface = get_interface
    try:
        yield
    finally:
        AttentionInterface.get_interface = own


@contextmanager
def watch_interface(target: Any, seen: Seen) -> Iterator[None]:
    """Tell `seen` of each call of an attention function that a model of transformers looks up."""
    from backends.torch.native.seam import watched_call

    names = {id(module): name for name, module in target.named_modules()}

    def wrap(function: Callable[..., Any], eager: bool) -> Callable[..., Any]:
        def recorded(*args: Any, **kwargs: Any) -> Any:
            given = arguments_of(args, kwargs)
            module = given["module"]
            if id(module) not in names:
                return function(*args, **kwargs)
            return watched_call(
                lambda: function(*args, **kwargs),
                lambda: _read(given, eager),
                seen,
                names[id(module)],
                module,
            )

        return recorded

    with replaced_interface(wrap):
        yield


def arguments_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an attention function's call by name; those that only some have stand among them."""
    bound = _ARGUMENTS.bind(*args, **kwargs)
    bound.apply_defaults()
    return {**bound.arguments.pop("kwargs"), **bound.arguments}


def _read(given: Mapping[str, Any], eager: bool) -> Callable[[Any], Handover]:
    from backends.torch.native.seam import handed

    query, key, value = (given[name] for name in ("query", "key", "value"))
    masks, causal = masks_of(given, eager)
    with_output = handed(
        query,
        key,
        value,
        masks=masks,
        causal=causal,
        scale=number("scaling", given["scaling"]),
        dropout=float(given["dropout"] or 0.0),
        softcap=number("softcap", given.get("softcap")),
        sinks=next((given[name] for name in SINKS if given.get(name) is not None), None),
    )

    def of_result(result: Any) -> Handover:
        output, weights = result
        return with_output(output.transpose(1, 2), weights)

    return of_result


def masks_of(given: Mapping[str, Any], eager: bool) -> tuple[list[Any], bool]:
    """The masks of a call, additive or bool, and whether it is causal besides.

    Raises:
        SpecError: a mask of another kind, packed sequences, or an argument that is not known.
    """
    import torch

    query, mask = given["query"], given["attention_mask"]
    known = {"module", "query", "key", "value", "attention_mask", "dropout", "scaling", "softcap", "is_causal"}
    rest = {name: one for name, one in given.items() if name not in {*known, *SINKS, "position_bias", "cache"}}
    refuse_unknown(rest, HARMLESS, lambda one: isinstance(one, torch.Tensor))
    if given.get("cache") is not None:
        raise SpecError("its cache is paged: keys are joined inside the function, where they can't be seen")
    if mask is not None and not isinstance(mask, torch.Tensor):
        raise SpecError(
            f"its mask is a {type(mask).__name__}, which has no numbers to read; load the model with "
            "attn_implementation='sdpa'"
        )
    if eager and mask is not None and mask.dtype == torch.bool:
        raise SpecError("its mask is bool, which its own function adds to the scores as 0 and 1")
    said = given.get("is_causal")
    causal = bool(getattr(given["module"], "is_causal", True) if said is None else said)
    masks = [one for one in (mask, given.get("position_bias")) if one is not None]
    return masks, not eager and causal and mask is None and query.shape[2] > 1
