"""`mha atlas`: what other engines' attention does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mha.cli import options
from mha.cli.common import CouldNotRun, consoles, finish, say, says, write_asked
from mha.cli.options import Options, argument

if TYPE_CHECKING:
    from mha.atlas.run import Entry


class AtlasOptions(Options):
    """The arguments and options of `mha atlas`."""

    names: tuple[str, ...] = argument(nargs=-1, metavar="[ENGINE]...")
    pythons: tuple[str, ...] = options.several(
        "--python", metavar="NAME=PATH", help="The interpreter that runs an engine (repeatable)."
    )
    diff: Path | None = options.any_path("--diff", help="Say what is another than in this JSON file; exit status 1.")
    keep: Path | None = options.any_path("--keep", help="What this JSON file has of other engines stays.")
    dtypes: tuple[str, ...] = options.dtypes("all that an engine has.")
    no_vectors: bool = options.flag("--no-vectors", "Ask the questions alone.")
    time_limit: float = options.time_limit("an engine", "call")
    page: Path | None = options.output_file("--page", help="Also write the page, in Markdown.")
    json_path: Path | None = options.json_file()


@options.command(AtlasOptions, "mha atlas 'ort-*'", "mha atlas --diff docs/_data/atlas.json torch-sdpa")
def atlas(asked: AtlasOptions) -> None:
    """Compare other engines' attention with the definition, and write down where they part.

    An engine is onnxruntime's operator, MLX's function and so on; docs/atlas.md lists them, with what was found. Each
    answers small questions and is judged by the test vectors that it can take, in a process of its own.

    Exit status: 0 done; 1 an answer differs from the one in the file --diff; 2 no engine could be asked.
    """
    from conformance.workers.interpreters import Settings, interpreters
    from mha.atlas.engine import ENGINES, engines
    from mha.atlas.page import page
    from mha.atlas.run import changes, entry_of, vectors, whole
    from mha_core.dtypes import DTYPES, check_dtype
    from mha_core.files.writing import write_whole

    chosen = engines(asked.names)
    old = None if asked.diff is None else _read("--diff", asked.diff)
    kept = [] if asked.keep is None else _read("--keep", asked.keep)["engines"]
    for dtype in asked.dtypes:
        check_dtype(dtype)
    settings = Settings(interpreters(asked.pythons, ENGINES))
    console, errors = consoles()
    entries = []
    with errors.status("making the vectors") as status:
        some = [] if asked.no_vectors else vectors(asked.dtypes or DTYPES)
        for engine in chosen:
            entries.append(entry_of(engine, some, settings, asked.time_limit, says(status)))
            say(console, *_screen(entries[-1]))
    found = whole(entries, kept)
    if asked.page is not None:
        write_whole(asked.page, page(found).encode())
    write_asked(asked.json_path, lambda: found)
    if old is not None:
        lines = list(changes(old, whole(entries)))
        say(console, *lines or ["Nothing is another."])
        finish(lines, all(one.why for one in entries))
    finish(False, all(one.why for one in entries))


def _read(option: str, path: Path) -> Mapping[str, Any]:
    from mha.atlas.page import page
    from mha.atlas.run import changes
    from mha_core.errors import one_line, shown
    from mha_core.files.outside import parse_json_object

    try:
        found = parse_json_object(path.read_bytes(), what=str(path))
    except OSError as error:
        raise CouldNotRun(f"{option} {path} can't be read: {error.strerror}") from error
    try:
        if found["schema"] != 1:
            raise ValueError(f"its schema must be 1. Got {shown(found['schema'])}.")
        page(found)  # what lacks a field is not read at the end alone
        list(changes(found, found))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise CouldNotRun(f"{option} {path} is no file of `mha atlas --json`: {one_line(error)}") from error
    return found


def _screen(one: Entry) -> list[str]:
    """The lines of one engine: what it is, its vectors, each question that it parts on, and a count."""
    from mha.atlas.run import CANNOT, FOLLOWS, PARTS

    if one.why:
        return [f"{one.id}: {one.why}"]
    versions = ", ".join(f"{name} {version}" for name, version in one.versions.items())
    counts = {status: sum(cell.status == status for cell in one.cells) for status in (FOLLOWS, PARTS, CANNOT)}
    lines = [f"{one.id} ({versions}): {', '.join(f'{count} {status}' for status, count in counts.items())}"]
    lines += [f"  {cell.question}: {cell.how}" for cell in one.cells if cell.status == PARTS]
    for dtype, judged in one.vectors.items():
        of = judged.equal + len(judged.differ) + len(judged.raised)
        lines.append(f"  {dtype}: {judged.equal} of {of} vectors equal")
    return lines
