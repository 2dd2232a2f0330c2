"""The lessons as one notebook per framework: the texts, and the cells of that framework's files."""

from __future__ import annotations

import re
from collections.abc import Mapping

import nbformat
from nbformat import v4

TITLES = {
    "angle": "Weights by angle",
    "scaling": "The effect of scaling",
    "softmax": "Softmax and its maximum",
    "heads": "Heads: a loop, and all at once",
    "words": "From words to the output",
}
"""The lessons in their order, with their titles."""

BLOCK = re.compile(r"^```\{(cell|plot|judged)\} (\w+)\n```\n?", re.MULTILINE)


def notebook(texts: Mapping[str, str], cells: Mapping[str, Mapping[str, str]], label: str) -> str:
    """The notebook as JSON, the same bytes for the same lessons.

    Args:
        texts: lesson -> its Markdown.
        cells: lesson -> cell -> code.
        label: what the framework is called.
    """
    found = [v4.new_markdown_cell(f"# Attention in {label}", id="title")]
    for lesson, title in TITLES.items():
        found.append(v4.new_markdown_cell(f"## {title}", id=lesson))
        kinds = iter([*BLOCK.finditer(texts[lesson]), None])
        for number, text in enumerate(BLOCK.split(texts[lesson])[::3]):
            plain = re.sub(r"\[([^]]*)\]\([\w-]+\.md[^)]*\)", r"\1", text).strip()
            if plain:
                found.append(v4.new_markdown_cell(re.sub(r"^##", "###", plain, flags=re.M), id=f"{lesson}-{number}"))
            block = next(kinds)
            if block is not None and block[1] == "cell":
                found.append(v4.new_code_cell(cells[lesson][block[2]], id=f"{lesson}-cell-{block[2]}"))
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    made = v4.new_notebook(cells=found, metadata={**kernel, "language_info": {"name": "python"}})
    nbformat.validate(made)
    return f"{nbformat.writes(made)}\n"
