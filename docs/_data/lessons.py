"""Runs the lessons in every framework and writes lessons.json: `python docs/_data/lessons.py`, with all frameworks.

Each framework has a process of its own.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).parent
RUNNER = HERE.parents[1] / "lessons" / "runner.py"
PACKAGES = {"numpy": "numpy", "torch": "torch", "tf": "tensorflow", "jax": "jax", "mxnet": "mxnet"}
FRAMEWORKS = tuple(PACKAGES)

Printed = dict[str, dict[str, str]]
"""Lesson -> cell -> what it prints."""

Arrays = dict[str, NDArray]
"""LESSON/CALL/NAME -> array."""


def run(framework: str, lessons: Iterable[str] = (), runner: Path = RUNNER) -> tuple[Printed, Arrays, str]:
    """Run lessons, or all, in a process of their own: what they print, what they hand out, and its stderr.

    Raises:
        RuntimeError: a lesson fails; the message names it, the framework and the cell.
    """
    with tempfile.TemporaryDirectory() as folder:
        texts, arrays = Path(folder, "texts.json"), Path(folder, "arrays.npz")
        done = subprocess.run(
            [sys.executable, str(runner), framework, str(texts), str(arrays), *lessons],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"},
        )
        if done.returncode:
            raise RuntimeError(done.stderr.strip().rpartition("\n")[2])
        with np.load(arrays) as found:
            return json.loads(texts.read_text("utf-8")), dict(found), done.stderr


def main() -> None:
    """Run all, and write what they print; of a framework that is not installed the pages say that it did not run."""
    there = [name for name, package in PACKAGES.items() if importlib.util.find_spec(package) is not None]
    printed = {framework: run(framework)[0] for framework in there}
    HERE.joinpath("lessons.json").write_text(json.dumps({"printed": printed}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
