"""Files and names in the place of something else, such as code or weights for a recording, and what takes them."""

import ast
import os
import re
from difflib import get_close_matches
from pathlib import Path

from mha_core.errors import listed, shown
from mha_core.files.tensorfile import looks_like

WEIGHTS = (".pt", ".pth", ".bin", ".ckpt", ".h5", ".keras", ".msgpack", ".npz", ".params", ".safetensors")
"""Suffixes of files of weights."""

OF_THE_PROJECT = ("conftest", "noxfile", "setup")
"""Names of modules that hold no layer: tools of a project read them."""

TO_RECORD = 'a recording is written in Python: with mha.capture(model, "calls.safetensors"): model(x)'

MOST = 4
"""Most names in a file that are said."""


def without_forward(module: object) -> str:
    """Return a sentence about a PyTorch module that has no method forward; "" for any other object.

    >>> without_forward(Path("a.pt"))
    ''
    """
    kind = module if isinstance(module, type) else type(module)
    missing = getattr(getattr(kind, "forward", None), "__name__", "") == "_forward_unimplemented"
    return f"{kind.__qualname__} has no method forward" if missing else ""


def names_code(text: object) -> bool:
    r"""Return whether a text has the form MODULE:NAME and names no file.

    >>> names_code("mine.layers:attention"), names_code("mine.py"), names_code("C:\\calls")
    (True, False, False)
    """
    return re.fullmatch(r"[\w.]+:[\w.]+", str(text)) is not None and not Path(str(text)).exists()


def defined_in(path: Path, first: str = "weights") -> list[str]:
    r"""Return the names of the public functions and classes of a Python file, which is not run; [] if it can't be read.

    Functions whose first parameter has the name `first` come first, then other functions, then classes. With
    `first=""`, functions without parameters come first.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "mine.py")
    ...     _ = file.write_text("class Layer: ...\ndef attention(weights, queries): ...\ndef _own(): ...")
    ...     defined_in(file)
    ['attention', 'Layer']
    """
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found = [one for one in body if isinstance(one, (ast.FunctionDef, ast.ClassDef)) and one.name[:1] != "_"]

    def rank(one: ast.FunctionDef | ast.ClassDef) -> int:
        if isinstance(one, ast.ClassDef):
            return 3 if _methods(one) & CALLED else 2
        return int([each.arg for each in one.args.args[:1]] != [first] * bool(first))

    return [one.name for one in sorted(found, key=rank)]


CALLED = frozenset(("forward", "call", "__call__"))
"""Methods by which the layers of frameworks are called."""


def _methods(one: ast.ClassDef) -> set[str]:
    """The names of the methods of a class; none if one is `prepare`, as a subject has it."""
    found = {each.name for each in one.body if isinstance(each, ast.FunctionDef)}
    return set() if "prepare" in found else found


def layer_in(path: Path) -> str:
    r"""Return NAME from `spec_of(path)` (MODULE:NAME), if NAME is a class with a method such as `forward`; else "".

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "mine.py")
    ...     _ = file.write_text("class Layer:\n    def forward(self, x): ...")
    ...     layer_in(file)
    'Layer'
    """
    module, _, name = spec_of(path).partition(":")
    try:
        body = ast.parse((path if path.suffix == ".py" else Path(f"{module.replace('.', '/')}.py")).read_bytes()).body
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    return (
        name
        if any(isinstance(one, ast.ClassDef) and one.name == name and _methods(one) & CALLED for one in body)
        else ""
    )


def spec_meant(text: str, example: str = "attention") -> str:
    """Return in words what to write instead of a text that is not of the form MODULE:NAME.

    >>> spec_meant("layers/mine.py:attention")
    'name the module, without .py: write layers.mine:attention; there is no file layers/mine.py'
    >>> import tempfile, contextlib
    >>> with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
    ...     Path("my-layer.py").touch()
    ...     spec_meant("my-layer:attention")
    'Python imports no module with a dash in its name: rename my-layer.py to my_layer.py, and write my_layer:attention'
    >>> spec_meant("no_such_file"), spec_meant("mine.py:", "make")
    ('it must read MODULE:NAME, such as mine:attention (`attention` in mine.py)', \
'it must read MODULE:NAME, such as mine:make (`make` in mine.py)')
    """
    place, _, name = text.partition(":")
    file = Path(place if place.endswith(".py") else f"{place.replace('.', '/')}.py")
    elsewhere = file.is_absolute() or ".." in file.parts
    folder = f", and run this in {shown(file.parent)}" * elsewhere
    module = ".".join(part for part in file.with_suffix("").parts if part != ".") if not elsewhere else file.stem
    if name.replace(".", "_").isidentifier() and (place.endswith(".py") or "/" in place):
        missing = "" if file.is_file() else f"; there is no file {shown(file)}"
        return f"name the module, without .py: write {shown(module)}:{shown(name)}{folder}{missing}"
    if not name and file.is_file():
        there = defined_in(file, "weights" if example == "attention" else "")
        more = f" ({file} has: {listed([shown(one) for one in there], MOST)})" if len(there) > 1 else ""
        return f"name what is in it, too: write {shown(module)}:{shown(there[0]) if there else 'NAME'}{folder}{more}"
    if "-" in place and file.is_file():
        right = str(file).replace("-", "_")
        module = ".".join(part for part in Path(right).with_suffix("").parts if part != ".")
        rename = f"rename {shown(file)} to {shown(right)}, and write {shown(module)}:{shown(name or example)}"
        return f"Python imports no module with a dash in its name: {rename}"
    what = "it is a file, and no Python code; " if Path(text).is_file() else ""
    return f"{what}it must read MODULE:NAME, such as mine:{example} (`{example}` in mine.py)"


def spec_of(path: Path) -> str:
    """Return MODULE:NAME for a Python file, with the first name in `defined_in(path)`, or "NAME" if there is none.

    A `path` that has the form MODULE:NAME already is returned unchanged.
    """
    meant = re.search(r"write ([\w.]+:\w+)", spec_meant(str(path)))
    return str(path) if names_code(path) else meant[1] if meant else f"{path.stem}:NAME"


def near_file(path: Path) -> str:
    """Return the end of an error message for a wrong path: the name of a similar file of weights or calls, or "".

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = [Path(folder, name).touch() for name in ("call.npz", "port.npz", "models.py")]
    ...     near_file(Path(folder, "calls.npz")), near_file(Path(folder, "model.npz"))
    ('; did you mean call.npz?', '')
    """
    files = (one for one in path.absolute().parent.glob("*") if one.name.endswith((*WEIGHTS, ".index.json")))
    there = {one.stem: one.name for one in files if one.is_file()}
    found = get_close_matches(path.stem, there, n=1, cutoff=0.75)
    return f"; did you mean {shown(there[found[0]])}?" if found else ""


def taken_by(path: str | os.PathLike[str]) -> str:
    """Return a text on a path that is no recording of calls: what it is, which command reads it, and how to record.

    >>> taken_by("mine:attention").partition("; a")[0]
    'it is code, and no file: `mha check --subject mine:attention` judges a function'
    """
    path, name = Path(path), shown(path)
    if (names_code(path) or path.suffix == ".py") and (layer := layer_in(path)):
        return f"it is code, of the layer {shown(layer)}; {TO_RECORD}"
    if names_code(path):
        return f"it is code, and no file: `mha check --subject {name}` judges a function; {TO_RECORD}"
    if path.is_dir():
        return f"it is a folder; {TO_RECORD}"
    if not path.is_file():
        return near_file(path).removeprefix("; ") or TO_RECORD
    if path.suffix == ".py":
        return f"it is Python code: `mha check --subject {spec_of(path)}` judges a function in it; {TO_RECORD}"
    if path.name.endswith(WEIGHTS):
        return f"weights are read by `mha convert {name} --list`; {TO_RECORD}"
    return f"{'it is a text; ' * (looks_like(path) == 'a text')}{TO_RECORD}"
