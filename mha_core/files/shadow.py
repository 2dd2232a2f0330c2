"""Finds files of a user that hide a module of Python or of a package because they have its name."""

import re
import sys
import traceback
from collections.abc import Collection
from pathlib import Path


def hidden(error: BaseException, packages: Collection[str] = ()) -> list[str]:
    """Return a line for each file in the current folder that hides a standard-library module of the same name.

    A file counts if code outside this folder imported it, or if `error` names the module.

    Args:
        error: what was raised.
        packages: names of other packages that a file may hide.

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
