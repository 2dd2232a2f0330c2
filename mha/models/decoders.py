"""Decoders in files: their attention layers, by the recipes that read live models.

The model is made of its config.json alone, without numbers, by the classes of transformers. So what a setting means is
theirs; a setting that they do not read, or read as something else, is refused by its name. Then the arrays of one
layer at a time are put into its module, and its recipe reads it as it reads a live one.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from typing import Any, Self
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from mha.models.beside import ADAPTER, strange_files
from mha.models.config import ModelConfig
from mha.models.families import MODEL_TYPES
from mha.models.settings import strange_key
from mha.recipes import RECIPES, Site, recipe_for
from mha.recipes.live_probe import check_site
from mha.rotary import TURNS
from mha_core import AttentionConfig, SpecError
from mha_core.errors import one_line, shown
from mha_core.parts.rotary import FURTHEST, in_words, positions_in
from mha_core.weights import Weights

BASES = ("rope_theta", "rotary_emb_base", "rope_local_base_freq")
"""Keys of a config with a base of rotary positions."""

SHARES = ("partial_rotary_factor", "rotary_pct")
"""Keys with the share of a head that turns."""

RULES = ("rope_parameters", "rope_scaling")
"""Keys with an object that says how positions turn; the second of them is of earlier releases."""

RENAMED = {"su": "longrope"}
"""Names of rules in earlier releases -> now."""

CONSTANTS = ("inv_freq", "masked_bias", "attention.bias", "attn.bias")
"""Ends of the names of constants that earlier releases wrote below a layer: frequencies, and a causal mask."""


def is_decoder(model_type: Any) -> bool:
    """Return whether models of this type are decoders that `DecoderLayers` reads, by their classes in transformers.

    >>> [is_decoder(name) for name in ("mistral", "gptj", "bert", "modernbert", "roformer")]
    [True, True, False, False, False]
    """
    live = (one for one in RECIPES.values() if not one.core)  # RoFormer is an encoder
    if model_type in MODEL_TYPES or not any(model_type in recipe.model_types for recipe in live):
        return False
    try:
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as DECODERS
    except ImportError:
        return False
    return model_type in DECODERS


def read_config(said: Mapping[str, Any]) -> Any:
    """Return the config object that transformers makes of `said`, the content of a decoder's config.json.

    Raises:
        SpecError: the content has a key that the class lacks, or a value that the class refuses or reads as another.
    """
    import transformers
    from transformers import AutoConfig

    # Copied, because the classes write into what they are given.
    given = {key: deepcopy(value) for key, value in said.items() if key != "model_type"}
    for key in ("auto_map", "quantization_config", "pruned_heads"):
        if given.get(key):
            raise SpecError(f"{key}={shown(given[key])} says that this is no model as the class of transformers has it")
    try:
        config = AutoConfig.for_model(said["model_type"], **given)
    except Exception as error:  # whatever a class raises on such values
        why = one_line(error).partition(" Should contain ")[0]  # which lists hundreds of names
        raise SpecError(f"transformers can't read the config: {why}") from error
    for name in given.get("architectures") or ():
        if getattr(getattr(transformers, str(name), None), "config_class", None) is not type(config):
            raise SpecError(f"architectures names {shown(name)}, which is no class of {type(config).__name__}")
    _check_keys(said, config, config)
    return config


def _check_keys(said: Mapping[str, Any], part: Any, whole: Any) -> None:
    """SpecError unless the class of a config, or of a part of one, has these keys and reads them as they stand.

    A base must be that by which the model turns: transformers makes no use of the one in DBRX's `attn_config`.
    """
    from transformers import PreTrainedConfig

    kind = type(part).__name__
    plain = type(part)().to_dict()
    settings = {*plain, *(field.name for field in fields(type(part))), *part.attribute_map}
    settings |= {*PreTrainedConfig().to_dict(), "head_dim"}  # which classes read that do not declare it
    for key, value in said.items():
        if key in (*BASES, *SHARES, *RULES):
            _check_turn(key, value, whole)
        if key in ("model_type", *BASES, *SHARES, *RULES):
            continue
        strange = strange_key(key, value, said, settings, kind)
        if strange:
            raise SpecError(strange)
        read = getattr(part, key, value)
        if isinstance(read, PreTrainedConfig) and isinstance(value, dict):
            _check_keys(value, read, whole)
        elif value is not None and key in plain and not key.endswith("dtype") and _plain(read) != _plain(value):
            raise SpecError(f"{key}={shown(value)} is read as {shown(read)} by {kind} in transformers")


def _check_turn(key: str, value: Any, config: Any) -> None:
    """SpecError unless one of the config's rules of positions says what this key says."""
    if value is None:
        return
    given = getattr(config, "rope_parameters", None) or {}
    rules = [one for one in given.values() if isinstance(one, dict)] or [given]
    if key not in RULES:
        name = "rope_theta" if key in BASES else "partial_rotary_factor"
        if not any(rule.get(name, getattr(config, name, None)) == value for rule in rules):
            raise SpecError(f"{key}={shown(value)} contradicts what else the config says: {shown(given)}")
        return
    parts = [one for one in value.values() if isinstance(one, dict)] or [value]
    for part in parts:
        own = {"rope_type" if name == "type" else name: one for name, one in part.items()}
        own = {name: RENAMED.get(one, one) if name == "rope_type" else one for name, one in own.items()}
        for name, one in own.items():
            if one is not None and not any(_plain(rule.get(name)) == _plain(one) for rule in rules):
                raise SpecError(f"{key}: {name}={shown(one)} is not what {type(config).__name__} reads: {shown(given)}")


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, dict):
        return {str(key): one for key, one in value.items()}
    return list(value) if isinstance(value, tuple) else value


@dataclass(frozen=True, eq=False)
class DecoderLayers:
    """A decoder's attention layers in a file, matched with modules of transformers.

    Attributes:
        sites: prefix of a layer in the file -> the same layer in `model`.
        model: the model that transformers makes of the config, with parameters on the meta device (without numbers).
    """

    sites: Mapping[str, Site]
    model: Any
    why: str = ""
    """Why the arithmetic of the layers is known, in words."""

    @classmethod
    def of(cls, names: Iterable[str], said: Mapping[str, Any]) -> Self:
        """Return the attention layers that a file holds, found by the names of all its arrays.

        `said`: the content of the config.json beside the file.

        Raises:
            SpecError: `read_config` refuses the config; or a layer lacks arrays, or has arrays that the model lacks.
        """
        from transformers import AutoModelForCausalLM

        config = read_config(said)
        with _parameters_without_numbers():
            model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        every = list(names)
        sites = {}
        for name, module in model.named_modules():
            recipe = recipe_for(module)
            if recipe is not None:
                prefix = _prefix(name, module, model.base_model_prefix, every)
                sites[prefix] = Site(prefix, module, recipe)
        if not sites:
            raise SpecError(f"{type(model).__name__} has no attention layer that a recipe reads")
        return cls(sites, model)

    def read(self, arrays: Mapping[str, NDArray], prefix: str) -> tuple[AttentionConfig, Weights]:
        """Return (config, weights) of a layer, after a run of its transformers module has confirmed both.

        Args:
            arrays: name in the file -> array, of the layer and of the constants beside it.
            prefix: the layer's prefix in the file.

        Raises:
            SpecError: an array has another shape than in the model; the rotary angles of the model, or of constants in
                the file, are not those of the config; or the module computes something else than the config says.
        """
        import torch

        site = self.sites[prefix]
        state = {}
        for name, parameter in site.module.named_parameters():
            array = arrays[f"{prefix}.{name}"]
            if array.shape != tuple(parameter.shape):
                said = f"the config says {tuple(parameter.shape)}"
                raise SpecError(f"{prefix}.{name} has shape {array.shape}, and {said}")
            state[name] = torch.from_numpy(np.ascontiguousarray(array))
        module = site.module
        before = dict(module.named_parameters())
        module.load_state_dict(state, assign=True, strict=False)
        try:
            config, weights = site.config, site.weights
            width = getattr(self.model.config, "head_dim", None) or config.head_dim
            if config.head_dim != width:
                raise SpecError(f"head_dim={width} of the config is not that of the arrays, {config.head_dim}")
            self._check_constants(arrays, prefix)
            self._check_angles(site)
            check_site(site)
            return config, weights
        finally:
            module.load_state_dict(before, assign=True, strict=False)

    def doubt(self, prefix: str, layouts: Iterable[str]) -> str:
        """Return in words why `read` can't read the layer at `prefix` in any of these `layouts`; "" if it can."""
        site = self.sites.get(prefix)
        if site is None:
            return f"the config has no place for a layer {prefix!r}"
        own, turn = site.recipe.layouts[0], site.recipe.turn
        if turn is not None and not turn.in_config and turn.acts(site.core):
            return f"a layer of {site.recipe.family} {TURNS} by angles of its own, which no settings of a file say"
        return "" if own in layouts else f"layers of such a model have layout {own!r}"

    def sees(self, prefix: str) -> str:
        """Return in words the attention window that a layer's calls must be given; "" if it has no window."""
        site, config = self.sites[prefix], self.model.config
        types = getattr(config, "layer_types", None) or getattr(config, "attention_layers", None)
        kind = types[getattr(site.core, site.recipe.place)] if types else "sliding"
        name = {"local": "window_size"}.get(kind, "sliding_window" if "sliding" in kind else "")
        window = getattr(config, name, None) if name else None
        return "" if window is None else f"{window} keys alone: window=({window - 1}, 0) of a call"

    def names(self, prefix: str) -> list[str]:
        """Return the full names of a layer's arrays."""
        return [f"{prefix}.{name}" for name, _ in self.sites[prefix].module.named_parameters()]

    def _check_constants(self, arrays: Mapping[str, NDArray], prefix: str) -> None:
        """SpecError if the frequencies that earlier releases wrote beside a layer are not those of its config."""
        rotary = self.sites[prefix].config.rotary
        for name in arrays if rotary is not None else ():
            if not (name.startswith(f"{prefix}.") and name.endswith("inv_freq")):
                continue
            assert rotary is not None
            found = np.asarray(arrays[name], dtype=np.float64)
            wanted = rotary.frequencies(1)[0]
            if found.shape != wanted.shape or not np.allclose(found, wanted, rtol=2.0**-7):
                base = float(found[1] ** (-len(found))) if len(found) > 1 else float("nan")
                raise SpecError(f"{name} turns by base {base:.6g}, and the config says {in_words(rotary)}")

    def _check_angles(self, site: Site) -> None:
        """SpecError unless the tables that the model itself makes are those of the layer's config, near and far."""
        import torch

        config, turn = site.config, site.recipe.turn
        if config.rotary is None or turn is None or not turn.in_config:  # these `doubt` refuses
            return
        own = [one for name, one in self.model.named_modules() if name.endswith("rotary_emb")]
        if not own and not turn.ends:
            raise SpecError(f"{type(self.model).__name__} has no module that says how it {TURNS}")
        most = int(getattr(self.model.config, "max_position_embeddings", FURTHEST))
        for places in (torch.arange(5), torch.tensor([0, 1, min(most, FURTHEST) - 1])):
            if turn.ends:
                given: dict[str, Any] = {"position_ids": places[None]}
            else:
                module = own[0]
                kinds = getattr(self.model.config, "layer_types", None) if "layer_type" in _arguments(module) else None
                more = {} if kinds is None else {"layer_type": kinds[site.core.layer_idx]}
                given = {"position_embeddings": module(torch.zeros(1, len(places), 2), places[None], **more)}
            made = turn.take(site.core, given, len(places))
            length = int(places.max()) + 1
            found = None if made is None else positions_in(made.tables().queries, config.rotary, length)
            if found is None or found.tolist() != [places.tolist()]:
                raise SpecError(f"the model turns otherwise than its config says, {in_words(config.rotary)}")


@contextmanager
def _parameters_without_numbers() -> Iterator[None]:
    """A context in which modules are made with parameters on the meta device, and constants with their numbers."""
    import torch

    own = torch.nn.Module.register_parameter

    def register(module: Any, name: str, parameter: Any) -> None:
        if parameter is not None:
            parameter = torch.nn.Parameter(parameter.detach().to("meta"), requires_grad=False)
        own(module, name, parameter)

    with patch.object(torch.nn.Module, "register_parameter", register):
        yield


def decoder_beside(config: ModelConfig, names: Iterable[str], is_left: Callable[[str], bool]) -> DecoderLayers | str:
    """Return the attention layers of the decoder in a file; or, in words, why the config does not describe them.

    Args:
        config: the config beside the file; its `model_type` is that of a decoder.
        names: the names of the arrays in the file.
        is_left: name of a file in the folder -> whether the user ignores it (a pattern of `leave`).
    """
    folder = config.path.parent
    if (folder / ADAPTER).exists():
        return f"an {ADAPTER} beside it says that an adapter (LoRA and the like) changes what layers compute"
    files = strange_files(folder, config.model_type)
    strange = [reason for name, reason in files.items() if not is_left(name)]
    why = f"{config.path} names model type {config.model_type}, whose layer transformers made of it and ran"
    try:
        return strange[0] if strange else replace(DecoderLayers.of(names, config.content), why=why)
    except SpecError as error:
        return f"{config.path}: {error}"


def is_constant_name(name: str) -> bool:
    """Return whether an array called `name` is a constant that older releases of transformers saved in a layer."""
    return name.endswith(tuple(f".{last}" for last in CONSTANTS))


def _arguments(module: Any) -> tuple[str, ...]:
    return tuple(inspect.signature(type(module).forward).parameters)


def _prefix(name: str, module: Any, model_prefix: str, names: list[str]) -> str:
    """Where the arrays of a module stand in a file; SpecError if they are not all there, or others with them."""
    short = name.removeprefix(f"{model_prefix}.")
    wanted = [one for one, _ in module.named_parameters()]
    places = [one for one in dict.fromkeys((name, short)) if any(held.startswith(f"{one}.") for held in names)]
    if len(places) != 1:
        found = "more than once" if places else "nowhere"
        raise SpecError(f"the layer {name} is {found} among the arrays of the file")
    below = {held.removeprefix(f"{places[0]}.") for held in names if held.startswith(f"{places[0]}.")}
    lacking = [one for one in wanted if one not in below]
    if lacking:
        raise SpecError(f"the file lacks {places[0]}.{lacking[0]}, which the config asks for")
    beyond = sorted(one for one in below - set(wanted) if not is_constant_name(f"{places[0]}.{one}"))
    if beyond:
        raise SpecError(f"the file has {places[0]}.{beyond[0]}, for which the config has no place")
    return places[0]
