"""Files to begin with for `mha check --new`: a function and a class that are judged as they stand, a framework each."""

import sys
from importlib.resources import files
from pathlib import Path

FRAMEWORKS = ("numpy", "torch", "keras", "jax", "nnx", "mxnet")
"""Those that there is a file for: templates/in_NAME.py."""

MODULE = "mine"
"""The name that the files have for themselves."""


def new_adapter(path: Path, framework: str) -> tuple[str, str]:
    """Write an example file with a function and a class, and return the names of both as MODULE:NAME.

    Args:
        path: the new file, such as mine.py for the module `mine`.
        framework: one of FRAMEWORKS; the example is written in it.

    Raises:
        SpecError: the file exists, its name is not a valid module name, or it would hide another module.
        OSError: the file can't be written.
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
