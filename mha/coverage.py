"""Coverage: the modules of a live model that look like attention, and which of them were read.

A tool that reads the layers of known classes and reports "equal" has not checked the others. This module decides for
all frameworks which modules look like attention: by the names of a module's class and of its parts.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from mha_core import SpecError
from mha_core.errors import listed, shown

Why = Literal["unknown", "uncalled", "unasked"]
"""Why a module was not read: nothing here knows its class, it was never called, or other layers were asked for."""

SHOWN = 12
"""Most names that a line lists; the JSON has them all."""


class UnreadWarning(UserWarning):
    """A warning: some modules that look like attention were left out, so the results do not hold for them."""


@dataclass(frozen=True)
class Unread:
    """A module that looks like attention but was left out (not read).

    Attributes:
        name: its name in the model.
        kind: its class.
        why: "unknown" (its class is not supported), "uncalled", or "unasked" (the caller did not choose it).
    """

    name: str
    kind: str
    why: Why


@dataclass(frozen=True)
class Coverage:
    """A record of which modules that look like attention were read: `read` has their names, `unread` the others.

    >>> print(Coverage(("layers.0.attn",), (Unread("layers.1.attn", "mine.Attention", "unknown"),)).line)
    read 1 of 2 modules that look like attention; not: layers.1.attn (mine.Attention)
    """

    read: tuple[str, ...]
    unread: tuple[Unread, ...] = ()

    @property
    def unseen(self) -> tuple[Unread, ...]:
        """Return the modules that the caller chose, but that were not read."""
        return tuple(one for one in self.unread if one.why != "unasked")

    @property
    def line(self) -> str:
        """Return the coverage in one line."""
        total = len(self.read) + len(self.unread)
        parts = [
            f"read {len(self.read)} of {total} module{'s' * (total != 1)} that look{'s' * (total == 1)} like attention"
        ]
        for why, words in (("unknown", "not"), ("uncalled", "never called"), ("unasked", "not asked for")):
            found = [one for one in self.unread if one.why == why]
            if found:
                names = [f"{_shown(one.name)} ({one.kind})" if why == "unknown" else _shown(one.name) for one in found]
                more = [f"{len(names) - SHOWN} more"] if len(names) > SHOWN else []
                parts.append(f"{words}: {', '.join(names[:SHOWN] + more)}")
        return "; ".join(parts)

    @property
    def not_judged(self) -> str:
        """Return one line that names the layers that a verdict does not cover; "" if all chosen layers were read.

        >>> print(Coverage(("a",), (Unread("c", "mine.MHA", "uncalled"),)).not_judged)
        Not judged: 1 of 2 modules that look like attention: c (never called).
        """
        if not self.unseen:
            return ""
        total = len(self.read) + len(self.unread)
        why = {"unknown": "mha.capture reads {0.kind} with mha.Projections alone", "uncalled": "never called"}
        names = [f"{_shown(one.name)} ({why[one.why].format(one)})" for one in self.unseen]
        which = f"{len(names)} of {total} module{'s' * (total > 1)} that look{'s' * (total == 1)} like attention"
        return f"Not judged: {which}: {listed(names, SHOWN)}."

    def to_dict(self) -> dict[str, Any]:
        """Return the coverage as a dict of JSON values."""
        return {"read": list(self.read), "unread": [asdict(one) for one in self.unread]}

    def check(self) -> None:
        """Raise SpecError if a module that the caller chose was not read."""
        if self.unseen:
            raise SpecError(f"{self.line}. Without strict this is said and no error")


PartsOf = Callable[[Any], tuple[Collection[str], Callable[[], Collection[int]] | None]]
"""A framework's function for a module's parts.

It returns the names of the direct parts (modules and parameters) that hold parameters, and a function for the ids of
all modules within; None in its place where modules are made anew in each call, so that only names identify them.
"""


@dataclass(eq=False)
class _Met:
    """A module that may be attention: of a `known` class, by its parts (`sure`), or by a name alone."""

    name: str
    module: Any
    parts: Collection[str]
    within: Collection[int] | None
    known: bool
    asked: bool
    sure: bool


class Survey:
    """A collector of a model's modules. `coverage` tells which of those that look like attention were read.

    Args:
        parts_of: module -> (names of its direct submodules; function that returns the ids of all modules in it).
    """

    def __init__(self, parts_of: PartsOf) -> None:
        self._parts_of = parts_of
        self._met: dict[Any, _Met] = {}

    def meet(self, name: str, module: Any, *, known: bool, asked: bool = True) -> None:
        """Add a module. `known`: whether its class is supported; `asked`: whether the caller chose its name."""
        parts, within = self._parts_of(module)
        key = name if within is None else id(module)
        if key in self._met:
            return
        sure = has_projections(parts)
        if known or sure or named_like_attention(re.split("[./]", name)[-1], module, parts):
            self._met[key] = _Met(name, module, parts, within and frozenset(within()), known, asked, sure)

    def settle(self, module: Any, *, known: bool) -> None:
        """Note whether a module that was met is read after all."""
        for one in self._met.values():
            if one.module is module:
                one.known = known

    def read_inside(self, name: str) -> str:
        """Mark the attention function in the module `name` as read, and return the name of its layer.

        The layer is the outermost module around the function that has projections. If none has, it is the innermost.
        """
        around = [
            one for one in self._met.values() if not one.name or re.match(rf"{re.escape(one.name)}([./]|$)", name)
        ]
        if not around:
            return name
        sure = [one for one in around if one.sure and one.name]
        owner = min(sure, key=lambda one: len(one.name)) if sure else max(around, key=lambda one: len(one.name))
        for one in around:
            one.known = one is owner
        return owner.name

    def coverage(self, called: Collection[str] | None = None) -> Coverage:
        """Return the Coverage. `called`: names of the called layers. Default: all chosen ones of supported classes."""
        met = list(self._met.values())
        known = [one for one in met if one.known]
        unknown = [
            one
            for one in met
            if not one.known
            and not any(self._inside(one, outer) for outer in known)
            and (one.sure or not any(self._inside(inner, one) for inner in known))
        ]
        unknown = [one for one in unknown if self._stands_for_itself(one, unknown)]
        read = [one.name for one in known if one.asked and (called is None or one.name in called)]
        read += [name for name in called or () if name not in read]  # one that was met under another name
        unread = [
            Unread(one.name, kind_of(one.module), _why(one))
            for one in met
            if one in unknown or (one.known and one.name not in read)
        ]
        return Coverage(tuple(read), tuple(unread))

    def _stands_for_itself(self, one: _Met, others: Iterable[_Met]) -> bool:
        """Whether this module counts, of those within each other: the outermost with projections; if there is none, the
        innermost with parameters, because the modules around it only wrap it.
        """
        for other in others:
            if self._inside(one, other) and (other.sure or (not one.sure and not one.parts)):
                return False
            if self._inside(other, one) and not one.sure and (other.sure or other.parts):
                return False
        return True

    def _inside(self, one: _Met, other: _Met) -> bool:
        if one is other:
            return False
        if other.within is not None:
            return id(one.module) in other.within
        return other.name == "" or one.name.startswith(f"{other.name}/")


def _why(one: _Met) -> Why:
    return "unasked" if not one.asked else "uncalled" if one.known else "unknown"


def _shown(name: str) -> str:
    return name or "the model itself"


def kind_of(module: Any) -> str:
    """Return a module's class in words: "mine.Attention".

    >>> kind_of(Coverage(()))
    'mha.coverage.Coverage'
    """
    return f"{type(module).__module__}.{type(module).__qualname__}"


# What looks like attention ------------------------------------------------------------------------------

_CLASS = re.compile(r"(?i:attention|attn|multi_?head)|MHA|MHSA|MQA|GQA")
_NO_CLASS = re.compile(r"(?i:mask|norm|dropout|output|bias|config|cache|embeddings?|pos|weights?)$")
_NAME = re.compile(r"(self_?|cross_?|encoder_?|multi_?head_?)?(attn|attention)|mha|mhsa", re.IGNORECASE)
_NORM = re.compile(r"norm|^ln", re.IGNORECASE)
HEADS = ("num_heads", "n_heads", "n_head", "num_attention_heads", "num_attn_heads", "nhead", "heads")
_FILLER = frozenset(
    (
        *("c", "conv", "dense", "fc", "head", "heads", "in", "kernel", "layer", "lin", "linear", "map", "matrix"),
        *("net", "proj", "project", "projection", "to", "transform", "w", "weight", "weights"),
    )
)
_ROLES = {"q": "q", "query": "q", "queries": "q", "k": "k", "key": "k", "keys": "k"}
_ROLES |= {"v": "v", "value": "v", "values": "v", "kv": "kv", "qk": "qk", "qkv": "qkv"}


def has_projections(parts: Iterable[str]) -> bool:
    """Return whether submodules of these names project to queries, keys and values, separately or packed.

    >>> has_projections(["q_proj", "k_proj", "v_proj"]), has_projections(["Wqkv"]), has_projections(["to_q", "to_kv"])
    (True, True, True)
    >>> has_projections(["query_key_value", "dense"]), has_projections(["c_attn"]), has_projections(["key", "value"])
    (True, True, False)
    """
    return {"q", "k", "v"} <= set().union(*(roles_of(part) for part in parts))


def roles_of(part: str) -> set[str]:
    """Return those of "q", "k" and "v" that a submodule's name stands for: {"k", "v"} for "to_kv", none for "mlp"."""
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", part).lower()
    if snake in ("c_attn", "in_proj_weight"):
        return {"q", "k", "v"}
    words = [re.sub(r"^w(?=(q|k|v|kv|qk|qkv)$)", "", word) for word in re.split(r"[^a-z]+", snake) if word]
    words = [word for word in words if word not in _FILLER]
    if not words or not all(word in _ROLES for word in words):
        return set()
    return set("".join(_ROLES[word] for word in words))


def named_like_attention(name: str, module: Any, parts: Collection[str]) -> bool:
    """Return whether a module looks like attention by its class. If it has submodules, its name or num_heads suffices.

    >>> class PooledAttention: pass
    >>> named_like_attention("pool", PooledAttention(), []), named_like_attention("attn", Coverage(()), ["a", "b"])
    (True, True)
    """
    classes = [cls.__name__ for cls in type(module).__mro__]
    if any(map(class_like_attention, classes)) and not _NO_CLASS.search(classes[0]):
        return True
    if len([part for part in parts if not _NORM.search(part)]) < 2:
        return False
    return bool(_NAME.fullmatch(name)) or any(_is_count(module, heads) for heads in HEADS)


def class_like_attention(name: str) -> bool:
    """Return whether a class's name says that it is attention.

    >>> class_like_attention("BertSelfAttention"), class_like_attention("AttentionMask")
    (True, False)
    """
    return bool(_CLASS.search(name)) and not _NO_CLASS.search(name)


def _is_count(module: Any, name: str) -> bool:
    try:
        value = getattr(module, name, None)
    except Exception:  # a property of somebody's class may raise anything
        return False
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def unread_of(described: Iterable[Mapping[str, Any]]) -> tuple[Unread, ...]:
    """Return the Unread objects from the dicts that `Coverage.to_dict` makes. Raises SpecError for an unknown `why`."""
    found = []
    for one in described:
        unread = Unread(**one)
        if unread.why not in get_args(Why):
            raise SpecError(f"why must be one of {', '.join(get_args(Why))}. Got {shown(repr(unread.why))}.")
        found.append(unread)
    return tuple(found)
