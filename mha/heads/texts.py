"""The texts that heads are measured on: news articles that come with gensim, or the lines of the user's own file.

Importance is measured on one half and judged on the other, which no measure saw. gensim is not imported: its test data
are read where pip put them, and never copied.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

from mha_core import SpecError

INSTALL = "pip install 'mha-parity[heads]'"

BACKGROUND = 300
"""Documents of Lee, Pincombe & Welsh (2005): half of them for importance, half for the curves."""

WORDS = 64
"""Of a background document so many words are used: an article of 200 says as much about heads, and takes longer."""

DOCUMENTS = 25
"""Background documents of each half, unless other numbers are asked for."""


@dataclass(frozen=True, eq=False)
class Texts:
    """Texts in two parts.

    Args:
        measured: the texts that importance is measured on.
        judged: the texts that the curves are made on; no measure sees them.
        source: where they come from, in words.
    """

    measured: tuple[str, ...]
    judged: tuple[str, ...]
    source: str


def lee_texts(documents: int = DOCUMENTS) -> Texts:
    """Lee's background documents, out of gensim's package.

    Args:
        documents: how many background documents each half has, at most 150.

    Raises:
        SpecError: gensim is not installed, or its files are not what they were.
    """
    half = BACKGROUND // 2
    if not 1 <= documents <= half:
        raise SpecError(f"--documents must be 1 to {half}: each half has that many. Got {documents}.")
    file = _folder() / "lee_background.cor"
    background = [" ".join(line.split()[:WORDS]) for line in _lines(file, str(file), "latin-1")]
    if len(background) != BACKGROUND:
        raise SpecError(f"{file} does not hold {BACKGROUND} documents, as gensim 4.4 has")
    source = (
        f"{documents} background documents of Lee, Pincombe & Welsh (2005), the first {WORDS} words of each, for "
        f"importance; {documents} others for the curves (gensim's test data)"
    )
    return Texts(tuple(background[:documents]), tuple(background[half : half + documents]), source)


def file_texts(path: str | os.PathLike[str]) -> Texts:
    """The lines of a text file: the first, third, ... for importance, the others for the curves.

    Raises:
        SpecError: it can't be read, is not UTF-8, or has fewer than two lines with a text.
    """
    texts = _lines(path, f"--texts {path}", "utf-8")
    if len(texts) < 2:
        raise SpecError(
            f"--texts needs two lines or more: half are for importance, half for the curves. {path} has {len(texts)}."
        )
    measured, judged = texts[::2], texts[1::2]
    return Texts(tuple(measured), tuple(judged), f"{path}: {len(measured)} lines, and {len(judged)} for the curves")


def _folder() -> Path:
    """Where pip put gensim's test data; gensim itself is not imported."""
    found = importlib.util.find_spec("gensim")
    for place in [] if found is None else found.submodule_search_locations or ():
        if (folder := Path(place, "test", "test_data")).is_dir():
            return folder
    what = "which is not installed" if found is None else "whose test data are not there"
    raise SpecError(f"the texts come with the package 'gensim', {what}: {INSTALL}, or give your own with --texts FILE")


def _lines(path: str | os.PathLike[str], name: str, encoding: str) -> list[str]:
    """The lines of a file that hold a text. SpecError if it can't be read."""
    try:
        lines = Path(path).read_text(encoding=encoding).splitlines()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SpecError(f"{name} can't be read: {reason}") from error
    return [line.strip() for line in lines if line.strip()]
