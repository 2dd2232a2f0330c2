"""The pytest plugin: `pytest --mha-subject MODULE:NAME` makes every case a test.

It is there wherever this package is installed, and does nothing without that option: NumPy and the
suite are imported only if it is given, or a test takes one of the fixtures.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mha_parity.script import hidden

MARKER = "mha"
"""Every test made here has it: `-m mha` leaves the others out, `-m "not mha"` these."""

NEED_A_SUBJECT = ("--mha-case", "--mha-dtype", "--mha-apart", "--mha-python", "--mha-no-diagnosis", "--mha-deviations")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("mha", "multi-head attention (mha-parity)")
    group.addoption(
        "--mha-subject",
        action="append",
        default=[],
        metavar="MODULE:NAME",
        help="Compare this implementation of multi-head attention with the reference, each case a test (repeatable).",
    )
    group.addoption(
        "--mha-case",
        action="append",
        default=[],
        metavar="PATTERN",
        help="Only cases of this id; wildcards work (repeatable).",
    )
    group.addoption(
        "--mha-dtype",
        action="append",
        default=[],
        metavar="DTYPE",
        help="This dtype (repeatable). Default: float64 and float32.",
    )
    group.addoption(
        "--mha-time-limit",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="How long the subject may take for one case. Default: %(default)g.",
    )
    group.addoption(
        "--mha-apart",
        action="store_true",
        help="Run the subject in a process of its own: if it ends or hangs there, that costs one test. Without it, "
        "debuggers and coverage see the subject.",
    )
    group.addoption(
        "--mha-python",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="The interpreter that runs this subject, in a process of its own (repeatable).",
    )
    group.addoption(
        "--mha-no-diagnosis",
        action="store_true",
        help="Leave out what the summary says of a subject that differs: since which stage, and what explains it.",
    )
    group.addoption(
        "--mha-deviations",
        type=Path,
        metavar="FILE",
        help="Also a table of known deviations of your own, in TOML; a test of what it lists counts as xfailed.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Load the subjects (tested layers), so that a mistake in an option ends the run before any test."""
    config.addinivalue_line("markers", f"{MARKER}: one case of the multi-head attention suite (--mha-subject)")
    specs: list[str] = config.getoption("--mha-subject")
    if not specs:
        given = [name for name in NEED_A_SUBJECT if config.getoption(name)]
        if given:
            raise pytest.UsageError(f"{given[0]} needs --mha-subject")
        return

    if line := hidden():
        raise pytest.UsageError(f"--mha-subject: {line}")
    from conformance.plugin import register

    register(config, specs, MARKER)


@pytest.fixture(scope="session")
def mha_tolerance() -> Callable[..., Any]:
    """Return `mha.tolerance`, which gives the right output of a layer and the allowed error of each element."""
    from mha import tolerance

    return tolerance


@pytest.fixture(scope="session")
def mha_where() -> Callable[..., Any]:
    """Return `mha.where`, which compares each module of a recorded port with the original's, and reports wrong ones."""
    from mha import where

    return where


@pytest.fixture(scope="session")
def mha_invariants() -> Callable[..., Any]:
    """Return `mha.invariants`, which computes the same numbers with a model in two ways, and reports if they differ."""
    from mha import invariants

    return invariants
