"""`mha convert`: convert attention layers from one file and layout to another, and verify them."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mha.cli.common import DIFFERENT, CouldNotRun, OutputFile, as_one, says

if TYPE_CHECKING:
    from rich.console import Console


def _show_layouts(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted or context.resilient_parsing:
        return
    from rich.console import Console
    from rich.table import Table

    from mha.formats import FORMATS
    from mha_core.layouts import LAYOUTS

    layouts = Table("layout", "framework", "whose it is, or the names in it")
    for layout in LAYOUTS.values():
        layouts.add_row(layout.name, layout.framework or "any", layout.summary)
    formats = Table("format", "suffixes", "layouts", "dtypes")
    for form in FORMATS:
        fitting = "to read alone" if form.readable_only else ", ".join(form.layouts) or "all"
        formats.add_row(form.name, " ".join(form.suffixes), fitting, ", ".join(form.dtypes))
    console = Console()
    console.print(layouts)
    console.print(formats)
    context.exit()


@dataclass(frozen=True)
class ConvertOptions:
    """The arguments and options of `mha convert`."""

    source: Path
    from_layout: str | None
    to_layout: str | None
    out: Path | None
    only_list: bool
    prefix: str | None
    every: bool
    num_heads: int | None
    num_kv_heads: int | None
    dtype: str | None
    to_prefix: str | None
    inferred: bool
    recorded: tuple[Path, ...]
    unseen: bool
    moved: bool
    leave: tuple[str, ...]
    json_path: Path | None
    force: bool


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.option("--from", "from_layout", metavar="LAYOUT", help="The layout in SOURCE. Default: the one that fits.")
@click.option("--to", "to_layout", metavar="LAYOUT", help="The layout to write.")
@click.option("--out", type=OutputFile(), help="The file to write; its suffix says the format.")
@click.option("--list", "only_list", is_flag=True, help="Show the attention layers in SOURCE and do nothing else.")
@click.option(
    "--layouts",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_layouts,
    help="Show the layouts and formats that are known.",
)
@click.option("--prefix", help="Take the layer whose names begin with this; '' is the top level.")
@click.option("--all", "every", is_flag=True, help="Take every layer.")
@click.option("--num-heads", type=click.IntRange(min=1), help="H, where neither shapes nor metadata say it.")
@click.option("--num-kv-heads", type=click.IntRange(min=1), help="G. Default: what the shapes say.")
@click.option("--dtype", help="Cast the arrays to this dtype. Default: they stay as they are.")
@click.option("--to-prefix", help="What names in OUT begin with; {prefix}, {index}, {_index} are replaced.")
@click.option("--infer", "inferred", is_flag=True, help="Names mean nothing: find the weights as `mha infer` does.")
@click.option(
    "--recorded",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Calls of the original that must be reproduced (repeatable): what mha.capture wrote; one call as `mha infer` "
    "takes it; or calls of several layers, as arrays layer/call/queries, layer/call/output, ...",
)
@click.option("--unseen/--no-unseen", default=True, help="Whether to say what recorded calls would not have shown.")
@click.option("--moved", is_flag=True, help="Also move the bits of layers that are neither proved nor known.")
@click.option(
    "--leave",
    multiple=True,
    help="An array to leave behind: below a layer's prefix and not in its layout, or elsewhere and without a place in "
    "a model of the config's type; or another file beside config.json (repeatable; wildcards).",
)
@click.option(
    "--json",
    "json_path",
    type=OutputFile(dash=True),
    help="Also write what was done, or the list, to this file; - is stdout.",
)
@click.option("--force", is_flag=True, help="Replace OUT if it is there.")
@click.pass_context
@as_one(ConvertOptions)
def convert(context: click.Context, asked: ConvertOptions) -> None:
    """Convert the attention layers in SOURCE to another layout, or another format, or both. SOURCE is a file of
    weights, the index of a model in several files (model.safetensors.index.json), or the folder of a model.

    What the original computes of a layer's arrays is proved (a recorded call of it was reproduced: --recorded),
    known (config.json, the class in a .keras archive, or a file of this project says so), or unknown: then bits
    are moved, and only with --moved.

    Before OUT is there, everything in it is read back and compared to the bit, and both sides run a
    random problem that is judged against the reference: that shows that they are the same layer.
    Formats: .safetensors, .pt, .weights.h5, .keras (to read), .msgpack, .npz, .params.

    Exit status: 0 converted (all proved or known; or moved, with --moved), 1 a layer computes something else
    than was recorded or than the reference, 2 could not convert, or neither proved nor known.
    """
    import json

    from rich.console import Console

    from mha.convert.convert import convert as convert_layers
    from mha.convert.report import print_report, to_dict
    from mha.convert.verify import VerificationFailed
    from mha_core import BackendError, SpecError
    from mha_core.files.writing import write_whole

    console, errors = Console(), Console(stderr=True)
    if asked.inferred and len(asked.recorded) != 1:
        raise CouldNotRun("--infer needs --recorded FILE, a call of the layer, and one alone")
    on_stdout = asked.json_path is not None and str(asked.json_path) == "-"
    layer_options = asked.from_layout or asked.prefix is not None or asked.every or asked.num_kv_heads
    if asked.inferred and (asked.only_list or layer_options):
        raise CouldNotRun("--infer finds layout, prefix and key heads itself: leave those options out")
    folder = context.with_resource(tempfile.TemporaryDirectory())
    try:
        if asked.inferred:
            refuse_existing(asked.out, asked.force)
            found_weights = Path(folder) / "inferred.safetensors"
            if not _infer(console, errors, asked.source, asked.recorded[0], asked.num_heads, found_weights):
                context.exit(DIFFERENT)
            if asked.out is None:
                return
            to_layout = asked.to_layout or "canonical"
            asked = replace(asked, source=found_weights, from_layout="canonical", num_heads=None, to_layout=to_layout)
        if asked.only_list:
            _list(console, asked.source, asked.json_path)
            return
        if asked.to_layout is None or asked.out is None:
            raise CouldNotRun("give --to LAYOUT and --out FILE, or --list to see what is in the file")
        with errors.status("reading") as status:
            done = convert_layers(
                asked.source,
                to_layout=asked.to_layout,
                out=asked.out,
                from_layout=asked.from_layout,
                prefix=asked.prefix,
                every=asked.every,
                num_heads=asked.num_heads,
                num_kv_heads=asked.num_kv_heads,
                dtype=asked.dtype,
                to_prefix=asked.to_prefix,
                recorded=asked.recorded,
                moved=asked.moved,
                leave=asked.leave,
                force=asked.force,
                unseen=asked.unseen,
                progress=lambda what, count, total: status.update(f"{what} {count} of {total}"),
            )
    except VerificationFailed as error:
        errors.print(f"Error: {error}\nnothing was written", style="red", markup=False, highlight=False, soft_wrap=True)
        context.exit(DIFFERENT)
    except (SpecError, BackendError, OSError) as error:
        raise CouldNotRun(str(error)) from error
    text = json.dumps(to_dict(done), indent=2) + "\n"
    if on_stdout:
        click.echo(text, nl=False)
        return
    print_report(console, done)
    if asked.json_path is not None:
        write_whole(asked.json_path, text.encode())


def _list(console: Console, source: Path, json_path: Path | None) -> None:
    from mha.cli.porter import listing
    from mha.formats.survey import survey_file

    on_stdout = json_path is not None and str(json_path) == "-"
    seen = survey_file(source)
    if not seen.order:
        also = f"; {seen.line()}" if seen.unseen else ""
        raise CouldNotRun(f"{source}: no attention layer of a layout that is known (mha convert --layouts){also}")
    if json_path is not None:
        listing.write_json(seen, json_path)
    if not on_stdout:
        listing.show(console, seen)


def refuse_existing(out: Path | None, force: bool) -> None:
    """Raise CouldNotRun if the file to write exists; called before a long search, so that this is not in vain."""
    if out is not None and out.is_file() and not force:
        raise CouldNotRun(f"--out must name a new file unless --force is given. {out} is there already.")


def _infer(console: Console, errors: Console, source: Path, recorded: Path, num_heads: int | None, out: Path) -> bool:
    """Infer and print what the arrays are; where that is unique, write canonical weights to `out` and return True."""
    from mha.infer import Observed, describe, infer, source_arrays
    from mha_core import save_weights

    arrays, observed = source_arrays(source), Observed.load(recorded)
    with errors.status("reading") as status:
        found = infer(arrays, observed, num_heads=num_heads, progress=says(status))
    console.print(describe(found), markup=False, highlight=False, soft_wrap=True)
    if found.verdict == "unique":
        save_weights(out, *found.weights())
    return found.verdict == "unique"
