"""Survey: all attention in a file: whole layers, incomplete ones, and modules of no known layout.

Nothing is ignored silently: an incomplete layer is reported with the arrays that it lacks, and so is a module that
looks like attention by its name alone.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mha.formats import SUFFIXES
from mha.formats.checkpoint import Checkpoint
from mha.formats.find import MOST_SHOWN, FoundLayer, find_layers, sizes_fit
from mha.formats.folder import passed_over
from mha.formats.order import in_order
from mha.formats.stacked import open_layers
from mha.formats.strays import Stray, find_strays, find_uneven
from mha_core import SpecError
from mha_core.errors import listed
from mha_core.layouts import LAYOUTS, get

ATTENTION = re.compile(r"attn|attention|multi_?head|(?:^|_)mha", re.IGNORECASE)
"""Parts of a module's name by which it looks like attention."""

PROJECTION = re.compile(r"w?qkv\w*|\w*_qkv|query_key_value|to_q|w_?q|q(uery)?(_proj)?|q_lin", re.IGNORECASE)
"""Names of a query projection, by which its module looks like attention whatever it is called."""

NUMBER = re.compile(r"\d+")
PART = re.compile(r"[^./]+")
SHARD = re.compile(r"-\d{5}-of-\d{5}\.")


@dataclass(frozen=True)
class IncompleteLayer:
    """A layer that has some of a layout's arrays, and lacks others.

    Attributes:
        prefix: the prefix of its arrays' names; "" at the top level.
        missing: each layout that fits best -> full names of the arrays that it requires and the layer lacks.
        there: the full names of the arrays that it has.
    """

    prefix: str
    missing: Mapping[str, tuple[str, ...]]
    there: tuple[str, ...]

    def lacks(self) -> str:
        """Return in words which arrays the layer lacks. Layouts with the same missing arrays are named together.

        >>> IncompleteLayer("a", {"canonical": ("a.out_proj.weight",), "llama": ("a.o_proj.weight",)}, ()).lacks()
        'lacks a.out_proj.weight (canonical) or a.o_proj.weight (llama)'
        """
        layouts: dict[tuple[str, ...], list[str]] = {}
        for layout, names in self.missing.items():
            layouts.setdefault(names, []).append(layout)
        return "lacks " + " or ".join(f"{', '.join(names)} ({', '.join(of)})" for names, of in layouts.items())


@dataclass(frozen=True)
class Survey:
    """A record of the attention layers in a file, and of everything else in it that looks like attention.

    Attributes:
        path: the file.
        layers: layers with all required arrays, in the order of the model (by the numbers in their prefixes).
        incomplete: layers that lack required arrays, in the same order.
        unseen: modules whose names look like attention, but whose arrays fit no layout.
        order: the prefixes of `layers` and `incomplete` together, in the same order.
        passed_over: other files of weights beside this one, if the source was a folder.
        strays: arrays that a layer in `layers` seems to have lost: misspelt in the file, or only in similar layers.
    """

    path: str
    layers: tuple[FoundLayer, ...]
    incomplete: tuple[IncompleteLayer, ...]
    unseen: tuple[str, ...]
    order: tuple[str, ...]
    passed_over: tuple[str, ...] = ()
    strays: tuple[Stray, ...] = ()

    def numbers(self, layout: str | None = None) -> dict[str, int]:
        """Return prefix -> number of the layer, from 0 in the order of the model. Incomplete layers are counted too.

        Args:
            layout: number only the layers that may have this layout. Default: all layers.
        """
        counted = {layer.prefix for layer in self.layers if layout is None or layout in layer.layouts}
        counted |= {layer.prefix for layer in self.lacking(layout)}
        return {prefix: number for number, prefix in enumerate(one for one in self.order if one in counted)}

    def lacking(self, layout: str | None = None) -> list[IncompleteLayer]:
        """Return the incomplete layers; with `layout`, only those that may have this layout."""
        return [layer for layer in self.incomplete if layout is None or layout in layer.missing]

    def refuse_incomplete(self, prefix: str | None = None, layout: str | None = None) -> None:
        """Raise SpecError if a chosen layer is incomplete; the message lists all such layers.

        A layer without a required array is incomplete. A layer without an optional array is incomplete if the file has
        an array of nearly that name or, with prefix=None, if similar layers have the optional array.

        Args:
            prefix: the prefix of the one chosen layer. Default: all layers.
            layout: choose only layers that may have this layout. Default: all layers.
        """
        asked = [one.prefix for one in self.layers if prefix in (None, one.prefix)]
        for stray in self.strays:
            if stray.prefix in asked and (prefix is None or stray.neighbour is None):
                what = f"{self.path}: {stray.words()}"
                raise SpecError(f"{what}: misspelt, or damaged? Without it, the layer is another one")
        lacking = [one for one in self.lacking(layout) if prefix in (None, one.prefix)]
        if not lacking or prefix in {layer.prefix for layer in self.layers}:
            return
        shown = "; ".join(f"{layer.prefix!r} {layer.lacks()}" for layer in lacking[:MOST_SHOWN])
        if len(lacking) > MOST_SHOWN:
            shown += f"; and {len(lacking) - MOST_SHOWN} more"
        hint = "choose the prefix of a whole layer" if self.layers else "there is no whole layer in it"
        if SHARD.search(self.path):
            hint = "this is one of several shards: name their folder or their index"
        count = f"{len(lacking)} of {len(self.order)} attention layers lack arrays"
        raise SpecError(f"{self.path}: {count}: {shown} ({hint})")

    def line(self, read: Collection[str] | None = None) -> str:
        """Return one line: how many of the modules that look like attention were read, and which were not.

        Args:
            read: the prefixes that were read. Default: those of all `layers`.
        """
        wanted = [layer.prefix for layer in self.layers] if read is None else list(read)
        others = [repr(layer.prefix) for layer in self.layers if layer.prefix not in wanted]
        others += [f"{layer.prefix!r}, incomplete" for layer in self.incomplete]
        others += [repr(name) for name in self.unseen]
        text = f"read {len(wanted)} of {len(self.order) + len(self.unseen)} modules that look like attention"
        if others:
            text += f"; not: {listed(others, MOST_SHOWN)}"
        if self.passed_over:
            text += f" (of {Path(self.path).name}; files beside it that were not read: {', '.join(self.passed_over)})"
        return text

    def to_dict(self) -> dict[str, Any]:
        """Return the survey as a dict of JSON values."""
        numbers = self.numbers()
        return {
            "source": self.path,
            "passed_over": list(self.passed_over),
            "read": len(self.layers),
            "of": len(self.order) + len(self.unseen),
            "layers": [{"number": numbers[layer.prefix], **asdict(layer)} for layer in self.layers],
            "incomplete": [{"number": numbers[layer.prefix], **asdict(layer)} for layer in self.incomplete],
            "unseen": list(self.unseen),
        }


def survey_file(path: str | Path) -> Survey:
    """Return the Survey of a file or folder of weights: its attention layers, and what else looks like attention.

    Raises:
        SpecError: as `mha.formats.open_checkpoint` raises it.
    """
    with open_layers(path) as checkpoint:
        return survey(checkpoint, path)


def survey(checkpoint: Checkpoint, source: str | Path | None = None) -> Survey:
    """Return the Survey of an open file, from names and shapes of arrays alone.

    Args:
        source: the path that the user gave, which may be the file's folder. Default: the file.
    """
    layers = find_layers(checkpoint)
    read = {name for layer in layers for name in _names_of(checkpoint, layer)}
    incomplete = _incomplete(checkpoint, layers, read)
    parts = read | {name for layer in incomplete for name in layer.there}
    first = {name: index for index, name in enumerate(checkpoint.entries)}
    starts = {layer.prefix: min(first[name] for name in _names_of(checkpoint, layer)) for layer in layers}
    starts |= {layer.prefix: min(first[name] for name in layer.there) for layer in incomplete}
    order = in_order(sorted(starts, key=starts.__getitem__))
    rank = {prefix: number for number, prefix in enumerate(order)}
    return Survey(
        str(checkpoint.path),
        tuple(sorted(layers, key=lambda layer: rank[layer.prefix])),
        tuple(sorted(incomplete, key=lambda layer: rank[layer.prefix])),
        tuple(_unseen(checkpoint, parts)),
        tuple(order),
        tuple(passed_over(checkpoint.path, SUFFIXES)) if source is not None and Path(source).is_dir() else (),
        (*find_strays(checkpoint, layers, read), *find_uneven(checkpoint, layers)),
    )


def _names_of(checkpoint: Checkpoint, layer: FoundLayer) -> Iterable[str]:
    """Full names of the layer's arrays in every layout that it may have; two layouts may read different arrays."""
    for layout in layer.layouts:
        yield from get(layout).names_of(layer.prefix, checkpoint.entries).values()


def _incomplete(checkpoint: Checkpoint, whole: Collection[FoundLayer], read: Collection[str]) -> list[IncompleteLayer]:
    """Every prefix with some arrays of a layout that belong to no whole layer, and to none that lacks fewer arrays."""
    known = {layer.prefix for layer in whole}
    missing: dict[str, dict[str, tuple[str, ...]]] = {}
    for layout in LAYOUTS.values():
        for prefix, names in layout.places(checkpoint.entries).items():
            if names and prefix not in known and sizes_fit(checkpoint, layout, prefix):
                start = prefix + layout.separator if prefix else ""
                missing.setdefault(prefix, {})[layout.name] = tuple(start + name for name in names)
    patterns: dict[str, set[str]] = {}
    for layer in whole:
        for name in layer.layouts:
            patterns.setdefault(name, set()).add(NUMBER.sub("#", layer.prefix))
    for prefix, name, names in _outputs_alone(checkpoint, patterns):
        if prefix not in known:
            missing.setdefault(prefix, {}).setdefault(name, names)
    for prefix, of in missing.items():
        like = {layout for layout in of if NUMBER.sub("#", prefix) in patterns.get(layout, ())}
        missing[prefix] = {layout: names for layout, names in of.items() if layout in like or not like}
    fewest = {prefix: min(map(len, of.values())) for prefix, of in missing.items()}
    taken, found = set(read), []
    for prefix in sorted(missing, key=fewest.__getitem__):
        best = {layout: names for layout, names in missing[prefix].items() if len(names) == fewest[prefix]}
        there = dict.fromkeys(
            name for layout in best for name in get(layout).names_of(prefix, checkpoint.entries).values()
        )
        if not taken.intersection(there):
            taken.update(there)
            found.append(IncompleteLayer(prefix, best, tuple(there)))
    return found


def _outputs_alone(
    checkpoint: Checkpoint, patterns: Mapping[str, Collection[str]]
) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """(prefix, layout, missing names) for each output projection alone whose prefix is a whole layer's but for numbers.

    Args:
        patterns: layout -> the prefixes of whole layers, "#" in place of numbers.
    """
    for layout in map(get, patterns):
        ending = layout.separator + layout.required[-1]
        for name in checkpoint.entries:
            prefix = name.removesuffix(ending)
            if prefix != name and NUMBER.sub("#", prefix) in patterns[layout.name]:
                yield prefix, layout.name, tuple(prefix + layout.separator + own for own in layout.required[:-1])


def _unseen(checkpoint: Checkpoint, read: Collection[str]) -> list[str]:
    """The modules that look like attention, hold matrices, and have no array in `read`."""
    known = {module_of(name) for name in read}
    modules = dict.fromkeys(module_of(name) for name, entry in checkpoint.entries.items() if len(entry.shape) > 1)
    return [name for name in modules if name is not None and name not in known]


def module_of(name: str) -> str | None:
    """Return the attention module with which an array's name begins; None if no word in the name means attention.

    >>> module_of("encoder.block.0.layer.0.SelfAttention.q.weight")
    'encoder.block.0.layer.0.SelfAttention'
    >>> module_of("h.0.attn.c_attn.weight"), module_of("layers.3.mixer.Wqkv.weight"), module_of("mlp.fc1.weight")
    ('h.0.attn', 'layers.3.mixer', None)
    """
    parts = list(PART.finditer(name))[:-1]  # the last is the array's own
    marked = [index for index, part in enumerate(parts) if ATTENTION.search(part[0])]
    if marked:
        last = marked[-1]
        while last and last - 1 in marked:  # attention.attention, attn.c_attn: a module and a part of it
            last -= 1
        return name[: parts[last].end()]
    for index, part in enumerate(parts):
        if PROJECTION.fullmatch(part[0]):
            return name[: parts[index - 1].end()] if index else ""
    return None
