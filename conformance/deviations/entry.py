"""Deviation: one place where somebody else's layer does not follow the definition; see `known`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from packaging.requirements import Requirement

from mha_core.stages import GRADIENT, is_gradient

EVERYTHING, EVERY_GRADIENT = "*", f"{GRADIENT}*"
"""Entries of `arrays` that stand for every stage and gradient, and for every gradient."""


@dataclass(frozen=True)
class Deviation:
    """A known deviation: how a framework's layer differs from this project's definition, and which cases show it.

    Attributes:
        id: its name, in kebab-case.
        subject: the layer, as `mha check --subject` takes it.
        summary: what the layer does.
        definition: what the definition says. (In a table's file it is the id of a rule of `mha_core.reference.rules`.)
        reason: why the layer does it, or where in its code.
        link: a page that shows or discusses it.
        versions: requirements, such as torch>=2.0; the deviation occurs only if installed packages meet all of them.
        cases, dtypes, arrays: where it occurs. In each of the cases, in each dtype, at least one of the arrays exceeds
            its error bound. No other array does. `cases` is empty if no case of the suite can show the deviation.
        only_where: the condition under which it occurs with these versions, such as "TensorFlow runs without oneDNN";
            "" if it always occurs. A deviation with a condition may occur in the cases, but need not.
    """

    id: str
    subject: str
    summary: str
    definition: str
    reason: str
    link: str
    versions: tuple[str, ...]
    cases: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ("float64", "float32")
    arrays: tuple[str, ...] = ()
    only_where: str = ""

    @property
    def layer(self) -> str:
        """Return the subject in readable form, such as "torch SDPA"; `subject` itself if it is not in `backends`.

        >>> from dataclasses import replace
        >>> entry = Deviation("empty-row-is-nan", "backends.torch.native.subjects:SDPASubject", "", "", "", "", ())
        >>> entry.layer, entry.frameworks
        ('torch SDPA', ('torch',))
        >>> replace(entry, subject="mha_parity.backends.tf.native.subjects:GroupQuery").layer  # as in a wheel
        'tf GroupQuery'
        """
        name = self.subject.partition(":")[2].removesuffix("Subject")
        return f"{own} {name}" if (own := self._backend) else self.subject

    @property
    def frameworks(self) -> tuple[str, ...]:
        """Return the names by which a user can select the deviation, such as "torch": its backend and packages."""
        own = filter(None, [self._backend])
        return tuple(dict.fromkeys((*own, *(requirement.name for requirement in self.requirements))))

    @property
    def _backend(self) -> str:
        """The backend in whose package the layer stands; "" for any other."""
        found = re.match(r"(?:mha_parity\.)?backends\.(\w+)\.\w", self.subject)
        return found[1] if found else ""

    @property
    def requirements(self) -> tuple[Requirement, ...]:
        from packaging.requirements import Requirement

        return tuple(map(Requirement, self.versions))

    def why_not_here(self) -> str:
        """Return "not installed: ..." or "other version: ..." if installed packages rule the deviation out; else ""."""
        return self.why_not(installed)

    def why_not(self, version_of: Callable[[str], str | None]) -> str:
        """Return why versions rule the deviation out; else "". `version_of`: package -> version (None: not installed).

        >>> entry = Deviation("empty-row-is-nan", "torch.nn:SDPA", "", "", "", "", versions=("torch>=2.5",))
        >>> entry.why_not({"torch": "2.4.1"}.get)
        'other version: torch 2.4.1, it is known of torch>=2.5'
        """
        for requirement in self.requirements:
            version = version_of(requirement.name)
            if version is None:
                return f"not installed: {requirement.name}"
            if not requirement.specifier.contains(version, prereleases=True):
                return f"other version: {requirement.name} {version}, it is known of {requirement}"
        return ""

    def covers(self, array: str) -> bool:
        """Return whether the deviation lists this array: a stage's name, or "gradients.NAME"."""
        if array in self.arrays or EVERYTHING in self.arrays:
            return True
        return is_gradient(array) and EVERY_GRADIENT in self.arrays

    def to_dict(self) -> dict[str, Any]:
        """Return the entry as a dict of JSON values."""
        values = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}
        return {"layer": self.layer, **values}


@cache
def installed(package: str) -> str | None:
    """Return the version of a package; None if it is not installed. The package is not imported."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
