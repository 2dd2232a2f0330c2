"""The report of `mha port`: a table of layers, a table of embeddings, every difference, and the verdict."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from conformance.reports.text import print_lines
from mha.port.arrays import LoadedArrays
from mha.port.port import ORIGINAL, EmbeddingResult, LayerResult, PortReport
from mha_core.errors import short_names


def print_report(console: Console, report: PortReport, *, unseen: bool = True) -> None:
    """Print the whole report. `unseen`: True to name the bugs that the calls can't show; False to count them."""
    layers = list(dict.fromkeys(result.layer for result in report.layers))
    counts, heads = (", ".join(map(str, numbers)) for numbers in (report.tokens, report.heads))
    texts = f"{len(report.texts)} text{'s' if len(report.texts) > 1 else ''} of {counts} tokens" if counts else "arrays"
    print_lines(console, f"{report.model}: {len(layers)} attention layers of {heads} heads, {texts}, {report.dtype}")
    if report.arrays is not None:
        print_lines(console, arrays_line(report.arrays, report.outputs))
    print_lines(console, f"{report.coverage.line}.")
    print_lines(console, *not_judged(report))
    console.print(
        "\nWorst error / allowed error of each layer on its real inputs; equal means at most 1",
        style="bold",
        soft_wrap=True,
    )
    console.print(layer_table(report))
    if report.embeddings:
        console.print(f"\n{report.outputs.capitalize()}, with each backend's attention in the model", style="bold")
        console.print(embedding_table(report))
    for line in continued_lines(report):
        print_lines(console, line)
    console.print()
    for result in report.layers:
        if result.by == ORIGINAL and not result.equal:
            print_lines(console, f"The model's own {result.layer} does not follow the definition:")
            for message in result.messages:
                print_lines(console, f"  {message}")
    for diagnosis in report.diagnoses.values():
        print_lines(console, f"{diagnosis}\n")
    for name, reason in report.failed.items():
        print_lines(console, f"{name} did not run: {reason}")
    print_lines(console, verdict(report))
    if report.unseen is not None:
        print_lines(console, report.unseen.text(whole=unseen))


def not_judged(report: PortReport) -> list[str]:
    """Return a line on each thing that the report does not judge."""
    lines = ["Not judged: projections, norms and rotations, which stay the model's own: `mha where` compares them."]
    if report.rows_without_key:
        lines.append(f"Not judged: {report.rows_without_key} rows of queries without a key, in the model's own calls.")
    lines += [f"Not judged: {name or 'the model'}: {why}." for name, why in report.unread.items()]
    return lines


def arrays_line(arrays: LoadedArrays, outputs: str) -> str:
    """Return a sentence that says that all parameters equal the file's arrays, and which arrays were ignored.

    >>> held = {"embeddings.LayerNorm.bias": "bert.embeddings.LayerNorm.bias"}
    >>> arrays_line(LoadedArrays(held, ("cls.bias",)), "sentence embeddings")
    'All 1 arrays that the embeddings depend on are those of the file, bit for bit; left out: cls.bias.'
    """
    kind = outputs.removeprefix("sentence ").partition(" ")[0]
    text = f"All {len(arrays.held)} arrays that the {kind} depend on are those of the file, {arrays.how}"
    if arrays.unused:
        text += f"; left out: {', '.join(arrays.unused)}"
    if arrays.left:
        text += f"; left out at your word that the encoder does not read them: {', '.join(arrays.left)}"
    if arrays.drawn:
        text += f"; not in the file, and not needed: {', '.join(arrays.drawn)}"
    return f"{text}."


def layer_table(report: PortReport) -> Table:
    """Return a rich Table of error / allowed error: rows are layers, columns the model's own attention and backends."""
    by_place = {(one.layer, one.by): _coloured(f"{one.ratio:.2g}", one) for one in report.layers}
    columns = list(dict.fromkeys(result.by for result in report.layers))
    table = _table("", *columns)
    room = max(16, 78 - sum(max(len(name), 6) + 2 for name in columns))
    layers = list(dict.fromkeys(result.layer for result in report.layers))
    for layer, name in short_names(layers, room).items():
        table.add_row(escape(name), *(by_place[layer, column] for column in columns))
    return table


def embedding_table(report: PortReport) -> Table:
    """Return one row per backend."""
    table = _table("", "difference", "allowed", "cosine")
    for found in report.embeddings:
        difference = _coloured(f"{found.difference:.1e}", found)
        table.add_row(found.by, difference, f"{found.allowed:.1e}", f"{found.cosine:.12f}")
    return table


def verdict(report: PortReport) -> str:
    """Return one line with the result of the whole port."""
    wrong_layers = _differing(report.layers)
    wrong_embeddings = _differing(report.embeddings)
    if not report.embeddings:
        return "Nothing was ported."
    missing = f" {len(report.failed)} did not run." if report.failed else ""
    if report.equal:
        ported = sum(result.by != ORIGINAL for result in report.layers)
        names = ", ".join(found.by for found in report.embeddings)
        found = f"the model's own attention, {ported} ported calls, and the {report.outputs} through {names}"
        if report.continued:
            found += ", and the texts that it goes on with"
        return f"Equal: {found}.{missing}"
    return (
        f"Different: {wrong_layers} of {len(report.layers)} calls, "
        f"{wrong_embeddings} of {len(report.embeddings)} sets of {report.outputs}.{missing}"
    )


def continued_lines(report: PortReport) -> list[str]:
    """Return lines with each text, the model's continuation, and the backends with which it is the same."""
    if not report.continued:
        return []
    own = report.continued[ORIGINAL]
    same = [name for name, texts in report.continued.items() if name != ORIGINAL and texts == own]
    lines = ["", f"It goes on, with a cache, the same through {', '.join(same) or 'none of the backends'}:"]
    lines += [f"  {text!r} -> {made!r}" for text, made in zip(report.texts, own, strict=True)]
    for name, texts in report.continued.items():
        lines += [f"  {name} says {made!r}" for made, wanted in zip(texts, own, strict=True) if made != wanted]
    return lines


def _differing(results: tuple[LayerResult, ...] | tuple[EmbeddingResult, ...]) -> int:
    return sum(not result.equal for result in results)


def _coloured(text: str, result: LayerResult | EmbeddingResult) -> str:
    return f"[{'green' if result.equal else 'bold red'}]{text}[/]"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    return table
