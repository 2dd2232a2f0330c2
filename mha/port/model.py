"""A trained model as `mha port` runs it: texts or arrays in, numbers out, and texts that it goes on with."""

import inspect
import os
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha.formats import SUFFIXES
from mha.formats.folder import weights_in
from mha.models.beside import ADAPTER, strange_files
from mha.models.config import FILE, contradiction
from mha.models.decoders import read_config
from mha.models.families import MODEL_TYPES, changed, of_own_code
from mha.port.arrays import LoadedArrays, check_arrays, check_loaded, files_of
from mha.port.gguf import read_llama, read_once
from mha.port.load import (
    DECODERS,
    PACKAGED,
    NotInstalled,
    check_none_drawn,
    find_folder,
    install_line,
    load_model,
    load_tokenizer,
    no_logging,
    safetensors_of,
    tokens_of,
)
from mha.recipes import RECIPES
from mha.recordings.ends import arrays_in
from mha_core import SpecError
from mha_core.errors import one_line
from mha_core.files.outside import parse_json_object

EMBEDDINGS, LOGITS, OUTPUTS = "sentence embeddings", "logits of the last token", "outputs"
"""The outputs that are compared: of an encoder, of a decoder, and of any other model."""

DECODER_CLASSES = ("ForCausalLM", "LMHeadModel")
"""Ends of the names of classes that go on with a text."""


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A model in memory, with its tokenizer if it has one.

    Attributes:
        name: the name that the user gave.
        model: a PyTorch module of transformers, in evaluation mode.
        tokenizer: its tokenizer; None for a model that takes arrays instead of texts.
        arrays: which arrays of its files the parameters come from; None if it was not loaded from files.
        outputs: what `run` returns: EMBEDDINGS, LOGITS or OUTPUTS.
    """

    name: str
    model: Any
    tokenizer: Any
    arrays: LoadedArrays | None
    outputs: str = OUTPUTS

    @property
    def limit(self) -> int:
        """Return the largest number of tokens in a text; RoBERTa's first `padding_idx + 1` positions don't count."""
        positions = int(getattr(self.model.config, "max_position_embeddings", None) or 10**9)
        if self.outputs == EMBEDDINGS:
            table = getattr(getattr(self.model, "embeddings", None), "position_embeddings", None)
            first = getattr(table, "padding_idx", None)
            positions = min(int(self.tokenizer.model_max_length), positions - (0 if first is None else int(first) + 1))
        return positions

    def batch(self, texts: Sequence[str]) -> Mapping[str, Any]:
        """Return the texts as token ids and attention mask, padded together; for a decoder, on the left.

        Raises:
            SpecError: there is no tokenizer or no text; a text is empty, has more tokens than the model has positions,
                or has no word that the tokenizer knows; or the tokenizer gives ids that the model does not have.
        """
        if self.tokenizer is None:
            first = next(iter(self._arguments() or ()), "NAME")
            write = f'np.savez("inputs.npz", {first}=...), and add --inputs inputs.npz'
            raise SpecError(f"{self.name} takes arrays, by the names of its arguments: {write}")
        if self.outputs == LOGITS:
            self.tokenizer.padding_side = "left"
        batch = tokens_of(self.name, self.tokenizer, texts, self.limit)
        if self.outputs == EMBEDDINGS:
            self._check_ids(batch["input_ids"])
        names = self._arguments() or tuple(batch)
        return {name: tensor for name, tensor in batch.items() if name in names}

    def _check_ids(self, ids: Any) -> None:
        rows = int(self.model.get_input_embeddings().weight.shape[0])
        if int(ids.max()) >= rows:
            raise SpecError(
                f"the tokenizer of {self.name} gives id {int(ids.max())}, and the model has {rows} tokens: "
                "it belongs to another model"
            )
        unknown = self.tokenizer.unk_token_id
        special = set(self.tokenizer.all_special_ids)
        for number, row in enumerate(ids.tolist(), start=1):
            words = [token for token in row if token == unknown or token not in special]
            if not words:
                raise SpecError(f"the tokenizer of {self.name} finds no word in text {number}")
            if unknown is not None and set(words) == {unknown}:
                raise SpecError(
                    f"the tokenizer of {self.name} makes every word of text {number} {self.tokenizer.unk_token}: "
                    "it is not the model's, or the text is in another language"
                )

    def given(self, arrays: Mapping[str, NDArray]) -> Mapping[str, Any]:
        """Return `arrays` as tensors for the model, with floats in the model's dtype. SpecError for an unknown name."""
        import torch

        names = self._arguments()
        for name in arrays:
            if names is not None and name not in names:
                raise SpecError(f"{type(self.model).__name__} takes no {name!r} (it takes: {', '.join(names)})")
        dtype = next(self.model.parameters()).dtype
        tensors = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
        return {name: one.to(dtype) if one.is_floating_point() else one for name, one in tensors.items()}

    def _arguments(self) -> tuple[str, ...] | None:
        """The names of the model's arguments; None if it takes any."""
        parameters = inspect.signature(self.model.forward).parameters.values()
        named = tuple(one.name for one in parameters if one.kind is not one.VAR_KEYWORD)
        return named if named else None

    def _beside(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments beside texts: no cache, the positions after padding on the left, a decoder's own ids."""
        names = self._arguments() or ()
        found: dict[str, Any] = {"use_cache": False} if "use_cache" in names else {}
        if self.outputs == LOGITS and "position_ids" in names and "attention_mask" in batch:
            found["position_ids"] = (batch["attention_mask"].cumsum(-1) - 1).clamp(min=0)
        if "decoder_input_ids" in names and "input_ids" in batch:
            found["decoder_input_ids"] = batch["input_ids"]
        return {name: value for name, value in found.items() if name not in batch}

    def run(self, batch: Mapping[str, Any]) -> NDArray[np.float64]:
        """Return the outputs of the model as float64, one row for each item.

        Sentence embeddings (B, E) are the means over each text's tokens, scaled to length 1. Logits (B, vocabulary) are
        those after the last token. Other models' outputs are flattened and concatenated, with 0 at padding.

        Raises:
            SpecError: the model can't be run on the batch, or returns no floating-point array.
        """
        import torch

        from backends.torch.ops.framework import to_numpy

        with torch.no_grad(), no_logging():
            try:
                output = self.model(**batch, **self._beside(batch))
            except SpecError:
                raise
            except Exception as error:  # whatever a model raises that is not what its config says
                given = "the texts" if self.tokenizer is not None else "the arrays"
                raise SpecError(f"{self.name} can't be run on {given}: {one_line(error)}") from error
        if self.outputs == LOGITS:
            return to_numpy(output.logits[:, -1]).astype(np.float64)
        if self.outputs == EMBEDDINGS:
            states = to_numpy(output.last_hidden_state).astype(np.float64)
            tokens = batch["attention_mask"].numpy()[..., None].astype(np.float64)
            means = (states * tokens).sum(axis=1) / tokens.sum(axis=1)
            embeddings: NDArray[np.float64] = means / np.linalg.norm(means, axis=-1, keepdims=True)
            return embeddings
        return _flat(output, batch.get("attention_mask"))

    @property
    def goes_on(self) -> bool:
        """Return whether the model continues texts."""
        return self.outputs == LOGITS and self.tokenizer is not None

    def continued(self, batch: Mapping[str, Any], tokens: int) -> tuple[str, ...]:
        """Return a text that continues each text: `tokens` tokens, generated by greedy decoding with a cache."""
        import torch

        token = self.tokenizer.pad_token_id
        padding = int(self.tokenizer.eos_token_id if token is None else token)
        asked = {name: batch[name] for name in ("input_ids", "attention_mask")}
        with torch.no_grad(), no_logging():
            made = self.model.generate(
                **asked, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=padding
            )
        new = made[:, asked["input_ids"].shape[1] :]
        return tuple(self.tokenizer.batch_decode(new, skip_special_tokens=True))


def _flat(output: Any, padding: Any) -> NDArray[np.float64]:
    """Every floating-point array in what a model gave, one after another for each item."""
    from backends.torch.native.capture import as_array

    found = []
    for _, (array, _) in arrays_in(output, as_array):
        own = array.astype(np.float64)
        if padding is not None and own.shape[:2] == tuple(padding.shape[:2]):
            own = own * padding.numpy().reshape(own.shape[:2] + (1,) * (own.ndim - 2))
        found.append(own)
    if not found:
        raise SpecError("the model gives no floating-point array")
    rows = {len(array) for array in found if array.ndim}
    batch = rows.pop() if len(rows) == 1 else 1
    return np.concatenate([array.reshape(batch, -1) for array in found], axis=1)


def load_trained(name: str, dtype: str = "float32", leave: Collection[str] = ()) -> TrainedModel:
    """Return the model called `name` in PACKAGED or DECODERS, or the model in the local folder `name`; no downloads.

    `leave`: patterns of names to ignore. They can name arrays that the model does not have, and other files.

    Raises:
        NotInstalled: a package that it needs is not installed.
        SpecError: there is no such model; it computes something else than its class does (code of its own, an adapter,
            settings that transformers ignores); or an array in its files is missing, surplus, of another shape, or
            differs from the loaded parameter.
    """
    if name in DECODERS:
        return _packaged_decoder(name, dtype)
    folder = find_folder(name)
    check_readable(folder, leave)
    try:
        import torch  # noqa: F401
        from transformers import AutoModel
    except ImportError as error:
        raise NotInstalled(f"mha port needs the package {error.name!r}. Install it with: {install_line()}") from error
    content = content_of(folder)
    encoder = is_encoder(content)
    with safetensors_of(folder) as weights:
        files = files_of(weights)  # says what is wrong with them better than transformers does
        if encoder:
            tokenizer = load_tokenizer(folder)
            model, loading = load_model(AutoModel, folder, weights, dtype)
            arrays = check_arrays(model, files, folder, leave)
            drawn = set(loading["missing_keys"]) - set(arrays.drawn) | set(map(str, loading["mismatched_keys"]))
            check_none_drawn(folder, drawn)
            return TrainedModel(name, model.eval(), tokenizer, arrays, EMBEDDINGS)
        read_config(content)
        auto = _class_of(content)
        model, loading = load_model(auto, folder, weights, dtype)
        arrays = check_loaded(model, files, folder, leave)
    check_none_drawn(folder, set(loading["missing_keys"]) - set(arrays.held))
    decoder = type(model).__name__.endswith(DECODER_CLASSES) and not model.config.is_encoder_decoder
    tokenizer = load_tokenizer(folder, needed=decoder)
    return TrainedModel(name, model.eval(), tokenizer, arrays, LOGITS if decoder else OUTPUTS)


def _class_of(content: Mapping[str, Any]) -> Any:
    """The class that a config names; else that of a language model, where its type has one, or of the bare model."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as DECODERS_BY_TYPE

    for one in content.get("architectures") or ():
        return getattr(transformers, str(one))  # which `read_config` has found
    return transformers.AutoModelForCausalLM if content["model_type"] in DECODERS_BY_TYPE else transformers.AutoModel


def is_encoder(config: Mapping[str, Any]) -> bool:
    """Return whether a config is of the BERT family, whose sentence embeddings are means of last hidden states."""
    return config.get("model_type") in RECIPES["bert"].model_types


def check_readable(folder: Path, leave: Collection[str] = ()) -> None:
    """Raise SpecError if transformers would load another model than the folder describes. This loads nothing.

    transformers silently ignores all settings that its own class does not know: code that the folder names, another
    kind of positions, another arithmetic. With such a setting, the loaded model is not the one that was trained.

    `leave`: patterns of names of files to ignore in this folder.
    """
    content, file = content_of(folder), folder / FILE
    if not is_encoder(content):
        if content.get("auto_map"):
            raise SpecError(f"{file}: {of_own_code(content['auto_map'])}")
        if (folder / ADAPTER).exists():
            raise SpecError(f"{folder}: an {ADAPTER} beside it says that an adapter (LoRA and the like) changes layers")
        files = strange_files(folder, str(content.get("model_type")))
        for name, reason in files.items():
            if not any(fnmatchcase(name, pattern) for pattern in leave):
                raise SpecError(f"{folder}: {reason}")
        return
    family = MODEL_TYPES[content["model_type"]]
    reason = changed(content, family, folder, lambda name: any(fnmatchcase(name, one) for one in leave))
    if reason:
        raise SpecError(f"{file}: {reason}")
    if content.get("num_attention_heads") is None:
        raise SpecError(f"{file} must say num_attention_heads; without it, transformers takes a number of its own")
    if contradiction(content):
        raise SpecError(f"{file}: {contradiction(content)}")
    own = _json(folder / "tokenizer_config.json").get("auto_map")
    if own:
        raise SpecError(f"{folder / 'tokenizer_config.json'}: {of_own_code(own)}")


def content_of(folder: Path) -> dict[str, Any]:
    """Return the content of a folder's config.json. SpecError if there is no such file, or no `model_type` in it."""
    content = _json(folder / FILE)
    if not (folder / FILE).is_file():
        there = sorted(weights_in(os.listdir(folder), SUFFIXES)) if folder.is_dir() else []
        read = (
            f"; weights alone are read by `mha convert {shlex.quote(str(folder / there[0]))} --list`" if there else ""
        )
        raise SpecError(f"{folder} has no {FILE}; it must be a model's folder as save_pretrained writes it{read}")
    if not isinstance(content.get("model_type"), str):
        raise SpecError(f"{folder / FILE} names no model_type")
    return content


def _json(file: Path) -> dict[str, Any]:
    """The object in a JSON file; an empty one if there is no such file."""
    # A tokenizer without a limit has int(1e30) for it.
    return parse_json_object(file.read_bytes(), what=str(file), any_integer=True) if file.is_file() else {}


def _packaged_decoder(name: str, dtype: str) -> TrainedModel:
    file = find_decoder(name)
    try:
        import gguf  # noqa: F401
        import torch  # noqa: F401
        from transformers import AutoTokenizer
    except ImportError as error:
        line = install_line(decoder=True)
        raise NotInstalled(f"mha port needs the package {error.name!r}. Install it with: {line}") from error
    with no_logging(), read_once():
        try:
            tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, local_files_only=True)
        except Exception as error:  # transformers raises whatever its readers raise
            raise SpecError(f"the tokenizer in {file} could not be loaded: {one_line(error)}") from error
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        model, arrays = read_llama(file, dtype)
    return TrainedModel(name, model, tokenizer, arrays, LOGITS)


def find_decoder(name: str) -> Path:
    """Return the GGUF file of the decoder called `name`; nothing is loaded. Raises as `load_trained` does."""
    spec = find_spec(DECODERS[name])
    if spec is None or spec.origin is None:
        line = install_line(decoder=True)
        raise NotInstalled(f"model {name!r} needs the package {DECODERS[name]!r}. Install it with: {line}")
    files = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if len(files) != 1:
        raise SpecError(f"{Path(spec.origin).parent} must hold one GGUF file. It holds {len(files)}.")
    return files[0]


def check_named(name: str, leave: Collection[str] = ()) -> None:
    """Raise SpecError or NotInstalled if files show that the model `name` can't be loaded. No framework is imported."""
    if name in DECODERS:
        find_decoder(name)
    else:
        check_readable(find_folder(name), leave)


def live_model(model: Any, name: str, dtype: str = "float32") -> TrainedModel:
    """Return `model`, cast to `dtype`, as a TrainedModel that takes arrays. SpecError if it is no PyTorch module."""
    import torch

    if not isinstance(model, torch.nn.Module):
        raise SpecError(
            f"{name} must be a model of PyTorch, or a function that returns one. Got {type(model).__name__}. "
            "`mha where` compares models of other frameworks"
        )
    return TrainedModel(name, model.to(getattr(torch, dtype)).eval(), None, None)


__all__ = ["DECODERS", "PACKAGED", "TrainedModel", "check_named", "live_model", "load_trained"]
