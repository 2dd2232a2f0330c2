"""Standing: how certain it is that a converted layer computes what the original does: proved, known, or moved.

Both sides of a conversion are this project's own reading of the arrays, and layers that compute different things may
have equal names. So the original's arithmetic must be shown by a recorded call (proved), or follow from the model's
config (known); otherwise the numbers are only moved, and nothing is claimed.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

from mha import rotary
from mha.formats.checkpoint import Checkpoint
from mha.formats.find import FoundLayer, projection_sizes
from mha.models.beside import beside_file, strange_files
from mha.models.decoders import DecoderLayers, decoder_beside, is_constant_name, is_decoder
from mha.models.families import MODEL_TYPES, Family, KnownLayer, changed, known_layer, place_of
from mha.models.keras_archive import archive_layers
from mha.models.neighbours import Neighbours, meaning_of, named
from mha.models.places import strange_arrays
from mha_core import AttentionConfig, SpecError, weight_shapes
from mha_core.errors import listed, shown
from mha_core.files.outside import parse_json_object
from mha_core.layouts import get
from mha_core.weights import STANDING_KEY

PROVED, KNOWN, MOVED = "proved", "known", "moved"

MEANING = {
    PROVED: "a recorded call of the original was reproduced from its arrays within the computed bound",
    KNOWN: "a config, a class or a file of this project says that it computes what its layout says",
    MOVED: "the bits were moved and read back; nothing is said of what the original computes",
}
"""Each word -> its meaning, as the report shows it."""


CROSS = ("crossattention", "encoder_attn")
"""Ends of the prefixes of layers whose keys may have another width than their queries."""


@dataclass(frozen=True)
class Standing:
    """A verdict on a layer. `word`: "proved", "known" or "moved" (not known); `causal`: whether calls are causal."""

    word: str
    why: str
    causal: bool | None = None


@dataclass(frozen=True)
class LayerFacts:
    """A record of the facts about one layer of a file that are known before its arrays are read.

    Attributes:
        known: why its arithmetic is known, in words; "" if it is not known.
        unknown: why its arithmetic is not known, in words; "" if it is known.
        num_heads, num_kv_heads: H and G; None where they are unknown.
        heads_from: the source of H, in words.
        scale: the factor of the scores; None where it is 1 / sqrt(head width).
        layout: the layout of the layer's class; "" where the class is unknown.
        causal: whether the model calls the layer causally; None where that is unknown.
        left: names of arrays below its prefix that the user ignores (patterns of `leave`).
        strays: names of other arrays below its prefix that are not in its layout.
        decoder: the DecoderLayers by which the layer is read; None if the layer is in no decoder.
    """

    known: str
    unknown: str
    num_heads: int | None = None
    num_kv_heads: int | None = None
    heads_from: str = ""
    scale: float | None = None
    layout: str = ""
    causal: bool | None = None
    left: tuple[str, ...] = ()
    strays: tuple[str, ...] = ()
    decoder: DecoderLayers | None = None


class About:
    """A finder of facts about the layers of a file, in its metadata and in the files beside it.

    Args:
        checkpoint: the open file.
        found: every attention layer in it.
        leave: patterns of names to ignore. They can name arrays below a layer's prefix that are not in its layout,
            other arrays that a model of the config's type does not have, and files in the folder.
    """

    def __init__(self, checkpoint: Checkpoint, found: Sequence[FoundLayer], leave: Collection[str] = ()) -> None:
        self.checkpoint, self.found, self.leave, self._left = checkpoint, found, leave, set[str]()
        self._neighbours = Neighbours([*checkpoint.entries, *checkpoint.others], [layer.prefix for layer in found])
        self.config, self._no_config = beside_file(checkpoint.path)

    @cached_property
    def _archive(self) -> tuple[dict[str, Any], str]:
        return archive_layers(self.checkpoint.path)

    @cached_property
    def _places(self) -> Counter[str]:
        """How many layers of the file have each place (`place_of`) in a model of the config's family."""
        family = MODEL_TYPES.get(self.config.model_type) if self.config else None
        return Counter(place_of(family, layer.prefix) for layer in self.found if family is not None)

    @cached_property
    def _changed(self) -> str:
        """What in or beside the config may change the arithmetic of its family, in words; "" if nothing does."""
        family = MODEL_TYPES.get(self.config.model_type) if self.config else None
        if self.config is None or family is None:
            return ""
        reason = changed(self.config.content, family, self.config.path.parent, self._is_left)
        return f"{self.config.path}: {reason}" if reason else ""

    @cached_property
    def _strange(self) -> list[str]:
        """The arrays of the file that have no place in a model of the config's type, one of MODEL_TYPES."""
        assert self.config is not None
        return strange_arrays(self.checkpoint.entries, self.config.model_type)

    @cached_property
    def _layers_own(self) -> set[str]:
        """The names of the arrays of all layers."""
        named = (get(one.layouts[0]).names_of(one.prefix, self.checkpoint.entries) for one in self.found)
        return {name for names in named for name in names.values()}

    def layout_of(self, layer: FoundLayer) -> str:
        """Return the name of the layout of a layer's class; "" if the class is unknown."""
        return self._facts(layer, "")[0].layout

    def facts(self, layer: FoundLayer, layout: str) -> LayerFacts:
        """Return the facts about a layer of the file, if it is read by the layout of this name.

        Raises:
            SpecError: the files beside the file of weights contradict the layer.
        """
        facts, harmless = self._facts(layer, layout)
        if facts.known and facts.layout not in ("", layout):
            facts = replace(facts, known="", unknown=f"it is read as {layout}, and its class has layout {facts.layout}")
        others = self._neighbours.of(layer.prefix, get(layout))
        stored = self.checkpoint.configs.get(layer.prefix)
        own: Collection[str] = ()
        if stored and layout == "canonical":
            own = weight_shapes(AttentionConfig.from_dict(dict(stored)))
        start = layer.prefix + get(layout).separator if layer.prefix else ""
        if facts.decoder is not None:
            own = [name.removeprefix(start) for name in facts.decoder.names(layer.prefix)]
        strange = [name for name in others if name not in own and not harmless(start + name)]
        kept = [name for name in strange if not self._is_left(name, start + name)]
        if strange and not kept and facts.known:
            facts = replace(facts, known="", unknown=f"it has {named(strange[0])}, which such layers do not have")
        return replace(facts, left=tuple(name for name in others if name not in own), strays=tuple(kept))

    def check_leave(self) -> None:
        """Raise SpecError if a pattern of `leave` matches no array or file that can be ignored."""
        unused = [pattern for pattern in self.leave if pattern not in self._left]
        if unused:
            raise SpecError(
                f"leave {unused[0]!r} fits no array below a layer's prefix that is no part of its layout, none that "
                "has no place in the model, and no other file of the model"
            )

    def _is_left(self, *names: str) -> bool:
        """Whether an array of one of these names is to be left out; the patterns that say so are remembered."""
        fitting = [pattern for pattern in self.leave if any(fnmatchcase(name, pattern) for name in names)]
        self._left.update(fitting)
        return bool(fitting)

    def _facts(self, layer: FoundLayer, layout: str) -> tuple[LayerFacts, Callable[[str], bool]]:
        """The facts about a layer, and whether another array below its prefix is harmless, by its full name."""
        if layer.prefix in self.checkpoint.configs:
            return self._of_metadata(layer.prefix, layout), _none
        if self.checkpoint.path.name.endswith(".keras"):
            return self._of_archive(layer), _is_generator
        if layout in ("keras", "keras-gqa", "keras-heads-first"):
            return LayerFacts("", f"its names fit layers of several classes, and {self._no_config}"), _is_generator
        return self._of_model(layer)

    def _of_metadata(self, prefix: str, layout: str) -> LayerFacts:
        said = self.checkpoint.metadata.get(f"{STANDING_KEY}:{prefix}" if prefix else STANDING_KEY)
        if said is None:
            if layout == "canonical":
                return LayerFacts("the file's metadata holds its config, in terms of the definition", "")
            return LayerFacts("", "the file's metadata holds its sizes, and not what was known of it")
        try:
            standing = parse_json_object(said, what=STANDING_KEY)
            word, of, why = (str(standing[key]) for key in ("standing", "layout", "why"))
            causal = standing.get("causal") if isinstance(standing.get("causal"), bool) else None
        except (SpecError, KeyError):
            return LayerFacts("", f"{STANDING_KEY!r} in the file's metadata can't be read")
        if word in (PROVED, KNOWN) and of == layout:
            return LayerFacts(f"mha convert wrote it and says: {word}, {shown(why, 300)}", "", causal=causal)
        return LayerFacts("", f"mha convert wrote it and says: {shown(word)}, as layout {shown(of)}", causal=causal)

    def _of_archive(self, layer: FoundLayer) -> LayerFacts:
        layers, missing = self._archive
        found = layers.get(layer.prefix)
        if found is None:
            return LayerFacts("", missing)
        if found.changed:
            return LayerFacts("", found.changed, layout=found.layout)
        shape = layer.shapes[get(layer.layouts[0]).required[0]]
        if found.heads != shape[1:]:
            return LayerFacts("", f"the archive says heads and width {shown(found.heads)}, and its arrays {shape[1:]}")
        named = "MultiHeadAttention" if found.layout == "keras" else "GroupQueryAttention"
        return LayerFacts(f"the archive names keras.layers.{named}", "", layout=found.layout, causal=found.causal)

    def _of_model(self, layer: FoundLayer) -> tuple[LayerFacts, Callable[[str], bool]]:
        config = self.config
        if config is None:
            return LayerFacts("", self._no_config), _none
        heads, groups = config.heads(layer.prefix), config.kv_heads()
        said: dict[str, Any] = {
            "num_heads": None if heads is None else heads[1],
            "num_kv_heads": None if groups is None else groups[1],
            "heads_from": "" if heads is None else f"{heads[0]} in {config.path}",
        }
        if self._changed:
            return LayerFacts("", self._changed, **said), _none
        if not config.of_other_file and is_decoder(config.model_type):
            return self._of_decoder(layer, said)
        (rows, inputs), *others = projection_sizes(layer)
        found = known_layer(config, layer.prefix, layer.layouts, rows, inputs)
        fewer = next((other for other, _ in others if other != rows), None)
        if isinstance(found, KnownLayer) and fewer is not None:
            found = f"a projection has {fewer} rows, that of the queries {rows}, and such models have no grouped heads"
        takes = next((other for _, other in others if other != inputs), None)
        if isinstance(found, KnownLayer) and takes is not None and not layer.prefix.rstrip(".").endswith(CROSS):
            found = f"a projection takes {takes} channels, that of the queries {inputs}: this is no self-attention"
        if not isinstance(found, KnownLayer):
            return LayerFacts("", found, **said), _none
        family, own = found.family, set(self._strange)
        doubt, left = self._doubt(layer, family)
        known = f"{config.path} names model type {config.model_type}, of the family {family.name}{left}"
        return LayerFacts(
            "" if doubt else known,
            doubt,
            num_heads=found.num_heads,
            heads_from=said["heads_from"],
            scale=found.scale,
            layout=next(name for name in layer.layouts if name in family.layouts),
            causal=found.causal,
        ), lambda name: name not in own

    @cached_property
    def _decoder(self) -> DecoderLayers | str:
        assert self.config is not None
        return decoder_beside(self.config, self.checkpoint.entries, self._is_left)

    def _of_decoder(self, layer: FoundLayer, said: dict[str, Any]) -> tuple[LayerFacts, Callable[[str], bool]]:
        decoder = self._decoder
        doubt = decoder if isinstance(decoder, str) else decoder.doubt(layer.prefix, layer.layouts)
        if isinstance(decoder, str) or doubt:
            return LayerFacts("", doubt, **said), _none
        layout = decoder.sites[layer.prefix].recipe.layouts[0]
        return LayerFacts(decoder.why, "", **said, layout=layout, causal=True, decoder=decoder), is_constant_name

    def _doubt(self, layer: FoundLayer, family: Family) -> tuple[str, str]:
        """Why the arrays of the file make a layer unknown, in words, or ""; and those that are left at the user's word.

        One below the prefix of a layer that is no part of its layout is looked at with that layer, in `facts`.
        """
        assert self.config is not None
        place = place_of(family, layer.prefix)
        if self._places[place] > 1:
            several = f"{self._places[place]} layers at ...{place}"
            return f"{self.config.path} is of one model, and the file has {several}", ""
        left = [name for name in strange_files(self.config.path.parent, self.config.model_type) if self._is_left(name)]
        inside = tuple(f"{one.prefix}{mark}" for one in self.found for mark in "./")
        for name in self._strange:
            if name.startswith(inside) and name not in self._layers_own:
                continue
            if not self._is_left(name):
                pattern = re.sub(r"(?<=[./])[^./]*$", "*", name)
                return (
                    f"{self.checkpoint.path} has {named(name)}, for which no model of type {self.config.model_type} "
                    f"has a place. If no attention layer reads it: --leave '{shown(pattern)}'"
                ), ""
            if meaning_of([name]):
                return f"{self.checkpoint.path} has {named(name)}, whoever leaves it out", ""
            left.append(name)
        words = "left at your word that no attention layer reads it"
        return "", f"; {words}: {listed([*map(shown, left)], 1)}" if left else ""


def _none(name: str) -> bool:
    return False


def _is_generator(name: str) -> bool:
    """Whether an array of a Keras layer is no weight: the state of the random numbers for dropout."""
    return "dropout_layer/seed_generator/" in name


def metadata_of(standings: Mapping[str, Standing], layout: str) -> dict[str, str]:
    """Return metadata for the written file, by which `mha convert` later knows the standing of each layer."""
    return {
        f"{STANDING_KEY}:{prefix}" if prefix else STANDING_KEY: json.dumps(
            {"standing": standing.word, "layout": layout, "why": standing.why, "causal": standing.causal}
        )
        for prefix, standing in standings.items()
    }


def refusal(source: Path, unsettled: Mapping[str, str], command: str, *, needs_heads: bool = False) -> SpecError:
    """Return the SpecError for layers that are neither proved nor known; it says why, and which options would help.

    Args:
        unsettled: prefix of a layer -> why its arithmetic is not known.
        command: the command line that was given, which the message extends.
        needs_heads: whether moving a layer needs --num-heads, because the file does not tell the number.
    """
    moved = "--moved --num-heads H, since nothing here says how many there are" if needs_heads else "--moved"
    prefix, why = next(iter(unsettled.items()))
    what = f"the layer at prefix {shown(repr(prefix))}" if prefix else "the layer"
    if len(unsettled) > 1:
        what = f"{len(unsettled)} layers, first {what},"
    verb = "are" if len(unsettled) > 1 else "is"
    start = f"{source}: {what} {verb} neither proved nor known: {why}. "
    if rotary.TURNS in why:  # no recording would help
        return SpecError(f"{start.strip()}\nTo move the bits alone, with nothing said of what they compute: {moved}")
    return SpecError(
        f"{start}Layers that compute something else have arrays of the same names.\n"
        'To prove what is computed, record a call: with mha.capture(model, "calls.safetensors"): model(...); then\n'
        f"    {command} --recorded calls.safetensors\n"
        "  (of a class that mha.capture does not know: docs/convert.md, To prove a layer)\n"
        f"To move the bits alone, with nothing said of what they compute: {moved} (docs/convert.md)"
    )
