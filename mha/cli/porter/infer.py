"""`mha infer`: recognise the weights of an attention layer among arrays of unknown names."""

from __future__ import annotations

from pathlib import Path

import click

from mha.cli import options
from mha.cli.common import consoles, finish, says, write_asked
from mha.cli.options import Options, option
from mha.cli.porter.convert import refuse_existing


class InferOptions(Options):
    """The argument and options of `mha infer`."""

    source: Path = options.path_argument()
    recorded: Path = options.any_path(
        "--recorded",
        required=True,
        help="One call of the layer: an .npz or safetensors file of queries and output, and keys, values, valid_lens, "
        "allowed, bias, causal, query_offset where there are any.",
    )
    num_heads: int | None = option("--num-heads", type=click.IntRange(min=1), help="H, if it is known.")
    out: Path | None = options.output_file("--out", help="Write the canonical weights here, if the mapping is unique.")
    json_path: Path | None = options.json_file("Write the result here for a program.")
    force: bool = options.flag("--force", "Replace OUT if it is there.")
    time_limit: float = option("--time-limit", default=60.0, show_default=True, help="Seconds to search for.")


@options.command(InferOptions)
def infer(asked: InferOptions) -> None:
    """Find which arrays of SOURCE are the weights of the attention layer that was recorded.

    Names mean nothing: arrays may be transposed, packed, split into heads, in another order of heads, and
    among arrays of other layers. What is found computes the recorded output within the computed bound.
    SOURCE is a file, an index of shards or a folder, of any format that `mha convert` reads.

    Exit status: 0 one mapping fits, 1 several fit or none does, 2 could not run.
    """
    from mha.infer import Observed, describe, source_arrays, to_dict
    from mha.infer import infer as find
    from mha_core import save_weights

    refuse_existing(asked.out, asked.force)
    arrays, observed = source_arrays(asked.source), Observed.load(asked.recorded)
    with consoles()[1].status("reading") as status:
        found = find(arrays, observed, num_heads=asked.num_heads, time_limit=asked.time_limit, progress=says(status))
    is_unique = found.verdict == "unique"
    if asked.out is not None and is_unique:
        save_weights(asked.out, *found.weights())
    write_asked(asked.json_path, lambda: to_dict(found))
    click.echo(describe(found))
    if asked.out is not None:
        click.echo(f"wrote {asked.out}" if is_unique else f"nothing was written to {asked.out}")
    finish(not is_unique)
