"""Find the modules of a package, so that a new file of bugs or of cases is registered by being there."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType


def members(package: ModuleType, *, folders: bool = False, but: frozenset[str] = frozenset()) -> list[ModuleType]:
    """The modules of a package, or else its folders, imported; those named in `but` are not.

    Those that the package's ORDER names come first, in that order; the others follow by name.

    >>> from conformance.zoo import backward
    >>> backward.ORDER, [module.__name__ for module in members(backward)]
    (('attention', 'parameters'), ['conformance.zoo.backward.attention', 'conformance.zoo.backward.parameters'])
    """
    order: tuple[str, ...] = getattr(package, "ORDER", ())
    found = {member.name for member in iter_modules(package.__path__) if member.ispkg == folders}
    others = sorted(found - set(order))
    return [import_module(f"{package.__name__}.{name}") for name in (*order, *others) if name not in but]
