"""Reads a Llama from a GGUF file, llama.cpp's format, into a live model of transformers: every parameter from the file.

The rows of `attn_q` and `attn_k` have pairs (2 k, 2 k + 1) there, as Meta's code turns them; a model of transformers
turns pairs (k, k + r / 2). So these rows are put into another order, and nothing else is changed: 4-bit numbers become
the float32 numbers that they stand for.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from mha.port.arrays import LoadedArrays
from mha_core import Rotary, SpecError
from mha_core.errors import one_line
from mha_core.layouts.conventions import order_of_channels

BLOCK = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
"""Module of a layer in transformers -> its name in the file; their parameters are called "weight" in both."""

AROUND = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
"""The modules around the layers."""

TURNED = ("attn_q", "attn_k")
"""The arrays whose rows are in another order there."""


@contextmanager
def read_once() -> Iterator[None]:
    """Return a context in which a GGUF file is read only once, though transformers and `read_llama` both open it.

    The file is held as an array in memory: slicing it as a `numpy.memmap` would take three times as long.
    """
    import gguf

    own, mapped = gguf.GGUFReader, np.memmap

    @cache
    def read(path: str) -> Any:
        with patch.object(np, "memmap", lambda *args, **more: np.asarray(mapped(*args, **more))):
            return own(path)

    with patch.object(gguf, "GGUFReader", lambda path: read(str(path))):
        yield


def read_llama(file: Path, dtype: str) -> tuple[Any, LoadedArrays]:
    """Return (the transformers model in a GGUF file, in evaluation mode; its LoadedArrays: where parameters come from).

    Raises:
        SpecError: the file is no GGUF file, is not of a Llama, or its arrays are not exactly those of a Llama.
    """
    import torch
    import transformers
    from gguf import GGUFReader, dequantize

    try:
        reader = GGUFReader(file)
        fields = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("tokenizer.")}
        held = {tensor.name: tensor for tensor in reader.tensors}
    except Exception as error:  # whatever a reader of binary files raises
        raise SpecError(f"{file} is no GGUF file that can be read: {one_line(error)}") from error
    config = _config_of(fields, file, tied="output.weight" not in held)
    with torch.device("meta"):
        model: Any = transformers.LlamaForCausalLM(config)
    names = _names(model, tied=config.tie_word_embeddings)
    beyond = sorted(set(held) ^ set(names.values()))
    if beyond:
        where = "holds" if beyond[0] in held else "lacks"
        raise SpecError(f"{file} {where} {beyond[0]}, unlike a Llama of {config.num_hidden_layers} layers")

    def array(name: str) -> NDArray:
        tensor = held[name]
        numbers: NDArray = np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        kind = name.split(".")[-2]
        return numbers if kind not in TURNED else in_halves(numbers, config.head_dim)

    state = {key: torch.from_numpy(array(name)).to(getattr(torch, dtype)) for key, name in names.items()}
    model.load_state_dict(state, strict=False, assign=True)
    model.tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(config)  # its table is no parameter: made on the meta device
    left = [name for name, parameter in model.named_parameters() if parameter.is_meta]
    if left:
        raise SpecError(f"{file} has no array for {left[0]}")
    return model.eval(), LoadedArrays(
        names, how="unpacked, with the rows of queries and keys in the order of pairs (k, k + d / 2)"
    )


def in_halves(rows: NDArray, head_dim: int) -> NDArray:
    """Return `rows` (heads * d, in) reordered in each head: rows 2 k and 2 k + 1 move to k and k + d / 2."""
    order = order_of_channels(Rotary(width=head_dim), head_dim, interleaved=False)
    return rows.reshape(-1, head_dim, rows.shape[-1])[:, order].reshape(rows.shape)


def _config_of(fields: Mapping[str, Any], file: Path, *, tied: bool) -> Any:
    from transformers import LlamaConfig

    if fields.get("general.architecture") != "llama":
        raise SpecError(f"{file} must be of architecture 'llama'. Got {fields.get('general.architecture')!r}.")
    scaling = [name for name in fields if name.startswith("llama.rope.scaling")]
    if scaling:
        raise SpecError(f"{file} scales its rotary positions ({scaling[0]}), which is not read")
    try:
        heads, width = int(fields["llama.attention.head_count"]), int(fields["llama.embedding_length"])
        turning = int(fields.get("llama.rope.dimension_count", width // heads))
        if turning != width // heads:
            raise SpecError(f"{file} turns {turning} of {width // heads} channels of a head, which is not read")
        return LlamaConfig(
            vocab_size=int(fields["llama.vocab_size"]),
            hidden_size=width,
            intermediate_size=int(fields["llama.feed_forward_length"]),
            num_hidden_layers=int(fields["llama.block_count"]),
            num_attention_heads=heads,
            num_key_value_heads=int(fields.get("llama.attention.head_count_kv", heads)),
            head_dim=width // heads,
            max_position_embeddings=int(fields["llama.context_length"]),
            rms_norm_eps=float(fields["llama.attention.layer_norm_rms_epsilon"]),
            rope_parameters={"rope_type": "default", "rope_theta": float(fields.get("llama.rope.freq_base", 1e4))},
            tie_word_embeddings=tied,
        )
    except KeyError as error:
        raise SpecError(f"{file} lacks {error}, which a Llama needs") from error


def _names(model: Any, *, tied: bool) -> dict[str, str]:
    """Parameter of the model -> the array of the file."""
    found = {f"{module}.weight": f"{name}.weight" for module, name in AROUND.items() if not (tied and name == "output")}
    for number in range(model.config.num_hidden_layers):
        for module, name in BLOCK.items():
            found[f"model.layers.{number}.{module}.weight"] = f"blk.{number}.{name}.weight"
    return found
