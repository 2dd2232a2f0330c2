"""Subjects, which answer cases: a backend, a user's own layer or a plain function, all with one interface.

The names of `conformance.subjects.load` are here too; docs/subjects.md has the whole rule.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conformance.subjects.load import (
        CannotExpress,
        FunctionSubject,
        LoadedSubject,
        load_subject,
        load_subjects,
        subject_from_function,
    )

__all__ = [
    "CannotExpress",
    "FunctionSubject",
    "LoadedSubject",
    "load_subject",
    "load_subjects",
    "subject_from_function",
]


def __getattr__(name: str) -> Any:
    # Not at the top: the command line needs `quiet` from here before NumPy is imported.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("conformance.subjects.load"), name)
