"""`mha vectors`: the cases as files for any language, and a folder of answers judged."""

from operator import attrgetter
from pathlib import Path

import click

from mha.cli import options
from mha.cli.common import COULD_NOT_RUN, DIFFERENT, EQUAL, consoles, progress, say, says, write_asked
from mha.cli.options import Options, option


class VectorsOptions(Options):
    """The options of `mha vectors`."""

    out: Path | None = options.any_path("--out", help="Write vectors into this folder, which is made.")
    judged: tuple[Path, Path] | None = option(
        "--judge", nargs=2, type=click.Path(path_type=Path), metavar="FOLDER ANSWERS",
        help="Judge the answers in the folder ANSWERS to the vectors in FOLDER.",
    )  # fmt: skip
    small: bool = options.flag("--small", "With --out: a small set, in float32, that reveals all that float32 does.")
    patterns: tuple[str, ...] = options.several(
        "--case", "-c", help="With --out: only vectors of this id; wildcards work (repeatable)."
    )
    dtypes: tuple[str, ...] = options.dtypes("all four.")
    verbose: bool = option("--verbose", "-v", is_flag=True, help="With --judge: a line for every vector.")
    json_path: Path | None = options.json_file("With --judge: also write everything to this file.")


@options.command(VectorsOptions, "mha vectors --out vectors", "mha vectors --judge vectors answers")
def vectors(asked: VectorsOptions) -> None:
    """Write the cases as files that test programs in any language, or judge a folder of answers to them.

    A vector is a safetensors file with inputs, right numbers and the allowed error of each: docs/vectors.md says all
    that a program needs to know. An answer is ID.safetensors with an array `output`.

    Exit status: 0 written, or every answer equal; 1 an answer differs; 2 could not run, or a file was refused.
    """
    if (asked.out is None) == (asked.judged is None):
        raise click.UsageError("Give --out FOLDER to write vectors, or --judge FOLDER ANSWERS to judge answers.")
    if asked.out is not None:
        if asked.json_path is not None or asked.verbose:
            raise click.UsageError("--json and --verbose belong to --judge.")
        _write(asked, asked.out)
    elif asked.judged is not None:
        if asked.small or asked.patterns or asked.dtypes:
            raise click.UsageError("--small, --case and --dtype belong to --out.")
        _judge(asked, *asked.judged)


def _write(asked: VectorsOptions, out: Path) -> None:
    from mha.vectors.table import chosen
    from mha.vectors.write import check_new, write_vectors

    console, errors = consoles()
    check_new(out)
    some, kind = chosen(asked.patterns, asked.dtypes, small=asked.small)
    with progress(errors, len(some), attrgetter("id")) as advance:
        size, digest = write_vectors(out, some, kind, advance)
    say(console, f"{out}: {len(some)} vectors, {size / 1e6:.1f} MB, digest {digest}")


def _judge(asked: VectorsOptions, path: Path, answers: Path) -> None:
    from mha.vectors.judge import Folder, judge
    from mha.vectors.report import lines

    console, errors = consoles()
    with errors.status("reading the vectors") as status:
        folder = Folder(path)
        found = judge(folder, answers, says(status))
    say(console, *lines(found, folder.rows, verbose=asked.verbose))
    write_asked(asked.json_path, found.to_dict)
    ended = DIFFERENT if found.of("differs") else COULD_NOT_RUN if found.of("refused") else EQUAL
    raise SystemExit(ended)
