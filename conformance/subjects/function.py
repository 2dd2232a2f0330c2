"""Plain functions as subjects: `f(weights, queries, keys, values, mask)` with options by keyword."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from conformance.bounds.precision import Precision
from conformance.subjects.answers import SubjectFailed, as_trace, place_of_write, shapes_of
from conformance.subjects.handout import Handout
from mha_core import AttentionConfig, AttentionInputs, SpecError, Trace, features
from mha_core.backend import Prepared, Run
from mha_core.call.masks import allowed_keys, padding_keys
from mha_core.dtypes import check_dtype
from mha_core.errors import meant
from mha_core.files.mistaken import without_forward
from mha_core.weights import Weights

DEFAULT_DTYPES = ("float64", "float32")
"""The dtypes of a subject that does not name its own."""

ARGUMENTS = ("weights", "queries", "keys", "values", "mask")
"""The first five parameters of a plain function, in this order."""


def known_options() -> tuple[str, ...]:
    """Return the names of all optional arguments. A tested function is called with those that it has as parameters.

    >>> known_options()[:3]
    ('config', 'num_heads', 'scale')
    """
    of_features = (name for feature in features.FEATURES for name in feature.options)
    return "config", *of_features, "padding", "cotangent", "dtype"


Supports = Callable[[AttentionConfig, AttentionInputs], "str | None"]


RULE = f"it must be a function f({', '.join(ARGUMENTS)}), or have prepare(config, weights)"


TO_BEGIN = "`mha check --new FILE.py` writes one to begin with"

LAYERS = {"torch": "torch", "keras": "keras", "flax.nnx": "nnx", "flax.linen": "jax", "mxnet": "mxnet"}
"""Package of a framework's layers -> what `mha check --new --framework` calls it."""


def to_begin(thing: Any) -> str:
    """Return the end of a message that `thing`, such as a framework's layer, is no function that can be tested.

    >>> to_begin(3)
    '`mha check --new FILE.py` writes one to begin with'
    """
    for one in (thing if isinstance(thing, type) else type(thing)).__mro__:
        for package, framework in LAYERS.items():
            if one.__module__ == package or one.__module__.startswith(f"{package}."):
                missing = without_forward(thing)
                return (
                    f"{missing}{'; ' * bool(missing)}a layer of {package} is judged in a class that gives it weights: "
                    f"`mha check --new FILE.py --framework {framework}` writes one. Or record its "
                    'calls, with mha.capture(model, "calls.safetensors"): model(x), and run '
                    "`mha diagnose calls.safetensors`"
                )
    return TO_BEGIN


class OtherDtype(SpecError):
    """An error: the subject does not compute in the requested dtype."""


@dataclass(frozen=True)
class FunctionSubject:
    """A subject (a tested layer) made of a plain function; `subject_from_function` makes it.

    Attributes:
        function: f(weights, queries, keys, values, mask, and its options) -> output, dict stage -> array, or Trace.
        name: its name in reports.
        options: the names in `known_options()` that are parameters of the function.
        dtype, dtypes: the dtype of this run, and all dtypes that it computes in.
        own_supports: (config, inputs) -> what the function can't compute, or None. `own_supports=None`: no limits.
    """

    function: Callable[..., Any]
    name: str
    options: frozenset[str]
    dtype: str = "float64"
    dtypes: tuple[str, ...] = DEFAULT_DTYPES
    device: str = "cpu"
    own_supports: Supports | None = None
    own: ClassVar[bool] = True

    @property
    def precision(self) -> Precision:
        return Precision.of(self.dtype)

    def supports(self, config: AttentionConfig, inputs: AttentionInputs) -> str | None:
        """Return in words the features of this case that the function has no parameter for; None if there are none."""
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
            told = {
                name: value(config, inputs)
                for feature in features.FEATURES
                for name, value in feature.options.items()
                if name in self.options
            }
            # What is made here is watched here; the arrays of the call itself are, where the subject is asked.
            made = {name: value for name, value in told.items() if isinstance(value, np.ndarray)}
            made = {name: array for name, array in made.items() if array is not getattr(inputs, name, None)}
            mask, padding = allowed_keys(inputs.mask, sizes, config.num_heads), padding_keys(inputs.mask, sizes)
            resolved = Handout({"mask": mask, "padding": padding, **made})
            others = {"config": config, "cotangent": inputs.cotangent, "dtype": self.dtype}
            options = {**others, **told, **resolved.copies}
            given = {name: value for name, value in options.items() if name in self.options}

            def call() -> Any:  # what is taken out of the weights is there again at the next call
                arrays = (inputs.queries, inputs.keys, inputs.values, resolved.copies["mask"])
                return self.function(dict(weights), *arrays, **given)

            answer = call()
            if written := resolved.changed():
                at = place_of_write(call, resolved.copies.values())
                raise SubjectFailed(f"wrote into its inputs: {', '.join(written)}{at}")
            return as_trace(answer, weights, shapes_of(config, weights, inputs, sizes), copy=False)

        def set_weights(changed: Weights) -> None:
            nonlocal weights  # the function is given them at each call
            weights = changed

        return Prepared(run, set_weights)


def subject_from_function(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    dtype: str | None = None,
    dtypes: Sequence[str] = DEFAULT_DTYPES,
    supports: Supports | None = None,
) -> FunctionSubject:
    """Return a subject made of a plain function.

    Args:
        function: `f(weights, queries, keys, values, mask)`, these five names in this order. Further
            parameters of the names in `known_options()` are given by keyword; others need a default. It returns
            its output (B, Lq, Do), a dict stage -> array, or a Trace.
        name: its name in reports. Default: the function's own.
        dtype: the dtype of this run. Default: the first of `dtypes`.
        dtypes: the dtypes that it computes in.
        supports: (config, inputs) -> what the function can't compute in this case, or None.

    Raises:
        SpecError: the function has other parameters, or `dtype` is not among `dtypes`.

    >>> subject_from_function(lambda weights, queries, keys, values, mask: values, name="mine").dtype
    'float64'
    >>> subject_from_function(lambda q, k, v: v, name="mine")
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: 'mine' takes (q, k, v); it must take (weights, queries, keys, values, mask): put a \
function around it, def judged(weights, queries, keys, values, mask): return mine(...); `mha check --new FILE.py` \
writes one to begin with
    """
    name = getattr(function, "__name__", type(function).__name__) if name is None else name
    dtypes = check_dtypes(repr(name), dtypes)
    parameters = parameters_of(repr(name), function)
    if not is_plain(parameters):
        raise SpecError(f"{name!r} takes ({', '.join(map(str, parameters))}); {around(name, parameters)}; {TO_BEGIN}")
    rest, known = parameters[len(ARGUMENTS) :], known_options()
    for parameter in rest:
        is_open = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if parameter.name not in known and parameter.default is parameter.empty and not is_open:
            near = "; the mask is the fifth argument" if "mask" in parameter.name else meant(parameter.name, known)
            raise SpecError(f"{name!r} needs {parameter.name!r}, which is not known{near} (known: {', '.join(known)})")
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in rest)
    return FunctionSubject(
        function,
        name,
        frozenset(known if takes_all else (parameter.name for parameter in rest if parameter.name in known)),
        check_member(repr(name), dtypes[0] if dtype is None else dtype, dtypes),
        dtypes,
        own_supports=supports,
    )


def _needs(config: AttentionConfig, inputs: AttentionInputs) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(what a case asks of a function beyond its five arguments, the options that would tell it)."""
    for feature in sorted(features.FEATURES, key=lambda row: not row.arithmetic):
        for need in feature.needs:
            if (need.present or feature.present)(config, inputs):
                yield need.said(config), need.options


def parameters_of(where: str, function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise SpecError(f"{where} does not tell its parameters; {RULE}; {TO_BEGIN}") from error


INPUTS = {
    "q",
    "k",
    "v",
    "x",
    "query",
    "key",
    "value",
    "queries",
    "keys",
    "values",
    "inputs",
    "hidden_states",
    "weights",
}
"""Names of the first parameters of a function of attention."""


def around(name: str, parameters: list[inspect.Parameter]) -> str:
    """Return the end of an error message on a callable with wrong parameters: which are missing, or how to wrap it.

    >>> around("f", list(inspect.signature(lambda weights, queries, keys, values: 0).parameters.values()))
    'it lacks mask: it must take (weights, queries, keys, values, mask), in this order'
    >>> around("f", list(inspect.signature(lambda embed_dim: 0).parameters.values()))
    'it is called without arguments: name one that needs none, def make(): return f(...); if it computes attention, \
put a function around it, def judged(weights, queries, keys, values, mask): return f(...)'
    """
    names = {parameter.name for parameter in parameters}
    absent = [name for name in ARGUMENTS if name not in names]
    rule = f"it must take ({', '.join(ARGUMENTS)})"
    judged = f"put a function around it, def judged({', '.join(ARGUMENTS)}): return {name}(...)"
    if not names & INPUTS:
        return (
            f"it is called without arguments: name one that needs none, def make(): return {name}(...); if it computes "
            f"attention, {judged}"
        )
    lacks = f"it lacks {', '.join(absent)}: " if absent else ""
    if len(absent) < 3:
        return f"{lacks}{rule}, in this order"
    return f"{rule}: {judged}"


def is_plain(parameters: list[inspect.Parameter]) -> bool:
    """Return whether a plain function has these parameters: weights, queries, keys, values, mask, then any others."""
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
