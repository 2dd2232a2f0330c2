"""`mha convert`: convert attention layers from one file and layout to another, and verify them."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mha.cli import options
from mha.cli.common import CouldNotRun, consoles, finish, say, says, show_rows
from mha.cli.options import Options, option

if TYPE_CHECKING:
    from rich.console import Console

    from mha.formats.find import FoundLayer

LIST_SCHEMA = 1
"""The schema version of the JSON that --list writes."""


def _show_layouts(context: click.Context, _: click.Parameter, wanted: bool) -> bool:
    if not wanted or context.resilient_parsing:
        return wanted
    from mha.formats import FORMATS
    from mha_core.layouts import LAYOUTS

    console, _errors = consoles()
    layouts = ((layout.name, layout.framework or "any", layout.summary) for layout in LAYOUTS.values())
    show_rows(console, ("layout", "framework", "whose it is, or the names in it"), layouts)
    formats = []
    for form in FORMATS:
        fitting = "to read alone" if form.readable_only else ", ".join(form.layouts) or "all"
        formats.append((form.name, " ".join(form.suffixes), fitting, ", ".join(form.dtypes)))
    say(console, "")
    show_rows(console, ("format", "suffixes", "layouts", "dtypes"), formats)
    context.exit()


def _show_families(context: click.Context, _: click.Parameter, wanted: bool) -> bool:
    if not wanted or context.resilient_parsing:
        return wanted
    from mha.recipes.rows.table import counts, rows

    console, _errors = consoles()
    families = ((row.family, ", ".join(row.model_types), row.adds, row.words) for row in rows())
    show_rows(console, ("family", "model types", "adds", "what is special"), families)
    found = counts()
    say(console, f"published models: {found['expressed']} of families that are read, {found['refused']} of refused")
    context.exit()


class ConvertOptions(Options):
    """The argument and options of `mha convert`."""

    source: Path = options.path_argument()
    from_layout: str | None = option(
        "--from", metavar="LAYOUT", help="The layout in SOURCE. Default: the one that fits."
    )
    to_layout: str | None = option("--to", metavar="LAYOUT", help="The layout to write.")
    out: Path | None = options.output_file("--out", help="The file to write; its suffix says the format.")
    only_list: bool = options.flag("--list", "Show the attention layers in SOURCE and do nothing else.")
    layouts: bool = option(
        "--layouts",
        is_flag=True,
        is_eager=True,
        callback=_show_layouts,
        help="Show the layouts and formats that are known.",
    )
    families: bool = option(
        "--families",
        is_flag=True,
        is_eager=True,
        callback=_show_families,
        help="Show the families of transformers whose attention is read, what each adds, and those that are refused.",
    )
    prefix: str | None = option("--prefix", help="Take the layer whose names begin with this; '' is the top level.")
    every: bool = options.flag("--all", "Take every layer.")
    num_heads: int | None = option(
        "--num-heads", type=click.IntRange(min=1), help="H, where neither shapes nor metadata say it."
    )
    num_kv_heads: int | None = option(
        "--num-kv-heads", type=click.IntRange(min=1), help="G. Default: what the shapes say."
    )
    dtype: str | None = option("--dtype", help="Cast the arrays to this dtype. Default: they stay as they are.")
    to_prefix: str | None = option(
        "--to-prefix", help="What names in OUT begin with; {prefix}, {index}, {_index} are replaced."
    )
    inferred: bool = options.flag("--infer", "Names mean nothing: find one layer's weights by a recorded call of it.")
    recorded: tuple[Path, ...] = options.any_path(
        "--recorded",
        multiple=True,
        help="Calls of the original that must be reproduced (repeatable): what mha.capture wrote; one call, as arrays "
        "queries, output, and keys, values, valid_lens, allowed, bias, causal, query_offset where there are any; or "
        "calls of several layers, as arrays layer/call/queries, layer/call/output, ...",
    )
    unseen: bool | None = options.unseen("recorded calls")
    moved: bool = options.flag("--moved", "Also move the bits of layers that are neither proved nor known.")
    leave: tuple[str, ...] = options.several(
        "--leave",
        help="An array to leave behind: below a layer's prefix and not in its layout, or elsewhere and without a place "
        "in a model of the config's type; or another file beside config.json (repeatable; wildcards).",
    )
    json_path: Path | None = options.json_file(
        "Also write what was done, or the list, to this file; - is stdout.", dash=True
    )
    force: bool = options.flag("--force", "Replace OUT if it is there.")

    def check(self) -> None:
        """Raise CouldNotRun if options contradict each other, or OUT exists already."""
        if not self.inferred:
            return
        if len(self.recorded) != 1:
            raise CouldNotRun(
                "--infer needs --recorded FILE, a call of the layer, and one alone: mha.capture(layer, "
                '"call.safetensors") writes it, or numpy.savez("call.npz", queries=x, output=y)'
            )
        if self.only_list or self.from_layout or self.prefix is not None or self.every or self.num_kv_heads:
            raise CouldNotRun("--infer finds layout, prefix and key heads itself: leave those options out")
        if self.json_path is not None and self.out is None:
            raise CouldNotRun("--json says what was written: with --infer it needs --out FILE")
        if self.out is not None:  # looked at before a long search
            if self.out.is_file() and not self.force:
                raise CouldNotRun(f"--out must name a new file unless --force is given. {self.out} is there already.")
            from mha.convert.convert import check_choices

            check_choices(self.to_layout or "canonical", self.out, dtype=self.dtype)

    def write(self, value: dict[str, Any]) -> bool:
        """Write `value` as JSON to the file that --json names, if any. Return True if this file is standard output."""
        from mha_core.files.writing import write_whole

        text = json.dumps(value, indent=2) + "\n"
        on_stdout = str(self.json_path) == "-"
        if on_stdout:
            click.echo(text, nl=False)
        elif self.json_path is not None:
            write_whole(self.json_path, text.encode())
        return on_stdout


@options.command(ConvertOptions, "mha convert model.safetensors --list")
def convert(asked: ConvertOptions) -> None:
    """Convert the attention layers in SOURCE to another layout, or another format, or both. SOURCE is a file of
    weights, the index of a model in several files (model.safetensors.index.json), or the folder of a model.

    A layer is proved if its arrays reproduce a call in --recorded. A layer is known if config.json, the class in a
    .keras archive or a file of this project says what it computes. Any other layer is converted only with --moved, and
    without a check of what it computes.

    With --infer, names are ignored: one recorded call tells which arrays are the layer's weights. They may be
    transposed, packed, split into heads, with rotary positions or without, among arrays of other layers.

    Before OUT is there, its arrays are read back and compared bit for bit. The layers of SOURCE and OUT
    run a random problem, judged against the reference: that shows that they are the same layer.
    Formats: .safetensors, .pt, .weights.h5, .keras (to read), .msgpack, .npz, .params.

    Exit status: 0 converted; 1 a layer computes something else than was recorded or than the reference, or --infer
    found no mapping or several; 2 could not convert, or a layer is neither proved nor known and --moved is missing.
    """
    from mha.convert.verify import VerificationFailed
    from mha.recordings.recording import is_recording

    console, errors = consoles()
    asked.check()
    if asked.source.suffix == ".safetensors" and is_recording(asked.source, modules=False):
        raise CouldNotRun(
            f"{asked.source} holds recorded calls, and SOURCE is a file of weights: `mha convert WEIGHTS --recorded "
            f"{asked.source} ...` proves a conversion by them, and `mha replay {asked.source}` judges them"
        )
    try:
        with tempfile.TemporaryDirectory() as folder:
            if asked.inferred:
                weights = Path(folder) / "inferred.safetensors"
                if not _infer(console, errors, asked, weights):
                    finish(different=True)
                if asked.out is None:
                    return
                to_layout = asked.to_layout or "canonical"
                asked = replace(asked, source=weights, from_layout="canonical", num_heads=None, to_layout=to_layout)
            if asked.only_list:
                _list(console, asked)
            else:
                _convert(console, errors, asked)
    except VerificationFailed as error:
        say(errors, f"Error: {error}\nnothing was written", style="red")
        finish(different=True)
    except OSError as error:
        raise CouldNotRun(str(error)) from error


def _convert(console: Console, errors: Console, asked: ConvertOptions) -> None:
    """Convert, and say what was done."""
    from mha.convert.convert import convert as convert_layers
    from mha.convert.report import print_report, to_dict
    from mha_core.errors import shown

    if asked.to_layout is None or asked.out is None:
        source = shown(asked.source)
        missing = ["--to LAYOUT"] * (asked.to_layout is None) + ["--out FILE"] * (asked.out is None)
        raise CouldNotRun(
            f"give {' and '.join(missing)}, or --list to see what is in the file, as in `mha convert {source} "
            f"--list` or `mha convert {source} --all --to keras --out out.weights.h5`; `mha convert --layouts` lists "
            "layouts"
        )
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
            unseen=asked.unseen is not False,
            progress=lambda what, count, total: status.update(f"{what} {count} of {total}"),
        )
    if not asked.write(to_dict(done)):
        print_report(console, done, unseen=bool(asked.unseen))


def _list(console: Console, asked: ConvertOptions) -> None:
    """Print a row for each attention layer in SOURCE. Prefixes of parameter names are whole, and can be copied."""
    from mha.formats import open_checkpoint
    from mha.formats.find import none_found
    from mha.formats.survey import survey_file

    seen = survey_file(asked.source)
    if not seen.order:
        also = f"; {seen.line()}" if seen.unseen else ""
        with open_checkpoint(asked.source) as checkpoint:
            raise CouldNotRun(none_found(str(asked.source), checkpoint.entries) + also)
    if asked.write({"schema": LIST_SCHEMA, **seen.to_dict()}):
        return
    numbers = seen.numbers()
    rows = {
        layer.prefix: (" or ".join(layer.layouts), _heads(layer), ", ".join(layer.dtypes), *_arrays(layer))
        for layer in seen.layers
    }
    rows |= {layer.prefix: ("incomplete", "", "", layer.lacks(), "") for layer in seen.incomplete}
    found = ((f"{numbers[prefix]}  {prefix!r}", *rows[prefix]) for prefix in seen.order)
    show_rows(console, ("#  prefix", "layout", "heads", "dtype", "matrices", "biases"), found)
    say(console, seen.line())


def _heads(layer: FoundLayer) -> str:
    heads = "?" if layer.num_heads is None else str(layer.num_heads)
    return heads if layer.num_kv_heads in (None, layer.num_heads) else f"{heads} ({layer.num_kv_heads} for keys)"


def _arrays(layer: FoundLayer) -> tuple[str, str]:
    """(matrices with their shapes, biases) of a layer; several matrices in a row of one shape are counted."""
    from mha_core.layouts import get

    layout = get(layer.layouts[0])
    parts = []
    for shape, group in groupby(layout.required, key=layer.shapes.__getitem__):
        names = list(group)
        parts.append(f"{names[0] if len(names) == 1 else f'{len(names)} of'} {'x'.join(map(str, shape))}")
    there = [name for name in layout.optional if name in layer.shapes]
    biases = "all" if len(there) == len(layout.optional) else ", ".join(there) or "none"
    return ", ".join(parts), biases


def _infer(console: Console, errors: Console, asked: ConvertOptions, out: Path) -> bool:
    """Infer and print what the arrays are; where that is unique, write canonical weights to `out` and return True."""
    from mha.convert.original import observed_in
    from mha.infer import Observed, describe, infer, source_arrays
    from mha.recordings.recording import is_recording
    from mha_core import save_weights

    call = asked.recorded[0]
    arrays, observed = source_arrays(asked.source), observed_in(call) if is_recording(call) else Observed.load(call)
    with errors.status("reading") as status:
        found = infer(arrays, observed, num_heads=asked.num_heads, progress=says(status))
    say(console, describe(found))
    if found.verdict == "unique":
        save_weights(out, *found.weights())
    return found.verdict == "unique"
