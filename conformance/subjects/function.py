"""Plain functions as subjects: `f(weights, queries, keys, values, mask)`, and what it asks for by keyword."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import Precision
from conformance.subjects.ask import SubjectFailed, as_trace, shapes_of
from conformance.subjects.handout import Handout
from mha_core import AttentionConfig, AttentionInputs, SpecError, Trace
from mha_core.backend import Run
from mha_core.call.masks import allowed_keys, padding_keys
from mha_core.dtypes import check_dtype
from mha_core.weights import Weights

DEFAULT_DTYPES = ("float64", "float32")
"""What a subject computes in if it does not say."""

ARGUMENTS = ("weights", "queries", "keys", "values", "mask")
"""The first five parameters of a plain function, in this order."""

OPTIONS = (
    "config",
    "num_heads",
    "num_kv_heads",
    "scale",
    "softcap",
    "projections",
    "past_keys",
    "past_values",
    "bias",
    "padding",
    "dropout_keep",
    "dropout",
    "cotangent",
    "dtype",
)
"""What a plain function is given by keyword, if it has a parameter of that name."""

Supports = Callable[[AttentionConfig, AttentionInputs], "str | None"]


RULE = f"a subject has prepare(config, weights), or is a function f({', '.join(ARGUMENTS)})"


class OtherDtype(SpecError):
    """A subject that does not compute in the dtype asked for."""


@dataclass(frozen=True)
class FunctionSubject:
    """A plain function as a subject; `subject_from_function` makes it.

    Attributes:
        function: f(weights, queries, keys, values, mask) and options -> output, dict by stage, or Trace.
        name: as reports show it.
        options: which of OPTIONS it takes.
        dtype, dtypes: the dtype of this run, and all that it computes in.
        own_supports: what the function's author says it can't express; see `supports`.
    """

    function: Callable[..., Any]
    name: str
    options: frozenset[str]
    dtype: str = "float64"
    dtypes: tuple[str, ...] = DEFAULT_DTYPES
    device: str = "cpu"
    own_supports: Supports | None = None

    @property
    def precision(self) -> Precision:
        return Precision.of(self.dtype)

    def supports(self, config: AttentionConfig, inputs: AttentionInputs) -> str | None:
        """None, or what of this case no parameter of the function can tell it."""
        lacking = [
            f"{feature} (the function has no parameter {' or '.join(names)})"
            for feature, names in _needs(config, inputs)
            if not self.options & set(names)
        ]
        if lacking:
            return "; ".join(lacking)
        return None if self.own_supports is None else self.own_supports(config, inputs)

    def prepare(self, config: AttentionConfig, weights: Weights) -> Run:
        def run(inputs: AttentionInputs) -> Trace:
            sizes = inputs.check(config)
            resolved = Handout(
                {
                    "mask": allowed_keys(inputs.mask, sizes, config.num_heads),
                    "padding": padding_keys(inputs.mask, sizes),
                    **({} if inputs.mask.bias is None else {"bias": _finite_bias(inputs.mask.bias)}),
                }
            )
            options = {
                "config": config,
                "num_heads": config.num_heads,
                "num_kv_heads": config.num_kv_heads,
                "scale": config.softmax_scale,
                "softcap": config.softcap,
                "projections": config.projections,
                "past_keys": inputs.past_keys,
                "past_values": inputs.past_values,
                "bias": resolved.copies.get("bias"),
                "padding": resolved.copies["padding"],
                "dropout_keep": inputs.dropout_keep,
                "dropout": config.dropout,
                "cotangent": inputs.cotangent,
                "dtype": self.dtype,
            }
            answer = self.function(
                dict(weights),  # what is taken out of it is there again at the next call
                inputs.queries,
                inputs.keys,
                inputs.values,
                resolved.copies["mask"],
                **{name: value for name, value in options.items() if name in self.options},
            )
            written = resolved.changed()
            if written:
                raise SubjectFailed(f"wrote into its inputs: {', '.join(written)}")
            return as_trace(answer, weights, shapes_of(config, weights, inputs))

        return run


def subject_from_function(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    dtype: str | None = None,
    dtypes: Sequence[str] = DEFAULT_DTYPES,
    supports: Supports | None = None,
) -> FunctionSubject:
    """A plain function as a subject.

    Args:
        function: `f(weights, queries, keys, values, mask)`, these five names in this order. Further
            parameters of the names in OPTIONS are given by keyword; others need a default. It returns
            its output (B, Lq, Do), a dict by stage, or a Trace.
        name: as reports show it. Default: the function's own.
        dtype: of this run. Default: the first of `dtypes`.
        dtypes: what it computes in.
        supports: `supports(config, inputs)` gives None, or what of this case it can't express.

    Raises:
        SpecError: the parameters are others, or `dtype` is not among `dtypes`.

    >>> subject_from_function(lambda weights, queries, keys, values, mask: values, name="mine").dtype
    'float64'
    >>> subject_from_function(lambda q, k, v: v, name="mine")
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: 'mine' has the parameters (q, k, v); a function to be judged starts with \
weights, queries, keys, values, mask
    """
    name = getattr(function, "__name__", type(function).__name__) if name is None else name
    dtypes = check_dtypes(repr(name), dtypes)
    parameters = parameters_of(repr(name), function)
    if not is_plain(parameters):
        raise SpecError(
            f"{name!r} has the parameters ({', '.join(map(str, parameters))}); a function to be judged starts with "
            f"{', '.join(ARGUMENTS)}"
        )
    rest = parameters[len(ARGUMENTS) :]
    for parameter in rest:
        is_open = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if parameter.name not in OPTIONS and parameter.default is parameter.empty and not is_open:
            raise SpecError(f"{name!r} needs {parameter.name!r}, which is not known (known: {', '.join(OPTIONS)})")
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in rest)
    return FunctionSubject(
        function,
        name,
        frozenset(OPTIONS if takes_all else (parameter.name for parameter in rest if parameter.name in OPTIONS)),
        check_member(repr(name), dtypes[0] if dtype is None else dtype, dtypes),
        dtypes,
        own_supports=supports,
    )


def _needs(config: AttentionConfig, inputs: AttentionInputs) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(what a case asks of a function beyond its five arguments, the options that would tell it)."""
    if config.score == "additive":
        yield "additive score", ("config",)
    elif config.score == "dot":
        yield "score without scale", ("scale", "config")
    elif config.softmax_scale != config.head_dim**-0.5:
        yield f"scale {config.softmax_scale:g}", ("scale", "config")
    if config.softcap is not None:
        yield "softcap", ("softcap",)
    if not config.projections:
        yield "no projections", ("projections",)
    for past in ("past_keys", "past_values"):
        if getattr(inputs, past) is not None:
            yield past.replace("_", " "), (past,)
    if config.num_heads > 1:
        yield "several heads", ("num_heads", "config")
    if config.num_kv_heads != config.num_heads:
        yield "grouped heads", ("num_kv_heads", "config")
    if inputs.mask.bias is not None and _finite_bias(inputs.mask.bias).any():
        yield "additive bias", ("bias",)
    if inputs.dropout_keep is not None:
        yield "dropout mask", ("dropout_keep",)
        yield "dropout rate", ("dropout", "config")


def _finite_bias(bias: NDArray) -> NDArray:
    """The bias in its own shape, 0 where -inf excludes: the mask has that already."""
    return np.where(np.isneginf(bias), np.zeros((), bias.dtype), bias)


def parameters_of(where: str, function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise SpecError(f"{where} does not tell its parameters; {RULE}") from error


def is_plain(parameters: list[inspect.Parameter]) -> bool:
    """Whether these are the parameters of a plain function: ARGUMENTS first, in this order."""
    first = parameters[: len(ARGUMENTS)]
    positional = all(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in first)
    return positional and tuple(p.name for p in first) == ARGUMENTS


def check_dtypes(where: str, dtypes: Any) -> tuple[str, ...]:
    if isinstance(dtypes, str) or not isinstance(dtypes, Sequence) or not dtypes:
        raise SpecError(f"{where}: dtypes must be a tuple of names, such as ('float64', 'float32'). Got {dtypes!r}.")
    try:
        return tuple(check_dtype(dtype) for dtype in dtypes)
    except SpecError as error:
        raise SpecError(f"{where}: {error}") from error


def check_member(where: str, dtype: str, dtypes: tuple[str, ...]) -> str:
    if dtype not in dtypes:
        raise OtherDtype(f"{where} does not compute in {dtype} (it does in: {', '.join(dtypes)})")
    return dtype
