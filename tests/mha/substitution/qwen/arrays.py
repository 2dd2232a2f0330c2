"""The parameters of the original under the names of the port; and the faults that stand in them."""

from __future__ import annotations

import numpy as np

from tests.mha.substitution.qwen.faults import BLOCK, INSIDE
from tests.mha.substitution.qwen.original import DEPTH, GROUPS, HEADS, SIZE, WIDTH, State


def arrays_of(state: State, variants: frozenset[str]) -> State:
    arrays = {"words/embedding": state["model.embed_tokens.weight"], "last_norm/scale": state["model.norm.weight"]}
    norms = ("attn/norm", "mlp/norm") if variants & INSIDE else ("norm_1", "norm_2")
    for number in range(DEPTH):
        new, old = f"blocks/{number}", f"model.layers.{number}"
        for own, name in zip(norms, ("input", "post_attention"), strict=True):
            arrays[f"{new}/{own}/scale"] = state[f"{old}.{name}_layernorm.weight"]
        for name in ("gate", "up", "down"):
            arrays[f"{new}/mlp/{name}/kernel"] = state[f"{old}.mlp.{name}_proj.weight"].T
        for name in ("q_norm", "k_norm"):
            arrays[f"{new}/attn/{name}/scale"] = state[f"{old}.self_attn.{name}.weight"]
        q, k, v, o = (state[f"{old}.self_attn.{name}_proj.weight"].T for name in "qkvo")
        if "projections in one" in variants:
            kernels = {"wqkv": np.concatenate([q, k, v], axis=1), "wo": o}
        elif "projections split" in variants:
            kernels = {"wq": q, "wk": k, "wv": v, "wo": o}
        elif "axis of heads" in variants:
            kernels = {"wq": q.reshape(WIDTH, HEADS, SIZE), "wo": o.reshape(HEADS, SIZE, WIDTH)}
            kernels |= {"wk": k.reshape(WIDTH, GROUPS, SIZE), "wv": v.reshape(WIDTH, GROUPS, SIZE)}
        else:
            kernels = {"wq": q, "wkv": np.concatenate([k, v], axis=1), "wo": o}
        arrays |= {f"{new}/attn/{name}/kernel": kernel for name, kernel in kernels.items()}
    return arrays


def spoil(arrays: State, fault: str, places: tuple[str, ...]) -> None:
    """The faults that stand in the code do nothing here."""
    kernel = f"{places[0]}/kernel"
    if fault in ("q and k norm exchanged", "norms of a block exchanged"):
        one, two = (f"{place}/scale" for place in places)
        arrays[one], arrays[two] = arrays[two], arrays[one]
    elif fault == "gate and up exchanged":
        one, two = (f"{place}/kernel" for place in places)
        arrays[one], arrays[two] = arrays[two], arrays[one]
    elif fault == "blocks exchanged":
        for name in BLOCK:
            key = "scale" if "norm" in name else "kernel"
            one, two = (f"blocks/{number}/{name}/{key}" for number in (1, 2))
            arrays[one], arrays[two] = arrays[two], arrays[one]
    elif fault == "column of wkv":
        arrays[kernel] = arrays[kernel].copy()
        arrays[kernel][:, 5] = arrays[kernel][:, 4]
    elif fault == "row of down":
        arrays[kernel] = arrays[kernel].copy()
        arrays[kernel][9] = arrays[kernel][8]
    elif fault in ("wq transposed", "wo transposed"):
        arrays[kernel] = arrays[kernel].T
    elif fault == "wo with a bias":
        arrays[f"{places[0]}/bias"] = np.random.default_rng(5).normal(0, 0.1, WIDTH).astype(np.float32)
    elif fault == "keys and values exchanged":
        arrays[kernel] = np.roll(arrays[kernel], GROUPS * SIZE, axis=1)
    elif fault == "words in another order":
        arrays["words/embedding"] = np.roll(arrays["words/embedding"], 1, axis=0)
