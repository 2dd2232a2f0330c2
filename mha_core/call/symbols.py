"""A call taken apart into arrays, and which of their axes a program that is made for every size has symbols for."""

from collections.abc import Mapping
from typing import Any

from mha_core.call.call import FLOATS, Call
from mha_core.call.masks import AttentionMask
from mha_core.call.rotary import ARRAYS, RotaryInputs

Rules = tuple[tuple[str, Any], ...]
"""The fields of a mask that are no arrays, by name: a part of a program."""

AXES: Mapping[str, tuple[str | None, ...]] = {
    "queries": ("b", "q", None), "keys": ("b", "n", None), "values": ("b", "n", None), "cotangent": ("b", "q", None),
    "past_keys": ("b", None, "p", None), "past_values": ("b", None, "p", None),
    "allowed": ("b", None, "q", "k"), "bias": ("b", None, "q", "k"), "dropout_keep": ("b", None, "q", "k"),
    "positions": (None, "b", "q"), "key_positions": (None, "b", "n"),
    "cos": ("b", "q", None), "sin": ("b", "q", None), "key_cos": ("b", "n", None), "key_sin": ("b", "n", None),
}  # fmt: skip
"""Array -> the symbols of its last axes: b items, q queries, n new keys, p past ones, k of both; None: not a size."""


Shape = tuple[int, ...]
Symbols = dict[str, tuple[str | None, ...]]
"""Array -> what stands for the size of each axis, such as "n + p"; None where it stays a number."""


def symbols_of(shapes: Mapping[str, Shape]) -> Symbols:
    """Return array name -> symbols of its axes: "b" items, "q" queries, "n" new keys, "p" past keys; None: fixed size.

    >>> symbols_of({"queries": (2, 5, 12), "keys": (2, 7, 12), "valid_lens": (2,), "bias": (4, 1, 7)})["bias"]
    (None, None, 'n')
    >>> split = {"queries": (2, 4, 1, 3), "keys": (2, 4, 1, 3), "past_keys": (2, 4, 6, 3), "bias": (1, 7)}
    >>> symbols_of(split)["queries"], symbols_of(split)["bias"]
    (('b', None, None, None), (None, '1 + p'))
    """
    shared = any(name in shapes and f"key_{name}" not in shapes for name in ("positions", "cos"))
    new = "q" if shared else "n"  # positions of queries that are those of new keys too
    parts = [part for part in (_size_or(new, shapes, "keys"), _size_or("p", shapes, "past_keys")) if part]
    whole = {"n": new, "k": " + ".join(parts) if set(parts) & {new, "p"} else None}
    return {
        name: tuple(
            whole.get(symbol, symbol) if symbol and size > 1 else None
            for symbol, size in zip(_axes(name, len(shape)), shape, strict=True)
        )
        for name, shape in shapes.items()
    }


def _size_or(symbol: str, shapes: Mapping[str, Shape], name: str) -> str:
    size = shapes[name][-2] if name in shapes else 0
    return symbol if size > 1 else str(size) if name in shapes else ""


def _axes(name: str, rank: int) -> tuple[str | None, ...]:
    """The symbols of the axes of an array, which may lack the first ones, or have one of heads behind the first."""
    known = AXES.get(name, ("b", "q")[:rank])
    return known[len(known) - rank :] if rank <= len(known) else (known[0], None, *known[1:])


def shapes_at(symbols: Symbols, shapes: Mapping[str, Shape], sizes: Mapping[str, int]) -> dict[str, Shape]:
    """Return array name -> shape, with each symbol replaced by its number in `sizes`, and other axes as in `shapes`.

    >>> shapes_at({"bias": (None, "1 + p")}, {"bias": (1, 7)}, {"p": 9})
    {'bias': (1, 10)}
    """
    return {
        name: tuple(
            size if symbol is None else sum(sizes.get(part) or int(part) for part in symbol.split(" + "))
            for size, symbol in zip(shapes[name], own, strict=True)
        )
        for name, own in symbols.items()
    }


def taken_apart(call: Call[Any], kind: type) -> tuple[dict[str, Any], Rules]:
    """Return (dict of a call's arrays of type `kind`, pairs of the mask's other fields, such as ("causal", True))."""
    given = {**vars(call.mask), **{name: getattr(call, name) for name in (*FLOATS, "dropout_keep")}}
    given |= vars(call.rotary or RotaryInputs())
    arrays = {name: value for name, value in given.items() if isinstance(value, kind)}
    return arrays, tuple((name, value) for name, value in vars(call.mask).items() if not isinstance(value, kind))


def put_together(arrays: Mapping[str, Any], rules: Rules) -> Call[Any]:
    """Return the Call from the two results of `taken_apart`."""
    of_call = {name: arrays[name] for name in (*FLOATS, "dropout_keep") if name in arrays}
    of_rotary: dict[str, Any] = {name: arrays[name] for name in ARRAYS if name in arrays}
    of_mask: dict[str, Any] = {name: arrays[name] for name in arrays if name not in of_call and name not in of_rotary}
    rotary = RotaryInputs(**of_rotary) if of_rotary else None
    return Call(**of_call, mask=AttentionMask(**of_mask, **dict(rules)), rotary=rotary)
