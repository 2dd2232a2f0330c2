"""Row: what was measured of one backend in one set, and what the tables of deviations make of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

Place = tuple[str, str]
"""Case and dtype; both empty for a probe."""

Fact = tuple[str, str]
"""A kind, and the id of the entry, the arrays, or the message."""


@dataclass
class Judged:
    """One subject in one set, judged.

    Attributes:
        subject: its name.
        counts: status -> number of results, as `mha check` gives them with these versions.
        facts: what was seen -> where.
        judged: where it gave an answer that could be judged.
        findings: a line for each thing in which the table is wrong about this release.
    """

    subject: str
    counts: Counter[str] = field(default_factory=Counter)
    facts: dict[Fact, set[Place]] = field(default_factory=lambda: defaultdict(set))
    judged: set[Place] = field(default_factory=set)
    findings: dict[str, set[Place]] = field(default_factory=lambda: defaultdict(set))


@dataclass
class Row:
    """One backend in one set.

    Attributes:
        name, note: the set's.
        backend: the backend's name.
        problem: why nothing was measured; "" if something was.
        python: the interpreter's version.
        versions: the framework's packages -> version, the main one first.
        packages: every package of the environment -> version.
        results: the results of `mha check --json`.
        probes: `id`, `outcome` and `seen` of each entry that a function shows.
        problems: one line for each thing that kept something from being run.
        lacking: one line for each module or layer that this release lacks.
        judged: subject -> what the results say of it, with the tables; they are applied when a report is made.
    """

    name: str
    backend: str
    note: str = ""
    problem: str = ""
    python: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)
    results: list[dict[str, Any]] = field(default_factory=list)
    probes: list[dict[str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)
    judged: Mapping[str, Judged] = field(default_factory=dict)

    @property
    def release(self) -> str:
        """The framework's packages and their versions, such as "jax 0.7.1, flax 0.12.0".

        >>> Row("a", "jax", versions={"jax": "0.7.1", "jaxlib": "0.7.1", "flax": "0.12.0"}).release
        'jax 0.7.1, flax 0.12.0'
        """
        # jaxlib has jax's version: a package that only repeats the one before says nothing.
        return ", ".join(f"{name} {version}" for name, version in self.versions.items() if name != "jaxlib")

    def measured(self) -> dict[str, Any]:
        """What is kept of it: what was measured, by its fields; no table has been applied."""
        return {name: value for name, value in asdict(self).items() if name not in ("name", "note", "judged")}
