"""Engines: which there are, and one call of one, made in its own process."""

import inspect
import os
import platform
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache, partial
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.subjects.load import load_object
from mha_core import SpecError
from mha_core.errors import install_command, meant

Options = Mapping[str, Any]
"""Arguments of a call beside queries, keys and values."""

Arrays = dict[str, NDArray]


@dataclass(frozen=True)
class Engine:
    """An attention function of another library (an entry of `engines.toml`), or a user's own.

    Attributes:
        id: the engine's name; for a user's own function, MODULE:NAME.
        function: MODULE:NAME in `mha.atlas.engines`; for a user's own function, the id.
        call: the call of the library in one line of code.
        packages: the packages that the engine needs.
        extra: the extra of this project that installs these packages.
        runner: the module in `mha.atlas.engines` that converts arrays for it; "" means the module of `function`.
        grouped: whether there may be fewer key heads than query heads.
        one_width: whether values must be as wide as keys. If so, the values of test vectors are cut or zero-padded to
            that width, and gradients are not judged.
        environment: environment variables that are set before the library is imported.
    """

    id: str
    function: str
    call: str
    packages: tuple[str, ...]
    extra: str
    runner: str = ""
    grouped: bool = True
    one_width: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


ENGINES: Mapping[str, Engine] = {
    id: Engine(id, **{**fields, "packages": tuple(fields["packages"])})
    for id, fields in tomllib.loads(Path(__file__).with_name("engines.toml").read_text("utf-8")).items()
}
"""Id -> engine, in the order of the page."""


def engines(names: Sequence[str] = ()) -> list[Engine]:
    """Return the engines that match `names`: ids, wildcards such as "torch-*", or MODULE:NAME. Default: all.

    Raises:
        SpecError: a name matches no engine.
    """
    found: dict[str, Engine] = {}
    for name in names or ENGINES:
        fitting = [named(name)] if ":" in name else [one for one in ENGINES.values() if fnmatchcase(one.id, name)]
        if not fitting:
            raise SpecError(f"there is no engine {name!r}{meant(name, ENGINES)} (there are: {', '.join(ENGINES)})")
        found |= {one.id: one for one in fitting}
    return list(found.values())


def named(id: str) -> Engine:
    """Return the engine of an id."""
    return ENGINES[id] if ":" not in id else Engine(id, id, f"{id.partition(':')[2]}(q, k, v)", (), "", "plain")


# In the engine's process ----------------------------------------------------------------------------------------


@cache
def _loaded(id: str) -> tuple[Callable[..., Any], Any]:
    """The function of an engine, and the module that runs it."""
    engine = named(id)
    os.environ.update({"TF_CPP_MIN_LOG_LEVEL": "3", "HF_HUB_OFFLINE": "1", **engine.environment})
    module, _, name = engine.function.partition(":")
    own = f"{__package__}.engines."
    try:
        if ":" in id:
            return load_object(id, "engine"), import_module(f"{own}plain")
        for package in engine.packages:
            metadata.version(package)
        return getattr(import_module(f"{own}{module}"), name), import_module(f"{own}{engine.runner or module}")
    except (ImportError, metadata.PackageNotFoundError) as error:
        raise SpecError(f"{engine.id} is not installed ({error.name}): {install_command(engine.extra)}") from error


def described(id: str) -> dict[str, Any]:
    """Return a dict on an engine: "options", "always" (required options), "dtypes", package "versions", "python"."""
    function, module = _loaded(id)
    parameters = list(inspect.signature(function).parameters.values())[3:]
    return {
        "options": [one.name for one in parameters],
        "always": [one.name for one in parameters if one.default is one.empty],
        "dtypes": list(module.DTYPES),
        "versions": {name: metadata.version(name) for name in getattr(function, "packages", named(id).packages)},
        "python": platform.python_version(),
    }


NAMES = ("output", "gradients.queries", "gradients.keys", "gradients.values")
"""What `computed` of an engine's module returns, in this order: the output alone, or all."""


def called(id: str, given: list[NDArray], options: dict[str, Any], dtype: str, cotangent: NDArray | None) -> Arrays:
    """Return name -> array: the output of engine `id` for `given` (q, k, v), and gradients if `cotangent` is given.

    `options`: keyword arguments. `cotangent`: gradient of the output. The engine's exceptions pass through.
    """
    function, module = _loaded(id)
    made = {name: module.of(one, dtype) if isinstance(one, np.ndarray) else one for name, one in options.items()}
    leaves = [module.of(array, dtype) for array in given]
    start = None if cotangent is None else module.of(cotangent, dtype)
    with np.errstate(all="ignore"):
        found = module.computed(partial(function, **made), leaves, start)
        return dict(zip(NAMES, (np.asarray(module.back(one)) for one in found), strict=False))
