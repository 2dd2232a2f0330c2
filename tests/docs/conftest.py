"""The site, built once for all tests of this folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def build(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    """What README's command does; `target` gets the pages, and nothing else is written."""
    command = [sys.executable, "-m", "sphinx", "-W", "-n", "--keep-going", "-q", "-d", f"{target}.doctrees"]
    return subprocess.run([*command, str(source), str(target)], capture_output=True, text=True, check=False)


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    target = tmp_path_factory.mktemp("site") / "pages"
    done = build(ROOT / "docs", target)
    assert done.returncode == 0, done.stderr[-5000:]
    return target
