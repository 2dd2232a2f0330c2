"""The two files of a release, built of this folder in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

BUILD = """
import sys, mha_build
folder = sys.argv[1]
mha_build.build_sdist(folder)
mha_build.build_wheel(folder)
"""


def built(folder: Path) -> list[Path]:
    """Return the sdist and the wheel, built into an empty folder."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "build_backend")}
    subprocess.run([sys.executable, "-c", BUILD, folder], cwd=ROOT, env=environment, check=True, capture_output=True)
    return sorted(folder.iterdir(), key=lambda path: path.suffix == ".whl")
