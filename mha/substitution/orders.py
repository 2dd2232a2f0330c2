"""The order in which a port's parameters have the original's numbers, by hashes of known orders."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import permutations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mha.recordings.modules.numbers import is_constant, numbers_of, order_of
from mha.recordings.modules.recording import Parameter
from mha.recordings.origins import roundings
from mha_core.dtypes import divisors, round_to
from mha_core.errors import listed

InOrder = Literal["same", "reordered", "unseen"]

MOST = 1 << 28
"""Numbers that are hashed at most, of all orders of one parameter."""

ROUNDED = " rounded to "
"""What stands in words on numbers in fewer bits."""

ROWS_ARE_OUTPUTS = {
    ("torch", "Linear"): True,
    ("mxnet", "Dense"): True,
    ("transformers", "Conv1D"): False,
    ("keras", "Dense"): False,
    ("flax", "Dense"): False,
    ("flax", "Linear"): False,
}
"""Package and class -> whether its matrix is (out, in); else it is (in, out)."""


def in_which_order(
    own: Mapping[str, Parameter],
    numbers_in: Callable[[str], NDArray],
    port: Mapping[str, Parameter],
    kinds: tuple[str, str],
    dtype: str,
    *,
    one_framework: bool = False,
) -> tuple[InOrder, str]:
    """Return whether a port's parameters, which hold the original's numbers, hold them in the original's order.

    Args:
        own: name -> parameter of the original's module.
        numbers_in: name of a parameter of the original -> its array.
        port: name -> parameter of the port's module.
        kinds: (class of the original's module, class of the port's).
        dtype: the port's dtype.
        one_framework: whether both models are of one framework, so that equal names and shapes mean equal layouts.

    Returns:
        ("same", ""); ("reordered", words on each reordered parameter); or ("unseen", "") if the right order is not
        known, for example because another framework may store a square matrix transposed.
    """
    words, seen = [], True
    for name, parameter in port.items():
        if is_constant(parameter.numbers):
            continue
        partner = _partner(name, parameter, own)
        if partner is None or parameter.order is None:
            seen = False
            continue
        stands = _stands_for(name, partner, own)
        if stands is False:
            words.append(f"{name} has the numbers of {partner}")
            continue
        array = round_to(numbers_in(partner), dtype)
        seen = seen and stands is True
        found = _found(array, parameter)
        is_one_word = len({re.split(r"[./_]", each)[-1] for each in (name, partner)}) == 1
        meant = _is_meant(found, array.shape, parameter.shape, kinds, one_framework and is_one_word)
        seen = seen and meant is not None
        if meant is False:
            words.append(f"{name} {found or 'as it stands, and not transposed'}")
    if words:
        return "reordered", listed(words, 3)
    return ("same" if seen else "unseen"), ""


ROLES = (("weight", "kernel", "scale", "gamma", "w", "g", "embedding", "embeddings"), ("bias", "beta", "b"))
"""The last words of names of parameters that mean the same."""


def _stands_for(name: str, partner: str, own: Mapping[str, Parameter]) -> bool | None:
    """Return whether a port's parameter is meant to be that one of the original's; None if that isn't known."""
    if name == partner:
        return True
    roles = [
        next((i for i, names in enumerate(ROLES) if re.split(r"[./]", one)[-1] in names), None)
        for one in (name, partner)
    ]
    if None not in roles and roles[0] != roles[1]:
        return False
    if name in own:
        return False
    alike = [one for one, parameter in own.items() if sorted(parameter.shape) == sorted(own[partner].shape)]
    several = [one for one in alike if roles[1] is None or re.split(r"[./]", one)[-1] in ROLES[roles[1]]]
    return True if len(several) == 1 else None


def lacked(port: Mapping[str, Parameter], own: Mapping[str, Parameter]) -> str:
    """Return in words which of `own` (the original's parameters) `port` lacks; "" if none, or if `port` has others."""
    theirs, ours = ([one.numbers for one in some.values()] for some in (port, own))
    lost = [name for name, one in own.items() if one.numbers not in theirs and not is_constant(one.numbers)]
    if not lost or len(port) >= len(own) or not all(one in ours for one in theirs):
        return ""
    return f"it lacks {listed(lost, 3)}, which the original has"


def rounded_among(
    port: Mapping[str, Parameter], own: Mapping[str, Parameter], numbers_in: Callable[[str], NDArray]
) -> str:
    """Return in words which of a port's parameters are the original's rounded to fewer bits; "" if none are.

    Args:
        port, own: name -> parameter of the port's module, and of the original's.
        numbers_in: name of a parameter of the original -> its array.
    """
    known, words = {one.numbers for one in own.values()}, []
    for name, parameter in port.items():
        for other, one in own.items() if parameter.numbers not in known else ():
            if one.numbers.size != parameter.numbers.size or is_constant(parameter.numbers):
                continue
            found = (how for how, array in roundings(numbers_in(other)) if numbers_of(array) == parameter.numbers)
            if how := next(found, ""):
                words.append(f"{name} has the numbers of {other}{ROUNDED}{how}")
    return listed(words, 3) if words else ""


def others_among(port: Mapping[str, Parameter], own: Mapping[str, Parameter], model: Mapping[str, Parameter]) -> str:
    """Return in words which parameters of a port's module have numbers that differ from the original's.

    Return "" if no parameter differs. Also return "" if all differ, and the original model has none of their numbers.

    Args:
        port, own: name -> parameter of the port's module, and of the original's.
        model: name -> parameter of the whole original model, where the numbers may be found.
    """
    known = {one.numbers for one in own.values()}
    others = {name: one.numbers for name, one in port.items() if one.numbers not in known}
    words = []
    for name, numbers in others.items():
        whose = [] if is_constant(numbers) else [other for other, one in model.items() if one.numbers == numbers]
        words.append(f"{name} has the numbers of {whose[0]}" if whose else name)
    return "" if len(others) == len(port) and words == list(others) else listed(words, 3)


def _partner(name: str, parameter: Parameter, own: Mapping[str, Parameter]) -> str | None:
    """The original's parameter of the same numbers: the one of this name, or the only one."""
    alike = [other for other, one in own.items() if one.numbers == parameter.numbers]
    return name if name in alike else alike[0] if len(alike) == 1 else None


def _is_meant(
    found: str, own: Sequence[int], port: Sequence[int], kinds: tuple[str, str], one_framework: bool
) -> bool | None:
    """Return whether an order is the one that is meant; None if that isn't known."""
    one, other = ((kind.partition(".")[0], kind.rpartition(".")[2]) for kind in kinds)
    if list(own) == list(port) and (one == other or len(own) == 1):
        return found == ""
    if len(own) != 2 or len(port) != 2:
        return None
    if list(own) != list(port):  # the shape says that it must be transposed, if it is that of the transpose
        return found == TRANSPOSED if list(own) == list(port)[::-1] else None
    sides = ROWS_ARE_OUTPUTS.get(one), ROWS_ARE_OUTPUTS.get(other)
    if found in ("", TRANSPOSED):
        if None in sides:
            return True if one_framework and found == "" else None
        return (found == "") == (sides[0] == sides[1])
    return False


TRANSPOSED = "transposed"


def _found(array: NDArray, port: Parameter) -> str:
    """The order of the port's in words; "" if it is the original's."""
    assert port.order is not None
    left = max(2, MOST // array.size)  # as it stands and transposed, in any case
    for words, other in _orders(array, port.shape):
        if order_of(other.reshape(port.shape)).sequence == port.order.sequence:
            return words
        left -= 1
        if not left:
            break
    same = order_of(array.reshape(port.shape))
    if array.ndim > 1 and same.rows == port.order.rows:
        return "with its rows in another order"
    if array.ndim > 1 and same.columns == port.order.columns:
        return "with its columns in another order"
    return "in another order"


def _orders(array: NDArray, shape: Sequence[int]) -> Iterator[tuple[str, NDArray]]:
    """Yield orders in words, and the array in them; the likeliest first."""
    yield "", array
    square = array.ndim == 2 and array.shape[0] == array.shape[1]
    if array.ndim == 2:
        same = tuple(shape) == array.shape and not square
        yield ("in the memory order of its transpose" if same else TRANSPOSED), array.T
    if tuple(shape) == array.shape:
        yield "reversed", array[::-1]
        if array.ndim == 2:
            yield "with its columns reversed", array[:, ::-1]
        yield from _of_rows(array, "")
        if array.ndim == 2:
            yield from ((f"{words}, along its columns", other.T) for words, other in _of_rows(array.T, ""))
    if array.ndim == 2 and tuple(shape) == array.shape[::-1]:
        yield from ((words, other.T) for words, other in _of_rows(array, f"{TRANSPOSED}, and "))
        yield from ((f"{words}, along its columns", other) for words, other in _of_rows(array.T, f"{TRANSPOSED}, and "))


def _of_rows(array: NDArray, before: str) -> Iterator[tuple[str, NDArray]]:
    """Yield orders of rows in words after others, and the array in them."""
    rows, rest = len(array), array.shape[1:]
    for many in (2, 3):
        if rows % many or rows == many:
            continue
        parts = array.reshape(many, rows // many, *rest)
        for order in list(permutations(range(many)))[1:]:
            yield f"{before}with its {'halves' if many == 2 else 'thirds'} as {_told(order)}", _flat(parts[list(order)])
        for heads in divisors(rows // many)[1:-1]:
            by_part = array.reshape(many, heads, -1, *rest)
            words = f"{before}packed by head, of {heads} heads, and not by part"
            yield words, _flat(np.swapaxes(by_part, 0, 1), 3)
            by_head = array.reshape(heads, many, -1, *rest)
            words = f"{before}packed by part, and not by head, of {heads} heads"
            yield words, _flat(np.swapaxes(by_head, 0, 1), 3)
    for heads in divisors(rows)[1:-1]:
        if rows // heads % 2 == 0:
            pairs = array.reshape(heads, 2, -1, *rest)
            words = f"{before}with the halves of each of {heads} heads interleaved"
            yield words, _flat(np.swapaxes(pairs, 1, 2), 3)
            pairs = array.reshape(heads, -1, 2, *rest)
            words = f"{before}with the pairs of each of {heads} heads as halves"
            yield words, _flat(np.swapaxes(pairs, 1, 2), 3)
    for turn in range(1, rows):
        yield f"{before}rolled by {turn}", np.roll(array, turn, axis=0)


def _flat(array: NDArray, axes: int = 2) -> NDArray:
    """The array with its first axes in one."""
    return array.reshape(-1, *array.shape[axes:])


def _told(order: Sequence[int]) -> str:
    words = ("first", "second", "third")
    return ", ".join(words[one] for one in order)
