"""Whether the code that makes a mask makes the causal one: an allow list, since most masks of triangles are another."""

from __future__ import annotations

import ast

FILLS = ("ones", "full")
"""The functions whose arrays a triangle is cut out of."""


def makes_causal(made: str, *, attend: bool) -> bool:
    """Whether an expression makes the mask under which query i attends to the keys up to i, and to no other.

    Args:
        made: the code of the array.
        attend: what True means where it is given.

    >>> makes_causal("torch.ones(5, 5, dtype=torch.bool).triu(1)", attend=False)
    True
    >>> makes_causal("torch.ones(5, 5, dtype=torch.bool).triu(2)", attend=False)
    False
    >>> makes_causal("torch.ones(5, 5).triu(1)", attend=False)  # numbers, which are added
    False
    """
    try:
        tree = ast.parse(made, mode="eval").body
    except SyntaxError:
        return False
    is_bool = False
    while True:
        if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Invert):
            tree, attend, is_bool = tree.operand, not attend, True
        elif (inner := _cast_to_bool(tree)) is not None:
            tree, is_bool = inner, True
        else:
            break
    if not isinstance(tree, ast.Call):
        return False
    name = _name(tree.func)
    if name == "generate_square_subsequent_mask":
        return not is_bool  # numbers, 0 and -inf
    if name == "make_causal_mask":
        return attend
    is_bool = is_bool or _says_bool(tree)
    if name == "tri":
        return attend and is_bool and _integer(tree, 2, "k") == 0
    if name not in ("triu", "tril"):
        return False
    # As a method, of what is filled; as a function, whose first argument that is.
    called = tree.func.value if isinstance(tree.func, ast.Attribute) else None
    is_method = isinstance(called, ast.Call)
    filled = called if is_method else tree.args[0] if tree.args else None
    diagonal = _integer(tree, 0 if is_method else 1, "diagonal", "k")
    if not isinstance(filled, ast.Call) or _name(filled.func) not in FILLS:
        return False
    if _name(filled.func) == "full":
        return name == "triu" and diagonal == 1 and not is_bool and "-inf" in ast.unparse(filled).replace(" ", "")
    if not (is_bool or _says_bool(filled)):
        return False
    return (name, diagonal, attend) in (("triu", 1, False), ("tril", 0, True))


def _cast_to_bool(tree: ast.expr) -> ast.expr | None:
    """What is cast, in `x.bool()`, `x.to(bool)`, `x.astype(bool)`; None for anything else."""
    if not (isinstance(tree, ast.Call) and isinstance(tree.func, ast.Attribute)):
        return None
    name = tree.func.attr
    if name == "bool" and not tree.args:
        return tree.func.value
    return tree.func.value if name in ("to", "astype", "type") and _says_bool(tree) else None


def _says_bool(call: ast.Call) -> bool:
    return any(_name(value) in ("bool", "bool_") for value in (*call.args, *(one.value for one in call.keywords)))


def _name(tree: ast.expr) -> str:
    """The last part of a dotted name; "" for another expression."""
    return tree.attr if isinstance(tree, ast.Attribute) else tree.id if isinstance(tree, ast.Name) else ""


def _integer(call: ast.Call, position: int, *names: str) -> int | None:
    """An argument that is a number, 0 if it is not there; None if it is something else."""
    given = next((one.value for one in call.keywords if one.arg in names), None)
    if given is None:
        places = [value for value in call.args if _name(value) not in ("bool", "bool_")]
        given = places[position] if position < len(places) else ast.Constant(0)
    try:
        value = ast.literal_eval(given)
    except ValueError:
        return None
    return value if isinstance(value, int) and not isinstance(value, bool) else None
