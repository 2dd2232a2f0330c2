"""Attention of this project at the seam of other people's models: a backend, the reference, or a bug of the zoo."""

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from conformance.zoo.bug import BuggySubject
from conformance.zoo.registry import select
from mha.seam.interface import arguments_of, give, read
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, SpecError
from mha_core import backend as backends
from mha_core.backend import Run
from mha_core.heads import split_heads
from mha_core.seam import AttentionCall, Handle

REFERENCE = "reference"
"""The name of the float64 reference among those of backends."""

PADDED_TO = 32
"""Keys of a longer past are padded to a multiple of so many, so that a compiler sees few shapes."""

Prepare = Callable[[AttentionConfig, str], Run]
"""Makes what runs attention without projections of this config in this dtype."""


def prepare_with(name: str, bug: str | None = None) -> Prepare:
    """Return a function (config, dtype) -> run. `run` computes attention by a backend, or by the reference with a bug.

    Raises:
        SpecError, BackendError: no backend, or no bug, has this name.
    """
    if bug is not None:
        if name != REFERENCE:
            raise SpecError(f"a bug is put into the reference. Got bug={bug!r} with {name!r}; leave {name!r} out.")
        bugs = select((bug,))
        return lambda config, dtype: BuggySubject(*bugs, dtype=dtype).prepare(config, {})
    if name == REFERENCE:
        return lambda config, dtype: BuggySubject(dtype=dtype).prepare(config, {})
    backend = backends.load(name)
    return lambda config, dtype: backend.prepare(config, {}, dtype=dtype)


def attention_function(name: str = REFERENCE, *, bug: str | None = None) -> Callable[..., tuple[Any, None]]:
    """Return an attention function that computes by another backend, for `AttentionInterface.register` of transformers.

    Tensors go to NumPy, through the backend on the CPU, and back; there are no gradients. Masks are read as those that
    transformers makes for "sdpa": register `sdpa_mask` under the same name.

    Args:
        name: a backend ("torch", "tf", "jax", "mxnet"), or "reference".
        bug: a known bug (listed by `mha bugs`) to put into the reference, to see whether a test notices it.

    Raises:
        SpecError, BackendError: no backend or bug has this name; or, when called, an argument is not supported.

    >>> import torch
    >>> attend = attention_function()
    >>> x = torch.eye(3).reshape(1, 1, 3, 3)
    >>> output, _ = attend(torch.nn.Module(), x, x, x, None, scaling=1e3, is_causal=False)
    >>> output.shape, bool((output[:, :, 0] == torch.eye(3)).all())
    (torch.Size([1, 3, 1, 3]), True)
    """
    handle = computed_by(prepare_with(name, bug))

    def attend(*args: Any, **kwargs: Any) -> tuple[Any, None]:
        given = arguments_of(args, kwargs)
        call = AttentionCall("", given["module"], partial(read, given, eager=False), _never, partial(give, given))
        found: tuple[Any, None] = handle(call)
        return found

    return attend


def _never() -> None:
    raise AssertionError("there is no other function")


def computed_by(prepare: Prepare, but: Collection[str] = ()) -> Handle:
    """Return a handler that computes intercepted calls of attention functions by the `run` that `prepare` returns.

    Args:
        prepare: a function (config, dtype) -> run, where `run` maps inputs of attention to a Trace (all results).
        but: names of modules whose calls keep the model's own function.
    """
    runs: dict[tuple[AttentionConfig, str], Run] = {}

    def handle(call: AttentionCall) -> Any:
        if call.name in but:
            return call.run()
        handover = call.read()(None)
        config, inputs = handover.given()
        key = config, handover.dtype
        if key not in runs:
            runs[key] = prepare(config, handover.dtype)
        trace = runs[key](_padded(inputs))
        assert trace.output is not None
        return call.give(split_heads(trace.output, config.num_heads))

    return handle


def _padded(inputs: AttentionInputs) -> AttentionInputs:
    """A step of decoding with more keys, to which nobody may attend, up to a multiple of PADDED_TO."""
    key_len, query_len = inputs.keys.shape[2], inputs.queries.shape[2]
    more = -key_len % PADDED_TO
    mask = inputs.mask
    if key_len == query_len or not more or mask.causal:
        return inputs
    behind = ((0, 0), (0, 0), (0, 0), (0, more))

    def wide(array: Any) -> Any:
        """Return the array for all keys, where it is one for several."""
        return np.broadcast_to(array, (*array.shape[:3], key_len))

    allowed = np.ones((1, 1, 1, key_len), bool) if mask.allowed is None else wide(mask.allowed)
    bias = None if mask.bias is None else np.pad(wide(mask.bias), behind)
    keys, values = (np.pad(array, ((0, 0), (0, 0), (0, more), (0, 0))) for array in (inputs.keys, inputs.values))
    return replace(inputs, keys=keys, values=values, mask=AttentionMask(allowed=np.pad(allowed, behind), bias=bias))
