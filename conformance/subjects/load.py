"""Load a user's own layer as a subject, with the interface by which backends are judged.

A subject is an object with `prepare(config, weights) -> run(inputs) -> Trace`; all its other attributes have defaults.
A plain function `f(weights, queries, keys, values, mask)` is made into one. `load_subject("MODULE:NAME",
dtype)` finds either. docs/subjects.md has the whole rule.
"""

import importlib
import inspect
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from conformance.bounds.precision import Precision
from conformance.subjects import in_time
from conformance.subjects.ask import CannotExpress, place
from conformance.subjects.function import (
    DEFAULT_DTYPES,
    RULE,
    TO_BEGIN,
    FunctionSubject,
    OtherDtype,
    around,
    check_dtypes,
    check_member,
    is_plain,
    parameters_of,
    subject_from_function,
    to_begin,
)
from mha_core import AttentionConfig, AttentionInputs, SpecError
from mha_core.backend import Run
from mha_core.dtypes import check_dtype
from mha_core.errors import install_command, listed, meant, one_line, shown
from mha_core.files.mistaken import OF_THE_PROJECT, spec_meant
from mha_core.files.shadow import hidden
from mha_core.subject import FIRST, Capabilities
from mha_core.weights import Weights

__all__ = [
    "CannotExpress",
    "FunctionSubject",
    "LoadedSubject",
    "check_time_limit",
    "load_subject",
    "load_subjects",
    "subject_from_function",
]

MOST_NAMES = 8
"""Most names of a module that a message says."""

COMPILED = "compiled"
"""The attribute of a subject that is the same layer, compiled or exported."""

DEFAULT_TIME_LIMIT = 60.0
"""Seconds that a subject may take for one case."""

EXTRAS = {"torch": "torch", "keras": "tf", "tensorflow": "tf", "jax": "jax", "flax": "jax", "mxnet": "mxnet"}
"""Package -> the extra of this project with which it is installed."""


@dataclass(frozen=True)
class LoadedSubject:
    """A user's subject in one dtype, with defaults for the attributes that it lacks.

    Attributes:
        spec: the name by which it was loaded, MODULE:NAME.
        origin: MODULE:NAME of its definition, which may differ from `spec`; `spec` if the definition is not found.
        undeclared: whether it is an object with neither `supports` nor `capabilities`.
        says_compiled: whether the loaded object has an attribute `compiled` with the same layer, compiled or exported.
        original: the object with `prepare`.
        name, dtype, device, precision: its name in reports, and how it computes in this run.
        time_limit: seconds that it may take for one case.
    """

    spec: str
    original: Any
    name: str
    dtype: str
    device: str
    precision: Precision
    time_limit: float = DEFAULT_TIME_LIMIT
    origin: str = ""
    undeclared: bool = False
    says_compiled: bool = False
    own: ClassVar[bool] = True

    @property
    def selector(self) -> str:
        """Return the options of `mha check` that choose this subject."""
        limit = "" if self.time_limit == DEFAULT_TIME_LIMIT else f" --time-limit {self.time_limit:g}"
        return f"--subject {shlex.quote(self.spec)}{limit}"

    def within(self, seconds: float) -> Self:
        """Return the subject with a shorter time limit."""
        return replace(self, time_limit=min(seconds, self.time_limit))

    def supports(self, config: AttentionConfig, inputs: AttentionInputs) -> str | None:
        """Return in words the features of a case that the subject can't compute; None if there are none.

        The subject's own `supports` and `capabilities` decide, if it has them. Features that the first version of this
        project lacked are unsupported unless `capabilities` names them, because the subject may be older than they are.
        """
        asked = getattr(self.original, "supports", None)
        if isinstance(self.original, FunctionSubject):
            return self.original.supports(config, inputs)
        if asked is not None and (reason := asked(config, inputs)) is not None:
            return reason
        own = getattr(self.original, "capabilities", None)
        if isinstance(own, Capabilities) and asked is None:
            return own.why_not(config, inputs)
        declared = FIRST.but(*own.features) if isinstance(own, Capabilities) else FIRST
        lacking = declared.why_not(config, inputs)
        return lacking and f"{lacking} (not named in its capabilities)"

    def prepare(self, config: AttentionConfig, weights: Weights) -> Run:
        return self.original.prepare(config, weights)


def load_subject(spec: str, dtype: str, *, time_limit: float = DEFAULT_TIME_LIMIT) -> LoadedSubject:
    """Return the subject that `MODULE:NAME` names, in one dtype.

    The name is that of a subject, of a plain function, or of a factory: a callable without arguments, or
    with `dtype` only, that returns a subject or a function. The current folder is searched too.

    Raises:
        SpecError: the spec is malformed, nothing is there, importing or making it fails, it is no
            subject, or it does not compute in this dtype. The message says which.

    >>> load_subject("mine", "float64")
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: subject 'mine': it must read MODULE:NAME, such as mine:attention (`attention` in mine.py)
    """
    check_dtype(dtype)
    check_time_limit(time_limit)
    module_name, path = _parse(spec)
    where = f"subject {spec!r}"
    named = _find(where, module_name, path, f"; {TO_BEGIN}")
    try:
        return _loaded(spec, where, named, name=_short(path), dtype=dtype, time_limit=time_limit)
    except SpecError:
        raise
    except (Exception, SystemExit) as error:  # what it says of itself is its own code, which may raise anything
        raise SpecError(f"{where}: what it says of itself raised {one_line(error)}{place(error)}") from error


def _loaded(spec: str, where: str, named: Any, *, name: str, dtype: str, time_limit: float) -> LoadedSubject:
    if isinstance(getattr(named, "dtypes", None), tuple):  # a class that would refuse others when it is made
        check_member(where, dtype, check_dtypes(where, named.dtypes))
    original = _make(where, named, name, dtype)
    check_member(where, dtype, _dtypes_of(where, original))
    if isinstance(original, FunctionSubject):
        original = replace(original, dtype=dtype)
    own = getattr(original, "capabilities", None)
    if not isinstance(own, Capabilities | None):
        raise SpecError(
            f"{where}: its capabilities must be an object of mha_parity.core.subject.Capabilities, such as "
            f"Capabilities('query_dim', 'grouped'). Got {shown(repr(own))}."
        )
    said = isinstance(original, FunctionSubject) or any(hasattr(original, n) for n in ("supports", "capabilities"))
    return LoadedSubject(
        spec=spec,
        undeclared=not said,
        says_compiled=getattr(named, COMPILED, None) is not None,
        original=original,
        name=_text(where, original, "name", name),
        dtype=dtype,
        device=_text(where, original, "device", "cpu"),
        precision=_precision_of(where, original, dtype),
        time_limit=time_limit,
        origin=_origin(named) or spec,
    )


def _short(path: str) -> str:
    """The name in reports of what stands at a path in a module.

    >>> _short("Mine.attention"), _short("Mine.attention.compiled")
    ('attention', 'attention compiled')
    """
    *_, before, last = "", *path.split(".")
    return f"{before} {last}" if before and last == COMPILED else last


def _origin(named: Any) -> str:
    """module:qualname of a factory, class or function; "" if that names another object, as for one that `wraps` it."""
    module, path = (getattr(named, name, None) for name in ("__module__", "__qualname__"))
    if not isinstance(module, str) or not isinstance(path, str):
        return ""
    found: Any = sys.modules.get(module)
    for name in path.split("."):
        found = getattr(found, name, None)
    return f"{module}:{path}" if found is named else ""


def load_object(spec: str, what: str) -> Any:
    """Return the object that `MODULE:NAME` names; the current folder is searched too.

    Args:
        what: what is loaded, in words for messages: "the original".

    Raises:
        SpecError: the spec is malformed, nothing is there, or importing it fails.
    """
    module_name, path = _parse(spec, what)
    return _find(f"{what} {spec!r}", module_name, path)


def load_subjects(
    spec: str, dtypes: Sequence[str], *, time_limit: float = DEFAULT_TIME_LIMIT
) -> tuple[list[LoadedSubject], list[str]]:
    """Return the subject in every dtype of `dtypes` that it computes in, and one line for each other dtype.

    Raises:
        SpecError: as `load_subject`; or the subject computes in none of `dtypes`.
    """
    subjects, left_out = [], []
    for dtype in dtypes:
        try:
            subjects.append(load_subject(spec, dtype, time_limit=time_limit))
        except OtherDtype as error:
            left_out.append(f"left out: {error}")
    if not subjects:
        raise SpecError("\n".join(["nothing to run:", *left_out]))
    return subjects, left_out


PROGRAM = "; what it does as a program belongs below `if __name__ == '__main__':`, which an import does not run"


def check_time_limit(seconds: float) -> float:
    """Return `seconds` if it is a limit that a thread can wait for; raise SpecError otherwise."""
    if not 0.0 < seconds <= 1e6:  # also NaN
        raise SpecError(f"the time limit must be a positive number of seconds, at most 1e6. Got {seconds!r}.")
    return seconds


def _parse(spec: str, what: str = "subject") -> tuple[str, str]:
    """The module and the name in it."""
    module_name, colon, path = spec.partition(":")
    names = [*module_name.split("."), *path.split(".")]
    if not colon or module_name.endswith(".py") or not all(name.isidentifier() for name in names):
        raise SpecError(f"{what} {shown(spec)!r}: {spec_meant(spec, 'attention' if what == 'subject' else 'make')}")
    return module_name, path


def _find(where: str, module_name: str, path: str, advice: str = "") -> Any:
    """Import the module, from the current folder too as `python -m` does, and get what is named in it.

    Raises:
        SpecError: it is not there, and the message ends with this advice, or importing it fails.
    """
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())
    if not in_time.IS_ALONE:  # in a page folders are new, and the archive of the standard library would be read again
        importlib.invalidate_caches()
    try:
        found: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        if hiding := hidden(error, ["numpy", *EXTRAS]):
            said = f"importing {module_name} raised {one_line(error)}{place(error)}"
            raise SpecError(f"{where}: {'; '.join(hiding)}. {said[0].upper()}{said[1:]}") from error
        missing = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module_name}.".startswith(f"{missing}."):
            files = [one.stem for one in Path.cwd().glob("*.py") if one.stem not in OF_THE_PROJECT]
            raise SpecError(
                f"{where}: there is no module {missing!r} in {os.getcwd()} or among the installed packages"
                f"{meant(missing, files) or advice}"
            ) from error
        extra = EXTRAS.get((missing or "").split(".")[0])
        other = f"; install it for {sys.executable}, or give the interpreter that has it (--python)" if missing else ""
        install = other if extra is None else f"; {install_command(extra)}"
        install = PROGRAM if isinstance(error, SystemExit) else install
        raise SpecError(f"{where}: importing {module_name} raised {one_line(error)}{place(error)}{install}") from error
    for name in path.split("."):
        if not hasattr(found, name):
            public = _made_in(found)
            there = (
                f"{module_name} has no {path!r} (it has: {listed(public, MOST_NAMES) or 'no function and no class'})"
            )
            raise SpecError(f"{where}: {there}{meant(path, public) or advice}")
        found = getattr(found, name)
    return found


def _made_in(thing: Any) -> list[str]:
    """The public names of a module, or of what is in one, that may be a layer: none that it imports from elsewhere."""
    module = getattr(thing, "__name__", None) if inspect.ismodule(thing) else None
    own = [
        name
        for name, value in getattr(thing, "__dict__", {}).items()
        if not name.startswith("_")
        and not inspect.ismodule(value)
        and (module is None or getattr(value, "__module__", module) == module)
    ]
    return sorted(own, key=lambda name: not callable(getattr(thing, name, None)))


def _make(where: str, named: Any, name: str, dtype: str) -> Any:
    """The subject that the named object is, or makes."""
    subject = _as_subject(named, name)
    if subject is not None:
        return subject
    if (advice := to_begin(named)) != TO_BEGIN and not hasattr(named, "prepare"):
        raise SpecError(f"{where}: {advice}")
    if not callable(named):
        raise SpecError(f"{where} is of type {type(named).__name__}, and no function; {RULE}; {to_begin(named)}")
    parameters = parameters_of(where, named)
    required = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if set(required) - {"dtype"}:
        raise SpecError(
            f"{where} {'is a class that ' * inspect.isclass(named)}takes ({', '.join(map(str, parameters))}); "
            f"{_of_class(named) if inspect.isclass(named) else around(name, parameters)}; {to_begin(named)}"
        )
    takes_dtype = any(parameter.name == "dtype" for parameter in parameters)
    try:
        made = named(dtype=dtype) if takes_dtype else named()
    except (Exception, SystemExit) as error:
        raise SpecError(f"{where}: {name}() raised {one_line(error)}{place(error)}") from error
    subject = _as_subject(made, name)
    if subject is None:
        gave = f"returned {'None' if made is None else type(made).__name__}"
        gave = "has no prepare(config, weights)" if inspect.isclass(named) else gave
        raise SpecError(
            f"{where}: {name}() {gave}; {to_begin(made) if to_begin(made) != TO_BEGIN else f'{RULE}; {TO_BEGIN}'}"
        )
    return subject


def _of_class(named: type) -> str:
    """Return how an object of a class that takes arguments is made a subject."""
    ready = hasattr(named, "prepare")
    return f"name a function that makes one: def make(): return {named.__name__}(...)" if ready else RULE


def _as_subject(thing: Any, name: str) -> Any:
    """`thing` if it is a subject, a plain function as one, or None."""
    if inspect.isclass(thing) or not callable(getattr(thing, "prepare", thing)):
        return None
    if hasattr(thing, "prepare"):
        return thing
    try:
        takes_arguments = is_plain(parameters_of(name, thing))
    except SpecError:
        return None
    return subject_from_function(thing, name=name) if takes_arguments else None


# What a subject says of itself ---------------------------------------------------------------------------


def _dtypes_of(where: str, original: Any) -> tuple[str, ...]:
    """The subject's `dtypes`, else its `dtype` alone, else the default."""
    if hasattr(original, "dtypes"):
        return check_dtypes(where, original.dtypes)
    return check_dtypes(where, (original.dtype,)) if hasattr(original, "dtype") else DEFAULT_DTYPES


def _text(where: str, original: Any, attribute: str, default: str) -> str:
    value = getattr(original, attribute, default)
    if not isinstance(value, str) or not value:
        raise SpecError(f"{where}: its {attribute} must be a text. Got {value!r}.")
    return shown("".join((value, "")))  # a str, and no subclass with methods of its own


def _precision_of(where: str, original: Any, dtype: str) -> Precision:
    """The subject's `precision`, called with `dtype` if it is a function; by default that of backends."""
    precision = getattr(original, "precision", None)
    if precision is None:
        return Precision.of(dtype)
    if callable(precision):
        precision = precision(dtype)
    if not isinstance(precision, Precision) or precision.storage != dtype:
        raise SpecError(f"{where}: its precision must be a Precision with storage={dtype!r}. Got {precision!r}.")
    return precision
