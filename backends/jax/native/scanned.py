"""Modules that flax.linen lifts out of their model, as `nn.scan` does: which turn of it runs, and where that stands.

What is lifted is a root of its own, whose path says where it stands; each turn of a scan has its slice of the stacked
parameters. In `jax.disable_jit()` each turn is called with numbers; else once, with what JAX traces.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import flax.linen as nn
import jax

from backends.jax.ops.framework import has_values

Path = tuple[str, ...]


@dataclass
class _Running:
    """A root that is being called: itself, its path and its place in the model, with the turns of scans around it."""

    root: nn.Module
    place: Path
    turns: Counter[Path] = field(default_factory=Counter)


_running: list[_Running] = []


def root_of(module: nn.Module) -> nn.Module:
    """Return the outermost module around one that is being called."""
    while isinstance(module.parent, nn.Module):
        module = module.parent
    return module


def is_lifted(root: nn.Module) -> bool:
    """Return whether `root` is a submodule of a running model, inside a lifted transform such as nn.scan."""
    return bool(root.path) and bool(_running)


def place_of(module: nn.Module) -> Path:
    """Return a module's path in its model. In a scan over stacked parameters, it contains the iteration's number."""
    root = root_of(module)
    around = next((one for one in reversed(_running) if one.root is root), None)
    return module.path if around is None else (*around.place, *module.path[len(root.path) :])


@contextmanager
def running(root: nn.Module) -> Iterator[None]:
    """Meanwhile a root is being called."""
    around = _running[-1] if _running and root.path else None
    place = root.path
    if around is not None:
        relative = root.path[len(around.root.path) :]
        place = (*around.place, *relative)
        stacked = _shapes(_within(_params(around.root), relative)) != _shapes(_params(root))
        if stacked and has_values(root.variables):
            place = (*place, str(around.turns[relative]))
            around.turns[relative] += 1
    _running.append(_Running(root, place))
    try:
        yield
    finally:
        _running.pop()


def _params(module: nn.Module) -> Any:
    return module.variables.get("params", {})


def _within(params: Any, path: Path) -> Any:
    for name in path:
        params = params.get(name, {}) if isinstance(params, Mapping) else {}
    return params


def _shapes(params: Any) -> list[tuple[int, ...]]:
    return [leaf.shape for leaf in jax.tree.leaves(params)]
