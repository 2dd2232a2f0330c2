"""`mha heads`: how much each head of a model matters, and the model without those that matter least."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from mha.cli import options
from mha.cli.apart import Apart
from mha.cli.common import consoles, finish, says, warn, write_asked
from mha.cli.options import argument, option

if TYPE_CHECKING:
    from mha.heads.subject import Subject
    from mha.heads.texts import Texts


class HeadsOptions(Apart):
    """The argument and options of `mha heads`."""

    model: str = argument(default="minilm")
    texts_path: Path | None = options.any_path("--texts", help="A file of texts, one a line.")
    documents: int | None = option(
        "--documents", type=int, help="Packaged documents of each half, at most 150.  [default: 25]"
    )
    measures: tuple[str, ...] = options.several(
        "--measure",
        "-m",
        help="gradient, leave-one-out or all (repeatable); the first decides.  [default: gradient]",
    )
    prune: int | None = option("--prune", type=int, metavar="N", help="Cut the N least important heads, and prove it.")
    out: Path | None = options.output_file("--out", help="With --prune: write the cut layers, as safetensors.")
    backend_names: tuple[str, ...] = options.backends("Prove in this backend alone (repeatable).")
    speed: bool = options.flag("--speed", "Time the whole model in PyTorch with fewer and fewer heads.")
    json_path: Path | None = options.json_file()
    html_path: Path | None = options.output_file("--html", help="Also write it as one page.")


@options.command(HeadsOptions)
def heads(asked: HeadsOptions) -> None:
    """Say which attention heads of MODEL matter, and what is left of it without the others.

    MODEL is "minilm", the trained all-MiniLM-L6-v2, a local folder of a Hugging Face model of the BERT family, or a
    recording (mha.capture). Importance is measured on one half of the texts, and judged on the other. The texts come
    with the package gensim, unless --texts names others. The first measure decides what --prune cuts.

    Exit status: 0 done, 1 a cut layer gives something else than a masked one, 2 could not run.
    """
    from mha.heads.importance import DEFAULT, MEASURES, measure_of
    from mha.heads.page.page import write_page
    from mha.heads.report import print_report
    from mha.heads.run import Cut, measure_heads
    from mha.port.encoder import NotInstalled
    from mha_core import SpecError

    console, errors = consoles()
    names = [name for name in asked.measures or (DEFAULT,) if name != "all"]
    names += list(MEASURES) if "all" in asked.measures else []
    broken: list[str] = []
    for name in names:
        measure_of(name)
    if asked.out is not None and asked.prune is None:
        raise SpecError("--out needs --prune N: nothing is cut without it")
    if asked.html_path is not None and find_spec("matplotlib") is None:
        raise NotInstalled("--html needs the package 'matplotlib'. Install it with: pip install 'mha-parity[heads]'")
    with asked.kept(), errors.status("loading") as status:
        subject, texts = _subject(asked, live=not Path(asked.model).is_file())
        cut = None
        if asked.prune is not None:
            backends, absent, broken = asked.backends(asked.backend_names, asked.settings())
            missing = tuple(line.split("'")[1] for line in absent)
            cut = Cut(asked.prune, tuple(backends), missing, asked.out)
        report = measure_heads(subject, texts, names, cut, speed=asked.speed, progress=says(status))
    warn(errors, broken)
    pruned = report["pruned"]
    print_report(console, report, asked.out if pruned and pruned["equal"] else None)
    write_asked(asked.json_path, lambda: report)
    if asked.html_path is not None:
        write_page(asked.html_path, report)
    failed = [bool(proof["failed"]) for proof in pruned["proofs"]] if pruned else []
    different = bool(pruned) and not all(failed) and not pruned["equal"]
    finish(different, bool(pruned) and (broken or any(failed)))


def _subject(asked: HeadsOptions, *, live: bool) -> tuple[Subject, Texts | None]:
    """What is measured, and the texts; what can't be used is refused before the model is loaded."""
    from mha.heads.prune import check_count, check_names
    from mha.heads.speed import check_live
    from mha.heads.subject import of_encoder, of_recording
    from mha.heads.texts import DOCUMENTS, file_texts, lee_texts
    from mha.port.encoder import find_model, load_encoder
    from mha_core import SpecError

    if asked.texts_path is not None and (not live or asked.documents is not None):
        other = "--documents, which counts packaged ones" if live else "a recording, which has its calls"
        raise SpecError(f"--texts is not for {other}")
    if not live:
        from mha.recordings.recording import Recording

        subject, texts = of_recording(asked.model, Recording.load(asked.model)), None
    else:
        find_model(asked.model)
        documents = DOCUMENTS if asked.documents is None else asked.documents
        texts = lee_texts(documents) if asked.texts_path is None else file_texts(asked.texts_path)
        subject = of_encoder(load_encoder(asked.model), texts.measured)
    if asked.speed:
        check_live(subject)
    if asked.prune is not None:
        check_count(subject, asked.prune)
        check_names(subject)
    return subject, texts
