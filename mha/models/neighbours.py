"""Neighbours: the arrays below a layer's prefix that are no part of its layout. Unknown ones stop a conversion."""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence

from mha_core import SpecError
from mha_core.errors import listed, shown
from mha_core.layouts import Layout

MEANINGS = {
    "an extra key (add_bias_kv)": ("bias_k",),
    "an extra value (add_bias_kv)": ("bias_v",),
    "a norm of queries": ("q_norm", "query_norm", "query_ln", "query_layer_norm"),
    "a norm of keys": ("k_norm", "key_norm", "key_ln", "key_layer_norm"),
    "attention sinks": ("sinks",),
    "a gate": ("gate",),
    "a relative position bias": ("relative", "rel_", "distance_embedding", "position_bias"),
    "a bias by distance": ("alibi", "slopes"),
    "global attention besides": ("query_global",),
    "rotary positions": ("rotary", "rope", "inv_freq", "freqs"),
    "a scale of the scores": ("logit_scale", "temperature"),
    "a score function of its own": ("score",),
    "an adapter": ("lora_",),
}
"""Their meaning, for messages -> beginnings of names; any array that is not in the layout stops a layer."""

MOST_NAMED = 4
"""Most names that a message lists."""


class Neighbours:
    """A list of array names, with a search for names that begin with a layer's prefix.

    Args:
        names: the names of all arrays, in the file's order.
        prefixes: the prefixes of all attention layers in the file.

    >>> from mha_core.layouts import get
    >>> own = [f"attn.{name}" for name in get("llama").required]
    >>> Neighbours([*own, "attn.q_norm.weight", "mlp.weight"], ["attn"]).of("attn", get("llama"))
    ['q_norm.weight']
    """

    def __init__(self, names: Iterable[str], prefixes: Iterable[str]) -> None:
        self._order = {name: index for index, name in enumerate(names)}
        self._names, self._prefixes = sorted(self._order), sorted(prefixes)

    def of(self, prefix: str, layout: Layout) -> list[str]:
        """Return the names below a layer's prefix that are not in its layout, without the prefix, in the file's order.

        Names of other layers are left out. The prefix "" (a layer at the top level) has every name below it.
        """
        start = prefix + layout.separator if prefix else ""
        own = {*layout.required, *layout.optional}
        inner = tuple(
            other + mark for other in _below(self._prefixes, start) if other not in ("", prefix) for mark in "./"
        )
        found = [name for name in _below(self._names, start) if not name.startswith(inner)]
        relative = [name[len(start) :] for name in sorted(found, key=self._order.__getitem__)]
        return [name for name in relative if name not in own]


def refuse_unknown(names: Sequence[str], prefix: str) -> None:
    """Raise SpecError if `names`, the unknown arrays in a layer, is not empty; the message guesses their meanings."""
    if not names:
        return
    options = " ".join(f"--leave '{shown(name)}'" for name in names[:MOST_NAMED])
    listing = listed([named(name) for name in names], MOST_NAMED)
    raise SpecError(
        f"the layer at prefix {shown(repr(prefix))} has arrays that are no part of its layout: "
        f"{listing}; with them it may compute something else. To leave them behind: {options}"
    )


def named(name: str) -> str:
    """Return an array's name, with its likely meaning."""
    return f"{shown(name)} ({meaning_of([name])})" if meaning_of([name]) else shown(name)


def meaning_of(names: Collection[str]) -> str:
    """Return the likely meaning of an array with one of these names, in words; "" if it is unknown.

    >>> meaning_of(["norm.weight", "q_norm.weight"]), meaning_of(["anything.weight"])
    ('a norm of queries', '')
    """
    parts = [part.lstrip("_") for name in names for part in name.replace("/", ".").split(".")]
    found = (text for text, marks in MEANINGS.items() if any(part.startswith(marks) for part in parts))
    return next(found, "")


def _below(ordered: Sequence[str], start: str) -> Sequence[str]:
    """The strings that begin with `start`, of a sorted sequence."""
    first = bisect_left(ordered, start)
    last = first
    while last < len(ordered) and ordered[last].startswith(start):
        last += 1
    return ordered[first:last]
