"""`mha port`: run a trained model's attention layers in every backend, alone and inside the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mha.cli import options
from mha.cli.apart import Apart
from mha.cli.common import consoles, finish, say, says, warn, write_asked
from mha.cli.options import argument, option
from mha.cli.porter.invariants import load
from mha.cli.porter.where import read_inputs

if TYPE_CHECKING:
    from mha.port.model import TrainedModel

TEXTS = ("The cat sleeps on the warm windowsill.", "Der Zug nach Berlin fährt heute später ab.", "Hello.")


class PortOptions(Apart):
    """The argument and options of `mha port`."""

    model: str = argument(default="minilm")
    texts: tuple[str, ...] = option(
        "--text", multiple=True, default=TEXTS, show_default=True, help="What to embed (repeatable)."
    )
    backend_names: tuple[str, ...] = options.backends()
    dtype: str = option(
        "--dtype",
        "-d",
        default="float32",
        show_default=True,
        help="float32 or float64: of model and backends.",
    )
    leave: tuple[str, ...] = options.several(
        "--leave",
        help="An array that no model of its type has, or another file of the folder, to leave out (repeatable).",
    )
    inputs: Path | None = options.any_path(
        "--inputs", help="What the model is called with, .npz or .safetensors: an array for each argument, by its name."
    )
    strict: bool = options.flag("--strict", "Refuse a model with modules that look like attention and are not read.")
    json_path: Path | None = options.json_file()
    unseen: bool | None = options.unseen()


@options.command(PortOptions, "mha port minilm", "mha port models:original --inputs inputs.npz")
def port(asked: PortOptions) -> None:
    """Put every backend's attention into MODEL, and prove that it computes the same.

    MODEL is "minilm" (the trained all-MiniLM-L6-v2), "smollm2" (the trained decoder SmolLM2-135M-Instruct), a local
    folder of a Hugging Face model, or MODULE:NAME (a live model of PyTorch or a function that returns one). The calls
    of its attention functions are recorded, judged by the definition, and computed by every backend. Then the model
    runs with each backend's attention in it, and its outputs are compared. A decoder also continues each text by 20
    tokens, with a cache. A backend that differs is diagnosed. Projections, norms and rotations are not judged.

    Exit status: 0 equal, 1 different, 2 could not run.
    """
    from mha.port.load import check_texts
    from mha.port.port import port as port_model
    from mha.port.report import print_report
    from mha_core import SpecError

    console, errors = consoles()
    if asked.dtype not in ("float32", "float64"):
        raise SpecError(f"--dtype must be float32 or float64. Got {asked.dtype!r}.")
    with asked.kept(), errors.status("loading") as status:
        arrays = None if asked.inputs is None else read_inputs(asked.inputs)
        if arrays is None:
            check_texts(asked.texts)
        loaded = loads(asked)  # a model that can't be ported is refused before anything is imported
        backends, absent, broken = asked.backends(asked.backend_names, asked.settings())
        trained, own = loaded()
        given = own if arrays is None else arrays
        report = port_model(
            trained,
            asked.texts if given is None else given,
            backends,
            dtype=asked.dtype,
            strict=asked.strict,
            unseen=asked.unseen is not False,
            progress=says(status),
            verdicts=lambda line: say(errors, line),
        )
    warn(errors, [*absent, *broken])
    print_report(console, report, unseen=bool(asked.unseen))
    write_asked(asked.json_path, report.to_dict)
    if report.interrupted:
        there = len(report.embeddings) + len(report.failed)
        warn(errors, [f"interrupted: {there} of {len(backends)} backends are there"])
    finish(not report.equal, report.failed or broken or report.interrupted)


def loads(asked: PortOptions) -> Callable[[], tuple[TrainedModel, Any]]:
    """Return a function without arguments that returns (the loaded model that `asked` names, its inputs or None).

    Raises SpecError at once, before that function is called, if the model is a name or folder that can't be loaded.
    """
    from mha.port.model import check_named, live_model, load_trained

    if ":" not in asked.model or Path(asked.model).exists():
        check_named(asked.model, asked.leave)
        return lambda: (load_trained(asked.model, asked.dtype, asked.leave), None)

    def live() -> tuple[TrainedModel, Any]:
        model, _, inputs = load(asked.model, asked.import_limit)
        return live_model(model, asked.model, asked.dtype), inputs

    return live
