"""What modules are given and give: arrays anywhere in tuples, dicts and dataclasses, found by their places.

A place is a path such as ("hidden_states",) or ("0", "last_hidden_state").
"""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

DEEPEST = 8
"""How deep an array may stand."""

Place = tuple[str, ...]


def parts_of(value: Any) -> list[tuple[str, Any]] | None:
    """Return (name, element) pairs of a tuple, list, mapping or dataclass; None for anything else."""
    if isinstance(value, Mapping):
        return [(str(key), part) for key, part in value.items()]
    if isinstance(value, list | tuple):
        names = getattr(value, "_fields", range(len(value)))  # of a named tuple
        return [(str(name), part) for name, part in zip(names, value, strict=True)]
    if is_dataclass(value) and not isinstance(value, type):
        return [(own.name, getattr(value, own.name, None)) for own in fields(value)]
    return None


def leaves(value: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Yield (key path, leaf) for every leaf of nested containers, that is, every value without elements.

    >>> list(leaves({"x": 1, "rest": (2, None)}))
    [(('x',), 1), (('rest', '0'), 2), (('rest', '1'), None)]
    """
    parts = parts_of(value) if len(place) < DEEPEST else None
    if parts is None:
        yield place, value
        return
    for name, part in parts:
        yield from leaves(part, (*place, name))


def changed(value: Any, change: Callable[[Place, Any], Any], place: Place = ()) -> Any:
    """Return a copy of `value` with `change(place, leaf)` in place of each leaf; containers keep their types.

    >>> changed({"x": 1, "rest": (2, None)}, lambda place, leaf: leaf if leaf is None else -leaf)
    {'x': -1, 'rest': (-2, None)}
    """
    parts = parts_of(value) if len(place) < DEEPEST else None
    if parts is None:
        return change(place, value)
    new = [changed(part, change, (*place, name)) for name, part in parts]
    if isinstance(value, Mapping):
        same = copy.copy(value)
        for key, part in zip(value, new, strict=True):
            if part is not value[key]:
                same[key] = part  # type: ignore[index]  # a mapping that can't be changed raises
        return same
    if isinstance(value, list):
        return new
    if isinstance(value, tuple):
        return type(value)(*new) if hasattr(value, "_fields") else tuple(new)
    same = copy.copy(value)
    for (name, before), part in zip(parts, new, strict=True):
        if part is not before:
            object.__setattr__(same, name, part)
    return same


def snapshot(leaf: Any, as_array: Callable[[Any], Any]) -> Any:
    """Return a copy of the leaf if a call may change it (such as a cache); arrays and plain values as they are."""
    plain = leaf is None or callable(leaf) or isinstance(leaf, bool | int | float | str)
    if plain or as_array(leaf) is not None:
        return leaf
    try:
        return copy.deepcopy(leaf)
    except Exception:  # a handle of the system, a generator
        return leaf


def named(call: inspect.BoundArguments) -> dict[str, Any]:
    """Return a dict: name -> argument of a call, without defaults; an argument in *args has its number as name."""
    found: dict[str, Any] = {}
    for name, value in call.arguments.items():
        kind = call.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            found |= value
        elif kind is inspect.Parameter.VAR_POSITIONAL:
            found |= {str(len(found) + number): one for number, one in enumerate(value)}
        else:
            found[name] = value
    return found
