"""Files to begin with for `mha check --new`: a function and a class that are judged as they stand, a framework each."""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

FRAMEWORKS = ("numpy", "torch", "keras", "jax", "nnx", "mxnet")
"""Those that there is a file for: templates/in_NAME.py."""

MODULE = "mine"
"""The name that the files have for themselves."""


def new_adapter(path: Path, framework: str) -> tuple[str, str]:
    """Write the file for a framework, and return the two subjects in it, as `mha check --subject` takes them.

    Args:
        path: the file, which must not exist; it is named like a module.
        framework: one of FRAMEWORKS.

    Raises:
        SpecError: the file exists already, or its name can't be that of a module, or is that of another.
        OSError: it can't be written.
    """
    from mha_core.errors import SpecError, shown  # NumPy, which `mha --help` does without

    name = path.stem
    if path.suffix != ".py" or not name.isidentifier():
        raise SpecError(f"--new {shown(path)}: its name must be that of a module, such as mine.py")
    if name in sys.stdlib_module_names or name in (*FRAMEWORKS, "flax", "tensorflow", "mha", "mha_core", "conformance"):
        raise SpecError(f"--new {shown(path)}: it would hide the package {name}; name it otherwise, such as mine.py")
    text = files(__name__).joinpath("templates", f"in_{framework}.py").read_text(encoding="utf-8")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text.replace(f"{MODULE}:", f"{name}:"))
    except FileExistsError:
        raise SpecError(f"--new {shown(path)}: it is there already, and is not overwritten; name another") from None
    except FileNotFoundError:
        raise SpecError(f"--new {shown(path)}: there is no folder {shown(path.parent)}") from None
    return f"{name}:attention", f"{name}:Layer"
