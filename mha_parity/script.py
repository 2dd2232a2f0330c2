"""What the installed script `mha` calls."""

from __future__ import annotations

import sys
from importlib.util import find_spec

SHORT = ("mha_core", "backends", "conformance", "mha")
"""Packages at the top of a clone. In a wheel nothing has these names: all is in `mha_parity`."""


def run() -> None:
    """Run the command line, or say which package stands in its way."""
    try:
        from mha.cli.main import run as run_command
    except ImportError as error:
        line = hidden(error)
        if not line:
            raise
        print(f"Error: {line}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(2)
    run_command()


def hidden(error: ImportError) -> str:
    """Return in words which package hides one of the clone's that has its name, if that is why an import failed."""
    top = (error.name or "").partition(".")[0]
    found = find_spec(top) if top in SHORT else None
    if found is None:
        return ""
    place = found.origin or ", ".join(found.submodule_search_locations or ())
    return (
        f"the package {top!r} that Python finds is {place}, not the clone's of mha-parity: "
        "rename yours, or install mha-parity as a wheel (`pip install FOLDER`), which has no package of that name"
    )
