"""`mha port`: run a trained model's attention layers in every backend, alone and inside the model."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from mha.cli.apart import Apart, worker_options
from mha.cli.common import COULD_NOT_RUN, DIFFERENT, EQUAL, CouldNotRun, OutputFile, says, warn

TEXTS = ("The cat sleeps on the warm windowsill.", "Der Zug nach Berlin fährt heute später ab.", "Hello.")


@click.command()
@click.argument("model", default="minilm")
@click.option("--text", "texts", multiple=True, default=TEXTS, show_default=True, help="What to embed (repeatable).")
@click.option("--backend", "-b", "backend_names", multiple=True, help="Only this backend (repeatable).")
@click.option("--dtype", "-d", default="float32", show_default=True, help="float32 or float64: of model and backends.")
@click.option(
    "--leave",
    multiple=True,
    help="An array that no model of its type has, or another file of the folder, to leave out (repeatable).",
)
@click.option("--strict", is_flag=True, help="Refuse a model with modules that look like attention and are not read.")
@click.option("--json", "json_path", type=OutputFile(), help="Also write everything to this file.")
@click.option("--unseen/--no-unseen", default=True, help="Whether to say which bugs these calls would not have shown.")
@worker_options
def port(
    model: str,
    texts: tuple[str, ...],
    backend_names: tuple[str, ...],
    dtype: str,
    leave: tuple[str, ...],
    strict: bool,
    json_path: Path | None,
    unseen: bool,
    workers: int | None,
    pythons: tuple[str, ...],
) -> None:
    """Port the attention layers of MODEL into every backend, and prove it.

    MODEL is "minilm", the trained all-MiniLM-L6-v2, or a local folder of a Hugging Face model of the
    BERT family. Its real inputs and outputs are captured, every attention layer is replayed in every
    backend, and the sentence embeddings are made again with each backend's layers in the model. A backend
    that differs is diagnosed.

    Exit status: 0 equal, 1 different, 2 could not run.
    """
    from rich.console import Console

    from mha.port.encoder import NotInstalled, check_texts, find_model, load_encoder
    from mha.port.port import port as port_model
    from mha.port.report import print_report
    from mha_core import BackendError, SpecError
    from mha_core.files.writing import write_json

    console, errors = Console(), Console(stderr=True)
    try:
        if dtype not in ("float32", "float64"):
            raise SpecError(f"--dtype must be float32 or float64. Got {dtype!r}.")
        apart = Apart(workers, pythons)
        with apart.kept(), errors.status("loading") as status:
            check_texts(texts)
            find_model(model, leave)  # a model that can't be ported is refused before anything is imported
            backends, absent, broken = apart.backends(backend_names, apart.settings())
            encoder = load_encoder(model, dtype, leave)
            report = port_model(
                encoder, texts, backends, dtype=dtype, strict=strict, unseen=unseen, progress=says(status)
            )
    except (SpecError, BackendError, NotInstalled) as error:
        raise CouldNotRun(str(error)) from error
    warn(errors, [*absent, *broken])
    print_report(console, report)
    if json_path is not None:
        write_json(json_path, report.to_dict())
    sys.exit(DIFFERENT if not report.equal else COULD_NOT_RUN if report.failed or broken else EQUAL)


if __name__ == "__main__":
    port()
