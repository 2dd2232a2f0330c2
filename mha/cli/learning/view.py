"""`mha view`: look at the heads of recorded attention layers, as one HTML page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mha.cli import options
from mha.cli.apart import Apart
from mha.cli.common import CouldNotRun, consoles, finish, say, says, warn
from mha.cli.options import argument, option

if TYPE_CHECKING:
    from mha.recordings.recording import Recording
    from mha.view.labels import Labels
    from mha.view.page import About
    from mha.view.plan import Part
    from mha_core import AttentionConfig
    from mha_core.backend import Backend

TEXTS = ("The cat sleeps on the warm windowsill because it likes the sun.",)


class ViewOptions(Apart):
    """The argument and options of `mha view`."""

    what: str = argument(metavar="MODEL|RECORDING")
    texts: tuple[str, ...] = options.several("--text", help=f"What a MODEL reads (repeatable). Default: {TEXTS[0]}")
    tokens: Path | None = options.any_path("--tokens", help="Names of the keys: one a line, or JSON.")
    backend_names: tuple[str, ...] = options.backends("Compute with this backend (repeatable, two).")
    compare: Path | None = options.any_path("--compare", help="Another recording of the same calls.")
    layers: tuple[str, ...] = options.several(
        "--layers", help="Only these: names or positions; wildcards work (repeatable)."
    )
    heads: tuple[int, ...] = option("--heads", multiple=True, type=int, help="Only these heads (repeatable).")
    dtype: str | None = option("--dtype", "-d", help="float32 or float64: what a MODEL computes in. Default: float32")
    leave: tuple[str, ...] = options.several(
        "--leave",
        help="An array that no MODEL of its type has, or another file beside it, to leave out (repeatable).",
    )
    html: Path | None = options.output_file("--html", help="The page; by default minilm-heads.html, and so on.")

    @property
    def has_other(self) -> bool:
        """Return whether the page shows a difference from another backend or another recording."""
        return bool(self.backend_names) or self.compare is not None


@options.command(ViewOptions, "mha view minilm --html heads.html", "mha view calls.safetensors --html heads.html")
def view(asked: ViewOptions) -> None:
    """Show what every head of recorded attention layers looks at, as one HTML page.

    MODEL is "minilm" (the trained all-MiniLM-L6-v2) or a local folder of a Hugging Face model of the BERT family.
    RECORDING is a file that mha.capture wrote, of any framework. The reference computes the attention weights from the
    recorded inputs. One --backend is compared with the reference; two, with each other. The first line says
    whether the layer used these weights, judged by its recorded output. Over 128 tokens, blocks of weights are shown by
    their maximum, except in layers and heads that --layers and --heads choose.

    Exit status: 0 equal, 1 what is shown is not what the layers used, 2 could not run.
    """
    from mha_core.files.mistaken import TO_RECORD, names_code

    if names_code(asked.what):
        raise CouldNotRun(f"{asked.what} is code, and no recording: {TO_RECORD}")
    html = Path(f"{Path(asked.what).resolve().stem}-heads.html") if asked.html is None else asked.html
    from mha.view.data import Sources, see
    from mha.view.page import write_page
    from mha.view.plan import page_bytes
    from mha_core import SpecError

    console, errors = consoles()
    if len(set(asked.backend_names)) > 2:
        raise SpecError(f"--backend: two at most can stand beside each other. Got {', '.join(asked.backend_names)}.")
    if asked.compare is not None and asked.backend_names:
        raise SpecError("--compare shows the difference of two recordings, --backend of two frameworks: choose one")
    with asked.kept(), errors.status("loading") as status:
        recording, parts, labels, about = _asked_for(asked, says(status))
        compared = _partners(recording, parts, asked.compare)
        most = page_bytes(parts, has_other=asked.has_other)
        say(console, f"{html} will take at most {most / 1e3:,.0f} kB.")
        backends: list[Backend] = []
        if asked.backend_names:
            backends, _, broken = asked.backends(asked.backend_names, asked.settings())
            if broken:
                raise CouldNotRun("\n".join(broken))
        sources = Sources(tuple(backends), compared)
        line, size = write_page(html, see(recording, parts, sources, says(status)), about, sources, labels)
    if recording.coverage is not None and recording.coverage.unseen:
        warn(errors, [recording.coverage.line])
    say(console, line.text, f"Wrote {html}: {size / 1e3:,.0f} kB.")
    finish(not line.is_good)


def _asked_for(
    asked: ViewOptions, progress: Callable[[str], None]
) -> tuple[Recording, tuple[Part, ...], Labels, About]:
    """The recording, its parts, their labels and what the page says of them."""
    from mha.recordings.recording import Recording
    from mha.view.labels import Labels, read_tokens
    from mha.view.page import About
    from mha.view.plan import check_size, plan
    from mha_core import SpecError

    given = None if asked.tokens is None else read_tokens(asked.tokens)
    is_file = Path(asked.what).is_file()
    texts: tuple[str, ...] = ()
    if is_file:
        if asked.texts or asked.dtype or asked.leave:
            raise SpecError("--text, --dtype and --leave are for a model; a recording has its inputs already")
        recording = Recording.load(asked.what)
    else:
        texts = asked.texts or TEXTS
        recording = _recorded_model(asked, texts, progress)
    parts = plan(recording, asked.layers, asked.heads)
    check_size(parts, has_other=asked.has_other)
    source = str(asked.tokens) if given is not None else f"tokens of {asked.what}"
    labels = Labels(parts, given or recording.tokens, source)
    notes = () if recording.coverage is None else (f"The recording {recording.coverage.line}.",)
    name = Path(asked.what).name if is_file else asked.what
    return recording, parts, labels, About(name, recording.made_with, notes, texts)


def _recorded_model(asked: ViewOptions, texts: tuple[str, ...], progress: Callable[[str], None]) -> Recording:
    """What a model's layers were asked and gave; it is not run if the page would be too large."""
    from mha.port.load import check_texts
    from mha.port.model import check_named, load_trained
    from mha.view.model import record_encoder
    from mha.view.plan import check_size, plan_of_model
    from mha_core import SpecError
    from mha_core.files.mistaken import TO_RECORD

    dtype = asked.dtype or "float32"
    if dtype not in ("float32", "float64"):
        raise SpecError(f"--dtype must be float32 or float64. Got {dtype!r}.")
    check_texts(texts)
    try:
        check_named(asked.what, asked.leave)
    except SpecError as error:
        if Path(asked.what).is_dir() or "did you mean" in str(error):
            raise
        raise SpecError(
            f"no such file, and no model: {asked.what} (models: minilm, or a folder); {TO_RECORD}"
        ) from error
    encoder = load_trained(asked.what, dtype, asked.leave)

    def check(sizes: Sequence[tuple[str, AttentionConfig]], lengths: Sequence[int]) -> None:
        check_size(plan_of_model(sizes, lengths, asked.layers, asked.heads), has_other=asked.has_other)

    progress("reading the texts")
    return record_encoder(encoder, texts, dtype, check)


def _partners(
    recording: Recording, parts: Sequence[Part], path: Path | None
) -> tuple[Recording, Mapping[int, int]] | None:
    """The other recording, and each shown call's partner in it."""
    from mha.recordings.recording import Recording
    from mha.substitution.recorded.pairs import pair_calls
    from mha_core import SpecError
    from mha_core.stages import stage_shapes

    if path is None:
        return None
    other = Recording.load(path)
    partners = dict(pair_calls(recording, other).pairs)

    def shape(of: Recording, position: int) -> tuple[int, ...]:
        call = of.calls[position]
        config = of.layers[call.layer].config
        sizes = call.inputs.check(config)
        return stage_shapes(config, sizes.batch, sizes.query_len, sizes.key_len)["weights"]

    for position in (call for part in parts for call in part.calls):
        name = recording.names[position]
        if position not in partners:
            raise SpecError(f"{path} has no partner of {name}; --layers chooses those that have one")
        own, theirs = shape(recording, position), shape(other, partners[position])
        if own != theirs:
            raise SpecError(
                f"{name} has weights of shape {own}, its partner in {path} {theirs}: they can't be compared"
            )
    return other, partners
