"""The mask of one call in PyTorch, built on the device of the queries; the rules stand in `mha_core.call.masks`."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from backends.torch.ops.framework import as_tensor, describe, device_of_call, dtype_name, numbers
from mha_core import AttentionMask, SpecError
from mha_core.call.arguments import CallSizes
from mha_core.call.blocks import Block, Reach, reach
from mha_core.call.call import Call, LayerSpec
from mha_core.call.checks import LONGEST, OFFSETS, check_call, check_numbers

Window = tuple[int | None, int | None]

INTEGERS = ("valid_lens", "query_offset")
"""The sources of a mask whose numbers are checked."""


class Mask(NamedTuple):
    """The mask of a call or of a part (`Block`) of its scores. A field is None if its argument is not given.

    key_len: Lk, the number of past and new keys.
    first, stop: integers, broadcastable to (B, 1, Lq, 1): valid_lens, causal, window allow key j iff first <= j < stop.
    allowed: bool, the caller's array with four axes; True = may attend.
    bias: the caller's array with four axes; -inf excludes a key.
    keep: bool (B, H, Lq, Lk), the dropout keep-mask.
    padding: bool, broadcastable to (B, L) for the L new keys. True at a key that no query may attend to.
    past_padding: the same for the Lp past keys, broadcastable to (B, Lp).
    reach: `first` and `stop` in NumPy, even if those two fields are None. None if reading would wait for a device.
    is_diagonal: whether the mask is exactly the causal mask with an offset of 0.
    only_padding: whether the mask excludes nothing but padding.
    """

    key_len: int
    first: Tensor | None = None
    stop: Tensor | None = None
    allowed: Tensor | None = None
    bias: Tensor | None = None
    keep: Tensor | None = None
    padding: Tensor | None = None
    past_padding: Tensor | None = None
    reach: Reach | None = None
    is_diagonal: bool = False
    only_padding: bool = False

    @property
    def excludes(self) -> bool:
        """Return whether the mask may exclude a key; if not, every query may attend to every key."""
        return any(source is not None for source in (self.first, self.stop, self.allowed, self.bias))


def traceable(given: Any, bias_dtype: torch.dtype | None = None) -> Any:
    """Return `given`. While torch.compile traces, a list or a NumPy array becomes a tensor.

    Otherwise `AttentionMask` would convert it by NumPy functions, which a compiler can't follow.

    Args:
        given: valid_lens, allowed, query_offset or bias.
        bias_dtype: the dtype for a bias that is a number or a list; None for the other arguments.
    """
    if not torch.compiler.is_compiling() or given is None or isinstance(given, Tensor):
        return given
    if isinstance(given, int) and (bias_dtype is None or isinstance(given, bool)):
        return given
    return torch.as_tensor(given, dtype=bias_dtype if isinstance(given, (list, tuple, float, int)) else None)


def placed(call: Call[Any], layer: nn.Module) -> Call[Any]:
    """Return the call with tensors in place of lists, numbers and NumPy's arrays, on one device.

    The device is that of the call's first tensor, else of the layer's parameters. The mask's integers stay where they
    are, so that `build_mask` can read them without waiting. Arguments that `check_call` refuses are not converted.

    Raises:
        SpecError: torch.jit.trace is tracing.
    """
    if torch.jit.is_tracing():
        raise SpecError(
            "torch.jit.trace, and torch.onnx.export by it, keep the sizes of one call: "
            "torch.export.export(layer, inputs, dynamic_shapes=...) has them as symbols"
        )
    device = device_of_call(layer, call.queries, call.keys, call.values)
    call = call.map(lambda _, array: as_tensor(array, device))
    mask = call.mask
    if isinstance(call.queries, Tensor):
        name = dtype_name(call.queries.dtype)
        mask = mask.with_bias_in(name, lambda array, dtype: as_tensor(array, device, dtype))
    mask = mask.map_arrays(
        lambda name, array: (
            array if isinstance(array, (np.ndarray, Tensor)) and name in INTEGERS else as_tensor(array, device)
        )
    )
    return call if mask is call.mask else replace(call, mask=mask)


def plain_form(call: Call[Any]) -> tuple[Any, ...] | None:
    """Return a key of a plain call: its tensors' shapes (without the past's length) and dtypes. None for other calls.

    A call is plain if it has no mask, window or dropout mask, and gives no positions. Plain calls with the same key
    all pass a layer's checks, or all fail.
    """
    mask, inputs = call.mask, (call.queries, call.keys, call.values)
    others = (mask.valid_lens, mask.allowed, mask.bias, mask.window, call.dropout_keep, call.rotary)
    if mask.causal is not False or any(other is not None for other in others) or type(mask.query_offset) is not int:
        return None
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or torch._C._is_any_autocast_enabled():
        return None
    no_past = call.past_keys is None and call.past_values is None
    past: tuple[Any, ...] = () if no_past else (call.past_keys, call.past_values)
    if any(type(x) is not Tensor for x in (*inputs, *past)) or not OFFSETS[0] <= mask.query_offset <= OFFSETS[1]:
        return None
    if past and (past[0].ndim != 4 or past[0].shape[:3] != past[1].shape[:3] or _key_len(call) > LONGEST):
        return None
    return (*((x.shape, x.dtype) for x in inputs), *((x.shape[:2], x.shape[3:], x.dtype) for x in past))


def plain_mask(call: Call[Tensor]) -> Mask:
    """Return the Mask of a plain call (see `plain_form`) that has passed the checks."""
    return Mask(_key_len(call), only_padding=True)


def _key_len(call: Call[Tensor]) -> int:
    return call.keys.shape[-2] + (0 if call.past_keys is None else call.past_keys.shape[2])


def build_mask(call: Call[Any], spec: LayerSpec) -> Mask:
    """Return the Mask of a call, after checking the whole call against the layer's spec.

    Args:
        call: the result of `placed`.
        spec: the properties of the layer, which the call has to fit.

    Raises:
        SpecError: an argument does not fit the spec; the message names the first one.
    """
    sizes = check_call(call, spec, describe)
    mask, device = call.mask, call.queries.device
    lens = None if mask.valid_lens is None else numbers(mask.valid_lens)
    offset = mask.query_offset if isinstance(mask.query_offset, int) else numbers(mask.query_offset)
    check_numbers(lens, offset, sizes.key_len)
    is_known = lens is mask.valid_lens and offset is mask.query_offset
    known = mask if is_known else replace(mask, valid_lens=lens, query_offset=offset)
    mask = mask.map_arrays(lambda _, array: _moved(array, device))
    limits = {"valid_lens": ((0, sizes.key_len), lens), "query_offset": (OFFSETS, offset)}
    mask = mask.map_arrays(lambda name, array: _within(array, *limits[name]) if name in limits else array)
    known_reach = _known_reach(mask, known, sizes)
    is_open = known_reach is not None and known_reach.is_open(*(slice(0, size) for size in sizes[:3]))
    first, stop = (None, None) if is_open else _interval(mask, sizes, device)
    padding = _padding(mask, sizes, device)
    new, past = (None, None) if padding is None else _split_at(padding, sizes)
    return Mask(
        sizes.key_len,
        first,
        stop,
        allowed=_as_rank_4(mask.allowed),
        bias=_as_rank_4(mask.bias),
        keep=call.dropout_keep,
        padding=new,
        past_padding=past,
        reach=known_reach,
        is_diagonal=_is_diagonal(mask),
        only_padding=_is_only_padding(mask),
    )


def allowed_keys(mask: Mask, block: Block | None = None) -> Tensor | None:
    """Return bools, True = allowed, broadcastable to the scores (B, H, Lq, Lk) or a block's; None if all are True."""
    mask = part_of(mask, block)
    allowed = mask.allowed
    if mask.bias is not None:
        allowed = _both(allowed, mask.bias != -torch.inf)
    if mask.stop is not None:
        allowed = _both(allowed, torch.arange(mask.key_len, device=mask.stop.device) < mask.stop)
    if mask.first is not None:
        allowed = _both(allowed, torch.arange(mask.key_len, device=mask.first.device) >= mask.first)
    return allowed


def additive_bias(mask: Mask) -> Tensor | None:
    """Return the bias to add to the scores, with 0 in place of -inf; None without a bias."""
    return None if mask.bias is None else mask.bias.masked_fill(mask.bias == -torch.inf, 0.0)


def part_of(mask: Mask, block: Block | None) -> Mask:
    """Return the mask cut to a block (None: uncut). If `first` and `stop` exclude no key in it, they become None."""
    if block is None:
        return mask
    first, stop = mask.first, mask.stop
    if mask.reach is not None and mask.reach.is_open(block.items, block.queries, block.keys):
        first = stop = None
    start = block.keys.start
    return Mask(
        block.keys.stop - start,
        None if first is None else cut(first, block) - start,
        None if stop is None else cut(stop, block) - start,
        allowed=None if mask.allowed is None else cut(mask.allowed, block),
        bias=None if mask.bias is None else cut(mask.bias, block),
        keep=None if mask.keep is None else cut(mask.keep, block),
    )


def cut(array: Tensor, block: Block) -> Tensor:
    """Return a block's part of an array that broadcasts to (B, H, Lq, Lk)."""
    return array[tuple(slice(None) if size == 1 else part for size, part in zip(array.shape, block, strict=True))]


def expected_dtype(layer: nn.Module) -> str | None:
    """Return the dtype that a layer's inputs must have: that of its parameters. None if it has no parameters.

    It is None under autocast too, where PyTorch chooses a dtype for each operation.
    """
    parameter = next(layer.parameters(), None)
    if parameter is None:
        return None
    kind = parameter.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return None
    return dtype_name(parameter.dtype)


def check_first_call(call: Call[Any], layer: nn.Module) -> None:
    """Raise SpecError if a layer can't take this first call, which sets its input widths.

    Args:
        call: the call, as `placed` returns it.
        layer: the layer, whose parameters say what dtype the inputs must have.
    """
    check_call(call, LayerSpec(dtype=expected_dtype(layer)), describe)


def _split_at(padding: Tensor, sizes: CallSizes) -> tuple[Tensor, Tensor]:
    """Padding (1 or B, 1 or Lk) -> that of the new keys, and that of the past."""
    if padding.shape[1] == 1:
        return padding, padding
    return padding[:, sizes.past_len :], padding[:, : sizes.past_len]


def _moved(array: Any, device: torch.device) -> Any:
    """A source as a tensor on `device`; anything that `check_call` refuses is returned as it is."""
    return array.to(device) if isinstance(array, Tensor) else as_tensor(array, device)


def _within(integers: Tensor, limits: tuple[int, int], checked: Any) -> Tensor:
    """The integers as int64; clipped to the limits if their numbers could not be read (`checked` is None)."""
    wide = integers.to(torch.int64)
    if checked is not None:
        return wide
    if integers.dtype == torch.uint64:  # beyond int64 it becomes negative
        wide = wide.masked_fill(wide < 0, limits[1])
    return wide.clamp(*limits)


def _interval(mask: AttentionMask, sizes: CallSizes, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
    """`Mask.first` and `Mask.stop`, from valid_lens, causal, query_offset and window."""
    first = stop = None
    if mask.valid_lens is not None:
        lens = mask.valid_lens
        stop = (lens[:, None] if lens.ndim == 1 else lens)[:, None, :, None]
    left, right = mask.limits
    if left is not None or right is not None:
        offset = mask.query_offset
        if not isinstance(offset, int):  # which stays one: a tensor of it would be compiled anew for each
            offset = torch.as_tensor(offset, dtype=torch.int64, device=device).reshape(-1, 1, 1, 1)
        position = offset + torch.arange(sizes.query_len, device=device).reshape(1, 1, -1, 1)
        if right is not None:
            reached = position + (right + 1)
            stop = reached if stop is None else torch.minimum(stop, reached)
        if left is not None:
            first = position - left
    return first, stop


def _padding(mask: AttentionMask, sizes: CallSizes, device: torch.device) -> Tensor | None:
    """Bool (1 or B, 1 or Lk): keys that valid_lens alone, or `allowed` alone, excludes for every query and head."""
    padding = None
    if mask.valid_lens is not None:
        lens = mask.valid_lens
        if lens.ndim == 2:
            lens = lens.amax(dim=1) if lens.shape[1] else lens.new_zeros(lens.shape[:1])
        padding = torch.arange(sizes.key_len, device=device) >= lens[:, None]
    if mask.allowed is not None:
        unused = ~_as_rank_4(mask.allowed).any(dim=2).any(dim=1)
        padding = unused if padding is None else padding | unused
    return padding


def _known_reach(mask: AttentionMask, known: AttentionMask, sizes: CallSizes) -> Reach | None:
    """`Mask.reach`: None while a compiler traces, and if the numbers of some source can't be read without waiting."""
    intervals = INTEGERS if mask.has_positions else INTEGERS[:1]
    if torch.compiler.is_compiling() or any(
        getattr(known, name) is None and getattr(mask, name) is not None for name in intervals
    ):
        return None
    return reach(known, sizes)


def _is_diagonal(mask: AttentionMask) -> bool:
    offset = mask.query_offset
    others = (mask.valid_lens, mask.allowed, mask.bias, mask.window)
    return mask.causal and isinstance(offset, int) and offset == 0 and all(source is None for source in others)


def _is_only_padding(mask: AttentionMask) -> bool:
    per_item = mask.valid_lens is None or mask.valid_lens.ndim == 1
    per_key = mask.allowed is None or tuple(_as_rank_4(mask.allowed).shape[1:3]) == (1, 1)
    return per_item and per_key and mask.bias is None and not mask.has_positions


def _both(one: Tensor | None, other: Tensor) -> Tensor:
    return other if one is None else one & other


def _as_rank_4(array: Any) -> Any:
    return None if array is None else array.reshape((1,) * (4 - array.ndim) + tuple(array.shape))
