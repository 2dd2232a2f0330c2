"""Finds a framework's own layers: every native subject in the package that its table of deviations is in."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from importlib.metadata import entry_points

from conformance.deviations.known import ENTRY_POINT_GROUP
from mha_core.errors import one_line
from mha_core.subject import NativeSubject


def native_specs(backend: str) -> tuple[list[str], list[str]]:
    """package.module:Class of every native layer of a backend; and a line for each module that can't be imported.

    A release may lack what one module needs; the layers of the others are there all the same.
    """
    found: list[str] = []
    lines: list[str] = []
    for point in entry_points(group=ENTRY_POINT_GROUP, name=backend):
        names = [point.module]
        for name in names:
            try:
                module = importlib.import_module(name)
            except Exception as error:  # whatever a release raises that lacks something
                lines.append(f"{name} can't be imported: {one_line(error)}")
                continue
            if name == point.module:
                names += [f"{name}.{member.name}" for member in pkgutil.iter_modules(module.__path__)]
            found += [f"{name}:{cls.__name__}" for cls in vars(module).values() if _is_native(cls, name)]
    return found, lines


def _is_native(cls: object, module: str) -> bool:
    if not (inspect.isclass(cls) and issubclass(cls, NativeSubject) and cls.__module__ == module):
        return False
    return not inspect.isabstract(cls) and hasattr(cls, "name")
