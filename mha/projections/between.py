"""What of a layer its projections don't show: norms of queries and keys, turns, and parameters that it uses itself."""

import inspect
import re
from collections.abc import Collection, Iterable
from typing import Any

from mha.coverage import roles_of
from mha.rotary import is_rotary
from mha_core.errors import listed

STEP = (
    "Hand queries, keys and values to the framework's attention function, such as PyTorch's "
    "scaled_dot_product_attention: mha.capture reads its calls (docs/seam.md)"
)
"""What to do about a layer that its projections don't show."""

_NORM = re.compile(r"(layer|rms)?_?norm|(?<![a-z])ln(?![a-z])", re.IGNORECASE)
_TURN = re.compile(r"rotary|rotate|rope(?![a-z])", re.IGNORECASE)


def between(layer: Any, inside: Iterable[tuple[str, Any]]) -> str:
    """Return in words the query-key norms and rotary positions of a layer; "" for none. `inside`: (name, submodule).

    >>> class Layer:
    ...     def forward(self, x):
    ...         return apply_rotary_emb(self.q_norm(x))
    >>> between(Layer(), [("q_norm", Layer()), ("norm", Layer())])
    "a norm ('q_norm') and a turn with the positions ('apply_rotary_emb')"
    """
    inside = list(inside)
    norms = [name for name, part in inside if _norms(name) and type(part).__name__ != "Identity"]
    kind = type(layer)
    own = _names_in(kind, "forward" if hasattr(kind, "forward") else "call" if hasattr(kind, "call") else "__call__")
    turns = [name for name in (*own, *(inner for one in own for inner in _names_in(kind, one))) if _TURN.search(name)]
    turns += [name for name, part in inside if is_rotary(part)]
    found = {"a norm": norms, "a turn with the positions": turns}
    return " and ".join(f"{what} ({_quoted(names)})" for what, names in found.items() if names)


def uncalled(names: Collection[str]) -> str:
    """Return a message: a layer can't be recorded because its projections (submodules) `names` were not called."""
    many = len(names) > 1
    return (
        f"its projection{'s' * many} {_quoted(names)} {'were' if many else 'was'} not called: it uses their parameters "
        "itself, as F.linear(x, self.q_proj.weight) does, or what it kept of an earlier call"
    )


def _names_in(kind: type, method: str) -> tuple[str, ...]:
    """The names in the code of a method of a class; none for anything else."""
    found = getattr(kind, method, None)
    code = getattr(inspect.unwrap(found), "__code__", None) if callable(found) else None
    return () if code is None else (*code.co_names, *code.co_varnames)


def _norms(name: str) -> bool:
    last = re.split("[./]", name)[-1]
    rest = _NORM.sub("", last)
    return rest != last and not roles_of(rest).isdisjoint("qk")


def _quoted(names: Collection[str]) -> str:
    return listed(list(map(repr, dict.fromkeys(names))), 4)
