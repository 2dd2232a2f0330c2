"""Contestant: a layer to measure; `load` imports the module with the contestants of a framework.

A contestant is a whole multi-head layer with four projections, made from the workload's weights, that computes
self-attention. Arguments that are constant from call to call (its masks, its cache in the layout that it needs) are
made before; everything that it computes from the caller's arguments in each call is part of the call.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, cast

from mha.bench.settings import Direction
from mha.bench.workload import Answer, Workload
from mha_core.errors import BackendError
from mha_core.files.declared import declared

Kind = Literal["ours", "variant", "peer"]
"""Our layer with its defaults, our layer called in another way, or another project's layer."""

OTHERS, SMALL_ONES = 14, 2**27
"""Beside scores, a call holds OTHERS arrays of (B, Lq + Lk, E), and in bytes what allocators and blocks take."""

ENTRY_POINT_GROUP = "mha.bench"
"""Backend -> its `Contestants`."""


@dataclass(frozen=True)
class Contestants:
    """The module of a framework's contestants, and the facts that are needed before it is imported.

    An entry point of group "mha.bench" names one, in a module that imports no framework.

    Args:
        module: the name of a module with the members of `Framework`.
        packages: the packages that must be installed.
        memory_environment: environment variables that switch off the framework's memory pool, which would hide the
            memory of a call. It is slower so: memory is then measured in a process apart from time.
    """

    module: str
    packages: tuple[str, ...]
    memory_environment: Mapping[str, str] = field(default_factory=dict)


class CannotRun(Exception):
    """A contestant has no way to compute a setting; the message says why."""


class Task(NamedTuple):
    """The arguments of a contestant's `make`."""

    workload: Workload
    direction: Direction
    dtype: str
    device: str

    @property
    def differentiates(self) -> bool:
        """Whether gradients are asked for."""
        return self.direction == "both"


@dataclass(frozen=True)
class Prepared:
    """A contestant that is ready to be measured.

    Args:
        call: computes once, and returns the finished result: the output, and in direction "both" the gradients
            of x and of all parameters.
        read: converts the result of `call` to NumPy.
        extra_memory: returns the memory of a call in bytes, where the framework measures it; None where that of the
            process is measured.
    """

    call: Callable[[], Any]
    read: Callable[[Any], Answer]
    extra_memory: Callable[[], int | None] | None = None


class Scores(NamedTuple):
    """How many arrays as large as all scores, (B, H, Lq, Lk), a contestant holds at its peak, in each direction."""

    forward: int
    both: int


NONE_HELD = Scores(0, 0)

MOST_HELD = Scores(2, 6)
"""The most that any known contestant holds."""


@dataclass(frozen=True)
class Contestant:
    """One layer to measure; `make` raises CannotRun or SpecError for a task that it can't do.

    `scores` is what decides whether it is called at all on a machine with little memory.
    """

    name: str
    kind: Kind
    make: Callable[[Task], Prepared]
    scores: Scores = MOST_HELD

    def need(self, task: Task) -> int:
        """Bytes of memory that a call takes at most, roughly: its arrays of all scores, and some of the other sizes."""
        setting = task.workload.setting
        held = self.scores.both if task.differentiates else self.scores.forward
        scores = setting.batch * setting.num_heads * setting.length * setting.key_len
        rows = setting.batch * (setting.length + setting.key_len) * setting.embed_dim
        size = 8 if task.dtype == "float64" else 4  # scores of a shorter dtype are held in float32 somewhere
        return size * (held * scores + OTHERS * rows) + SMALL_ONES


class Framework(Protocol):
    """The members of each framework's module in this folder."""

    CONTESTANTS: tuple[Contestant, ...]
    """The contestants, ours first."""

    def set_threads(self, count: int) -> str:
        """Limit the framework to `count` threads, before it computes anything; returns in words how that was done."""

    def versions(self) -> dict[str, str]:
        """Package -> version."""

    def devices(self) -> tuple[str, ...]:
        """The devices that it can use; see `mha_core.backend.Backend.devices`."""

    def dtypes(self, device: str) -> tuple[str, ...]:
        """The dtypes that it computes in on a device; see `mha_core.backend.Backend.dtypes`."""

    def product(self, size: int, dtype: str, device: str) -> Callable[[], Any]:
        """A function that multiplies two square matrices in the fastest way, and returns when it is done."""


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


def optional(module: str) -> Any:
    """A module of a library that a peer comes from. CannotRun if it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise CannotRun(f"it needs the package {error.name!r}, which is not installed") from error


def unable(
    workload: Workload,
    *,
    past: bool = False,
    grouped: bool = False,
    causal: bool = True,
    rotary: bool = False,
    window: bool = False,
) -> None:
    """Raise CannotRun where a workload needs a feature that the contestant lacks; the keywords name those it has."""
    lacking = {
        "keys and values of earlier steps": workload.setting.past > 0 and not past,
        "grouped heads": workload.is_grouped and not grouped,
        "causal mask": workload.setting.causal and not causal,
        "rotary positions": workload.setting.rotary and not rotary,
        "window": workload.setting.window is not None and not window,
    }
    for feature, is_needed in lacking.items():
        if is_needed:
            raise CannotRun(f"it has no {feature}")
