"""The statements of the plain edition, one row for what each assigns; five files with other rows stop the build."""

import ast
import textwrap
from dataclasses import dataclass
from pathlib import Path

import lessons.plain
from _ext.common import DIALECTS

LAYER = "multi_head_attention"
"""The function that all files have."""

FOLDER = Path(lessons.plain.__file__).parent


@dataclass(frozen=True)
class Statement:
    """One statement of the layer.

    Attributes:
        name: what it assigns or defines, "return", or the name of the layer for its first line.
        source: its lines as they stand in the file, comments included, without indentation.
    """

    name: str
    source: str


@dataclass(frozen=True)
class Step:
    """A row of the page: the statement of this name in every dialect."""

    name: str
    cells: dict[str, Statement]


def statements(path: Path) -> tuple[Statement, ...]:
    """All statements of the layer in one file, its first line before them and without its docstring.

    >>> [one.name for one in statements(FOLDER / "in_numpy.py")][:4]
    ['multi_head_attention', 'project', 'split', 'softmax']
    """
    text = path.read_text("utf-8")
    lines = text.splitlines()
    layers = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == LAYER]
    if len(layers) != 1:
        raise ValueError(f"{path.name} has no function {LAYER}")
    [layer] = layers
    start = min([layer.lineno, *(node.lineno for node in layer.decorator_list)])
    found = [Statement(LAYER, "\n".join(lines[start - 1 : layer.body[0].lineno - 1]))]
    for node in layer.body[1:]:
        source = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
        found.append(Statement(_assigned(node, path), source))
    return tuple(found)


def steps(folder: Path = FOLDER) -> tuple[Step, ...]:
    """The rows of all five files.

    Raises:
        ValueError: a file assigns another name, or in another order, than NumPy's.
    """
    columns = {name: statements(folder / f"in_{name}.py") for name in DIALECTS}
    first, *others = columns
    names = [one.name for one in columns[first]]
    for other in others:
        theirs = [one.name for one in columns[other]]
        if theirs != names:
            at = next((i for i, pair in enumerate(zip(names, theirs, strict=False)) if pair[0] != pair[1]), None)
            at = min(len(names), len(theirs)) if at is None else at
            have, want = (f"{rows[at]!r}" if at < len(rows) else "nothing" for rows in (theirs, names))
            raise ValueError(f"in_{other}.py: step {at + 1} is {have}, where in_{first}.py has {want}")
    return tuple(Step(name, {key: column[i] for key, column in columns.items()}) for i, name in enumerate(names))


def _assigned(node: ast.stmt, path: Path) -> str:
    match node:
        case ast.FunctionDef(name=name) | ast.Assign(targets=[ast.Name(id=name)]):
            return name
        case ast.Return():
            return "return"
    raise ValueError(f"{path.name}, line {node.lineno}: a step assigns one name, defines a function, or returns")
