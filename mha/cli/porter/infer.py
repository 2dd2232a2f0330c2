"""`mha infer`: recognise the weights of an attention layer among arrays of unknown names."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from mha.cli.common import DIFFERENT, EQUAL, CouldNotRun, OutputFile, says
from mha.cli.porter.convert import refuse_existing


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.option(
    "--recorded",
    required=True,
    type=click.Path(path_type=Path),
    help="One call of the layer: an .npz or safetensors file of queries and output, and keys, values, valid_lens, "
    "allowed, bias, causal, query_offset where there are any.",
)
@click.option("--num-heads", type=click.IntRange(min=1), help="H, if it is known.")
@click.option("--out", type=OutputFile(), help="Write the canonical weights here, if the mapping is unique.")
@click.option("--json", "json_path", type=OutputFile(), help="Write the result here for a program.")
@click.option("--force", is_flag=True, help="Replace OUT if it is there.")
@click.option("--time-limit", default=60.0, show_default=True, help="Seconds to search for.")
def infer(
    source: Path,
    recorded: Path,
    num_heads: int | None,
    out: Path | None,
    json_path: Path | None,
    force: bool,
    time_limit: float,
) -> None:
    """Find which arrays of SOURCE are the weights of the attention layer that was recorded.

    Names mean nothing: arrays may be transposed, packed, split into heads, in another order of heads, and
    among arrays of other layers. What is found computes the recorded output within the computed bound.
    SOURCE is a file, an index of shards or a folder, of any format that `mha convert` reads.

    Exit status: 0 one mapping fits, 1 several fit or none does, 2 could not run.
    """
    from rich.console import Console

    from mha.infer import Observed, describe, source_arrays, to_dict
    from mha.infer import infer as find
    from mha_core import SpecError, save_weights
    from mha_core.files.writing import write_json

    refuse_existing(out, force)
    try:
        arrays, observed = source_arrays(source), Observed.load(recorded)
        with Console(stderr=True).status("reading") as status:
            found = find(arrays, observed, num_heads=num_heads, time_limit=time_limit, progress=says(status))
        if out is not None and found.verdict == "unique":
            save_weights(out, *found.weights())
    except SpecError as error:
        raise CouldNotRun(str(error)) from error
    if json_path is not None:
        write_json(json_path, to_dict(found))
    click.echo(describe(found))
    if out is not None:
        click.echo(f"wrote {out}" if found.verdict == "unique" else f"nothing was written to {out}")
    sys.exit(EQUAL if found.verdict == "unique" else DIFFERENT)
