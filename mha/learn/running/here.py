"""Judge a function where it was written: in a cell of a notebook, without a folder of files."""

import inspect
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mha.learn.exercise import Exercise
from mha.learn.exercises import exercise
from mha.learn.hints import hint
from mha.learn.running.dialects import DIALECTS
from mha_core.errors import SpecError


def check_here(name: str, function: Callable[..., Any], *, level: int = 2) -> str:
    """Judge a function as `mha learn check` and `hint` judge a file.

    The function runs in a process of its own. It sees the imports at the beginning of the exercise's file, and nothing
    else of the notebook.

    Args:
        name: the name of the exercise, such as "softmax" or "empty-row".
        function: the answer; it may have another name than the exercise.
        level: how much is said about a wrong answer. 1: where it is wrong; 2: what is wrong; 3: what to change; 4: the
            right answer.

    Returns:
        "softmax: right, ..." or "softmax: wrong, ..." with what `level` says.

    Raises:
        SpecError: there is no such exercise, or the source of the function is not known.

    >>> def softmax(scores):
    ...     powers = np.exp(scores)
    ...     return powers / powers.sum(axis=-1, keepdims=True)
    >>> print(check_here("softmax", softmax).splitlines()[0])  # doctest: +ELLIPSIS
    softmax: wrong, weights[...
    """
    asked = exercise(name)
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError) as error:
        raise SpecError(
            f"function {function!r} must be written in a cell or a file. Its source is not there."
        ) from error
    lines = [DIALECTS[asked.dialect].heading, source]
    wanted, given = Path(asked.file).stem, function.__name__
    if given != wanted:
        lines.append(f"{wanted} = {given}")
    with written(asked, "\n\n".join(lines) + "\n") as folder:
        return hint(asked, folder, level, asked.dialect).text


@contextmanager
def written(asked: Exercise, text: str) -> Iterator[Path]:
    """Return a context whose value is a folder with an exercise's file, which has this text."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # a browser keeps the current one
        path = Path(folder, asked.file)
        path.parent.mkdir(parents=True)
        path.write_text(text, "utf-8")
        yield Path(folder)
