"""A call of one attention in the words of another: what to write, what could not be said, and how its weights move."""

from __future__ import annotations

from dataclasses import dataclass

from conformance.deviations.entry import Deviation
from mha.phrases.native import Native
from mha.phrases.reading import Source
from mha.phrases.said import Calling, lacking
from mha.phrases.table import carried, warnings_of


@dataclass(frozen=True)
class Translation:
    """What to write in place of a call.

    Attributes:
        imports, made, called: the lines.
        turned: a sentence on each mask.
        missing: what could not be said.
        notes: what had to be supposed.
        carried: the lines that carry the parameters over; none for a function, which has none.
        warnings: deviations of the new layer, of what this call uses.
    """

    imports: tuple[str, ...]
    made: tuple[str, ...]
    called: tuple[str, ...]
    turned: tuple[str, ...]
    missing: tuple[str, ...]
    notes: tuple[str, ...]
    carried: tuple[str, ...]
    warnings: tuple[Deviation, ...]


def translate(source: Source, new: Native) -> Translation:
    r"""The construction and call in the words of `new`.

    >>> from mha.phrases.reading import read
    >>> from mha.phrases.table import find
    >>> code = "attend = nn.MultiheadAttention(64, 4)\ny, _ = attend(x, x, x, key_padding_mask=padded)"
    >>> found = translate(read(code), find("keras"))
    >>> print(*found.made, *found.called, *found.turned, sep="\n")
    layer = keras.layers.MultiHeadAttention(4, key_dim=16)
    output = layer(x, value=x, key=x, attention_mask=(~padded)[:, None, :])
    padded: True means ignore there and may attend here, so it is inverted.
    """
    needed = lacking(source.making, source.calling)
    making, calling = new.expressible(source.making, source.calling)
    made = _with_arrays(new.make(making), calling)
    missing = [
        f"{_asked(concept, source)}: {new.title} {new.lacks[concept].words}"
        for concept in needed
        if concept in new.lacks
    ]
    missing += [f"{text} of {source.native.path} is not carried over" for text in source.left]
    out = () if source.native.is_function else tuple(carried(source.native, new, making, ("old", new.holder)))
    notes = list(source.notes)
    if making.dropout and not calling.training and "dropout" not in new.lacks:
        notes.append(f"the call is written for evaluation. {new.words['dropout']}")
    shaped = [text for text in source.left if text.partition("=")[0] in source.native.reshaping]
    if out and (shaped or ("grouped" in needed and "grouped" in new.lacks)):
        missing.append(f"its weights, which {new.title} can't hold in these shapes")
        out = ()
    warned: dict[str, Deviation] = {}
    for concept in ("called", *needed, "numbers"):
        for entry in warnings_of(new, concept):
            if not entry.why_not_here().startswith("other version"):
                warned.setdefault(entry.id, entry)
    return Translation(
        new.imports,
        tuple(made),
        tuple(new.call(making, calling)),
        tuple(_turned(source, new)),
        tuple(dict.fromkeys(missing)),
        tuple(notes),
        out,
        tuple(warned.values()),
    )


def _with_arrays(lines: list[str], calling: Calling) -> list[str]:
    """The lines of a construction that needs the arrays, with those of the call."""
    given = f"{calling.queries}, {calling.keys}, {calling.values}"
    return [line.replace("queries, keys, values", given) for line in lines]


def _turned(source: Source, new: Native) -> list[str]:
    """A sentence on each mask: what True means there and here."""
    said = []
    for mask in source.calling.masks:
        there = "may attend" if mask.attend else "ignore"
        here = new.true_means
        if not here:
            said.append(f"{mask.text}: True means {there} there; here it becomes numbers that are added to the scores.")
        elif here == there:
            said.append(f"{mask.text}: True means {there} there and here.")
        else:
            said.append(f"{mask.text}: True means {there} there and {here} here, so it is inverted.")
    return said


def _asked(concept: str, source: Source) -> str:
    """What the call asks for, as it stands there."""
    making, calling = source.making, source.calling
    return {
        "padding": calling.padding.text if calling.padding else "",
        "allowed": calling.allowed.text if calling.allowed else "",
        "causal": "causal",
        "added": f"{calling.added.text}, added to the scores" if calling.added else "",
        "weights": "the weights of each head",
        "mean": "the mean weights",
        "dropout": f"dropout {making.dropout}",
        "grouped": f"{making.kv_heads} heads of keys",
    }[concept]
