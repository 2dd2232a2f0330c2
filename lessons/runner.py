"""Run the lessons of one framework in this process: `python lessons/runner.py numpy out.json out.npz [LESSON ...]`.

A lesson is a folder with `lesson.md`, and `in_NAME.py` for each framework: plain files in cells, `# %% name`, which
import nothing of this project. What each cell prints goes to the JSON file, by lesson and cell; the arrays that stand
in `results` after the last one go to the other, as LESSON/CALL/NAME.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).parent


def lessons() -> tuple[str, ...]:
    """The names of the lessons: the folders with a text."""
    return tuple(sorted(path.parent.name for path in HERE.glob("*/lesson.md")))


def cells_of(source: str) -> dict[str, str]:
    """The cells of a file, by name and in their order. Raises ValueError if two have one name, or code is in none.

    >>> cells_of("# %% one" + chr(10) + "x = 1" + chr(10) + "# %% two" + chr(10) + "print(x)")
    {'one': 'x = 1', 'two': 'print(x)'}
    """
    head, *parts = re.split(r"^# %% *(.*)$", source, flags=re.MULTILINE)
    if head.strip():
        raise ValueError(f"code before the first cell: {head.strip().splitlines()[0]!r}")
    names = [name.strip() for name in parts[::2]]
    for name in names:
        if not name or names.count(name) > 1:
            raise ValueError(f"cells need names of their own. Got {name!r} {names.count(name)} times.")
    return {name: code.strip() for name, code in zip(names, parts[1::2], strict=True)}


def run(lesson: str, framework: str, folder: Path = HERE) -> tuple[dict[str, str], dict[str, NDArray]]:
    """Run one lesson: cell -> what it prints, and CALL/NAME -> array.

    Raises:
        RuntimeError: a cell raises; the message names lesson, framework and cell.
    """
    path = folder / lesson / f"in_{framework}.py"
    printed: dict[str, str] = {}
    namespace: dict[str, Any] = {"__name__": f"lesson_{lesson}"}
    try:
        cells = cells_of(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise RuntimeError(f"{lesson}, {framework}: {error}") from error
    for name, code in cells.items():
        out = io.StringIO()
        try:
            with contextlib.redirect_stdout(out):
                exec(compile(code, f"{path.name}, cell {name}", "exec"), namespace)
        except (Exception, SystemExit) as error:
            raise RuntimeError(f"{lesson}, {framework}, cell {name!r}: {type(error).__name__}: {error}") from error
        printed[name] = out.getvalue()
    results = namespace.get("results")
    if not isinstance(results, dict) or not results:
        raise RuntimeError(f"{lesson}, {framework}: no cell has given `results`, a dict of calls")
    return printed, {
        f"{call}/{name}": _as_numpy(value) for call, named in results.items() for name, value in named.items()
    }


def _as_numpy(value: Any) -> NDArray:
    """An array of any framework, or a number."""
    return value.asnumpy() if hasattr(value, "asnumpy") else np.asarray(value)


def main(framework: str, texts: str, arrays: str, *names: str) -> None:
    """Run these lessons, or all, and write the two files."""
    printed, found = {}, {}
    for name in names or lessons():
        printed[name], given = run(name, framework)
        found.update({f"{name}/{key}": array for key, array in given.items()})
    Path(texts).write_text(json.dumps(printed), "utf-8")
    np.savez(arrays, **found)


if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this file, whose folders are no modules
    try:
        main(*sys.argv[1:])
    except RuntimeError as error:
        sys.exit(str(error))
