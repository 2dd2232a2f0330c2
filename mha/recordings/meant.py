"""The weights that recorded layers should have, from a recording of the original model or a file of its weights."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mha.formats.checkpoint import Checkpoint
from mha.formats.find import find_layers, readings
from mha.formats.layer import read_layer
from mha.formats.stacked import open_layers
from mha.recordings.recording import RecordedLayer, Recording, is_recording
from mha.recordings.replay import check_reproduced
from mha_core import AttentionConfig, SpecError
from mha_core.dtypes import divisors, round_to
from mha_core.errors import listed, shown
from mha_core.files.mistaken import near_file
from mha_core.layouts import config_of, get
from mha_core.layouts.layout import COUNTS_SHOWN
from mha_core.weights import Weights, check_weights

SAY = "`mha convert {} --from {} --all --moved --num-heads {} --to canonical --out FILE` makes a file that says it"


BY_HEADS = ("num_heads", "num_kv_heads", "head_dim", "value_head_dim")
"""The settings that the number of heads decides, for weights of given shapes."""


@dataclass(frozen=True)
class Meant:
    """The original layers that a file of weights describes.

    Attributes:
        layers: name -> config and weights.
        doubt: if the arrays' names fit several known layouts, a line that names these and the one used; else "".
        unsaid: a line on the number of heads, if it had to be taken from the recorded layer; else "".
    """

    layers: Mapping[str, tuple[AttentionConfig, Weights]]
    doubt: str = ""
    unsaid: str = ""


def meant_by(
    path: str | os.PathLike[str],
    recorded: Recording,
    *,
    num_heads: int | None = None,
    beside: Callable[[str], int | None] = lambda prefix: None,
) -> Recording | Meant:
    """Return the original's layers in a file: a Recording if the file is one, a Meant if the file holds weights.

    Args:
        path: the file.
        recorded: the layers that were recorded.
        num_heads: the number of heads of the original. None: from the file, else from `beside`, else from `recorded`.
        beside: a function: prefix of a layer's arrays -> its number of heads by other files in the folder, or None.

    Raises:
        SpecError: the file is no recording and no file of weights, has another number of heads than `num_heads`, or is
            a recording whose outputs do not follow from its weights.
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
            meant = Meant(found) if found else _of_weights(checkpoint, recorded, num_heads, beside)
        if meant.layers:
            _check_heads(path, num_heads, (config for config, _ in meant.layers.values()))
            return meant
        sizes = "the sizes that were recorded" if known else "a layout that is known (mha convert --layouts)"
        made = f"`mha convert {shown(path)} --all --moved --num-heads H --to canonical --out FILE` makes of it"
        raise SpecError(
            f"{path} holds no config of a layer, and no layer of {sizes}{meant.doubt and f' ({meant.doubt})'}: give a "
            "recording of the original" + f", or what {made}" * known
        ) from None
    _check_heads(path, num_heads, (layer.config for layer in recording.layers))
    return check_reproduced(recording, path)


def _check_heads(path: str | os.PathLike[str], asked: int | None, configs: Iterable[AttentionConfig]) -> None:
    """Raise SpecError if a file says another number of heads than was asked for."""
    for config in configs:
        if asked not in (None, config.num_heads):
            raise SpecError(f"num_heads must be {config.num_heads}, as {shown(path)} says. Got {asked}.")


def _of_weights(
    checkpoint: Checkpoint, recorded: Recording, num_heads: int | None, beside: Callable[[str], int | None]
) -> Meant:
    """The layers of a file of weights, with the settings of the recorded layers of their names, or of all if alike.

    Raises:
        SpecError: names fit several layouts, and no recorded layer holds a layer by one of these more than by another.
    """
    settings = {layer.name: layer.config for layer in recorded.layers}
    held = {layer.name: [layer] for layer in recorded.layers}
    found, taken, others, unsaid = {}, dict[str, None](), dict[str, None](), dict[str, None]()
    for layer in find_layers(checkpoint):
        config = settings.get(layer.prefix, next(iter(settings.values())) if len({*settings.values()}) == 1 else None)
        if config is None:
            continue
        said = beside(layer.prefix) or num_heads
        heads = said or config.num_heads
        groups = config.num_kv_heads if heads == config.num_heads else None
        read, why = dict[str, tuple[AttentionConfig, Weights]](), ""
        for layout, *_ in readings(layer):
            known = (None, None) if layout.carries_heads else (heads, groups)
            try:
                own, weights, _ = read_layer(
                    checkpoint, layout, layer.prefix, num_heads=known[0], num_kv_heads=known[1]
                )
                sized = replace(config, **{name: getattr(own, name) for name in BY_HEADS})
                read[layout.name] = sized, check_weights(sized, weights)
            except SpecError as error:  # a layer of other sizes
                why = why or str(error)
        if not read:
            return Meant({}, why)
        alike = {name: _alike(weights, held.get(layer.prefix, recorded.layers)) for name, (_, weights) in read.items()}
        best = [name for name in read if alike[name] == max(alike.values())]
        if len(best) > 1:
            raise SpecError(
                f"{checkpoint.path}: names do not tell which layout {layer.prefix or 'the layer'} has, "
                f"{' or '.join(best)}, and the recorded layers hold neither more than the other: "
                + SAY.format(shown(checkpoint.path), best[0], heads)
            )
        found[layer.prefix] = read[best[0]]
        if said is None and not get(best[0]).carries_heads:
            unsaid |= dict.fromkeys(_unsaid(*read[best[0]], shown(checkpoint.path)))
        if read.keys() - best:
            taken[best[0]] = None
            others |= dict.fromkeys(name for name in read if name not in best)
    if not taken:
        return Meant(found, unsaid="\n".join(unsaid))
    path, both = shown(checkpoint.path), " or ".join((*taken, *others))
    other = SAY.format(path, next(iter(others)), heads)
    return Meant(
        found,
        f"Names do not tell which layout {path} has, {both}: taken is {' and '.join(taken)}, by which the recorded "
        f"layers hold its weights. If the original has {' or '.join(others)}: {other}.",
        "\n".join(unsaid),
    )


def _unsaid(config: AttentionConfig, weights: Weights, path: str) -> Iterator[str]:
    """Yield a line if layers of other numbers of heads have weights of these shapes."""
    fitting = []
    for count in divisors(len(weights["q_proj.weight"])):
        with suppress(SpecError):
            fitting += [str(config_of(weights, num_heads=count).num_heads)] * (count != config.num_heads)
    if fitting:
        yield (
            f"num_heads={config.num_heads} is the recording's own: nothing in {path} confirms it "
            f"({listed(fitting, COUNTS_SHOWN)} would fit as well). Say --num-heads, or give a recording of "
            "the original."
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
