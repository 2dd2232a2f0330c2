"""Who takes part: for each framework a module of one shape, which `load` gives.

A contestant is a whole multi-head layer with four projections, made from the problem's weights, that computes
self-attention. What is constant from call to call (its masks, its cache in the layout that it wants) is made
before; what it would make from the caller's arguments in each call is part of the call.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, cast

from mha.bench.problem import Answer, Problem
from mha.bench.settings import Direction
from mha_core.errors import BackendError
from mha_core.files.declared import declared

Kind = Literal["ours", "variant", "peer"]
"""Ours as it is called by default, the same in another way, or somebody else's."""

ENTRY_POINT_GROUP = "mha.bench"
"""Backend -> its `Contestants`."""


@dataclass(frozen=True)
class Contestants:
    """Where a framework's contestants are, and what is to be known before it is imported.

    An entry point of group "mha.bench" names one, in a module that imports no framework.

    Args:
        module: has what `Framework` has.
        packages: what has to be installed.
        memory_environment: environment variables that keep the framework from a pool of its own, which would hide
            how much a call takes. It is slower so: memory is then measured in a process apart from time.
    """

    module: str
    packages: tuple[str, ...]
    memory_environment: Mapping[str, str] = field(default_factory=dict)


class CannotExpress(Exception):
    """A contestant has no way to compute a setting; the message says why."""


class Task(NamedTuple):
    """What a contestant is made for."""

    problem: Problem
    direction: Direction
    dtype: str
    device: str

    @property
    def differentiates(self) -> bool:
        """Whether gradients are asked for."""
        return self.direction == "both"


@dataclass(frozen=True)
class Prepared:
    """A contestant with everything in place.

    Args:
        call: computes once, and returns when the result is there: the output, and in direction "both" the
            gradients of x and of all parameters.
        read: what `call` returned, as NumPy.
        extra_memory: what it takes according to the framework; None where the process's memory tells.
    """

    call: Callable[[], Any]
    read: Callable[[Any], Answer]
    extra_memory: Callable[[], int | None] | None = None


@dataclass(frozen=True)
class Contestant:
    """One who takes part; `make` raises CannotExpress or SpecError for a task that it can't do."""

    name: str
    kind: Kind
    make: Callable[[Task], Prepared]


class Framework(Protocol):
    """What each module here has."""

    CONTESTANTS: tuple[Contestant, ...]
    """Ours first."""

    def set_threads(self, count: int) -> str:
        """Have it use this many; before anything is computed. How that was done, in words."""

    def versions(self) -> dict[str, str]:
        """Package -> version."""

    def devices(self) -> tuple[str, ...]:
        """As in `mha_core.backend.Backend`."""

    def dtypes(self, device: str) -> tuple[str, ...]:
        """As in `mha_core.backend.Backend`."""

    def product(self, size: int, dtype: str, device: str) -> Callable[[], Any]:
        """A product of two square matrices, the fastest way that it has: returns when it is done."""


def names() -> list[str]:
    """The backends that there are benchmarks for, in the order of their names."""
    return sorted(declared(ENTRY_POINT_GROUP, "benchmarks of"))


def contestants_of(name: str) -> Contestants:
    """What a backend's benchmarks need; no framework is imported. BackendError if there are none for it."""
    found = declared(ENTRY_POINT_GROUP, "benchmarks of")
    if name not in found:
        raise BackendError(f"there are no benchmarks for backend {name!r} (there are: {', '.join(sorted(found))})")
    return cast(Contestants, found[name].load())


def load(name: str) -> Framework:
    """Import a framework and its contestants. BackendError if there are none for it, or it can't be imported."""
    module = contestants_of(name).module
    try:
        return cast(Framework, importlib.import_module(module))
    except ModuleNotFoundError as error:
        raise BackendError(f"backend {name!r} needs the package {error.name!r}, which is not installed.") from error


def refuse(**special: Any) -> None:
    """CannotExpress for the first of these that holds; words have underscores in place of spaces."""
    for words, holds in special.items():
        if holds:
            raise CannotExpress(f"it has no {words.replace('_', ' ')}")


def unable(problem: Problem, *, past: bool = False, grouped: bool = False, causal: bool = True) -> None:
    """CannotExpress where a problem has what a contestant does not: say which of these it has."""
    setting = problem.setting
    heads, kv_heads, _ = problem.heads
    refuse(
        keys_and_values_of_earlier_steps=setting.past > 0 and not past,
        grouped_heads=heads != kv_heads and not grouped,
        causal_mask=setting.causal and not causal,
    )
