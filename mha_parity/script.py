"""What the installed script `mha` calls."""

import sys
from importlib.util import find_spec
from pathlib import Path

import mha_parity


def run() -> None:
    """Run the command line. If another package hides one of this project's, print which, and exit with status 2."""
    try:
        from mha.cli.main import run as run_command
    except ImportError:
        line = hidden()
        if not line:
            raise
        print(f"Error: {line}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(2)
    run_command()


def hidden() -> str:
    """Return a message if Python finds another package in place of one of this project's packages; "" otherwise."""
    home = Path(__file__).resolve().parents[1]
    for top in getattr(mha_parity, "PLACES", ()):
        spec = find_spec(top)
        found = [] if spec is None else [*(spec.submodule_search_locations or ()), spec.origin or ""]
        places = [Path(place).resolve() for place in found if place]
        if places and not any(place.parent == home for place in places):
            return (
                f"the package {top!r} that Python finds is {places[-1]}, not that of the clone {home}: rename yours, "
                "or install mha-parity as a wheel (`pip install FOLDER`), which has no package of that name"
            )
    return ""
