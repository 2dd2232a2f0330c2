"""Goes through a pickle of PyTorch before PyTorch reads it, and runs nothing of it.

Two things that PyTorch's safe reader would take are refused here: a function that no state_dict needs, also
one that a program has allowed PyTorch; and a name that stands in a dict twice.
"""

from __future__ import annotations

import pickletools
import re
from collections.abc import Sequence
from typing import Any, BinaryIO

from mha_core.errors import shown

REBUILDS = re.compile(
    r"torch\._utils\._rebuild_(tensor(_v[23])?|parameter(_with_state)?|sparse_tensor|meta_tensor_no_storage)"
)
"""Functions that make tensors."""

CALLED = re.compile(
    rf"{REBUILDS.pattern}|torch\.(device|Size)|torch\.serialization\._get_layout|torch\.nn\.parameter\.Parameter"
    r"|collections\.(OrderedDict|Counter)|_codecs\.encode|(builtins|__builtin__)\.(set|complex)"
)
"""Functions and classes that a file of tensors may call. None allocates more than the file has."""

NAMED = re.compile(
    r"torch\.(b?float|int|uint|complex|half|double|q?u?int|bool|long|short)\w*|torch\.\w+Storage"
    rf"|torch\.storage\.UntypedStorage|torch\.Tensor|torch\._tensor\._rebuild_from_type_v2|{CALLED.pattern}"
)
"""Names that may stand in it: also those of dtypes, of kinds of storages, and of tensors with attributes."""

KEPT = ("SETITEM", "SETITEMS", "APPEND", "APPENDS", "ADDITEMS", "BUILD", "MEMOIZE")
"""Operations that leave the object that they fill or remember on the stack."""

_MARK = object()


class CodeFound(Exception):
    """An error: the pickle names a function or class, `name`, that no state_dict needs."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Broken(ValueError):
    """The pickle does not describe a state_dict."""


def texts_in(file: BinaryIO) -> list[str]:
    """Return the texts in the pickle at the file's position, and move the position behind the pickle.

    Returns:
        Every text in the pickle, in its order.

    Raises:
        CodeFound: it names a function or class that is not in NAMED, or calls one that is not in CALLED.
        Broken: a name occurs twice in a dict.
        Exception: any exception, if the pickle is damaged.
    """
    stack: list[Any] = []  # names of code ("module name"), texts, numbers, tuples; a set for any other object
    memo: dict[Any, Any] = {}
    texts: list[str] = []
    argument: Any
    for operation, argument, _ in pickletools.genops(file):
        name = operation.name
        taken = _take(stack, operation.stack_before)
        if name in ("GLOBAL", "INST", "STACK_GLOBAL"):
            argument = " ".join(taken) if name == "STACK_GLOBAL" else argument
            _refuse_unless(NAMED, argument.replace(" ", "."))
        elif name in ("REDUCE", "NEWOBJ"):
            called, arguments = taken
            if called == "torch._tensor _rebuild_from_type_v2":
                _refuse_unless(REBUILDS, str(arguments[0]).replace(" ", "."))
            else:
                _refuse_unless(CALLED, str(called).replace(" ", "."))
            if called == "_codecs encode" and arguments[1:] != ("latin1",):  # as pickles write bytes
                raise Broken(f"it encodes a text as {shown(repr(arguments[1:]))}")
        elif name in ("SETITEM", "SETITEMS"):
            _add_names(taken[0], [one for one in taken[1:] if one is not _MARK][::2])
        elif isinstance(argument, str):
            texts.append(argument)
        if name in KEPT:
            stack.append(taken[0])
            memo |= {len(memo): taken[0]} if name == "MEMOIZE" else {}
        elif "GET" in name:
            stack.append(memo[argument])
        elif "PUT" in name:
            memo[argument] = stack[-1]
        elif name == "MARK":
            stack.append(_MARK)
        elif "TUPLE" in name:
            stack.append(tuple(one for one in taken if one is not _MARK))
        else:  # the set is for the names in the object, if it is a dict
            stack += [argument if type(argument) in (str, int) else set()] * len(operation.stack_after)
    return texts


def _refuse_unless(known: re.Pattern[str], name: str) -> None:
    if not known.fullmatch(name):
        raise CodeFound(name)


def _take(stack: list[Any], wanted: Sequence[Any]) -> list[Any]:
    """Take from the stack what an operation uses; down to the last mark, if it uses all above that."""
    count = len(wanted)
    if pickletools.markobject in wanted:
        count = wanted.index(pickletools.markobject) + 1 + stack[::-1].index(_MARK)
    if count > len(stack):
        raise Broken("it uses more than it holds")
    taken = stack[len(stack) - count :]
    del stack[len(stack) - count :]
    return taken


def _add_names(names: set[Any], new: Sequence[Any]) -> None:
    for name in new:
        if isinstance(name, str | int):
            if name in names:
                raise Broken(f"the name {shown(repr(name))} stands there twice")
            names.add(name)
