"""A script for Pyodide, run by `compiled.mjs`: it compiles the modules in /judge.zip that a verdict imports.

What is compiled is never compared with its source, whose times say nothing there. In /judge.zip it stands beside the
source; in /python_stdlib.zip, which Python starts from, in its place. The rest is compiled when it is imported.
"""

import importlib
import shutil
import sys
from importlib.util import cache_from_source
from pathlib import Path
from py_compile import PycInvalidationMode, compile
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import numpy as np

MADE = (1980, 1, 1, 0, 0, 0)
PLACE = Path(np.__file__).parents[1]
LIBRARY = next(path for path in sys.path if path.endswith(".zip"))

shutil.unpack_archive("/judge.zip", PLACE)
importlib.import_module("mha.learn.running.in_browser")
specs = [getattr(module, "__spec__", None) for module in sys.modules.values()]
origins = {spec.origin for spec in specs if spec is not None and spec.origin and spec.origin.endswith(".py")}


def compiled(source: str | Path, shown: str) -> bytes:
    """Return the bytecode of a file, which tracebacks show under the name `shown`."""
    compile(str(source), "/tmp/compiled.pyc", shown, doraise=True, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)
    return Path("/tmp/compiled.pyc").read_bytes()


with ZipFile("/judge.zip", "a") as archive:
    for path in sorted(Path(origin) for origin in origins if origin.startswith(f"{PLACE}/")):
        entry = ZipInfo(Path(cache_from_source(str(path))).relative_to(PLACE).as_posix(), MADE)
        archive.writestr(entry, compiled(path, str(path)), ZIP_DEFLATED)

with ZipFile(LIBRARY) as old, ZipFile("/python_stdlib.zip", "w", ZIP_DEFLATED) as new:
    for entry in old.infolist():
        data, name = old.read(entry), f"{LIBRARY}/{entry.filename}"
        if name in origins:
            Path("/tmp/source.py").write_bytes(data)
            new.writestr(ZipInfo(f"{entry.filename}c", MADE), compiled("/tmp/source.py", name), ZIP_DEFLATED)
        else:
            new.writestr(entry, data, ZIP_DEFLATED)
