"""Finds packages of other projects that hide one of ours because they have its name."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Collection, Sequence
from importlib.util import find_spec
from pathlib import Path

OURS = ("mha_core", "backends", "conformance", "mha", "mha_parity")
"""This project's top-level packages; some names are so plain that another project may have them too."""

HOME = Path(__file__).resolve().parents[2]
"""The folder that holds all of them."""


def foreign_file(name: str) -> Path | None:
    """Return the place of a package called `name` (one of OURS) that is not this project's; None if there is none.

    >>> foreign_file("conformance") is None
    True
    """
    module = sys.modules.get(name)
    try:
        spec = find_spec(name) if module is None else module.__spec__
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    places = list(spec.submodule_search_locations or ()) or ([spec.origin] if spec.origin else [])
    found = [Path(place).resolve() for place in places]
    if not found or any(place.parent == HOME for place in found):
        return None
    return found[0] if spec.origin is None else Path(spec.origin)


def shadows(names: Sequence[str] = OURS) -> list[str]:
    """Return a line for each package of this project that a foreign package of the same name hides."""
    return [
        f"the package {name!r} that Python finds is {file}, not that of mha-parity in {HOME}; "
        "rename yours, or run from a folder where it is not found first"
        for name in names
        if (file := foreign_file(name)) is not None
    ]


def hidden(error: BaseException, packages: Collection[str] = ()) -> list[str]:
    """Return a line for each file in the current folder that hid a module of its name from the import that raised.

    Such a file was imported by code from elsewhere, or the error names its module.

    Args:
        error: what was raised.
        packages: names of packages that a file may hide too; the modules of Python always count.

    >>> hidden(AttributeError("module 'grp' has no attribute 'getgrnam'"))
    []
    """
    frames = [Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
    ran = [file for file in frames if not file.name.startswith("<")]
    own = [at for at, file in enumerate(ran) if file.is_relative_to(Path.cwd()) and "site-packages" not in file.parts]
    from_elsewhere = {ran[at] for at in own[1:] if at - 1 not in own}
    whose = {**dict.fromkeys(packages, "the package"), **dict.fromkeys(sys.stdlib_module_names, "Python's module")}
    named = re.findall(r"(?:module|named|from) '(\w+)[.']", str(error))
    there = [Path.cwd() / f"{name}.py" for name in named]
    found = [file for file in dict.fromkeys([*from_elsewhere, *there]) if file.parent == Path.cwd() and file.is_file()]
    return [f"{one.name} here hides {whose[one.stem]} {one.stem}: rename it" for one in found if one.stem in whose]
