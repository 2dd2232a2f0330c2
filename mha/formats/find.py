"""Find the attention layers in a file of weights: by the names in it, and by how many axes the arrays have."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mha.formats.checkpoint import Checkpoint
from mha.formats.order import in_order
from mha_core import SpecError
from mha_core.errors import listed, shown
from mha_core.layouts import LAYOUTS, Layout, get

_TURNS = "also turns queries and keys by their position, which no array says"

CAVEATS = {
    **dict.fromkeys(("llama", "llama-kernel"), f"the Llama family {_TURNS}"),
    **dict.fromkeys(("phi", "phi3", "dbrx", "modernbert", "codegen"), f"such a layer {_TURNS}"),
    "keras-heads-first": f"such a layer of KerasHub's decoders {_TURNS}",
    "gpt-neox": f"such a layer {_TURNS}; one of BLOOM adds a bias by distance",
}
"""Layout -> arithmetic that its layers may have although the arrays don't show it, in words."""


MOST_SHOWN = 12
"""Most prefixes that a message lists."""


@dataclass(frozen=True)
class FoundLayer:
    """An attention layer in a file.

    Attributes:
        prefix: the prefix of its arrays' names; "" at the top level.
        layouts: the layouts (such as "llama") that fit the names and numbers of axes of its arrays; likeliest first.
        shapes: name within the layer -> shape, for the arrays of the first layout in `layouts`.
        dtypes: the dtypes of these arrays.
        num_heads, num_kv_heads: the numbers of query heads and key heads; None where neither the shapes nor the file's
            metadata tell them.
    """

    prefix: str
    layouts: tuple[str, ...]
    shapes: dict[str, tuple[int, ...]]
    dtypes: tuple[str, ...]
    num_heads: int | None
    num_kv_heads: int | None


def find_layers(checkpoint: Checkpoint) -> list[FoundLayer]:
    """Return every attention layer whose arrays fit a known layout, sorted by the numbers in the layers' prefixes."""
    layouts: dict[str, list[Layout]] = {}
    for layout in LAYOUTS.values():
        for prefix in layout.find(checkpoint.entries):
            if sizes_fit(checkpoint, layout, prefix):
                layouts.setdefault(prefix, []).append(layout)
    order = {name: index for index, name in enumerate(checkpoint.entries)}
    found = [_found(checkpoint, prefix, fitting) for prefix, fitting in layouts.items()]

    def place(layer: FoundLayer) -> int:
        layout = get(layer.layouts[0])
        return order[layout.names_of(layer.prefix, checkpoint.entries)[layout.required[0]]]

    there = {layer.prefix: layer for layer in sorted(found, key=place)}
    return [there[prefix] for prefix in in_order(there)]


def none_found(where: str, names: Iterable[str]) -> str:
    """Return the error message for a file in which no layer was found: some of its array names, and what to do."""
    return (
        f"{where}: no attention layer of a layout that is known (mha convert --layouts) among its arrays "
        f"{listed(list(map(shown, names)), 3) or '(it has none)'}; where names mean nothing, "
        "--infer --recorded CALL finds a layer's weights by one recorded call"
    )


def choose(
    found: Sequence[FoundLayer], where: str, prefix: str | None, *, every: bool, names: Iterable[str]
) -> list[FoundLayer]:
    """Return the chosen layers: the one at `prefix`, or all with `every`. Without both, a file must have only one.

    Args:
        found: the layers in the file.
        where: the file, for messages.
        prefix: the prefix of one layer, or None.
        every: whether all layers are chosen.
        names: the names of all arrays in the file.

    Raises:
        SpecError: there is no such layer, there are several and none is chosen, or `prefix` and `every` are both given.
    """
    if prefix is not None and every:
        raise SpecError("give a prefix or ask for all layers, not both (--prefix, --all)")
    if not found:
        raise SpecError(none_found(where, names))
    prefixes = listed([repr(layer.prefix) for layer in found], MOST_SHOWN)
    if prefix is not None:
        chosen = [layer for layer in found if layer.prefix == prefix]
        if not chosen:
            raise SpecError(f"{where} has no attention layer at prefix {prefix!r} (it has them at: {prefixes})")
        return chosen
    if len(found) > 1 and not every:
        raise SpecError(
            f"{where} has {len(found)} attention layers; choose one (--prefix), or all (--all). It has: {prefixes}."
        )
    return list(found)


def settle_layout(layer: FoundLayer, asked: str | None, framework: str, *, heads: bool = True) -> list[Layout]:
    """Return the layouts that fit a layer, best first. SpecError if two of them read different weights from its arrays.

    Args:
        asked: the name of the one layout to use. None: every layout that fits.
        framework: the framework of the file's format; its layout comes first.
        heads: whether the number of heads is known. If not, the error message asks for it too.
    """
    if asked is not None:
        get(asked)
        if asked not in layer.layouts:
            raise SpecError(
                f"the layer at prefix {layer.prefix!r} does not have layout {asked!r} "
                f"(it fits: {', '.join(layer.layouts)})"
            )
        return [get(asked)]
    fitting, *others = readings(layer)
    if others:
        more = "" if heads else ", and how many heads there are (--num-heads)"
        raise SpecError(
            f"the layer at prefix {layer.prefix!r} fits several layouts; say which (--from): "
            f"{', '.join(layer.layouts)}{more}. A recorded call of the original tells which (--recorded)"
        )
    return sorted(fitting, key=lambda layout: layout.framework != framework)


def readings(layer: FoundLayer) -> list[list[Layout]]:
    """Return the layouts that fit a layer's names, in groups. All layouts of a group read the same weights."""
    groups: dict[tuple[object, ...], list[Layout]] = {}
    for layout in map(get, layer.layouts):
        told = (getattr(layout, name, None) for name in ("transposed", "interleaved", "order"))
        groups.setdefault((type(layout), layout.required, *told), []).append(layout)
    return list(groups.values())


def sizes_fit(checkpoint: Checkpoint, layout: Layout, prefix: str) -> bool:
    """Return whether the shapes of the arrays at `prefix` fit the layout."""
    names = layout.names_of(prefix, checkpoint.entries)
    return layout.fits({own: checkpoint.entries[full].shape for own, full in names.items()})


def _found(checkpoint: Checkpoint, prefix: str, layouts: Sequence[Layout]) -> FoundLayer:
    first = layouts[0]
    names = first.names_of(prefix, checkpoint.entries)
    entries = {own: checkpoint.entries[full] for own, full in names.items()}
    config = checkpoint.configs.get(prefix, {})
    heads, groups = config.get("num_heads"), config.get("num_kv_heads")
    if first.carries_heads:
        heads, groups = (entries[first.required[index]].shape[1] for index in (0, 1))
    return FoundLayer(
        prefix,
        tuple(layout.name for layout in layouts),
        {own: entry.shape for own, entry in entries.items()},
        tuple(sorted({entry.dtype for entry in entries.values()})),
        heads,
        groups,
    )


def projection_sizes(layer: FoundLayer) -> list[tuple[int, int]]:
    """Return (output width, input width) of each projection, queries first; (0, 0) if an array is no matrix."""
    layout = get(layer.layouts[0])
    packs = getattr(layout, "packs", {})
    found = []
    for name in layout.required:
        shape = layer.shapes[name]
        if name.endswith("bias"):
            continue
        shape = shape[::-1] if getattr(layout, "transposed", False) else shape
        found.append((shape[0] // len(packs.get(name, "q")), shape[1]) if len(shape) == 2 else (0, 0))
    return found
