"""The site, built once for all tests."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def build(source: Path, target: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """What README's command does; `target` gets the pages, and nothing else is written but compiled catalogs."""
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "-n",
        "--keep-going",
        "-q",
        "--no-color",
        "-d",
        f"{target}.doctrees",
        *options,
    ]
    return subprocess.run([*command, str(source), str(target)], capture_output=True, text=True, check=False)


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    """Where tests run in several processes, who comes first builds it, and the others wait."""
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "site"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "built").exists():
            done = build(ROOT / "docs", folder / "pages")
            assert done.returncode == 0, done.stderr[-5000:]
            (folder / "built").touch()
    return folder / "pages"
