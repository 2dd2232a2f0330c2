"""docs/phrasebook.md: its statements are those of the sources, and every call of a framework in them is there."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.docs.conftest import ROOT

pytestmark = pytest.mark.same_on_newest  # sources and a page; no framework takes part

DIALECTS = {"numpy": "NumPy", "torch": "PyTorch", "tf": "TensorFlow", "jax": "JAX", "mxnet": "MXNet"}

MODULES = {"np", "jnp", "jax", "torch", "nn", "tf", "ops", "mx"}
"""What a name of a framework begins with; anything else before a dot is an array."""

OURS = {"get", "items", "numpy", "asnumpy", "size"}
"""Methods of dictionaries, and the way back to NumPy: no step of attention."""


def sources(dialect: str) -> Iterator[str]:
    """The layer of the plain edition, and the operations of the backend."""
    yield (ROOT / "lessons" / "plain" / f"in_{dialect}.py").read_text()
    if dialect != "numpy":
        yield from ((ROOT / "backends" / dialect / "ops" / f"{name}.py").read_text() for name in ("heads", "attention"))


def name_of(call: ast.AST, dialect: str) -> str:
    """The name of a framework's call, a method with a dot before it; "" for anything else."""
    if isinstance(call, ast.BinOp) and isinstance(call.op, ast.MatMult):
        return "@"
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return ""
    whole = ast.unparse(call.func)
    root = whole.partition(".")[0]
    if root not in MODULES or not re.fullmatch(r"[\w.]+", whole):
        return "" if call.func.attr in OURS else f".{call.func.attr}"
    if root == "nn":
        return f"torch.{whole}"
    return f"mx.{whole}" if dialect == "mxnet" and root == "np" else whole


def names_in(text: str, dialect: str) -> set[str]:
    return {name for node in ast.walk(ast.parse(text)) if (name := name_of(node, dialect))}


def shown(page: str) -> dict[str, list[str]]:
    """Dialect -> the code that the page has of it."""
    found: dict[str, list[str]] = {name: [] for name in DIALECTS}
    for name, label in DIALECTS.items():
        for row in re.findall(rf"^\| {label} \| (.*) \|$", page, re.MULTILINE):
            found[name] += [code.strip("`").replace("\\|", "|") for code in row.split("<br>")]
    return found


PAGE = (ROOT / "docs" / "phrasebook.md").read_text()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_statement_stands_in_a_source(dialect):
    text = "".join("".join(source.split()) for source in sources(dialect))
    assert [code for code in shown(PAGE)[dialect] if "".join(code.split()) not in text] == []


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_call_of_the_steps_is_in_the_phrase_book(dialect):
    """Of the layer of the plain edition and of all functions of the backend."""
    asked: set[str] = set()
    for text in sources(dialect):
        tree = ast.parse(text)
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        functions = [node for node in functions if node.name == "multi_head_attention"] or functions
        asked |= {name for one in functions for name in names_in(ast.unparse(one.body[1:]), dialect)}
    there = {name for code in shown(PAGE)[dialect] for name in names_in(_parsed(code), dialect)}
    assert asked - there == set()


def _parsed(code: str) -> str:
    """The code, if it is no whole statement as the page has it: a part of an assignment, or a return."""
    return code.removeprefix("return ")


def test_a_statement_stands_beside_its_own_translation():
    """Not a call of one dialect beside whatever the next has of the same name."""
    tables = [table for table in PAGE.split("\n\n") if "as the plain edition has it" in table]
    assert len(tables) == 10
    for table in tables:
        step = table.split("`")[1]
        rows = dict(re.findall(r"^\| (\w+) \| (.*) \|$", table, re.MULTILINE))
        rows.pop("", None)
        assert [name for name in rows if name in DIALECTS.values()] == list(DIALECTS.values()), step
        assigned = [row for row in rows.values() if row.startswith((f"`{step} = ", "`return ", "`powers = "))]
        assert len(assigned) == len(rows), step
