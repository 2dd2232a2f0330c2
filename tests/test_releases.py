"""What is left out on the newest releases is left out because a release is the same there, and this says so."""

from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]


def pinned(name: str) -> dict[str, str]:
    """Package -> the release that a file of constraints has of it."""
    lines = [line for line in (ROOT / name).read_text().splitlines() if line and not line.startswith("#")]
    return {required.name: str(required.specifier) for required in map(Requirement, lines)}


# Those that a `same_on_newest` names: if one of them differs, its tests have to run there too.
@pytest.mark.parametrize("package", ["torch", "tensorflow", "keras", "transformers", "pytest"])
def test_its_release_is_the_same_in_both_sets(package):
    assert pinned("constraints.txt")[package] == pinned("constraints-newest.txt")[package]
