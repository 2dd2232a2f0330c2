"""The parameters of the original under the names of the port; and the faults that stand in them."""

from __future__ import annotations

import numpy as np

from tests.mha.substitution.vision.faults import BLOCK, INSIDE
from tests.mha.substitution.vision.original import DEPTH, HEADS, WIDTH, State


def arrays_of(state: State, variants: frozenset[str]) -> State:
    kernel = state["embeddings.patch_embeddings.projection.weight"].transpose(2, 3, 1, 0)
    positions = state["embeddings.position_embeddings"]
    arrays = {
        "stem/conv/kernel": kernel.reshape(-1, WIDTH) if "patches by dense" in variants else kernel,
        "stem/conv/bias": state["embeddings.patch_embeddings.projection.bias"],
        "stem/cls": state["embeddings.cls_token"],
    }
    looked_up = "positions looked up" in variants
    arrays |= {"stem/pos/embeddings": positions[0]} if looked_up else {"stem/pos": positions}
    norms = {"last_norm": "layernorm"}
    dense = {"pool" if "pool at the top" in variants else "pool/dense": "pooler.dense"}
    for number in range(DEPTH):
        new, old = f"block_{number}", f"layers.{number}"
        first, second = ("attn/pre", "mlp/pre") if variants & INSIDE else ("norm_1", "norm_2")
        norms |= {f"{new}/{first}": f"{old}.layernorm_before", f"{new}/{second}": f"{old}.layernorm_after"}
        dense |= {f"{new}/mlp/up": f"{old}.mlp.fc1", f"{new}/mlp/down": f"{old}.mlp.fc2"}
        parts = {name: f"{old}.attention.{name}_proj" for name in "qkvo"}
        if "attention of keras" in variants:
            size = WIDTH // HEADS
            for own, name in (("query", "q"), ("key", "k"), ("value", "v")):
                arrays[f"{new}/attn/mha/{own}/kernel"] = state[f"{parts[name]}.weight"].T.reshape(WIDTH, HEADS, size)
                arrays[f"{new}/attn/mha/{own}/bias"] = state[f"{parts[name]}.bias"].reshape(HEADS, size)
            last = f"{new}/attn/mha/attention_output"
            arrays[f"{last}/kernel"] = state[f"{parts['o']}.weight"].T.reshape(HEADS, size, WIDTH)
            arrays[f"{last}/bias"] = state[f"{parts['o']}.bias"]
            continue
        dense[f"{new}/attn/out"] = parts["o"]
        if "qkv split" in variants:
            dense |= {f"{new}/attn/{name}": parts[name] for name in "qkv"}
        else:
            arrays[f"{new}/attn/qkv/kernel"] = np.concatenate([state[f"{parts[one]}.weight"].T for one in "qkv"], 1)
            arrays[f"{new}/attn/qkv/bias"] = np.concatenate([state[f"{parts[one]}.bias"] for one in "qkv"])
    for own, name in dense.items():
        arrays |= {f"{own}/kernel": state[f"{name}.weight"].T, f"{own}/bias": state[f"{name}.bias"]}
    for own, name in norms.items():
        arrays |= {f"{own}/gamma": state[f"{name}.weight"], f"{own}/beta": state[f"{name}.bias"]}
    return arrays


def spoil(arrays: State, fault: str, places: tuple[str, ...]) -> None:
    """The faults that stand in the code do nothing here."""
    kernel, bias = f"{places[0]}/kernel", f"{places[0]}/bias"
    if fault == "kernel flipped":
        arrays[kernel] = arrays[kernel][::-1, ::-1]
    elif fault == "kernel transposed":
        arrays[kernel] = arrays[kernel].swapaxes(0, 1)
    elif fault == "channels of the kernel backward":
        arrays[kernel] = arrays[kernel][:, :, ::-1]
    elif fault in ("key, query, value", "query, value, key"):
        order = [1, 0, 2] if fault == "key, query, value" else [0, 2, 1]
        for name in (kernel, bias):
            parts = np.split(arrays[name], 3, axis=-1)
            arrays[name] = np.concatenate([parts[number] for number in order], axis=-1)
    elif fault == "column of qkv":
        arrays[kernel] = arrays[kernel].copy()
        arrays[kernel][:, 50] = arrays[kernel][:, 51]
    elif fault == "row of down":
        arrays[kernel] = arrays[kernel].copy()
        arrays[kernel][9] = arrays[kernel][8]
    elif fault in ("out transposed", "pool transposed"):
        arrays[kernel] = arrays[kernel].T
    elif fault == "bias of a norm lost":
        arrays[f"{places[0]}/beta"] = np.zeros(WIDTH, np.float32)
    elif fault == "norms of a block exchanged":
        _exchange(arrays, *places)
    elif fault == "blocks exchanged":
        for name in BLOCK:
            _exchange(arrays, f"block_0/{name}", f"block_2/{name}")


def _exchange(arrays: State, one: str, two: str) -> None:
    for key in ("gamma", "beta", "kernel", "bias"):
        if f"{one}/{key}" in arrays:
            arrays[f"{one}/{key}"], arrays[f"{two}/{key}"] = arrays[f"{two}/{key}"], arrays[f"{one}/{key}"]
