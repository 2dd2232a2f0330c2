"""A lesson as a notebook of one framework: its text, its code with what it printed, its figure, and its exercises."""

import base64
import re
from collections.abc import Mapping

import nbformat
from nbformat import v4

from _ext.common import escaped
from _ext.lessons.course import Lesson
from mha.learn.exercise import LayerExercise
from mha.learn.exercises import exercise
from mha.learn.handout.folder import text_of

BLOCK = re.compile(r"^```\{(cell|plot|judged)\} (\w+)\n```\n?", re.MULTILINE)

FROM_A_FILE = "# That is in a clone of mha-parity. Of a wheel file: %pip install -q 'FILE.whl"

PLAIN = (
    (re.compile(r"^```\{math\}\n(.*?)\n```", re.MULTILINE | re.DOTALL), r"$$\1$$"),
    (re.compile(r"\{math\}`([^`]*)`"), r"$\1$"),
    (
        re.compile(r"^:::\{dropdown\} (.*?)\n(.*?)\n:::", re.MULTILINE | re.DOTALL),
        r"<details><summary>\1</summary>\n\n\2\n\n</details>",
    ),
    (re.compile(r"^```\{\w+\}.*?\n```\n?", re.MULTILINE | re.DOTALL), ""),
    (re.compile(r"\[([^]]*)\]\([\w/-]+\.md[^)]*\)"), r"\1"),
)
"""What only the site knows -> Markdown that a notebook shows."""


def notebook(
    lesson: Lesson, text: str, cells: Mapping[str, str], printed: Mapping[str, str], *, figure: str, framework: str
) -> str:
    """The notebook as JSON, the same bytes for the same lesson.

    Args:
        lesson: which one.
        text: its Markdown.
        cells: cell -> code.
        printed: cell -> what it printed; empty where it was not run.
        figure: its figure, SVG.
        framework: "numpy" or the name of a backend, as the extras have it.
    """
    extra = "" if framework == "numpy" else f"[{framework}]"
    found = [
        v4.new_markdown_cell(f"# {lesson.title}", id="title"),
        v4.new_code_cell(f"%pip install -q '.{extra}'\n{FROM_A_FILE}{extra}'", id="install"),
    ]
    kinds = iter([*BLOCK.finditer(text), None])
    for number, part in enumerate(BLOCK.split(text)[::3]):
        for pattern, plain in PLAIN:
            part = pattern.sub(plain, part)
        if part.strip():
            found.append(v4.new_markdown_cell(part.strip(), id=f"text-{number}"))
        block = next(kinds)
        if block is None:
            continue
        kind, name = block.groups()
        if kind == "cell":
            lines = printed.get(name, "")
            outputs = [v4.new_output("stream", name="stdout", text=lines)] if lines else []
            found.append(v4.new_code_cell(cells[name], id=f"cell-{name}", outputs=outputs))
        elif kind == "plot":
            image = base64.b64encode(figure.encode()).decode()
            cell = v4.new_markdown_cell("![](attachment:figure.svg)", id="figure")
            cell["attachments"] = {"figure.svg": {"image/svg+xml": image}}
            found.append(cell)
    found += exercises(lesson)
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    made = v4.new_notebook(cells=found, metadata={**kernel, "language_info": {"name": "python"}})
    nbformat.validate(made)
    return f"{nbformat.writes(made)}\n"


def exercises(lesson: Lesson) -> list[nbformat.NotebookNode]:
    """Cells to fill in, which judge themselves; none without exercises. A whole layer is judged as a file alone."""
    if not lesson.exercises:
        return []
    found = [v4.new_markdown_cell("## Exercises\n\nFill in, and run: what is wrong is said by name.", id="exercises")]
    for asked in map(exercise, lesson.exercises):
        if isinstance(asked, LayerExercise):
            text = f"{escaped(asked.task)} Judged as a file: `mha learn check {asked.name}`."
            found.append(v4.new_markdown_cell(text, id=f"task-{asked.name}"))
            continue
        check = f'from mha.learn import check_here\n\nprint(check_here("{asked.name}", {asked.function}))'
        found.append(v4.new_code_cell(f"{text_of(asked).strip()}\n\n\n{check}", id=f"task-{asked.name}"))
    return found
