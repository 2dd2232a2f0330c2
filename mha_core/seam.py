"""The seam: where a model hands queries, keys and values, in heads, to an attention function.

Projections, norms and rotations stand before it, the output projection behind it. One call there is attention
without projections, in terms of the definition.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mha_core.call.inputs import AttentionInputs
from mha_core.call.masks import AttentionMask
from mha_core.capture import ReadCall
from mha_core.config import AttentionConfig
from mha_core.dtypes import round_to
from mha_core.errors import SpecError, one_line
from mha_core.heads import merge_heads

LOWEST = {"float64": float(np.finfo(np.float32).min), "bfloat16": -(2.0 - 2.0**-7) * 2.0**127}
"""The lowest number of a dtype, with which models exclude keys; in float64 models that of float32."""

Handle = Callable[["AttentionCall"], Any]
"""Takes the place of an attention function: is given each of its calls, and returns what the model goes on with."""


class Handover(NamedTuple):
    """The arguments and the result of one call of an attention function, in NumPy copies.

    Args:
        queries: (B, H, Lq, d), or (1, H, Lq, d) for all items.
        keys, values: (B, G, Lk, d) and (B, G, Lk, dv), including those of a cache.
        output: (B, H, Lq, dv); None if it is not known.
        dtype: the name of the dtype of all these arrays; bfloat16 numbers are in float32 arrays.
        masks: bool (True may attend) or additive, each broadcastable to (B, H, Lq, Lk). An additive mask excludes a
            key by -inf, or by the dtype's lowest number unless a whole row has it. Columns after Lk are ignored.
        causal: whether query i attends to keys 0 to i alone.
        scale: factor of the scores; None: 1 / sqrt(d).
        softcap: bound of the scores, before the masks; None: none.
        sinks: (H,), a score for each head that only adds to the softmax's denominator; None: none.
        weights: (B, H, Lq, Lk), if they were returned; weights of another shape are ignored.
    """

    queries: NDArray
    keys: NDArray
    values: NDArray
    output: NDArray | None
    dtype: str
    masks: tuple[NDArray, ...] = ()
    causal: bool = False
    scale: float | None = None
    softcap: float | None = None
    sinks: NDArray | None = None
    weights: NDArray | None = None

    def given(self) -> tuple[AttentionConfig, AttentionInputs]:
        """Return the call as config and inputs of attention without projections.

        For sinks, each head gets one more key of zeros, with a value of zeros and with the sink as its bias.

        Raises:
            SpecError: the arrays do not fit each other, or a mask is neither bool nor floating-point.

        >>> x = np.ones((1, 2, 3, 4))
        >>> config, inputs = Handover(x, x, x, None, "float64", scale=0.5, sinks=np.ones(2)).given()
        >>> config.projections, config.softmax_scale, inputs.keys.shape
        (False, 0.5, (1, 2, 4, 4))
        """
        for name in ("queries", "keys", "values"):
            if getattr(self, name).ndim != 4:
                shape = getattr(self, name).shape
                raise SpecError(f"the {name} of an attention function must be (B, heads, L, d). Got {shape}.")
        queries = np.array(np.broadcast_to(self.queries, (len(self.keys), *self.queries.shape[1:])))
        heads, query_len, width = queries.shape[1:]
        config = AttentionConfig(
            embed_dim=heads * width,
            num_heads=heads,
            num_kv_heads=self.keys.shape[1],
            head_dim=width,
            value_head_dim=self.values.shape[3],
            scale=self.scale,
            softcap=self.softcap,
            projections=False,
        )
        key_len = self.keys.shape[2]
        allowed, bias = self._sources(query_len, key_len)
        keys, values, causal = self.keys, self.values, self.causal
        if self.sinks is not None:
            if causal:
                lower = np.tri(query_len, key_len, dtype=bool)[None, None]
                allowed, causal = lower if allowed is None else allowed & lower, False
            sinks = self.sinks.reshape(1, heads, 1, 1).astype(queries.dtype)
            shape = (1, heads, query_len, key_len) if bias is None else (len(bias), heads, query_len, key_len)
            whole = np.broadcast_to(queries.dtype.type(0.0) if bias is None else bias, shape)
            bias = np.concatenate([whole, np.broadcast_to(sinks, (*shape[:3], 1))], axis=3)
            if allowed is not None:
                whole = np.broadcast_to(allowed, (*allowed.shape[:2], query_len, key_len))
                allowed = np.concatenate([whole, np.ones((*whole.shape[:3], 1), bool)], axis=3)
            keys, values = (np.pad(array, ((0, 0), (0, 0), (0, 1), (0, 0))) for array in (keys, values))
        inputs = AttentionInputs(queries, keys, values, AttentionMask(allowed=allowed, bias=bias, causal=causal))
        inputs.check(config)
        return config, inputs

    def read(self) -> ReadCall:
        """Return the call and its output as a ReadCall. SpecError as in `given`, or if the output's shape is wrong."""
        config, inputs = self.given()
        wanted = (len(inputs.keys), config.num_heads, inputs.queries.shape[2], config.value_head_dim)
        if self.output is None or self.output.shape != wanted:
            found = None if self.output is None else self.output.shape
            raise SpecError(f"the output of an attention function must be {wanted} here, (B, H, Lq, dv). Got {found}.")
        outputs = {"output": merge_heads(self.output)}
        if self.weights is not None and self.weights.shape == (*wanted[:3], inputs.keys.shape[2]):
            outputs["weights"] = self.weights  # not with sinks, which have none in it
        return ReadCall(config, {}, inputs, outputs, self.dtype)

    def _sources(self, query_len: int, key_len: int) -> tuple[NDArray | None, NDArray | None]:
        """What the masks exclude, as bool (True may attend), and what they add to the scores; None for neither."""
        allowed: NDArray | None = None
        bias: NDArray | None = None
        for mask in self.masks:
            if mask.dtype != bool and mask.dtype.kind != "f":
                raise SpecError(f"the mask of an attention function must be bool or floating-point. Got {mask.dtype}.")
            mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)[..., :key_len]
            own = mask if mask.dtype == bool else self._counted(mask)
            if not own.all():
                allowed = own if allowed is None else allowed & own
            if mask.dtype != bool:
                added = np.where(own, mask, mask.dtype.type(0.0))
                bias = added if bias is None else bias + added
        if bias is not None:
            bias = round_to(bias, self.dtype) if bias.any() else None
        return allowed, bias

    def _counted(self, mask: NDArray) -> NDArray:
        """Bool: where an additive mask is a bias. A key with the lowest number is excluded, unless every key of its row
        has it: then it swallows all scores alike, and the function gives the mean over all values.
        """
        found = mask > LOWEST.get(self.dtype, float(np.finfo(mask.dtype).min))
        swallowed: NDArray = found | (~found.any(axis=-1, keepdims=True) & np.isfinite(mask))
        return swallowed


def number(name: str, value: Any) -> float | None:
    """Return the argument `value` as a float; return None if it is None. Raises SpecError if it is no single number."""
    if value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise SpecError(f"{name} of an attention function must be a number. Got {type(value).__name__}.") from error


def refuse_unknown(given: Mapping[str, Any], harmless: frozenset[str], is_array: Callable[[Any], bool]) -> None:
    """Raise SpecError if the unknown arguments `given` include a number or an array whose name is not in `harmless`."""
    for name, value in given.items():
        if value is None or isinstance(value, bool | str) or name in harmless:
            continue
        if isinstance(value, int | float) or is_array(value):
            raise SpecError(f"its attention function was called with {name!r}, which has no translation")


@dataclass(frozen=True)
class AttentionCall:
    """One call of an attention function inside a model.

    Args:
        name, module: the calling module's name in the model, and the module itself; "" and None if unknown.
        read: copies the arguments before the function runs, or raises SpecError. It returns a second function, which
            takes the result of the run (None if unknown) and returns a Handover (arguments and result in NumPy).
        run: calls the function and returns its result.
        give: converts a NumPy output (B, H, Lq, dv) to the form in which the function returns its own.
    """

    name: str
    module: Any
    read: Callable[[], Callable[[Any], Handover]]
    run: Callable[[], Any]
    give: Callable[[NDArray], Any]

    def recorded(self, seen: Callable[[str, Any, Handover | SpecError], None]) -> Any:
        """Run the function, call `seen(self.name, self.module, handover)`, and return the function's result.

        `handover` is the Handover (arguments and result in NumPy), or a SpecError if they could not be read.
        """
        try:
            with_result = self.read()
        except Exception as error:  # of arguments that are not what the function takes, which it says itself
            reason = _as_spec(error)
            result = self.run()
            seen(self.name, self.module, reason)
            return result
        result = self.run()
        try:
            found: Handover | SpecError = with_result(result)
        except Exception as error:  # of a result that is not what such functions give
            found = _as_spec(error)
        seen(self.name, self.module, found)
        return result


def _as_spec(error: Exception) -> SpecError:
    return error if isinstance(error, SpecError) else SpecError(one_line(error))


@contextmanager
def in_place_of(function: Any, wrapped: Any) -> Iterator[None]:
    """Return a context in which `wrapped` replaces a function under all its names in imported modules.

    Default arguments and attributes of objects still hold the original function.
    """
    found: list[tuple[Any, str]] = []
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        found += [(module, name) for name, value in list(names.items()) if value is function] if names else []
    try:
        for module, name in found:
            setattr(module, name, wrapped)
        yield
    finally:
        for module, name in found:
            setattr(module, name, function)


def caller(name_of: Callable[[Any], str | None], frame: Any) -> tuple[str, Any]:
    """Return (name, self) of the first frame, from `frame` outward, in which a local variable `self` has a name.

    The name is `name_of(self)`; None means that it has none. Return ("", None) if there is no such frame.
    """
    while frame is not None:
        found = frame.f_locals.get("self")
        name = None if found is None else name_of(found)
        if name is not None:
            return name, found
        frame = frame.f_back
    return "", None


def windowed(left: int, right: int, query_len: int, key_len: int) -> NDArray[np.bool_]:
    """Return bool (1, 1, Lq, Lk): True where i - left <= j <= i + right, for query i and key j."""
    offset = np.arange(key_len) - np.arange(query_len)[:, None]
    found: NDArray[np.bool_] = ((offset >= -left) & (offset <= right))[None, None]
    return found
