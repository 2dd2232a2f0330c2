"""`mha port`: run a trained model's attention layers in every backend, alone and inside the model."""

from __future__ import annotations

from pathlib import Path

from mha.cli import options
from mha.cli.apart import Apart
from mha.cli.common import consoles, finish, say, says, warn, write_asked
from mha.cli.options import argument, option

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
    strict: bool = options.flag("--strict", "Refuse a model with modules that look like attention and are not read.")
    json_path: Path | None = options.json_file()
    unseen: bool | None = options.unseen()


@options.command(PortOptions)
def port(asked: PortOptions) -> None:
    """Port the attention layers of MODEL into every backend, and prove it.

    MODEL is "minilm", the trained all-MiniLM-L6-v2, "smollm2", the trained decoder SmolLM2-135M-Instruct, or a local
    folder of a Hugging Face model: of the BERT family, or a decoder of one of `mha convert --families`. Its real
    inputs and outputs are captured, every attention layer is replayed in every backend, and the sentence embeddings,
    or the logits, are made again with each backend's layers in the model. The decoder also goes on with each text by 20
    tokens, with a cache. A backend that differs is diagnosed.

    Exit status: 0 equal, 1 different, 2 could not run.
    """
    from mha.port.decoder import find_decoder, is_decoder_named, load_decoder
    from mha.port.encoder import DECODERS, check_texts, find_model, load_encoder
    from mha.port.port import port as port_model
    from mha.port.report import print_report
    from mha_core import SpecError

    console, errors = consoles()
    if asked.dtype not in ("float32", "float64"):
        raise SpecError(f"--dtype must be float32 or float64. Got {asked.dtype!r}.")
    with asked.kept(), errors.status("loading") as status:
        check_texts(asked.texts)
        is_decoder = is_decoder_named(asked.model)
        if asked.model in DECODERS:  # a model that can't be ported is refused before anything is imported
            find_decoder(asked.model)
        elif not is_decoder:
            find_model(asked.model, asked.leave)
        backends, absent, broken = asked.backends(asked.backend_names, asked.settings())
        report = port_model(
            load_decoder(asked.model, asked.dtype, asked.leave)
            if is_decoder
            else load_encoder(asked.model, asked.dtype, asked.leave),
            asked.texts,
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
