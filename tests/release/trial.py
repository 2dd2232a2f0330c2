"""The wheel, as somebody new installs and uses it: `trial.py WHEEL PYTHON...`, with any Python 3.11 or newer.

Each Python gets a new environment with NumPy and without a framework, and a folder that is not the clone's.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"

THEIRS = {
    "backends/__init__.py": "theirs = 2\n",
    "conformance/__init__.py": "",
    "mha.py": "",
    "test_theirs.py": """import backends, conformance, mha

def test_theirs(mha_tolerance):
    assert backends.theirs == 2
    assert mha_tolerance.__module__.startswith("mha_parity.")
""",
}
"""A repository whose packages have the names of the clone's."""

ALONE = """
import sys, mha_parity
assert "numpy" not in sys.modules
from mha_parity.core import AttentionConfig
from mha_parity import Recording
from mha_parity.recordings.recording import Recording as same
assert Recording is same
import importlib.util
short = ("mha", "mha_core", "backends", "conformance", "lessons")
assert not [name for name in short if importlib.util.find_spec(name)]
"""


def found(version: str) -> str | None:
    """Return the interpreter of a version, or of a path, if it is here and runs."""
    python = shutil.which(version if "/" in version else f"python{version}")
    runs = python and subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0
    return python if runs else None


def environment(python: str, folder: Path, *requirements: str) -> Path:
    """Return the programs of a new environment with these requirements."""
    subprocess.run([python, "-m", "venv", folder], check=True)
    subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "-q", *requirements], check=True)
    return folder / "bin"


def trial(programs: Path, folder: Path) -> Iterator[str]:
    """Use what is installed, in an empty folder; yields what was done. Raises AssertionError where it fails."""

    def run(*command: object, status: int = 0) -> str:
        done = subprocess.run([*map(str, command)], cwd=folder, capture_output=True, text=True, check=False)
        said = done.stdout + done.stderr
        assert done.returncode == status, f"{command} ended with {done.returncode}, not {status}:\n{said}"
        return said

    run(programs / "python", "-c", ALONE)
    yield "one package, whose import imports no NumPy"
    assert "0.1.0" in run(programs / "mha", "--version")
    (mine,) = re.findall(r"```python\n(import numpy as np\n.*?)```", README.read_text("utf-8"), re.DOTALL)
    (folder / "mine.py").write_text(mine)
    assert "(scale-query-dim)" in run(programs / "mha", "check", "--subject", "mine:attention", status=1)
    yield "mha check: README's function is wrong, with its cause"
    run(programs / "mha", "check", "--new", "own.py")
    run(programs / "mha", "check", "--subject", "own:attention", "-c", "causal")
    yield "mha check --new: a subject to begin with, which is right"
    for name, text in THEIRS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    assert "1 passed" in run(programs / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider")
    plugin = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--mha-subject", "own:attention", "--mha-case", "causal")
    assert "passed" in run(programs / "python", *plugin)
    run(programs / "mha", "check", "--subject", "own:attention", "-c", "causal")
    yield "pytest and mha check, in a repository with packages called backends, conformance and mha"
    run(programs / "mha", "learn", "start", "play")
    said = run(programs / "mha", "learn", "check", "masked-softmax", "--folder", "play", status=1)
    yield f"mha learn start, and check: {said.strip()[:60]}"
    said = run(programs / "mha", "check", "-b", "torch", status=2)
    assert "needs the package 'torch', which is not installed" in said
    yield "a backend that is not installed is one line"


def main(wheel: str, *pythons: str) -> None:
    """Try a wheel on each Python, a version or a path; ends with 1 where one fails or is not here."""
    for version in pythons:
        python = found(version)
        if python is None:
            sys.exit(f"Python {version} is not here: install it, or name its interpreter")
        with tempfile.TemporaryDirectory() as folder:
            programs = environment(python, Path(folder, "env"), wheel, "pytest")
            Path(folder, "theirs").mkdir()
            for line in trial(programs, Path(folder, "theirs")):
                print(f"Python {version}: {line}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
