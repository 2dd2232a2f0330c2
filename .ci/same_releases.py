"""Link what both sets of constraints have in the same release from one virtual environment into another.

`same_releases.py FROM TO NAME...` makes hard links of the files of each distribution, as pip installed them; pip then
finds it there. One whose release differs between the two sets is left to pip, and so are commands in bin.

`same_releases.py --compiled FROM TO NAME...` does so later with what Python has compiled of these files meanwhile, in
the folder that PYTHONPYCACHEPREFIX names: it belongs to a file of that size and time, and both are one file.
"""

import os
import re
import sys
from importlib.metadata import distributions
from importlib.util import cache_from_source
from pathlib import Path


def pinned(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)==(\S+)$", path.read_text(), re.MULTILINE))


def link(old: Path, new: Path) -> None:
    new.parent.mkdir(parents=True, exist_ok=True)
    os.link(old, new)


def main(source: Path, target: Path, *names: str, compiled: bool = False) -> None:
    tested, newest = pinned(target / "constraints.txt"), pinned(target / "constraints-newest.txt")
    (old,) = source.glob(".venv/lib/python*/site-packages")
    (new,) = target.glob(".venv/lib/python*/site-packages")
    for one in distributions(path=[str(old)]):
        if one.name not in names or not tested[one.name] == newest[one.name] == one.version.partition("+")[0]:
            continue
        for file in [file for file in one.files or () if ".." not in file.parts]:
            if not compiled:
                link(old / file, new / file)
            elif file.suffix == ".py" and (new / file).samefile(old / file):
                before, after = (Path(cache_from_source(str(folder / file))) for folder in (old, new))
                if before.exists() and not after.exists():
                    link(before, after)


if __name__ == "__main__":
    later = sys.argv[1] == "--compiled"
    source, target, *names = sys.argv[1 + later :]
    main(Path(source).resolve(), Path(target).resolve(), *names, compiled=later)
