"""Record: what was measured of one backend in one set; kept as JSON, so that a finished set is not run again."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mha_core.errors import SpecError
from mha_core.files.outside import parse_json_object
from mha_core.files.writing import write_json

SCHEMA_VERSION = 1
"""Version of the file; one of another version is measured anew."""


@dataclass
class Record:
    """What was measured of one backend in one set.

    Attributes:
        name: the set's.
        backend: the backend's name.
        python: the interpreter's version; "" if it did not come so far.
        versions: the framework's packages -> version, the main one first.
        packages: every package of the environment -> version.
        results: `spec` and `result` of each case on each subject: the fields of a Result that no table judged.
        probes: `id`, `outcome` and `seen` of each entry that a function shows.
        problems: one line for each thing that kept something from being run.
        lacking: one line for each module or layer that this release lacks.
    """

    name: str
    backend: str
    python: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)
    results: list[dict[str, Any]] = field(default_factory=list)
    probes: list[dict[str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)

    @property
    def release(self) -> str:
        """The framework's packages and their versions, such as "jax 0.7.1, flax 0.12.0".

        >>> Record("a", "jax", versions={"jax": "0.7.1", "jaxlib": "0.7.1", "flax": "0.12.0"}).release
        'jax 0.7.1, flax 0.12.0'
        """
        # jaxlib has jax's version: a package that only repeats the one before says nothing.
        shown = [(name, version) for name, version in self.versions.items() if name != "jaxlib"]
        return ", ".join(f"{name} {version}" for name, version in shown)

    def write(self, path: Path) -> None:
        """Write it to a file, whole or not at all."""
        write_json(path, {"schema": SCHEMA_VERSION, **asdict(self)})


def read(path: Path) -> Record | None:
    """The record in a file; None if there is none, or none that this version wrote."""
    try:
        found = parse_json_object(path.read_bytes(), what=str(path))
    except (OSError, SpecError):
        return None
    if found.pop("schema", None) != SCHEMA_VERSION:
        return None
    try:
        return Record(**found)
    except TypeError:
        return None
