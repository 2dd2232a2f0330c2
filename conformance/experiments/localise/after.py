"""Of a subject that weighs rightly: are its values wrong, its heads, or its output?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from conformance.experiments.designs import changed
from conformance.experiments.localise.bench import ROUNDOFFS, Bench, distance
from conformance.experiments.readings.values import read_merged
from conformance.experiments.readings.weights import read_weights
from mha_core.heads import merge_heads, repeat_kv_heads


def is_shuffled(bench: Bench, merged: NDArray) -> bool:
    """Whether the merged channels are the right ones in an order that is none of the heads or their channels."""
    config = bench.problem.config
    heads = bench.arrays(bench.problem)["heads"]
    right = heads.swapaxes(1, 2).reshape(-1, merged.shape[-1])
    own = merged.reshape(-1, merged.shape[-1])
    distance = np.abs(own[:, :, None] - right[:, None, :]).max(axis=0)
    source = distance.argmin(axis=1)
    if distance.min(axis=1).max() > ROUNDOFFS * bench.lab.unit * np.abs(right).max():
        return False
    head, channel = np.divmod(source, config.value_head_dim)
    same_head = head == np.arange(len(source)) // config.value_head_dim
    same_channel = channel == np.arange(len(source)) % config.value_head_dim
    return not same_head.all() and not same_channel.all()


def is_read(bench: Bench, weights: NDArray, merged: NDArray) -> bool:
    """Whether weights that are wrong give the merged heads, so that they are wrong indeed."""
    right = read_weights(bench.made, bench.problem)
    if right is None or bench.near(weights, right):
        return False
    made = bench.put(bench.problem, {"kept_weights": weights})["heads"]
    return bench.near(merge_heads(made), merged, distance(merge_heads(bench.arrays(bench.problem)["heads"]), merged))


def is_of_values(bench: Bench) -> bool:
    """Whether the values, read where each query sees one key alone, explain the merged heads."""
    problem, config, sizes = bench.problem, bench.problem.config, bench.problem.sizes
    arrays = bench.arrays(problem)
    values = np.array(repeat_kv_heads(arrays["values"], config.num_heads))  # (B, H, Lk, dv)
    right = values.copy()
    for first in range(0, sizes.key_len, sizes.query_len):
        key = (first + np.arange(sizes.query_len)) % sizes.key_len
        lone = np.arange(sizes.key_len) == key[:, None]  # (Lq, Lk)
        mask = problem.inputs.mask
        allowed = lone if mask.allowed is None else mask.allowed & lone
        one = changed(problem, mask=replace(mask, allowed=allowed), dropout_keep=None)
        merged = read_merged(bench.got, one)
        if merged is None:
            return True  # what is wrong shows in one head of each as in all
        seen = bench.arrays(one)["weights"].sum(axis=-1) > 0.5  # (B, H, Lq)
        read = merged.reshape(*merged.shape[:2], config.num_heads, -1).swapaxes(1, 2)  # (B, H, Lq, dv)
        for query in range(sizes.query_len):
            values[:, :, key[query]] = np.where(seen[:, :, query, None], read[:, :, query], values[:, :, key[query]])
    if bench.near(values, right):
        return False
    group = values.reshape(len(values), config.num_kv_heads, -1, *values.shape[2:])
    if not bench.near(np.broadcast_to(group[:, :, :1], group.shape), group, distance(values, right)):
        return False
    factor: NDArray | float = 1.0
    if problem.inputs.dropout_keep is not None:
        factor = problem.inputs.dropout_keep / (1.0 - config.dropout)
    return bench.gives({"heads": (arrays["weights"] * factor) @ values})
