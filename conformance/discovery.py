"""Find the bugs and cases in the modules of a package, each of which is registered by being there; choose by name."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Protocol, TypeVar

from mha_core import SpecError
from mha_core.errors import meant


def members(package: ModuleType, *, folders: bool = False, but: frozenset[str] = frozenset()) -> list[ModuleType]:
    """Import and return the modules of a package, or with `folders` its subpackages, except those named in `but`.

    Modules in the package's ORDER come first, in that order; other modules follow by name.

    >>> from conformance.zoo import backward
    >>> backward.ORDER, [module.__name__ for module in members(backward)]
    (('attention', 'parameters'), ['conformance.zoo.backward.attention', 'conformance.zoo.backward.parameters'])
    """
    order: tuple[str, ...] = getattr(package, "ORDER", ())
    found = {member.name for member in iter_modules(package.__path__) if member.ispkg == folders}
    others = sorted(found - set(order))
    return [import_module(f"{package.__name__}.{name}") for name in (*order, *others) if name not in but]


class Named(Protocol):
    """Anything with an id."""

    @property
    def id(self) -> str: ...


T = TypeVar("T", bound=Named)


def select_by_id(things: Sequence[T], patterns: Iterable[str], unknown: str) -> list[T]:
    """Return the things whose id matches any pattern (shell wildcards), in the given order; all if `patterns` is empty.

    Args:
        unknown: the SpecError's message if a pattern has no match, with "{}" for the pattern. A similar id is appended.

    >>> from types import SimpleNamespace
    >>> shelf = [SimpleNamespace(id=name) for name in ("one-query", "one-key", "long")]
    >>> [thing.id for thing in select_by_id(shelf, ("one-*",), "{} is not here")]
    ['one-query', 'one-key']
    >>> select_by_id(shelf, ("two-*",), "{} is not here")
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: 'two-*' is not here
    """
    patterns = tuple(patterns)
    for pattern in patterns:
        if not any(fnmatchcase(thing.id, pattern) for thing in things):
            raise SpecError(unknown.format(repr(pattern)) + meant(pattern, (thing.id for thing in things)))
    return [thing for thing in things if not patterns or any(fnmatchcase(thing.id, pattern) for pattern in patterns)]
