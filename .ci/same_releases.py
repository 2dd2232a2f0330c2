"""Link what both sets of constraints have in the same release from one virtual environment into another.

`same_releases.py FROM TO NAME...` makes hard links of the files of each distribution, as pip installed them; pip then
finds it there. One whose release differs between the two sets is left to pip, and so are commands in bin.
"""

import os
import re
import sys
from importlib.metadata import distributions
from pathlib import Path


def pinned(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)==(\S+)$", path.read_text(), re.MULTILINE))


def main(source: Path, target: Path, *names: str) -> None:
    tested, newest = pinned(target / "constraints.txt"), pinned(target / "constraints-newest.txt")
    (old,) = source.glob(".venv/lib/python*/site-packages")
    (new,) = target.glob(".venv/lib/python*/site-packages")
    for one in distributions(path=[str(old)]):
        if one.name not in names or not tested[one.name] == newest[one.name] == one.version.partition("+")[0]:
            continue
        for file in one.files or ():
            if ".." not in file.parts:
                (new / file).parent.mkdir(parents=True, exist_ok=True)
                os.link(old / file, new / file)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
