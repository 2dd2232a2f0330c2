"""What layers that were recorded were meant to hold, from a recording of the original or a file of its weights."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mha.formats.checkpoint import Checkpoint
from mha.formats.find import find_layers, readings
from mha.formats.layer import read_layer
from mha.formats.stacked import open_layers
from mha.recordings.recording import RecordedLayer, Recording, is_recording
from mha.recordings.replay import check_reproduced
from mha_core import AttentionConfig, SpecError
from mha_core.dtypes import round_to
from mha_core.errors import shown
from mha_core.files.mistaken import near_file
from mha_core.layouts import get
from mha_core.weights import Weights, check_weights

SAY = "`mha convert {} --from {} --all --moved --num-heads {} --to canonical --out FILE` makes a file that says it"


@dataclass(frozen=True)
class Meant:
    """A set of layers that a file of weights describes.

    Attributes:
        layers: name -> config and weights.
        doubt: if the names fit several layouts, a line that names these and the one that was taken; else "".
    """

    layers: Mapping[str, tuple[AttentionConfig, Weights]]
    doubt: str = ""


def meant_by(path: str | os.PathLike[str], recorded: Recording) -> Recording | Meant:
    """Return what a file says of the original layers: a Recording, or the weights of each layer.

    Weights do not say how many heads there are; that is taken from the layers in `recorded`.

    Raises:
        SpecError: the file is neither, or is a recording whose outputs are not those of its weights.
        FileNotFoundError: there is no such file.
    """
    if not Path(path).exists():  # weights are as good as a recording
        raise FileNotFoundError(f"no such file: {shown(path)}{near_file(Path(path))}")
    try:
        recording = Recording.load(path)
    except SpecError:
        if is_recording(Path(path)):  # of modules alone, or one that is damaged
            raise
        with open_layers(os.fspath(path)) as checkpoint:
            known = bool(find_layers(checkpoint))
            found = {name: read_layer(checkpoint, get("canonical"), name)[:2] for name in checkpoint.configs}
            meant = Meant(found) if found else _with_heads_of(checkpoint, recorded)
        if meant.layers:
            return meant
        sizes = "the sizes that were recorded" if known else "a layout that is known (mha convert --layouts)"
        made = f"`mha convert {shown(path)} --all --moved --num-heads H --to canonical --out FILE` makes of it"
        raise SpecError(
            f"{path} holds no config of a layer, and no layer of {sizes}: give a recording of the original"
            + f", or what {made}" * known
        ) from None
    return check_reproduced(recording, path)


def _with_heads_of(checkpoint: Checkpoint, recorded: Recording) -> Meant:
    """The layers of a file of weights, with the settings of the recorded layers of their names, or of all if alike.

    Raises:
        SpecError: names fit several layouts, and no recorded layer holds a layer by one of these more than by another.
    """
    settings = {layer.name: layer.config for layer in recorded.layers}
    held = {layer.name: [layer] for layer in recorded.layers}
    found, taken, others = {}, dict[str, None](), dict[str, None]()
    for layer in find_layers(checkpoint):
        config = settings.get(layer.prefix, next(iter(settings.values())) if len({*settings.values()}) == 1 else None)
        if config is None:
            continue
        heads, groups, read = config.num_heads, config.num_kv_heads, dict[str, Weights]()
        for layout, *_ in readings(layer):
            with suppress(SpecError):  # a layer of other sizes
                weights = read_layer(checkpoint, layout, layer.prefix, num_heads=heads, num_kv_heads=groups)[1]
                read[layout.name] = check_weights(config, weights)
        if not read:
            return Meant({})
        alike = {name: _alike(weights, held.get(layer.prefix, recorded.layers)) for name, weights in read.items()}
        best = [name for name in read if alike[name] == max(alike.values())]
        if len(best) > 1:
            raise SpecError(
                f"{checkpoint.path}: names do not tell which layout {layer.prefix or 'the layer'} has, "
                f"{' or '.join(best)}, and the recorded layers hold neither more than the other: "
                + SAY.format(shown(checkpoint.path), best[0], heads)
            )
        found[layer.prefix] = (config, read[best[0]])
        if read.keys() - best:
            taken[best[0]] = None
            others |= dict.fromkeys(name for name in read if name not in best)
    if not taken:
        return Meant(found)
    path, both = shown(checkpoint.path), " or ".join((*taken, *others))
    other = SAY.format(path, next(iter(others)), heads)
    return Meant(
        found,
        f"Names do not tell which layout {path} has, {both}: taken is {' and '.join(taken)}, by which the recorded "
        f"layers hold its weights. If the original has {' or '.join(others)}: {other}.",
    )


def _alike(weights: Weights, layers: Iterable[RecordedLayer]) -> int:
    """The most arrays that one of the recorded layers holds of these."""
    return max(
        sum(
            name in weights and np.array_equal(round_to(weights[name], one.held_in), array)
            for name, array in one.weights.items()
        )
        for one in layers
    )
