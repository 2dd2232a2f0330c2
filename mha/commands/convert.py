"""`mha convert`: attention layers out of one file and layout into another, verified."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from conformance.commands.common import DIFFERENT, CouldNotRun, check_writable

if TYPE_CHECKING:
    from rich.console import Console

    from mha.convert import Conversion


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


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.option("--from", "from_layout", metavar="LAYOUT", help="The layout in SOURCE. Default: the one that fits.")
@click.option("--to", "to_layout", metavar="LAYOUT", help="The layout to write.")
@click.option("--out", type=click.Path(path_type=Path), help="The file to write; its suffix says the format.")
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
@click.option("--recorded", type=click.Path(path_type=Path), help="With --infer: one call of the layer.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="With --list: write it here; - is stdout.")
@click.option("--force", is_flag=True, help="Replace OUT if it is there.")
@click.pass_context
def convert(
    context: click.Context,
    source: Path,
    from_layout: str | None,
    to_layout: str | None,
    out: Path | None,
    only_list: bool,
    prefix: str | None,
    every: bool,
    num_heads: int | None,
    num_kv_heads: int | None,
    dtype: str | None,
    to_prefix: str | None,
    inferred: bool,
    recorded: Path | None,
    json_path: Path | None,
    force: bool,
) -> None:
    """Convert the attention layers in SOURCE to another layout, or another format, or both. SOURCE is a file of
    weights, the index of a model in several files (model.safetensors.index.json), or the folder of a model.

    Before OUT is there, everything in it is read back and compared to the bit, and both sides run a
    random problem that is judged against the reference. Formats: .safetensors, .pt, .weights.h5,
    .keras (to read), .msgpack, .npz, .params.

    Exit status: 0 converted, 1 a side computes something else, 2 could not convert.
    """
    from rich.console import Console

    from mha.convert import convert as convert_layers
    from mha.verify import NotEqual
    from mha_core import BackendError, SpecError

    console, errors = Console(), Console(stderr=True)
    if inferred != (recorded is not None):
        raise CouldNotRun("--infer and --recorded FILE belong together")
    if inferred and (only_list or from_layout or prefix is not None or every or num_kv_heads):
        raise CouldNotRun("--infer finds layout, prefix and key heads itself: leave those options out")
    if json_path is not None and not only_list:
        raise CouldNotRun("--json belongs to --list")
    folder = context.with_resource(tempfile.TemporaryDirectory())
    try:
        if recorded is not None:
            refuse_existing(out, force)
            found_weights = Path(folder) / "inferred.safetensors"
            if not _infer(console, errors, source, recorded, num_heads, found_weights):
                context.exit(DIFFERENT)
            if out is None:
                return
            source, from_layout, num_heads = found_weights, "canonical", None
            to_layout = to_layout or "canonical"
        if only_list:
            _list(console, source, json_path)
            return
        if to_layout is None or out is None:
            raise CouldNotRun("give --to LAYOUT and --out FILE, or --list to see what is in the file")
        with errors.status("reading") as status:
            done = convert_layers(
                source,
                to_layout=to_layout,
                out=out,
                from_layout=from_layout,
                prefix=prefix,
                every=every,
                num_heads=num_heads,
                num_kv_heads=num_kv_heads,
                dtype=dtype,
                to_prefix=to_prefix,
                force=force,
                progress=lambda what, count, total: status.update(f"{what} {count} of {total}"),
            )
    except NotEqual as error:
        errors.print(f"Error: {error}\nnothing was written", style="red", markup=False, highlight=False, soft_wrap=True)
        context.exit(DIFFERENT)
    except (SpecError, BackendError, OSError) as error:
        raise CouldNotRun(str(error)) from error
    _print(console, done)


def _list(console: Console, source: Path, json_path: Path | None) -> None:
    from mha.commands import listing
    from mha.formats.survey import survey_file

    on_stdout = json_path is not None and str(json_path) == "-"
    if not on_stdout:
        check_writable("--json", json_path)
    seen = survey_file(source)
    if not seen.order:
        also = f"; {seen.line()}" if seen.unseen else ""
        raise CouldNotRun(f"{source}: no attention layer of a layout that is known (mha convert --layouts){also}")
    if json_path is not None:
        listing.write_json(seen, json_path)
    if not on_stdout:
        listing.show(console, seen)


def refuse_existing(out: Path | None, force: bool) -> None:
    """CouldNotRun if the file to write is there already, before a long search and not after it."""
    check_writable("--out", out)
    if out is not None and out.exists() and not force:
        raise CouldNotRun(f"--out must name a new file unless --force is given. {out} is there already.")


def _infer(console: Console, errors: Console, source: Path, recorded: Path, num_heads: int | None, out: Path) -> bool:
    """Say what the arrays are; where that is unique, write the canonical weights and give True."""
    from mha.infer import Observed, describe, infer, source_arrays
    from mha_core import save_weights

    arrays, observed = source_arrays(source), Observed.load(recorded)
    with errors.status("reading") as status:
        found = infer(arrays, observed, num_heads=num_heads, progress=status.update)
    console.print(describe(found), markup=False, highlight=False, soft_wrap=True)
    if found.verdict == "unique":
        save_weights(out, *found.weights())
    return found.verdict == "unique"


def _print(console: Console, done: Conversion) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table("layer", "now at", "heads", "dtype", "source", "target")
    for layer in done.layers:
        table.add_row(
            escape(layer.prefix) or "(top level)",
            escape(layer.to_prefix) or "(top level)",
            str(layer.config.num_heads),
            layer.dtype,
            f"{layer.source.ratio:.2g}",
            f"{layer.target.ratio:.2g}",
        )
    console.print(table)
    lines = ["source and target: worst error / allowed error on a random problem, against the float64 reference"]
    for label, sides in (
        ("source", {(layer.source.engine, layer.source.dtype) for layer in done.layers}),
        ("target", {(layer.target.engine, layer.target.dtype) for layer in done.layers}),
    ):
        lines.append(f"{label} run by {' and '.join(f'{engine} in {dtype}' for engine, dtype in sorted(sides))}")
    notes: dict[str, list[str]] = {}
    for layer in done.layers:
        for note in layer.notes:
            notes.setdefault(note, []).append(layer.prefix)
    lines += [f"{len(prefixes)} x {note}" for note, prefixes in notes.items()]
    layouts = " or ".join(sorted({layer.from_layout for layer in done.layers}))
    lines.append(
        f"{len(done.layers)} x {layouts} to {done.to_layout}: {done.out} ({done.size / 1e6:.1f} MB) in "
        f"{done.seconds:.1f} s; every array reads back the same to the bit"
    )
    lines.append(done.survey.line([layer.prefix for layer in done.layers]))
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
