"""The seam of transformers: `AttentionInterface.get_interface`, by which a model finds its attention function.

A model calls what it returns with `(module, query, key, value, attention_mask, scaling=, dropout=, ...)`.
"""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

from numpy.typing import NDArray

from mha_core import SpecError
from mha_core.seam import AttentionCall, Handle, Handover, number, refuse_unknown

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
def intercept_interface(target: Any, handle: Handle) -> Iterator[None]:
    """Return a context in which modules of `target` call `handle` in place of their attention functions.

    Only functions in transformers' `AttentionInterface` are replaced. `handle(AttentionCall)` returns a call's result.
    """
    if "transformers.modeling_utils" not in sys.modules:
        yield
        return
    from transformers.modeling_utils import AttentionInterface

    from backends.torch.native.seam import as_a_part

    names = {id(module): name for name, module in target.named_modules()}
    own = AttentionInterface.get_interface

    def get_interface(self: Any, implementation: Any, default: Any) -> Any:
        function = own(self, implementation, default)

        def intercepted(*args: Any, **kwargs: Any) -> Any:
            given = arguments_of(args, kwargs)
            module = given["module"]
            if id(module) not in names:
                return function(*args, **kwargs)

            def run() -> Any:
                with as_a_part():
                    return function(*args, **kwargs)

            # The model's own function adds its mask to the scores; others read masks as SDPA does.
            eager = function is default
            return handle(
                AttentionCall(names[id(module)], module, lambda: read(given, eager), run, partial(give, given))
            )

        return intercepted

    with patch.object(AttentionInterface, "get_interface", get_interface):
        yield


def arguments_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a dict of all arguments of an attention function's call, including defaults and **kwargs."""
    bound = _ARGUMENTS.bind(*args, **kwargs)
    bound.apply_defaults()
    return {**bound.arguments.pop("kwargs"), **bound.arguments}


def give(given: Mapping[str, Any], output: NDArray) -> tuple[Any, None]:
    """Return (`output` as a tensor (B, Lq, H, dv), None), as transformers' functions do. `given`: the arguments."""
    from backends.torch.native.seam import to_output

    return to_output(output, given["query"]).transpose(1, 2).contiguous(), None


def read(given: Mapping[str, Any], eager: bool) -> Callable[[Any], Handover]:
    """Copy a call's arguments `given`. Return a function: the call's result -> Handover (NumPy arguments and result).

    `eager`: whether the call's function adds its mask to the scores.

    Raises:
        SpecError: an argument is not supported.
    """
    from backends.torch.native.seam import handed

    query, key, value = (given[name] for name in ("query", "key", "value"))
    masks, causal = _masks_of(given, eager)
    with_output: Callable[..., Handover] = handed(
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
        if result is None:
            return with_output(None)
        output, weights = result
        return with_output(output.transpose(1, 2), weights)

    return of_result


def _masks_of(given: Mapping[str, Any], eager: bool) -> tuple[list[Any], bool]:
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
