"""The name that other programs know: `import mha_parity as mha`, the script `mha`, the plugin of pytest.

This file is the clone's. In a wheel all packages stand in `mha_parity` (build_backend/mha_build.py moves them, and
`mha/__init__.py` takes this file's place); here the same names, such as `mha_parity.backends.torch`, lead to the
clone's packages: they are the very modules, under one more name.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

PLACES = {"mha_core": "core", "backends": "backends", "conformance": "conformance", "mha": ""}
"""Package at the top of the clone -> its place in `mha_parity`; "": what is in it stands there itself."""


OWN = ("script", "pytest_plugin")
"""The modules that stand here in the clone too."""


class _Same(MetaPathFinder, Loader):
    """Finds `mha_parity.NAME` first: it is the module of the clone that stands there in a wheel."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        short = _short(fullname)
        try:
            found = None if short == fullname else find_spec(short)
        except ModuleNotFoundError:  # the package around it is somebody else's, of the same name
            return None
        if found is None:
            return None
        spec = ModuleSpec(fullname, self, origin=found.origin)
        spec.submodule_search_locations = found.submodule_search_locations
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(_short(spec.name))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state  # the import has put its own there


def _short(name: str) -> str:
    """The clone's name of a module; the same name if it has no other."""
    own, _, inner = name.partition(".")
    place, dot, rest = inner.partition(".")
    if own != __name__ or place in ("", *OWN):
        return name
    for short, its_place in PLACES.items():
        if place == its_place:
            return f"{short}{dot}{rest}"
    return f"mha.{place}{dot}{rest}"


sys.meta_path.insert(0, _Same())  # before what would find a file in the folder of a package, and load it anew


def __getattr__(name: str) -> Any:
    return getattr(import_module("mha"), name)
