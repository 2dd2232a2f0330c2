"""`lesson`: the text of a lesson, with its cells in a tab for each framework, and what they printed.

    ```{lesson} angle
    ```

Its text is `lessons/angle/lesson.md`, where `cell`, `plot` and `judged` blocks stand for code, a plot and what
the judge says; what stands above and below it is the course's (`_ext.lessons.course`). What cells print is what
`docs/_data/lessons.py` recorded; a test runs them again. Plots and verdicts are made in this build, and a notebook of
each lesson in each framework.
"""

from __future__ import annotations

import json
import re
from functools import cache
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sphinx.errors import ExtensionError

from _ext.common import DIALECTS, escaped
from _ext.common import tabs as tab_set
from _ext.figures.base import svg_in, to_file, with_download
from _ext.figures.plots import plot
from _ext.languages import ENGLISH
from _ext.lessons.course import COURSE, above, below, extra, named, parted
from _ext.lessons.found import FOUND
from _ext.lessons.judged import script
from _ext.lessons.notebooks import BLOCK, notebook
from lessons import runner

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment
    from sphinx.util.typing import ExtensionMetadata

PLACE = re.compile(r"^```\{lesson\} (\w+)\n```$", re.MULTILINE)

RECORDED = Path(__file__).parents[1] / "_data" / "lessons.json"


@cache
def recorded() -> dict[str, Any]:
    """What `docs/_data/lessons.py` wrote."""
    found: dict[str, Any] = json.loads(RECORDED.read_text("utf-8"))
    return found


@cache
def cells(lesson: str, framework: str) -> dict[str, str]:
    """Cell -> its code."""
    return runner.cells_of((runner.HERE / lesson / f"in_{framework}.py").read_text("utf-8"))


def text(lesson: str) -> str:
    """The Markdown of a lesson."""
    return (runner.HERE / lesson / "lesson.md").read_text("utf-8")


@cache
def figure_of(lesson: str) -> str:
    """HTML of its figure, from its arrays in NumPy."""
    with np.errstate(invalid="ignore"):  # of the textbook's 0 / 0, which is a lesson
        return plot(lesson, runner.run(lesson, "numpy")[1])


def tabs(lesson: str, cell: str) -> str:
    """Markdown of one cell in each framework. Raises ExtensionError where a framework has no such cell."""
    contents = {}
    for framework, label in DIALECTS.items():
        if cell not in cells(lesson, framework):
            raise ExtensionError(f"lesson {lesson!r} has no cell {cell!r} in {label}")
        lines = ["```python", cells(lesson, framework)[cell], "```"]
        printed = recorded()["printed"].get(framework)
        if printed is None:
            lines.append(f"Not run: {label} was not installed where the lessons were recorded.")
        elif printed[lesson][cell]:
            lines += ["```none", printed[lesson][cell].rstrip("\n"), "```"]
        contents[framework] = "\n".join(lines)
    return tab_set(contents)


def captioned(html: str) -> str:
    """Markdown of a figure, whose caption is a paragraph, so that it is translated."""
    before, caption, after = re.split('(?<=<figcaption>)(.*?)(?= <a class="download")', html, maxsplit=1)
    return f"```{{raw}} html\n{before}\n```\n\n{escaped(unescape(caption))}\n\n```{{raw}} html\n{after}```\n"


def notebooks(lesson: str) -> str:
    """Markdown of the last section: links to the notebooks."""
    links = ", ".join(
        f'<a href="_downloads/{lesson}-{name}.ipynb" download>{label}</a>' for name, label in DIALECTS.items()
    )
    return (
        f"## The same in all five\n\nThis lesson as a notebook: {links}. A test holds all five against the definition."
    )


def markdown(lesson: str) -> str:
    """The text of a lesson, its blocks replaced, its exercises, what stands beyond the course, and its notebooks.

    Raises:
        ExtensionError: there is no such lesson.
    """
    if lesson not in runner.lessons():
        raise ExtensionError(f"there is no lesson {lesson!r} (there are: {', '.join(runner.lessons())})")

    def made(block: re.Match[str]) -> str:
        kind, name = block.groups()
        if kind == "cell":
            return tabs(lesson, name) + "\n"
        if kind == "judged":
            return f"```none\n{FOUND[name]()}\n```\n"
        return captioned(with_download(figure_of(name), name))

    own = named(lesson)
    course, beyond = (BLOCK.sub(made, part) for part in parted(text(lesson)))
    judging = script((*own.exercises, *own.extra))
    parts = [above(own), course, below(own), beyond, extra(own), judging, notebooks(lesson)]
    return "\n".join(parts) + "\n"


def put_lessons(app: Sphinx, page: str, source: list[str]) -> None:
    """Put lessons where a page asks for them. Their headings are the page's, so they are text before it is parsed."""
    source[0] = PLACE.sub(lambda found: markdown(found[1]), source[0])


def pages_with_lessons(app: Sphinx, env: BuildEnvironment, *changes: set[str]) -> list[str]:
    """The pages to be read in each build, since what they are made from is no page."""
    return [page for page in env.found_docs if PLACE.search(Path(env.doc2path(page)).read_text("utf-8"))]


def write_notebooks(app: Sphinx, error: Exception | None) -> None:
    """Put the notebooks and the figures beside the pages."""
    if error is None and app.builder.format == "html" and app.config.language == ENGLISH:
        folder = Path(app.outdir, "_downloads")
        folder.mkdir(exist_ok=True)
        for lesson in (one for one in COURSE if one.page in app.env.found_docs):
            figure = svg_in(figure_of(lesson.name))
            folder.joinpath(f"{lesson.name}.svg").write_text(to_file(figure_of(lesson.name)), "utf-8")
            for framework in DIALECTS:
                printed = recorded()["printed"].get(framework, {}).get(lesson.name, {})
                given = lesson, text(lesson.name), cells(lesson.name, framework), printed
                made = notebook(*given, figure=figure, framework=framework)
                folder.joinpath(f"{lesson.name}-{framework}.ipynb").write_text(made, "utf-8")


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register what puts the lessons into pages, and the writer of the notebooks."""
    app.connect("source-read", put_lessons)
    app.connect("env-get-outdated", pages_with_lessons)
    app.connect("build-finished", write_notebooks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
