"""`mha where`: find the modules of a port that are wrong, with the live original or a recording of it."""

from pathlib import Path
from typing import Any

import click

from mha.cli import options
from mha.cli.common import (
    COULD_NOT_RUN,
    DIFFERENT,
    EQUAL,
    CouldNotRun,
    consoles,
    say,
    says,
    write_asked,
)
from mha.cli.options import argument
from mha.cli.outcomes import Reported, of_modules

INPUTS = (".npz", ".safetensors")

NO_RECORDING = (
    'the port must be a recording, not {0}: with mha.capture(port, "port.safetensors", modules=True): port(x), and '
    "then mha where {1} port.safetensors"
)


class WhereOptions(Reported):
    """The arguments and options of `mha where`."""

    original: str = argument()
    recording: Path = options.path_argument()
    inputs: Path | None = options.any_path(
        "--inputs",
        help="What the original is called with, .npz or .safetensors: an array for each argument, by its name. "
        "Default: what the port was called with.",
    )
    map: Path | None = options.any_path(
        "--map",
        help="Pairs of modules in TOML. A file that is not there is written with the pairs found, to be edited.",
    )
    json_path: Path | None = options.json_file()
    html_path: Path | None = options.output_file("--html", help="Also write a report page to this file.")
    unseen: bool | None = options.unseen("these inputs")
    verbose: bool = options.option("-v", "--verbose", is_flag=True, help="Every module with its verdict, in a tree.")
    python: str | None = options.option(
        "--python",
        metavar="PATH",
        help="The interpreter that runs the original, and this command: another environment.",
    )


@options.command(
    WhereOptions,
    "mha where models:original port.safetensors  # models.py has `original`",
    "mha where original.safetensors port.safetensors",
)
def where(asked: WhereOptions) -> None:
    """Find the wrong modules of a port: each is compared with ORIGINAL's module on the inputs that the port recorded.

    RECORDING is a file that mha.capture(port, FILE, modules=True) wrote. ORIGINAL is the live model: "minilm", a folder
    as `mha port` takes it, or MODULE:NAME (a model, or a function without arguments that returns one). Errors
    of earlier modules don't count, so every wrong module shows at once.

    ORIGINAL may be a recording too. Then both files' attention layers (or all modules, with modules=True) are compared.
    That shows the first difference in inputs, mask, settings, weights or outputs, and what is wrong in each layer.

    Exit status: 0 equal; 1 a module is wrong, or some outputs or parameters of the model were not judged; 2 could not
    run, or nothing at all was judged.
    """
    from mha_core.files.mistaken import names_code, spec_meant

    if asked.original.endswith(".py"):
        raise CouldNotRun(f"the original {asked.original!r}: {spec_meant(asked.original, 'original')}")
    recorded = asked.original.endswith(".safetensors") or Path(asked.original).is_file()
    if names_code(asked.recording):
        first = f"ORIGINAL comes first: mha where {asked.recording} {asked.original}"
        raise CouldNotRun(first if recorded else NO_RECORDING.format(asked.recording, asked.original))
    if recorded and (asked.inputs is not None or asked.python is not None):
        raise click.UsageError("--inputs and --python belong to a live ORIGINAL; this one is a recording.")
    if asked.python is not None:
        from mha.cli.elsewhere import run_elsewhere

        run_elsewhere(asked.python, "python")
    from mha.recordings.modules.arrays import open_modules
    from mha.substitution.pairing.maps import read_map, write_map
    from mha.substitution.reports.text import SHOWN, findings, last_line, tree, unseen
    from mha.substitution.where import where as run
    from mha_core.errors import shown
    from mha_core.files.writing import check_output

    console, errors = consoles()
    if not recorded and ":" not in asked.original and not Path(asked.original).exists() and not is_ours(asked.original):
        original_named(asked.original)  # which says that it is not there
    recording = asked.recording if recorded else open_modules(asked.recording)  # refused before anything is loaded
    pairs = read_map(asked.map) if asked.map is not None and asked.map.exists() else None
    if asked.map is not None and pairs is None:
        check_output(asked.map, what="--map")
    if asked.inputs is not None and asked.inputs.suffix not in INPUTS:
        raise CouldNotRun(f"--inputs must name a file that ends in {' or '.join(INPUTS)}. Got {shown(asked.inputs)}.")
    given = None if asked.inputs is None else read_inputs(asked.inputs)
    with errors.status("loading") as status:
        original = asked.original if recorded else original_named(asked.original)
        found = run(original, recording, inputs=given, pairs=pairs, progress=says(status))
    if len(found.results) <= SHOWN or asked.verbose:
        say(console, *findings(found), "", *tree(found), "", last_line(found))
    else:
        say(console, *findings(found), "", last_line(found), "Every module, with its verdict: add -v")
    if any(each.message.startswith("the port's own ") for one in found.results for each in one.causes):
        say(console, f"Why a layer's own output is wrong: mha diagnose {shown(asked.recording)}")
    if asked.unseen is not False:
        say(console, *unseen(found, whole=bool(asked.unseen)))
    write_asked(asked.json_path, found.to_dict)
    if asked.html_path is not None:
        from mha.substitution.reports.page import write_page

        write_page(asked.html_path, found, f"{asked.original}, {asked.recording.name}")
    if asked.map is not None and pairs is None:
        write_map(asked.map, found.pairs)
    ended = EQUAL if found.equal else DIFFERENT if found.judged else COULD_NOT_RUN
    asked.write_outcomes(lambda: of_modules(found), ended)
    raise SystemExit(ended)


def is_ours(name: str) -> bool:
    """Return whether this project can load a model by this name."""
    from mha.port.load import DECODERS, PACKAGED

    return name in (*PACKAGED, *DECODERS)


def original_named(spec: str) -> Any:
    """Return the model that `spec` names: one that `mha port` knows, or MODULE:NAME, a model or a function to call."""
    from conformance.subjects.answers import place
    from conformance.subjects.load import load_object
    from mha.port.model import load_trained
    from mha_core.errors import one_line
    from mha_core.files.mistaken import spec_meant

    if ":" not in spec and not Path(spec).exists() and Path(f"{spec}.py").is_file():
        raise CouldNotRun(f"the original {spec!r}: {spec_meant(spec, 'original')}")
    if is_ours(spec) or ":" not in spec:
        return load_trained(spec).model
    named = load_object(spec, "the original")
    if isinstance(named, type):
        made = f"return {named.__name__}(...)"
        raise CouldNotRun(f"{spec} is a class: name a model, or a function that returns one (def original(): {made})")
    if not callable(named) or hasattr(named, "parameters") or hasattr(named, "variables"):
        return named
    try:
        return named()
    except (Exception, SystemExit) as error:
        hint = ""
        if isinstance(error, TypeError) and not place(error):  # the call itself: it takes arguments
            hint = f"; name a function that needs none: def original(): return {named.__name__}(...)"
        why = f"it raised {one_line(error)}{place(error)}{hint}"
        raise CouldNotRun(f"the original {spec!r} can't be made: {why}") from error


def read_inputs(path: Path) -> dict[str, Any]:
    """Return the arrays of a file by name."""
    from mha.formats import open_checkpoint

    with open_checkpoint(path) as checkpoint:
        return {name: entry.load() for name, entry in checkpoint.entries.items()}
