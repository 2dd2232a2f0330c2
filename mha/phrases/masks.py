"""Masks in somebody's call: which kind each is, and which axes and which meaning of True it has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from mha.phrases.causal import makes_causal
from mha.phrases.native import Arguments
from mha.phrases.said import Mask, both

NUMBERS = re.compile(r"\binf\b|-\s*1e\d|\bfloat\d*\b|finfo|\bzeros\(|\brandn?\(|\bnormal\(|subsequent_mask")
BOOL = re.compile(r"\bbool\b|[<>=!]=|[<>]|\bTrue\b|\bFalse\b|logical_")
"""What shows, in the code that makes an array, which kind of mask it is."""

SHAPES = {
    "[:, None, None, :]": "bk",
    "[:, None, :]": "bk",
    "[None, None]": "qk",
    "[None, None, :, :]": "qk",
    "[None]": "qk",
    "[None, :, :]": "qk",
    "[:, None]": "bqk",
    "[:, None, :, :]": "bqk",
}
"""What follows an array that is given the axes of items, heads, queries and keys -> those that it had."""

LENGTHS = {"b": "B", "h": "H", "q": "Lq", "k": "Lk"}
"""Axis -> its length in words."""


@dataclass(frozen=True)
class Found:
    """What one argument says: a mask of True and False by item and key, another one, numbers, causal; and notes."""

    padding: Mask | None = None
    allowed: Mask | None = None
    added: Mask | None = None
    causal: bool = False
    notes: tuple[str, ...] = ()


def mask_of(text: str, *, attend: bool, axes: str) -> Mask:
    """The mask that an argument says: an array, perhaps inverted, perhaps given axes there and then.

    Args:
        text: the argument.
        attend: what True means in it.
        axes: those of the argument.

    >>> mask_of("~valid", attend=False, axes="bk")
    Mask(text='valid', axes='bk', attend=True)
    >>> mask_of("valid[:, None, None, :]", attend=True, axes="bhqk")
    Mask(text='valid', axes='bk', attend=True)
    """
    tree = ast.parse(text, mode="eval").body
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Invert):
        return mask_of(ast.unparse(tree.operand), attend=not attend, axes=axes)
    if isinstance(tree, ast.Subscript):
        inner = ast.unparse(tree.value)
        places = re.sub(r"\b\w+\.newaxis\b", "None", ast.unparse(tree).removeprefix(inner))
        had = SHAPES.get(places, "")
        if had and len(had) + places.count("None") == len(axes):
            return mask_of(inner, attend=attend, axes=had)
    return Mask(text, axes, attend)


def masks_of(given: Arguments, text: str, *, axes: str, attend: bool) -> Found:
    """What an argument says that may hold masks of several kinds, joined by & (True attends) or | (True ignores).

    >>> given = Arguments("layer", {}, {"past": "jnp.tri(5, 6, dtype=bool)"})
    >>> found = masks_of(given, "valid[:, None, None, :] & past[None, None]", axes="bhqk", attend=True)
    >>> found.padding, found.causal, found.allowed
    (Mask(text='valid', axes='bk', attend=True), True, None)
    """
    if not text:
        return Found()
    rest: list[Mask] = []
    padding: list[Mask] = []
    causal, notes = False, []
    for part in _parts(text, ast.BitAnd if attend else ast.BitOr):
        mask = mask_of(part, attend=attend, axes=axes)
        made = given.assigned.get(mask.text, mask.text)
        if makes_causal(made, attend=mask.attend):
            causal = True
        elif NUMBERS.search(made) and not BOOL.search(made):
            return Found(added=Mask(mask.text, mask.axes))
        elif mask.axes == "bk":
            padding.append(mask)
        else:
            rest.append(mask)
            if not BOOL.search(made) and mask.text == text:
                shape = ", ".join(LENGTHS[axis] for axis in mask.axes)
                notes.append(
                    f"{mask.text} is taken for True and False over ({shape}); numbers, which are added to the scores, "
                    "are another thing"
                )
    return Found(_one(padding, attend), _one(rest, attend), None, causal, tuple(notes))


def _one(masks: list[Mask], attend: bool) -> Mask | None:
    """Several as one; axes must then be alike."""
    if not masks:
        return None
    if len(masks) == 1:
        return masks[0]
    joined = both([mask.where(attend) for mask in masks], " & " if attend else " | ")
    return Mask(joined, max((mask.axes for mask in masks), key=len), attend)


def _parts(text: str, sign: type[ast.operator]) -> Iterator[str]:
    """The operands of a chain of one sign."""
    tree = ast.parse(text, mode="eval").body
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, sign):
        yield from _parts(ast.unparse(tree.left), sign)
        yield from _parts(ast.unparse(tree.right), sign)
    else:
        yield text
