"""The exercises of a lesson on its page: the file, and an editor whose answer is judged there, by Pyodide.

Without scripts, on a page that was opened from disk, and where the site was built without Pyodide
(`docs/_data/pyodide.py` fetches it), the page says the command. Where Node.js builds the site too, Python's code is
compiled then, and not in each browser.
"""

from __future__ import annotations

import html
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from _data import pyodide
from _data.pyodide import TARGET
from _ext.languages import ENGLISH
from mha.learn.exercise import NUMPY, Exercise, HeadsExercise, LayerExercise
from mha.learn.exercises import exercise
from mha.learn.handout.folder import text_of
from mha.learn.running.workshop import LONGEST_ALONE, too_long

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.util.typing import ExtensionMetadata

ROOT = Path(__file__).parents[3]

CODE, TRAINED = "judge.zip", "trained.zip"
ARCHIVES = {
    CODE: ("mha_core", "conformance", "mha/__init__.py", "mha/learn", "mha/undetectable_bugs"),
    TRAINED: ("conformance/cases/data/minilm.safetensors",),
}
"""Archive -> files and folders of this project that a page's worker unpacks; the second where a case needs it."""

COMPILER = Path(pyodide.__file__).with_name("compiled.mjs")
"""Compiles in Pyodide what it imports before a verdict."""

MADE = (1980, 1, 1, 0, 0, 0)
"""When all files of an archive were made: it is the same in each build."""


def editors(names: Iterable[str]) -> str:
    """Markdown of exercises in NumPy, each a fold with its file; "" for none."""
    return _raw(_fold(one) for one in map(exercise, names) if one.dialect == NUMPY)


def script(names: Iterable[str]) -> str:
    """Markdown of the script that makes editors of all folds on a page; "" for none. A page has it once."""
    found = [one for one in map(exercise, names) if one.dialect == NUMPY]
    return _raw(_script(any(TRAINED in _archives(one) for one in found)) if found else ())


def _raw(lines: Iterable[str]) -> str:
    inner = [*lines]
    return "\n".join(["```{raw} html", *inner, "```"]) if inner else ""


def _archives(one: Exercise) -> list[str]:
    return [CODE, *([TRAINED] * isinstance(one, (LayerExercise, HeadsExercise)))]


def _fold(one: Exercise) -> str:
    asked, _, code = text_of(one).removeprefix('"""').partition('\n"""\n\n')
    return (
        f'<details class="exercise" lang="en" data-name="{one.name}" data-archives="{" ".join(_archives(one))}">\n'
        f"<summary><code>{one.file}</code></summary>\n"
        f'<pre class="asked">{html.escape(asked)}</pre>\n'
        f'<pre class="given">{html.escape(code)}</pre>\n</details>'
    )


def _script(is_trained: bool) -> list[str]:
    """The script's element; `is_trained`: whether a case of the page needs the trained weights."""
    if not TARGET.is_dir():
        return []
    made = made_here()
    sizes = {path.name: path.stat().st_size for path in TARGET.iterdir()} | {name: len(made[name]) for name in made}
    size = sum(sizes.values()) - (0 if is_trained else sizes[TRAINED])
    words = html.escape(too_long(LONGEST_ALONE))
    return [f'<script defer src="_static/judge.js" data-too-long="{words}" data-size="{size / 1e6:.0f}"></script>']


def write_judge(app: Sphinx, error: Exception | None) -> None:
    """Put Pyodide, NumPy and the judge beside the pages."""
    if error or app.builder.format != "html" or app.config.language != ENGLISH or not TARGET.is_dir():
        return
    folder = Path(app.outdir, "_judge")
    shutil.copytree(TARGET, folder, dirs_exist_ok=True)
    for name, data in made_here().items():
        folder.joinpath(name).write_bytes(data)


@cache
def made_here() -> dict[str, bytes]:
    """File name -> what it holds, of the archives that the build makes; Python's own where Node.js can compile it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, parts in ARCHIVES.items():
            with ZipFile(folder / file, "w") as archive:
                for path in (path for part in parts for path in _files(ROOT / part)):
                    entry = ZipInfo(path.relative_to(ROOT).as_posix(), MADE)
                    archive.writestr(entry, path.read_bytes(), ZIP_DEFLATED)
        node = shutil.which("node")
        if node:
            subprocess.run([node, COMPILER, TARGET, folder], check=True)
        return {path.name: path.read_bytes() for path in folder.iterdir()}


def _files(part: Path) -> list[Path]:
    return [part] if part.is_file() else sorted(path for path in part.rglob("*") if path.suffix in (".py", ".txt"))


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the writer of what judges."""
    app.connect("build-finished", write_judge)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
